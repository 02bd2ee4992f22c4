package nova_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/openstack"
	"github.com/cyborg-project/cyborg/internal/openstack/nova"
	"github.com/cyborg-project/cyborg/internal/openstack/nova/novatest"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
)

// model returns a client of a Nova with one instance, which runs on the host
// h1.
func model(t *testing.T) (*nova.Nova, *novatest.Nova, uuid.UUID) {
	t.Helper()
	keystone := openstacktest.NewKeystone(t)
	m := novatest.New(keystone.IsOwn)
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)

	keystone.Serve("compute", server.URL+"/v2.1")
	session, err := openstack.New(keystone.Config(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(session.Close)

	who := uuid.New()
	m.Set(novatest.Instance{ID: who, Project: "p", Status: novatest.Active, Host: "h1"})
	return nova.New(session), m, who
}

// TestInstance: an instance without a host may be on any, and one that Nova
// does not have is an error of kind ErrNotFound.
func TestInstance(t *testing.T) {
	t.Parallel()
	n, m, who := model(t)

	found, err := n.Instance(t.Context(), who)
	require.NoError(t, err)
	require.Equal(t, nova.Instance{ID: who.String(), Project: "p", Status: "ACTIVE", Node: "h1", Compute: nova.Compute{Name: "h1", Shown: true}, HostStatus: "UP"}, found)
	require.True(t, found.On("h1"))
	require.False(t, found.On("h2"))

	m.Set(novatest.Instance{ID: who, Status: "SHELVED_OFFLOADED"})
	found, err = n.Instance(t.Context(), who)
	require.NoError(t, err)
	require.True(t, found.On("h2"), "it is on no host, and so on no other than h2")

	m.Delete(who)
	_, err = n.Instance(t.Context(), who)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
}

// TestInstanceWithoutAHost: an instance counts as scheduled or as stranded only
// where Nova says that it is on no host.
func TestInstanceWithoutAHost(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ scheduled, stranded bool }{
		`"status": "BUILD", "OS-EXT-STS:task_state": "scheduling", "OS-EXT-SRV-ATTR:host": null`:             {scheduled: true},
		`"status": "SHELVED_OFFLOADED", "OS-EXT-STS:task_state": "unshelving", "OS-EXT-SRV-ATTR:host": null`: {scheduled: true},
		`"status": "SHELVED_OFFLOADED", "OS-EXT-STS:task_state": "spawning", "OS-EXT-SRV-ATTR:host": null`:   {},
		`"status": "BUILD", "OS-EXT-STS:task_state": "scheduling"`:                                           {},
		`"status": "BUILD", "OS-EXT-STS:task_state": "scheduling", "OS-EXT-SRV-ATTR:host": "h1"`:             {},
		`"status": "REBUILD", "OS-EXT-STS:task_state": "rebuilding", "OS-EXT-SRV-ATTR:host": "h1"`:           {},
		`"status": "ERROR", "OS-EXT-STS:task_state": null, "OS-EXT-SRV-ATTR:host": null`:                     {stranded: true},
		`"status": "SHELVED_OFFLOADED", "OS-EXT-STS:task_state": null, "OS-EXT-SRV-ATTR:host": null`:         {stranded: true},
		`"status": "ERROR", "OS-EXT-STS:task_state": null`:                                                   {},
		`"status": "ERROR", "OS-EXT-STS:task_state": null, "OS-EXT-SRV-ATTR:host": "h1"`:                     {},
		`"status": "ERROR", "OS-EXT-STS:task_state": "deleting", "OS-EXT-SRV-ATTR:host": null`:               {},
		`"status": "ACTIVE", "OS-EXT-STS:task_state": null, "OS-EXT-SRV-ATTR:host": null`:                    {},
		`"status": "UNKNOWN"`: {},
	} {
		n, c := setup(t)
		who := uuid.New()
		c.answer = says(http.StatusOK, `{"servers": [{"id": "`+who.String()+`", `+text+`}]}`)

		scheduled, err := n.Scheduled(t.Context(), who)
		require.NoError(t, err)
		require.Equal(t, want.scheduled, scheduled, text)

		stranded, err := n.Stranded(t.Context(), who)
		require.NoError(t, err)
		require.Equal(t, want.stranded, stranded, text)
	}
}

