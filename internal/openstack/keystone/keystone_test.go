package keystone_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
	"github.com/cyborg-project/cyborg/internal/leaktest"
	"github.com/cyborg-project/cyborg/internal/openstack"
	"github.com/cyborg-project/cyborg/internal/openstack/keystone"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/internal/transcript"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// stage is a validator with a Keystone and a clock of its own.
type stage struct {
	*openstacktest.Keystone

	validator *keystone.Validator
	registry  *prometheus.Registry
	log       transcript.Text

	mu  sync.Mutex
	now time.Time
}

// setup returns a stage whose validator caches so many tokens, and waits for
// Keystone for as long as a busy machine may need.
func setup(t testing.TB, tokens int) *stage {
	t.Helper()
	return setupThatWaits(t, tokens, time.Minute)
}

// setupThatWaits is setup for a validator whose callers wait this long for a
// confirmation.
func setupThatWaits(t testing.TB, tokens int, confirm time.Duration) *stage {
	t.Helper()
	s := &stage{Keystone: openstacktest.NewKeystone(t), registry: prometheus.NewRegistry(), now: time.Now()}
	log := slog.New(slog.NewTextHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	session, err := openstack.New(s.Config(), log)
	require.NoError(t, err)
	t.Cleanup(session.Close)

	s.validator, err = keystone.New(session, keystone.Options{
		Revocation: time.Minute, Tokens: tokens, Registry: s.registry, Log: log, Confirm: confirm,
		Now: func() time.Time {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.now
		},
	})
	require.NoError(t, err)
	return s
}

// pass lets time pass for the validator.
func (s *stage) pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// good requires that a token is valid, and returns what it says.
func (s *stage) good(t testing.TB, token string) keystone.Token {
	t.Helper()
	known, err := s.validator.Validate(t.Context(), "192.0.2.1", token, false)
	require.NoError(t, err)
	return known
}

// refused requires that a token is refused with an error of the kind.
func (s *stage) refused(t testing.TB, token string, kind cyborg.ErrorKind) {
	t.Helper()
	known, err := s.validator.Validate(t.Context(), "192.0.2.1", token, false)
	require.Zero(t, known)
	require.Equal(t, kind, cyborg.ErrorKindOf(err), "%v", err)
	require.NotEmpty(t, cyborg.AsError(err).Hint)
}

// count returns how many tokens were answered in this way, as the metrics have
// it.
func (s *stage) count(t testing.TB, answer string) float64 {
	t.Helper()
	families, err := s.registry.Gather()
	require.NoError(t, err)

	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "cyborg_keystone_tokens_total" && metric.GetLabel()[0].GetValue() == answer {
				return metric.GetCounter().GetValue()
			}
		}
	}

	return 0
}

// TestTokenClaims: what Keystone says of a token is all there, and names are
// safe to show.
func TestTokenClaims(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)
	expires := time.Now().Add(time.Hour).Truncate(time.Microsecond).UTC()

	for _, test := range []struct {
		issued openstacktest.Token
		said   keystone.Token
	}{
		{
			openstacktest.Token{UserID: "u1", User: "alice", ProjectID: "p1", OtherProject: true, Expires: expires},
			keystone.Token{UserID: "u1", User: "alice", ProjectID: "p1", ProjectDomainID: "default", UserDomainID: "default", Expires: expires},
		},
		{
			openstacktest.Token{UserID: "u1", User: "alice", ProjectID: "p1", Roles: []string{"member", "reader"}, Expires: expires},
			keystone.Token{UserID: "u1", User: "alice", ProjectID: "p1", ProjectDomainID: "default", Roles: []string{"member", "reader"}, UserDomainID: "default", AdminProject: true, Expires: expires},
		},
		{
			openstacktest.Token{UserID: "u1", User: "alice", UserDomain: "Acme", DomainID: "d1", Roles: []string{"admin"}, Expires: expires},
			keystone.Token{UserID: "u1", User: "alice@Acme", DomainID: "d1", Roles: []string{"admin"}, UserDomainID: "id-of-Acme", AdminProject: true, Expires: expires},
		},
		{
			openstacktest.Token{UserID: "u1", User: "root", System: true, Roles: []string{"admin"}, Expires: expires},
			keystone.Token{UserID: "u1", User: "root", System: true, Roles: []string{"admin"}, UserDomainID: "default", AdminProject: true, Expires: expires},
		},
		{
			openstacktest.Token{UserID: "u1", User: "alice", Expires: expires},
			keystone.Token{UserID: "u1", User: "alice", UserDomainID: "default", AdminProject: true, Expires: expires},
		},
		{
			openstacktest.Token{UserID: "u1", User: "al\x00ice\n" + strings.Repeat("x", 300), Expires: expires},
			keystone.Token{UserID: "u1", User: "al ice " + strings.Repeat("x", 247) + "…", UserDomainID: "default", AdminProject: true, Expires: expires},
		},
	} {
		require.Equal(t, test.said, s.good(t, s.Issue(test.issued)))
	}
}

