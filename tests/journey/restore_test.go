package journey_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestRestoreOfABackup backs up and restores the records as docs/operations.md
// says, and works in between: the restored records know nothing of that, and
// Temporal, the agent's journal and the cards do. Records, journal and cards
// agree again as the records say, and a reader is told what it has lost.
func TestRestoreOfABackup(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, harness.ClusterOptions{Hosts: []string{"h1"}, Park: "4xfpga", Env: shortWaits()})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()

	sound := func() { t.Helper(); harness.Until(t, ctx, "sound", func() error { return c.Unsound(ctx) }) }
	last := func() cyborg.Cursor {
		t.Helper()
		store := c.Store(t)
		defer store.Close()
		cursor, err := store.LastCursor(ctx)
		require.NoError(t, err)
		return cursor
	}

	cards := c.Accelerators(t)
	for _, a := range cards {
		harness.Until(t, ctx, "made ready", func() error { // Temporal may not have its namespace yet
			_, err := c.API.MakeReady(ctx, a.UUID)
			if kind := cyborg.ErrorKindOf(err); kind == cyborg.ErrChanged || kind == cyborg.ErrClaimed {
				return nil // an earlier try is recorded
			}
			return err
		})
	}
	sound()

	detached, attached, used, attaching := cards[0], cards[1], cards[2], cards[3]
	_, err := c.API.Attach(ctx, detached.UUID, cyborg.Holder{})
	require.NoError(t, err)
	sound()
	at, dir := last(), t.TempDir()
	fromRunbook(t, &c.System, dir, "pg_dump")

	_, err = c.API.Detach(ctx, detached.UUID, cyborg.Holder{})
	require.NoError(t, err)
	for _, a := range []apiclient.Accelerator{attached, used} {
		_, err = c.API.Attach(ctx, a.UUID, cyborg.Holder{})
		require.NoError(t, err)
	}
	usedCard, slowCard := identityOf(t, &c.System, used), identityOf(t, &c.System, attaching)
	use := func(who string) {
		t.Helper()
		require.NoError(t, c.Bench("h1").Use(ctx, usedCard, used.Handles[0].Identity, who))
	}
	sound()
	use("qemu")

	// The last operation stays under way until the records are restored.
	latency := func(latency fake.Duration) {
		t.Helper()
		require.NoError(t, c.Bench("h1").Edit(ctx, slowCard, func(card *fake.Card) {
			card.Latency = map[fake.Step]fake.Duration{fake.StepAttach: latency}
		}))
	}
	latency(slow)
	unknown, err := c.API.Attach(ctx, attaching.UUID, cyborg.Holder{}, apiclient.Async())
	require.NoError(t, err)
	lost := last()
	require.Positive(t, lost.Compare(at))

	servers := []string{"conductor1", "conductor2", "api1", "api2"}
	for _, name := range servers {
		_, err := c.Node(name).Stop()
		require.NoError(t, err)
	}
	fromRunbook(t, &c.System, dir, `psql "$CYBORG_DATABASE_URL" --quiet`, "pg_restore", "cyborg migrate", "cyborg server doctor after-restore")
	latency(0)
	for _, name := range servers {
		c.Node(name).Up()
	}
	harness.Until(t, ctx, "ready", func() error { return c.Unready(ctx) })

	// A reader that has read what is lost is told so.
	for _, err := range c.API.Events(ctx, apiclient.EventFilter{}, lost.String(), nil) {
		require.Equal(t, cyborg.ErrGone, cyborg.ErrorKindOf(err))
		require.Equal(t, at, cyborg.AsError(err).After)
	}
	_, err = c.API.Operation(ctx, unknown.Operation.ID)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))

	// What is in use is not taken away, and the conductors say so in each round: a
	// second one begins after the agent has refused in the first.
	harness.Until(t, ctx, "said", func() error {
		said := c.Node("conductor1").Said(1<<20) + c.Node("conductor2").Said(1<<20)
		if strings.Count(said, "disagreements=1") < 2 {
			return errors.New("no conductor says that one difference is left")
		}
		return nil
	})
	card, err := c.Bench("h1").Card(ctx, usedCard)
	require.NoError(t, err)
	require.True(t, card.Deployables["r0"].Handles[used.Handles[0].Identity].Attached)

	use("")
	sound()
	for _, a := range []apiclient.Accelerator{attached, used, attaching} {
		now, _, err := c.API.Accelerator(ctx, a.UUID)
		require.NoError(t, err)
		require.Empty(t, now.Holders, "the records do not know of it")
	}
	now, _, err := c.API.Accelerator(ctx, detached.UUID)
	require.NoError(t, err)
	require.Len(t, now.Holders, 1)

	// A reader who goes on as told misses nothing of what follows.
	_, err = c.API.Detach(ctx, detached.UUID, cyborg.Holder{})
	require.NoError(t, err)
	for event, err := range c.API.Events(ctx, apiclient.EventFilter{}, at.String(), nil) {
		require.NoError(t, err)
		require.Positive(t, event.Cursor.Compare(at))
		if event.Axis == cyborg.AxisHolder && event.To == "" {
			require.Equal(t, detached.UUID.String(), event.Subject.ID)
			break
		}
	}
}

