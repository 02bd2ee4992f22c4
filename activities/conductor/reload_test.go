package conductor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/openstack/nova/novatest"
	"github.com/cyborg-project/cyborg/workflows"
)

// loseImages has all accelerators lose an image that they had in an earlier
// boot of the host.
func (c *compute) loseImages() {
	c.t.Helper()
	c.exec(`UPDATE deployables SET image = '{"source": "aes.img"}', image_bitstream = 'aes', image_boot = 'earlier'`)
}

// reloads returns the operations that load lost images again, the newest first.
func (c *compute) reloads() []cyborg.Operation {
	c.t.Helper()
	ops, err := c.Operations(c.t.Context(), db.OperationFilter{Kinds: []cyborg.OperationKind{cyborg.OperationProgram}}, db.Page{Limit: 10})
	require.NoError(c.t, err)
	for _, op := range ops {
		require.Equal(c.t, true, op.Input["reload"])
		require.Equal(c.t, "cyborg", op.Actor.Name)
	}
	return ops
}

// ends begins an operation and ends it with this failure, or with success and
// the image loaded.
func (c *compute) ends(op cyborg.Operation, failure *cyborg.Error) {
	c.t.Helper()
	run := db.Run{Operation: op.ID, ID: "run"}
	_, err := c.Begin(c.t.Context(), run)
	require.NoError(c.t, err)

	outcome := cyborg.Outcome{Operation: op.ID, State: cyborg.OperationSucceeded}
	if failure != nil {
		outcome.State, outcome.Error = cyborg.OperationFailed, failure
	} else {
		c.exec("UPDATE deployables SET bitstream_id = 'aes'")
	}
	require.NoError(c.t, c.End(c.t.Context(), run, outcome))
}

// rescues begins a rescue of the host's instances.
func (c *compute) rescues() uuid.UUID {
	c.t.Helper()
	admitted, err := c.Admit(c.t.Context(), db.Admission{
		ID: uuid.New(), Actor: cyborg.Actor{Name: "alice"}, Request: cyborg.RescueRequest{Host: "h1", Within: time.Hour},
	})
	require.NoError(c.t, err)
	_, err = c.Begin(c.t.Context(), db.Run{Operation: admitted.Operation.ID, ID: testRun})
	require.NoError(c.t, err)
	return admitted.Operation.ID
}

// look has a rescue look at one of its instances.
func (c *compute) look(rescue, instance uuid.UUID) workflows.LookAtInstanceResult {
	c.t.Helper()
	value, err := c.env.ExecuteActivity(workflows.LookAtInstanceActivity, workflows.LookAtInstanceInput{
		Host: "h1", Operation: rescue, Rescue: cyborg.Rescue{Instance: instance, BootID: c.boot, BootedAt: time.Now().Add(-time.Minute)},
	})
	require.NoError(c.t, err)

	var result workflows.LookAtInstanceResult
	require.NoError(c.t, value.Get(&result))
	return result
}

// An instance whose accelerator has lost its image is not rebooted before the
// image is loaded again. A rescue tries that once, however often it asks, and
// fails with the reason if the host refuses.
func TestReloadBeforeReboot(t *testing.T) {
	t.Parallel()
	c := newCompute(t, 1, conductor.Policy{})
	who := c.bind()
	c.reboot()
	c.loseImages()
	rescue := c.rescues()

	look := func() workflows.LookAtInstanceResult { return c.look(rescue, who) }

	c.model.Set(novatest.Instance{ID: who, Status: "REBOOT", Task: "rebooting", Host: "h1"})
	require.Contains(t, look().Wait, "Nova works on it")
	require.Empty(t, c.reloads(), "nothing is loaded while Nova works on the instance")

	c.model.Set(novatest.Instance{ID: who, Status: novatest.Active, Host: "h1"})
	for range 3 {
		require.Contains(t, look().Wait, "loads image aes into accelerator")
		require.Len(t, c.reloads(), 1)
	}

	c.ends(c.reloads()[0], cyborg.Errorf(cyborg.ErrInUse, "it is in use by qemu"))
	failed := look()
	require.Equal(t, cyborg.RescueFailed, failed.Outcome)
	require.Contains(t, failed.Detail, "it is in use by qemu")
	require.Len(t, c.reloads(), 1)

	require.NoError(t, c.End(t.Context(), db.Run{Operation: rescue, ID: testRun}, cyborg.Outcome{
		Operation: rescue, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrChanged, "%s", failed.Detail),
	}))
	rescue = c.rescues()
	require.Contains(t, look().Wait, "loads image aes into accelerator")
	require.Len(t, c.reloads(), 2)

	c.model.Set(novatest.Instance{ID: who, Status: novatest.ShutOff, Host: "h1"})
	c.tidy()
	require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftLostAtBoot: 1}, c.drift(), "the instance would start without its image")

	for _, op := range c.reloads() {
		if !op.State.Ended() {
			c.ends(op, nil)
		}
	}
	require.Equal(t, cyborg.RescueOff, look().Outcome)
	c.tidy()
	require.Empty(t, c.drift())
}

