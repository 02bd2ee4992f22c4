package api_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	v1 "github.com/cyborg-project/cyborg/api/v1"
	"github.com/cyborg-project/cyborg/db"
)

// Only an admin invites a host, which need not be known. Each time there is another
// token, and nobody sees one again.
func TestEnrollHost(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens, func(c *api.Config) {
		c.V1.Invitation = v1.Invitation{Pin: func() (string, error) { return "sha256:abc", nil }, Server: "https://cyborg.example.org:6667"}
	})
	ada := h.as(adminToken)
	h.as(memberToken).do("POST", "/v1/hosts/h1/enroll", nil).problem(cyborg.ErrForbidden)
	h.as(readerToken).do("POST", "/v1/hosts/h1/enroll", nil).problem(cyborg.ErrForbidden)
	ada.do("POST", "/v1/hosts/-h/enroll", nil).problem(cyborg.ErrInvalid)
	ada.do("POST", "/v1/hosts/h1/enroll", map[string]any{"token": "mine"}).problem(cyborg.ErrInvalid)

	type invitation struct {
		Host, Token, Pin, Server string
		ExpiresAt                time.Time `json:"expires_at"`
	}
	first := as[invitation](ada.do("POST", "/v1/hosts/h1/enroll", nil).expect(http.StatusOK))
	require.Equal(t, "h1", first.Host)
	require.Equal(t, "sha256:abc", first.Pin)
	require.Equal(t, "https://cyborg.example.org:6667", first.Server)
	require.GreaterOrEqual(t, len(first.Token), 26, "130 bits")
	now, err := h.store.Now(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, now.Add(15*time.Minute), first.ExpiresAt, 10*time.Minute)

	second := as[invitation](ada.do("POST", "/v1/hosts/h1/enroll", nil).expect(http.StatusOK))
	require.NotEqual(t, first.Token, second.Token)
	for _, path := range []string{"/v1/hosts", "/v1/hosts/h1/history"} {
		require.NotContains(t, string(ada.do("GET", path, nil).body), second.Token, path)
	}
	_, err = h.store.EnrollHost(t.Context(), "h1", first.Token)
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(err), "it was replaced")
	number, err := h.store.EnrollHost(t.Context(), "h1", second.Token)
	require.NoError(t, err)
	require.Positive(t, number)
}

// Without an authority there is nothing to enroll by.
func TestEnrollHostWithoutAuthority(t *testing.T) {
	t.Parallel()
	setup(t).do("POST", "/v1/hosts/h1/enroll", nil).problem(cyborg.ErrNotFound)
}