// TestRestoreToAPointInTime has PostgreSQL archive its WAL, backs it up and
// restores all its databases to a moment, as docs/operations.md says. What was done
// after that moment is lost, to Temporal as well; agents and cards are told by
// Reconcile, and a reader where to go on.
func TestRestoreToAPointInTime(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, harness.ClusterOptions{Hosts: []string{"h1"}, Park: "2xfpga", Env: shortWaits()})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	sound := func() { t.Helper(); harness.Until(t, ctx, "sound", func() error { return c.Unsound(ctx) }) }
	ready := func() { t.Helper(); harness.Until(t, ctx, "ready", func() error { return c.Unready(ctx) }) }
	last := func() (cursor cyborg.Cursor, now time.Time) {
		t.Helper()
		store := c.Store(t)
		defer store.Close()
		cursor, err := store.LastCursor(ctx)
		require.NoError(t, err)
		now, err = store.Now(ctx)
		require.NoError(t, err)
		return cursor, now
	}

	archive, err := c.PostgresDir("archive")
	require.NoError(t, err)
	runbook, err := harness.ReadRunbook(t)
	require.NoError(t, err)
	dir, base := t.TempDir(), filepath.Join(archive, "base")
	runbook = runbook.With("WAL_ARCHIVE="+archive, "BASE_BACKUP="+base, "PGDATA="+c.PostgresData())
	require.NoError(t, runbook.Follow(ctx, &c.System, dir, `psql "$CYBORG_DATABASE_URL" --command="ALTER SYSTEM`))
	_, err = c.Node("postgres").Stop()
	require.NoError(t, err)
	c.Node("postgres").Up()
	ready()
	require.NoError(t, runbook.Follow(ctx, &c.System, dir, "pg_basebackup"))

	cards := c.Accelerators(t)
	detached, attached := cards[0], cards[1]
	for _, a := range cards {
		harness.Until(t, ctx, "made ready", func() error {
			_, err := c.API.MakeReady(ctx, a.UUID)
			if kind := cyborg.ErrorKindOf(err); kind == cyborg.ErrChanged || kind == cyborg.ErrClaimed {
				return nil // an earlier try is recorded
			}
			return err
		})
	}
	sound()
	_, err = c.API.Attach(ctx, detached.UUID, cyborg.Holder{})
	require.NoError(t, err)
	sound()
	at, moment := last()

	_, err = c.API.Detach(ctx, detached.UUID, cyborg.Holder{})
	require.NoError(t, err)
	_, err = c.API.Attach(ctx, attached.UUID, cyborg.Holder{})
	require.NoError(t, err)
	sound()
	lost, _ := last()

	down := []string{"api1", "api2", "conductor1", "conductor2", "temporal"}
	for _, name := range down {
		_, err := c.Node(name).Stop()
		require.NoError(t, err)
	}
	runbook = runbook.With("RECOVER_TO=" + moment.UTC().Format("2006-01-02 15:04:05.999999-07:00"))
	require.NoError(t, c.Recover(ctx, func(string) error {
		return runbook.Follow(ctx, &c.System, dir, `mv "$PGDATA"`, `printf "%s = '%s'\n"`)
	}))
	for _, name := range slices.Backward(down) {
		c.Node(name).Up()
	}
	ready()

	sound() // the cards, too
	now, _, err := c.API.Accelerator(ctx, detached.UUID)
	require.NoError(t, err)
	require.Len(t, now.Holders, 1)
	now, _, err = c.API.Accelerator(ctx, attached.UUID)
	require.NoError(t, err)
	require.Empty(t, now.Holders)

	for _, err := range c.API.Events(ctx, apiclient.EventFilter{}, lost.String(), nil) {
		require.Equal(t, cyborg.ErrGone, cyborg.ErrorKindOf(err))
		after := cyborg.AsError(err).After
		require.GreaterOrEqual(t, after.Compare(at), 0)
		at = after
	}
	_, err = c.API.Detach(ctx, detached.UUID, cyborg.Holder{})
	require.NoError(t, err)
	for event, err := range c.API.Events(ctx, apiclient.EventFilter{}, at.String(), nil) {
		require.NoError(t, err)
		if event.Axis == cyborg.AxisHolder && event.To == "" {
			require.Equal(t, detached.UUID.String(), event.Subject.ID)
			break
		}
	}
}

// identityOf returns the name by which the driver knows the card of an
// accelerator.
func identityOf(t *testing.T, s *harness.System, a apiclient.Accelerator) string {
	t.Helper()
	device, err := s.API.Device(t.Context(), a.DeviceUUID)
	require.NoError(t, err)
	return device.Identity
}

// fromRunbook runs the commands of docs/operations.md that begin so, in a
// directory, on the database of the system.
func fromRunbook(t *testing.T, s *harness.System, dir string, beginnings ...string) {
	t.Helper()
	runbook, err := harness.ReadRunbook(t)
	require.NoError(t, err)
	require.NoError(t, runbook.Follow(t.Context(), s, dir, beginnings...))
}