func TestAnswersAreCachedForTheRevocationWindow(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)
	token := s.Issue(openstacktest.Token{UserID: "u1", User: "alice", ProjectID: "p1"})

	for range 10 {
		s.good(t, token)
	}

	require.Equal(t, 1, s.Asked(token))
	require.InDelta(t, 9, s.count(t, "remembered"), 0)

	s.pass(59 * time.Second)
	s.Revoke(token)
	s.good(t, token)

	s.pass(2 * time.Second)
	s.refused(t, token, cyborg.ErrUnauthenticated)
	require.Equal(t, 2, s.Asked(token))
}

func TestExpiredTokenLeavesTheCache(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)
	token := s.Issue(openstacktest.Token{UserID: "u1", Expires: s.now.Add(30 * time.Second)})
	s.good(t, token)

	s.pass(31 * time.Second) // within the revocation window
	s.Revoke(token)
	s.refused(t, token, cyborg.ErrUnauthenticated)
}

func TestRefusalsAreCachedBriefly(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)

	for range 10 {
		s.refused(t, "made-up", cyborg.ErrUnauthenticated)
	}
	require.Equal(t, 1, s.Asked("made-up"))

	s.pass(11 * time.Second)
	s.refused(t, "made-up", cyborg.ErrUnauthenticated)
	require.Equal(t, 2, s.Asked("made-up"))
}

// TestExpiredTokensNeedAServiceToken: an expired token is accepted only from
// services that act for its user.
func TestExpiredTokensNeedAServiceToken(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)
	token := s.Issue(openstacktest.Token{UserID: "u1", User: "alice", Expires: s.now.Add(-time.Minute)})

	s.refused(t, token, cyborg.ErrUnauthenticated)

	for range 5 {
		known, err := s.validator.Validate(t.Context(), "192.0.2.1", token, true)
		require.NoError(t, err)
		require.Equal(t, "alice", known.User)
	}

	require.Equal(t, 2, s.Asked(token), "once for each way to ask")
	s.refused(t, token, cyborg.ErrUnauthenticated)

	s.Away()
	s.pass(14 * time.Minute)
	_, err := s.validator.Validate(t.Context(), "192.0.2.1", token, true)
	require.NoError(t, err)

	s.pass(2 * time.Minute)
	_, err = s.validator.Validate(t.Context(), "192.0.2.1", token, true)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
}

// TestRevokedTokenIsDropped: a token that Keystone does not know even as an
// expired one is rejected everywhere, also while Keystone is away afterwards.
func TestRevokedTokenIsDropped(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)
	token := s.Issue(openstacktest.Token{UserID: "u1", User: "alice"})
	s.good(t, token)

	s.pass(2 * time.Minute)
	s.Revoke(token)

	_, err := s.validator.Validate(t.Context(), "192.0.2.1", token, true)
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(err))

	s.Away()
	s.refused(t, token, cyborg.ErrUnauthenticated)

	s.pass(time.Minute)
	s.refused(t, token, cyborg.ErrUnavailable)
}