// A rescue has an image loaded again for as long as something does not answer, or the
// host does not have what was staged: nobody would ask later. It says what happened to
// the last try, and fails with the reason where a host refuses.
func TestReloadIsRepeated(t *testing.T) {
	t.Parallel()
	c := newCompute(t, 1, conductor.Policy{})
	who := c.bind()
	c.reboot()
	c.loseImages()
	rescue := c.rescues()
	c.model.Set(novatest.Instance{ID: who, Status: novatest.Active, Host: "h1"})

	look := func() workflows.LookAtInstanceResult { return c.look(rescue, who) }

	kinds := []cyborg.ErrorKind{cyborg.ErrTimeout, cyborg.ErrHostSilent, cyborg.ErrUnavailable, cyborg.ErrBusy, cyborg.ErrNotStaged, cyborg.ErrLate}
	for tried, kind := range kinds {
		for range 2 {
			wait := look().Wait
			require.Contains(t, wait, "loads image aes into accelerator")
			if tried > 0 {
				require.Contains(t, wait, fmt.Sprintf("the try before failed: %s", kinds[tried-1]))
			}
			require.Len(t, c.reloads(), tried+1)
		}
		c.ends(c.reloads()[0], cyborg.Errorf(kind, "%s", kind))
	}

	require.NotEmpty(t, look().Wait)
	c.ends(c.reloads()[0], cyborg.Errorf(cyborg.ErrImageRejected, "that is no image"))
	failed := look()
	require.Equal(t, cyborg.RescueFailed, failed.Outcome)
	require.Contains(t, failed.Detail, "that is no image")
	require.Len(t, c.reloads(), len(kinds)+1)
}

// An instance does not have an image that was loaded again and is pending: it is not
// rebooted, and the result says what to do. Nothing is loaded once more. After a power
// cycle it has it.
func TestReloadThatIsPending(t *testing.T) {
	t.Parallel()
	c := newCompute(t, 1, conductor.Policy{})
	who := c.bind()
	c.reboot()
	c.loseImages()
	rescue := c.rescues()
	c.model.Set(novatest.Instance{ID: who, Status: novatest.Active, Host: "h1"})
	require.Contains(t, c.look(rescue, who).Wait, "loads image aes into accelerator")

	load := c.reloads()[0]
	run := db.Run{Operation: load.ID, ID: "run"}
	work, err := c.Begin(t.Context(), run)
	require.NoError(t, err)
	c.exec(`UPDATE deployables SET pending_image = '{"bitstream_id": "aes", "until": "power_cycle"}'`)
	require.Contains(t, c.look(rescue, who).Wait, "loads image aes into accelerator", "the operation may still undo it")
	require.NoError(t, c.End(t.Context(), run, cyborg.Outcome{
		Operation: load.ID, State: cyborg.OperationSucceeded,
		Images: map[uuid.UUID]cyborg.Image{work.Targets[0].Accelerator: {Source: "aes.img"}},
	}))

	for range 2 {
		found := c.look(rescue, who)
		require.Equal(t, cyborg.RescueFailed, found.Outcome)
		require.Contains(t, found.Detail, "has lost its image aes, which was loaded again and takes effect only after a power cycle of h1; do that, and rescue again")
	}
	c.tidy()
	require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftLostAtBoot: 1}, c.drift())

	require.NoError(t, c.End(t.Context(), db.Run{Operation: rescue, ID: testRun}, cyborg.Outcome{
		Operation: rescue, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrChanged, "it is pending"),
	}))
	rescue = c.rescues()
	require.Contains(t, c.look(rescue, who).Detail, "takes effect only after a power cycle of h1")
	require.Len(t, c.reloads(), 1)

	c.exec("UPDATE deployables SET bitstream_id = 'aes'")
	require.Empty(t, c.look(rescue, who), "it can be rebooted")
}

// Where the policy wants it, a lost image of an accelerator that nobody holds
// is loaded again. An accelerator that somebody holds is left alone.
func TestReloadIsAdmittedOnce(t *testing.T) {
	t.Parallel()
	for wanted, reloaded := range map[bool]int{true: 2, false: 0} {
		c := newComputeHeard(t, 3, conductor.Policy{ReloadLost: wanted}, time.Hour)
		c.bind()
		require.Zero(t, c.tidy().Reloaded)

		c.loseImages()
		c.exec("UPDATE hosts SET last_seen = now() - interval '2 hours'")
		require.Zero(t, c.tidy().Reloaded, "its host is silent")
		c.exec("UPDATE hosts SET last_seen = now()")
		require.Equal(t, reloaded, c.tidy().Reloaded)
		require.Zero(t, c.tidy().Reloaded)
		require.Len(t, c.reloads(), reloaded)
	}
}