// Only an admin revokes, and only hosts that there are. The history has the
// reason.
func TestRevokeHost(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	ada := h.as(adminToken)
	h.host("h1", 1)
	h.as(memberToken).do("POST", "/v1/hosts/h1/revoke", nil).problem(cyborg.ErrForbidden)
	ada.do("POST", "/v1/hosts/h9/revoke", nil).problem(cyborg.ErrNotFound)
	ada.do("POST", "/v1/hosts/h1/revoke", map[string]any{"reason": 7}).problem(cyborg.ErrInvalid)

	revoked := func() map[string]int64 {
		all, err := h.store.RevokedHosts(t.Context())
		require.NoError(t, err)
		return all
	}
	require.Empty(t, revoked())
	ada.do("POST", "/v1/hosts/h1/revoke", map[string]any{"reason": "stolen"}).expect(http.StatusNoContent)
	require.Contains(t, revoked(), "h1")
	since := func() (when string) {
		t.Helper()
		var host map[string]any
		require.NoError(t, json.Unmarshal(ada.do("GET", "/v1/hosts/h1", nil).expect(http.StatusOK).body, &host))
		var list struct{ Host []map[string]any }
		require.NoError(t, json.Unmarshal(ada.do("GET", "/v1/hosts", nil).expect(http.StatusOK).body, &list))
		require.Equal(t, host["revoked"], list.Host[0]["revoked"])
		when, _ = host["revoked"].(string)
		return when
	}
	when, err := time.Parse(time.RFC3339, since())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), when, time.Hour)
	require.Eventually(t, func() bool { // older transactions of others may hold the feed back for a moment
		return strings.Contains(string(ada.do("GET", "/v1/hosts/h1/history", nil).expect(http.StatusOK).body), "stolen")
	}, waitLimit, poll)
	require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(h.store.CheckHostIdentity(t.Context(), "h1", 0)))

	// An invitation that is open ends, and one that comes later is good.
	invite := func(token string) {
		_, err := h.store.InviteHost(t.Context(), "h1", token, time.Hour, cyborg.Actor{Name: "ada"})
		require.NoError(t, err)
	}
	invite("first")
	ada.do("POST", "/v1/hosts/h1/revoke", nil).expect(http.StatusNoContent)
	_, err = h.store.EnrollHost(t.Context(), "h1", "first")
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(err))
	invite("second")
	require.NotEmpty(t, since(), "an invitation lets nobody in yet")
	number, err := h.store.EnrollHost(t.Context(), "h1", "second")
	require.NoError(t, err)
	require.NoError(t, h.store.CheckHostIdentity(t.Context(), "h1", number))
	require.Less(t, revoked()["h1"], number)
	require.Empty(t, since())

	ada.do("POST", "/v1/hosts/h1/revoke", nil).expect(http.StatusNoContent)
	require.GreaterOrEqual(t, revoked()["h1"], number)
	require.Error(t, h.store.CheckHostIdentity(t.Context(), "h1", number))
}

// TestInvitationIsGoodFor15Minutes: a token is taken 14 minutes and 59 seconds
// after it was made, and not after 15 minutes, by the database's clock: the clock
// of whoever asks stands still, and this one is set.
func TestInvitationIsGoodFor15Minutes(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens, func(config *api.Config) {
		config.V1.Invitation.Pin = func() (string, error) { return "sha256:00", nil }
	})

	pool, err := pgxpool.New(t.Context(), h.url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	now := func() (at time.Time) {
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&at))
		return at
	}

	invited := func(host string) (token string, made, ends time.Time) {
		before := now()
		answer := as[struct {
			Token     string    `json:"token"`
			ExpiresAt time.Time `json:"expires_at"`
		}](h.as(adminToken).do("POST", "/v1/hosts/"+host+"/enroll", nil).expect(http.StatusOK))

		made = answer.ExpiresAt.Add(-15 * time.Minute)
		require.False(t, made.Before(before.Truncate(time.Microsecond)), "it ends too early")
		require.False(t, made.After(now()), "it ends too late")
		return answer.Token, made, answer.ExpiresAt
	}

	// A function of this name hides the clock from the sessions that look here first.
	_, err = pool.Exec(t.Context(), `
		CREATE TABLE database_clock (at timestamptz NOT NULL);
		INSERT INTO database_clock VALUES (now());
		CREATE FUNCTION clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql AS 'SELECT at FROM public.database_clock'`)
	require.NoError(t, err)
	address, err := url.Parse(h.url)
	require.NoError(t, err)
	query := address.Query()
	query.Set("search_path", "public,pg_catalog")
	address.RawQuery = query.Encode()

	set, err := db.Open(t.Context(), address.String(), defaults(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(set.Close)
	enroll := func(host, token string, at time.Time) error {
		_, err := pool.Exec(t.Context(), "UPDATE database_clock SET at = $1", at)
		require.NoError(t, err)
		_, err = set.EnrollHost(t.Context(), host, token)
		return err
	}

	token, made, ends := invited("h1")
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(enroll("h1", token, made.Add(24*time.Hour))))
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(enroll("h1", token, ends)))
	require.NoError(t, enroll("h1", token, made.Add(14*time.Minute+59*time.Second)))
}
