package agent_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// checkUse is the input that looks at handles of the first region for an instance.
func checkUse(identities ...string) workflows.CheckUseInput {
	given := cyborg.GivenHandles{Target: target()}
	for _, identity := range identities {
		wanted := workHandle(identity)
		wanted.Holder = cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}
		given.Handles = append(given.Handles, wanted)
	}
	return workflows.CheckUseInput{Operation: uuid.New(), Given: []cyborg.GivenHandles{given}}
}

// TestCheckUse: a handle that somebody uses is refused, with the user's name; the
// others may be given away. The agent only looks.
func TestCheckUse(t *testing.T) {
	t.Parallel()
	h := newCarelessHost(t)
	h.must(workflows.CheckUseActivity, checkUse(handle, second), nil)

	h.use(second, "swap on /dev/sdb")
	in := checkUse(handle, second)
	for range 2 { // a repeat looks again
		err := h.refused(cyborg.ErrInUse, workflows.CheckUseActivity, in)
		require.Equal(t, "handle "+second+" is in use by swap on /dev/sdb", err.Message)
		require.NotEmpty(t, err.Hint)
	}
	h.must(workflows.CheckUseActivity, checkUse(handle), nil)

	h.use(second, "")
	h.must(workflows.CheckUseActivity, in, nil)
	require.Empty(t, h.attachments())
	require.Zero(t, h.fate.count("attach")+h.fate.count("detach"))
	h.untouched()
}

// TestCheckUseLooksNow: what the inventory remembers is not believed. A card that
// is gone, or whose driver cannot tell who uses it, is not given away.
func TestCheckUseLooksNow(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.must(workflows.DiscoverActivity, workflows.DiscoverInput{Host: hostName}, nil)
	h.must(workflows.CheckUseActivity, checkUse(handle), nil)

	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepInUse] = fake.Failure{Times: 1, Kind: cyborg.ErrForbidden, When: fake.Before}
	})
	h.refused(cyborg.ErrForbidden, workflows.CheckUseActivity, checkUse(handle))
	h.must(workflows.CheckUseActivity, checkUse(handle), nil)

	require.NoError(t, h.bench.Vanish(t.Context(), card))
	h.refused(cyborg.ErrNotFound, workflows.CheckUseActivity, checkUse(handle))
	require.Empty(t, h.inventory.Content().Backends[0].Devices, "the next report tells that it is gone")
}

// TestCheckUseOfWhatIsAttached: the records give an instance what the journal has
// attached to this host, for example after the database was restored.
func TestCheckUseOfWhatIsAttached(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	held := attach(uuid.New(), handle)
	h.must(workflows.AttachActivity, held, nil)

	err := h.refused(cyborg.ErrInUse, workflows.CheckUseActivity, checkUse(handle))
	require.Contains(t, err.Message, "still attached to host "+hostName+" by operation "+held.Operation.String())

	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu (pid 42)"))
	err = h.refused(cyborg.ErrInUse, workflows.CheckUseActivity, checkUse(handle))
	require.Equal(t, "handle "+handle+" is in use by qemu (pid 42)", err.Message)

	require.NoError(t, h.bench.Use(t.Context(), card, handle, ""))
	h.must(workflows.DetachActivity, detach(uuid.New(), handle), nil)
	h.must(workflows.CheckUseActivity, checkUse(handle), nil)
}

// TestCheckUseWithoutUsers: of a driver that cannot tell who uses a handle, only
// the look is asked for, and what the host lives on is refused.
func TestCheckUseWithoutUsers(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureInstall, "plain", "plain", nil), nil)

	in := checkUse("/dev/plain")
	in.Given[0].Target = plainTarget("plain_0")
	h.must(workflows.CheckUseActivity, in, nil)

	in.Given[0].Target = plainTarget("plain_1")
	require.Contains(t, h.refused(cyborg.ErrProtected, workflows.CheckUseActivity, in).Message, "it has the root file system")
}

// TestCheckUseTakesNoNumber: binds that share an accelerator ask in any order, and
// nobody may lock out later steps with a number that no conductor has signed. It is
// refused where it is not meant for this agent.
func TestCheckUseTakesNoNumber(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.requireGrants()
	in := checkUse(handle)
	in.Addressee = numbered(1 << 40)
	h.must(workflows.CheckUseActivity, in, nil)
	in.Addressee = numbered(3)
	h.must(workflows.CheckUseActivity, in, nil)

	in.Addressee = workflows.Addressee{Instance: "another"}
	h.refused(cyborg.ErrOtherAgent, workflows.CheckUseActivity, in)
}

// TestCheckUseBesideAnotherStep: while another region of the card is programmed,
// which takes minutes, the handles of this one are given away.
func TestCheckUseBesideAnotherStep(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	unlock, err := h.inventory.Lock(t.Context(), card, "programming of another region")
	require.NoError(t, err)
	defer unlock()
	h.must(workflows.CheckUseActivity, checkUse(handle), nil)
}
