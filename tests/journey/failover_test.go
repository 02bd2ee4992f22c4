package journey_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestFailover has a standby take the place of PostgreSQL, which also has the
// databases of Temporal. Either the standby was synchronous, and nothing is lost,
// or it had fallen behind: then the records know nothing of the last operations,
// the agent's journal and the cards do, and a reader is told what it has lost.
// Records, agent and cards agree in the end.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, lossy := range []bool{false, true} {
		name := map[bool]string{false: "nothing is lost", true: "the last commits are lost"}[lossy]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := harness.StartCluster(t, harness.ClusterOptions{Hosts: []string{"h1"}, Park: "3xfpga", Env: shortWaits()})
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
			kept, detached, attached := cards[0], cards[1], cards[2]
			for _, a := range []apiclient.Accelerator{kept, detached} {
				_, err := c.API.Attach(ctx, a.UUID, cyborg.Holder{})
				require.NoError(t, err)
			}
			sound()

			standby, err := c.StartStandby(ctx, !lossy)
			require.NoError(t, err)
			at := last()
			if lossy {
				require.NoError(t, standby.CaughtUp(ctx))
				standby.FallBehind()
			}
			_, err = c.API.Detach(ctx, detached.UUID, cyborg.Holder{})
			require.NoError(t, err)
			_, err = c.API.Attach(ctx, attached.UUID, cyborg.Holder{})
			require.NoError(t, err)
			read := last()
			require.Positive(t, read.Compare(at))

			killed, err := standby.TakeOver(ctx, func() error { return nil })
			require.NoError(t, err)
			require.True(t, killed)
			harness.Until(t, ctx, "ready", func() error { return c.Unready(ctx) })
			sound()

			holders := map[string]bool{
				kept.Name: true, detached.Name: lossy, attached.Name: !lossy,
			}
			for _, a := range cards {
				now, _, err := c.API.Accelerator(ctx, a.UUID)
				require.NoError(t, err)
				require.Equal(t, holders[a.Name], len(now.Holders) == 1, a.Name)

				card, err := c.Bench("h1").Card(ctx, identityOf(t, &c.System, a))
				require.NoError(t, err)
				require.Equal(t, holders[a.Name], card.Deployables["r0"].Handles[a.Handles[0].Identity].Attached, "%s on its host", a.Name)
			}

			// A reader goes on, or is told where to.
			harness.Until(t, ctx, "detached", func() error { // the connections to Temporal broke, too, and it may be away for a moment
				_, err := c.API.Detach(ctx, kept.UUID, cyborg.Holder{})
				if kind := cyborg.ErrorKindOf(err); kind == cyborg.ErrChanged || kind == cyborg.ErrClaimed {
					return nil // as above
				}
				return err
			})
			if lossy {
				for _, err := range c.API.Events(ctx, apiclient.EventFilter{}, read.String(), nil) {
					require.Equal(t, cyborg.ErrGone, cyborg.ErrorKindOf(err))
					read = cyborg.AsError(err).After
				}
				require.LessOrEqual(t, read.Compare(at), 0)
			}
			for event, err := range c.API.Events(ctx, apiclient.EventFilter{}, read.String(), nil) {
				require.NoError(t, err)
				if event.Axis == cyborg.AxisHolder && event.To == "" {
					require.Equal(t, kept.UUID.String(), event.Subject.ID)
					break
				}
			}
		})
	}
}