// TestConcurrentValidationsAskKeystoneOnce: all who ask about the same token at
// the same time share one answer, also when the first of them leaves.
func TestConcurrentValidationsAskKeystoneOnce(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)
	token := s.Issue(openstacktest.Token{UserID: "u1", User: "alice"})

	inside, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once

	s.Disturb(func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(inside) })
		<-goOn
		s.ServeUndisturbed(w, r)
	})

	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := s.validator.Validate(ctx, "192.0.2.1", token, false)
		first <- err
	}()

	<-inside

	var work sync.WaitGroup
	for range 50 {
		work.Go(func() {
			if _, err := s.validator.Validate(t.Context(), "192.0.2.1", token, false); err != nil {
				t.Error(err)
			}
		})
	}

	cancel()
	require.ErrorIs(t, <-first, context.Canceled, "who asked first may leave; the others get their answer")
	close(goOn)
	work.Wait()

	require.Equal(t, 1, s.Asked(token))
	require.Equal(t, 1, s.Logins())
}

// TestKeystoneIsAskedOnceByWhoComesAsItAnswers: who found nothing in the cache
// just before an answer came is given that answer, and does not ask again.
func TestKeystoneIsAskedOnceByWhoComesAsItAnswers(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)

	for range 300 { // the moment is short: many tries, each with a token of its own
		token := s.Issue(openstacktest.Token{UserID: "u1", User: "alice"})

		var work sync.WaitGroup
		for range 20 {
			work.Go(func() {
				if _, err := s.validator.Validate(t.Context(), "192.0.2.1", token, false); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()

		require.Equal(t, 1, s.Asked(token))
	}
}

// TestKeystoneAway: while Keystone gives no usable answer, tokens that it has
// validated before stay valid for a while, and others cannot be validated. The
// log contains no token.
func TestKeystoneAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]http.HandlerFunc{
		"no connection": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"500":           func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"503":           func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"429":           func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"403":           func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"no JSON":       func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"nobody": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"token":{"expires_at":"2099-01-01T00:00:00.000000Z"}}`)
		},
		"no end": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"token":{"user":{"id":"u"}}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, 100)
			token := s.Issue(openstacktest.Token{UserID: "u1", User: "alice"})
			other := s.Issue(openstacktest.Token{UserID: "u2"})
			s.good(t, token)

			var requests atomic.Int64
			s.Disturb(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				away(w, r)
			})

			s.refused(t, other, cyborg.ErrUnavailable)
			require.Equal(t, "alice", s.good(t, token).User)

			s.pass(2 * time.Minute)
			before := requests.Load()

			for range 20 {
				require.Equal(t, "alice", s.good(t, token).User, "what Keystone said before its absence goes on")
				s.refused(t, other, cyborg.ErrUnavailable)
			}

			require.LessOrEqual(t, requests.Load(), before+2, "Keystone is left alone for a while")
			require.Contains(t, s.log.String(), "Keystone does not answer about any token")

			s.pass(time.Hour)
			s.refused(t, token, cyborg.ErrUnavailable)

			s.Disturb(nil)
			s.pass(3 * time.Second)
			s.refused(t, s.Issue(openstacktest.Token{UserID: "u1", Expires: time.Now().Add(-time.Hour)}), cyborg.ErrUnauthenticated)

			require.NotContains(t, s.log.String(), token)
			require.NotContains(t, s.log.String(), other)
		})
	}
}

// TestKeystoneSilent: a Keystone that does not answer delays a caller with a
// known token only for a moment. Then its earlier answer is used.
func TestKeystoneSilent(t *testing.T) {
	t.Parallel()
	s := setupThatWaits(t, 100, 100*time.Millisecond)
	token := s.Issue(openstacktest.Token{UserID: "u1", User: "alice"})
	s.good(t, token)
	s.pass(2 * time.Minute)

	goOn := make(chan struct{})
	s.Disturb(func(w http.ResponseWriter, r *http.Request) {
		<-goOn
		s.ServeUndisturbed(w, r)
	})

	require.Equal(t, "alice", s.good(t, token).User)
	require.InDelta(t, 1, s.count(t, "stale"), 0)

	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := s.validator.Validate(ctx, "192.0.2.1", s.Issue(openstacktest.Token{UserID: "u2"}), false)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	close(goOn)
	require.Eventually(t, func() bool { return s.Asked(token) == 2 }, 5*time.Minute, time.Millisecond)
}

// TestTokenThatBreaksKeystoneAffectsNoOther: anybody can send a token that
// breaks Keystone, or the web server before it. For all others that must not
// count as an absence of Keystone.
func TestTokenThatBreaksKeystoneAffectsNoOther(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)

	s.Disturb(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("X-Subject-Token"), "made-up") {
			panic(http.ErrAbortHandler) // as uWSGI where a header is longer than its buffer
		}
		s.ServeUndisturbed(w, r)
	})

	for i := range 5 {
		s.refused(t, fmt.Sprintf("made-up-%d", i), cyborg.ErrUnavailable)
		s.good(t, s.Issue(openstacktest.Token{UserID: "u1"}))
	}

	require.Contains(t, s.log.String(), "answers about others")
}

// TestFloodOfInvalidTokensDelaysNobodyElse: a flood of made-up tokens delays
// nobody who has a good token, whether that is cached or not.
func TestFloodOfInvalidTokensDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)
	known := s.Issue(openstacktest.Token{UserID: "u1"})
	s.good(t, known)

	goOn := make(chan struct{})
	s.Disturb(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("X-Subject-Token"), "made-up") {
			<-goOn
		}
		s.ServeUndisturbed(w, r)
	})

	const flood = 400
	answers := make(chan error, flood)
	for i := range flood {
		go func() {
			_, err := s.validator.Validate(t.Context(), "198.51.100.7", fmt.Sprintf("made-up-%d", i), false)
			answers <- err
		}()
	}

	for range flood - 256 { // no more than 256 may wait
		require.ErrorContains(t, <-answers, "too many tokens", "and not that Keystone is away")
	}

	s.pass(2 * time.Minute)
	s.good(t, known)
	require.Equal(t, 2, s.Asked(known), "Keystone was asked again")
	s.good(t, s.Issue(openstacktest.Token{UserID: "u2"}))

	close(goOn)
	for range 256 {
		require.Contains(t, []cyborg.ErrorKind{cyborg.ErrUnauthenticated, cyborg.ErrUnavailable}, cyborg.ErrorKindOf(<-answers))
	}
}

// TestOwnTokenIsRenewed: our own token is replaced when Keystone no longer
// takes it, and callers notice nothing.
func TestOwnTokenIsRenewed(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)
	s.good(t, s.Issue(openstacktest.Token{UserID: "u1"}))
	s.RevokeOwn()
	s.good(t, s.Issue(openstacktest.Token{UserID: "u2"}))
	require.Equal(t, 2, s.Logins())
}

// TestCacheIsBounded: made-up tokens push no good one out of the cache, and the
// cache is bounded.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)
	token := s.Issue(openstacktest.Token{UserID: "u1"})
	s.good(t, token)

	for i := range 300 {
		s.refused(t, fmt.Sprintf("made-up-%d", i), cyborg.ErrUnauthenticated)
	}

	s.good(t, token)
	require.Equal(t, 1, s.Asked(token))

	for i := range 100 {
		s.good(t, s.Issue(openstacktest.Token{UserID: fmt.Sprintf("u%d", i)}))
	}
	s.good(t, token)
	require.Equal(t, 2, s.Asked(token), "the least recently used is forgotten")
}

func TestMetricsAreRegisteredOnce(t *testing.T) {
	t.Parallel()
	s := setup(t, 100)
	session, err := openstack.New(s.Config(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	_, err = keystone.New(session, keystone.Options{Tokens: 1, Registry: s.registry})
	require.Error(t, err)
}

// FuzzToken validates any text as a token. All but the good one are refused,
// and neither the error nor the log contains what was sent.
func FuzzToken(f *testing.F) {
	s := setup(f, 100)
	good := s.Issue(openstacktest.Token{UserID: "u1"})
	for _, text := range append(fuzztest.Texts(), good, good[1:], good+" ", strings.Repeat("x", 20<<10)) {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, token string) {
		known, err := s.validator.Validate(t.Context(), "192.0.2.1", token, false)
		if token == good {
			require.NoError(t, err)
			return
		}

		require.Zero(t, known)
		fuzztest.RequireRefusal(t, err, cyborg.ErrUnauthenticated)
		if len(token) > 8 {
			require.NotContains(t, err.Error()+s.log.String(), token)
		}
	})
}