// TestReboot: our own reboots are told from those of others, and their end is
// noticed.
func TestReboot(t *testing.T) {
	t.Parallel()
	n, m, who := model(t)
	ctx := t.Context()

	m.Act(who, "reboot", "somebody", time.Now())
	own, err := n.OwnReboots(ctx, who)
	require.NoError(t, err)
	require.Empty(t, own)

	m.Hold()
	require.NoError(t, n.RebootHard(ctx, who))
	own, err = n.OwnReboots(ctx, who)
	require.NoError(t, err)
	require.Len(t, own, 1)

	over, failure, err := n.Rebooted(ctx, who, own[0])
	require.NoError(t, err)
	require.False(t, over)
	require.Empty(t, failure)

	m.Release("Error")
	over, failure, err = n.Rebooted(ctx, who, own[0])
	require.NoError(t, err)
	require.True(t, over)
	require.Equal(t, "Nova's compute_reboot_instance ended with Error", failure)

	require.NoError(t, n.RebootHard(ctx, who))
	own, err = n.OwnReboots(ctx, who)
	require.NoError(t, err)
	require.Len(t, own, 2)

	m.Release("Success")
	require.NoError(t, n.RebootHard(ctx, who))
	own, err = n.OwnReboots(ctx, who)
	require.NoError(t, err)
	over, failure, err = n.Rebooted(ctx, who, own[0])
	require.NoError(t, err)
	require.True(t, over)
	require.Empty(t, failure)

	for status, kind := range map[int]cyborg.ErrorKind{
		http.StatusConflict: cyborg.ErrBusy, http.StatusNotFound: cyborg.ErrNotFound, http.StatusForbidden: cyborg.ErrUnavailable,
		http.StatusInternalServerError: cyborg.ErrUnavailable,
	} {
		m.Disturb(func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(status)
			return true
		})
		require.Equal(t, kind, cyborg.ErrorKindOf(n.RebootHard(ctx, who)), status)
	}

	m.Disturb(nil)
	m.Delete(who)
	_, err = n.OwnReboots(ctx, who)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
}

// TestCreated: how long ago a guest was created or created again is told by Nova's
// own clock, whatever ours says. A reboot does not count, because it may have been a
// soft one.
func TestCreated(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"": 0, "Nova is ahead": 3 * time.Hour, "Nova is behind": -3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, m, who := model(t)
			m.SetClock(ahead)
			was := func(ago time.Duration) time.Time { return time.Now().Add(ahead - ago) }

			_, ever, err := n.Created(t.Context(), who)
			require.NoError(t, err)
			require.False(t, ever)

			for _, test := range []struct {
				action    string
				ago, want time.Duration
			}{
				{"create", 2 * time.Hour, 2 * time.Hour},
				{"rebuild", time.Hour, time.Hour},
				{"start", 20 * time.Minute, 20 * time.Minute},
				{"reboot", 10 * time.Minute, 20 * time.Minute},
				{"stop", 9 * time.Minute, 20 * time.Minute},
				{"unshelve", 5 * time.Minute, 5 * time.Minute},
			} {
				m.Act(who, test.action, "somebody", was(test.ago))
				ago, ever, err := n.Created(t.Context(), who)
				require.NoError(t, err)
				require.True(t, ever)
				require.GreaterOrEqual(t, ago, test.want)
				require.InDelta(t, test.want, ago, float64(time.Minute))
			}
		})
	}
}

// TestCreatedWithoutDate: where Nova's answers do not say what time it is, our own
// clock has to do.
func TestCreatedWithoutDate(t *testing.T) {
	t.Parallel()
	n, m, who := model(t)
	m.Disturb(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header()["Date"] = nil
		return false
	})

	m.Act(who, "start", "somebody", time.Now().Add(-2*time.Hour))
	ago, ever, err := n.Created(t.Context(), who)
	require.NoError(t, err)
	require.True(t, ever)
	require.InDelta(t, 2*time.Hour, ago, float64(time.Minute))
}

// TestActionsNotFound: where Nova does not find the actions of an instance, the
// instance may exist all the same.
func TestActionsNotFound(t *testing.T) {
	t.Parallel()
	n, m, who := model(t)

	_, _, err := n.Rebooted(t.Context(), who, "req-unknown")
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))

	m.HideActions()
	_, _, err = n.Created(t.Context(), who)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	_, err = n.OwnReboots(t.Context(), who)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))

	m.Delete(who)
	_, _, err = n.Created(t.Context(), who)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
}

// TestHardReboot: a hard reboot is recognised while it goes on, whoever asked
// for it, and a soft one is not taken for one.
func TestHardReboot(t *testing.T) {
	t.Parallel()
	n, m, who := model(t)
	hard := func() string {
		request, err := n.HardReboot(t.Context(), who)
		require.NoError(t, err)
		return request
	}

	m.Act(who, "reboot", "somebody", time.Now())
	require.Empty(t, hard())

	m.Set(novatest.Instance{ID: who, Status: "REBOOT", Task: "reboot_started", Host: "h1"})
	require.Empty(t, hard())

	m.Hold()
	request := m.RebootHard(who, "somebody")
	require.Equal(t, request, hard())
	for _, task := range []string{"reboot_pending_hard", "reboot_started_hard"} {
		m.Set(novatest.Instance{ID: who, Status: "HARD_REBOOT", Task: task, Host: "h1"})
		require.Equal(t, request, hard())
	}

	m.Release("Success")
	require.Empty(t, hard())

	m.Delete(who)
	_, err := n.HardReboot(t.Context(), who)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
}
