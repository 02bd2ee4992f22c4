package agent_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent"
	"github.com/cyborg-project/cyborg/workflows"
)

// kindOf is the kind of work by which a host allows each activity; empty for
// those that only look.
var kindOf = map[string]cyborg.OperationKind{
	workflows.CheckUseActivity: "", workflows.DiscoverActivity: "", workflows.UsageActivity: "",
	workflows.InstallActivity: cyborg.OperationProvision, workflows.UninstallActivity: cyborg.OperationProvision,
	workflows.AttachActivity: cyborg.OperationAttach, workflows.DetachActivity: cyborg.OperationAttach, workflows.SettleActivity: cyborg.OperationAttach,
	workflows.CleanActivity: cyborg.OperationAttach,
	workflows.StageActivity: cyborg.OperationProgram, workflows.ProgramActivity: cyborg.OperationProgram, workflows.RestoreActivity: cyborg.OperationProgram,
	workflows.PartitionActivity: cyborg.OperationPartition, workflows.RestoreLayoutActivity: cyborg.OperationPartition,
	workflows.ConfigureActivity:        cyborg.OperationConfigure,
	workflows.PreviewWhitelistActivity: cyborg.OperationWhitelist, workflows.WriteWhitelistActivity: cyborg.OperationWhitelist,
	workflows.RestoreWhitelistActivity: cyborg.OperationWhitelist,
}

// A host takes the steps of the kinds that it allows, and refuses all others
// before they touch or journal anything.
func TestAHostAllowsOnlySomeKindsOfWork(t *testing.T) {
	t.Parallel()
	for _, allowed := range append(agent.Kinds(), "") {
		t.Run("only "+string(allowed), func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.allowed = []cyborg.OperationKind{}
			if allowed != "" {
				h.allowed = append(h.allowed, allowed)
			}
			h.start()
			h.inventory.Scan(t.Context())
			before := h.inventory.Content()

			require.Equal(t, keys(kindOf), keys(h.served), "each activity has a kind")
			for name, kind := range kindOf {
				// An empty input is wrong for most steps, which is for them to say.
				err := h.do(name, struct{}{}, nil)
				if kind == "" || kind == allowed {
					require.False(t, err != nil && err.Kind == cyborg.ErrUnsupported, "%s: %v", name, err)
					continue
				}

				require.NotNil(t, err, name)
				require.Equal(t, cyborg.ErrUnsupported, err.Kind, name)
				require.True(t, err.Kind.Refusal(), "there is nothing to undo")
				require.Contains(t, err.Message, "host node-1 does not allow step "+name+` of kind "`+string(kind)+`"`)
				require.Contains(t, err.Message, "in agent.activities it has: ")
			}

			require.Equal(t, before, h.inventory.Content())
			require.Empty(t, h.fate.calls)
		})
	}
}

// Real steps of a kind that is not allowed change nothing, and those that undo
// or repair them do not either.
func TestRefusedKindsLeaveTheHardwareAlone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	operation := uuid.New()
	h.must(workflows.AttachActivity, attach(operation, handle), nil)

	h.allowed = []cyborg.OperationKind{cyborg.OperationProgram, cyborg.OperationWhitelist}
	h.start()
	h.refused(cyborg.ErrUnsupported, workflows.AttachActivity, attach(uuid.New(), second))
	h.refused(cyborg.ErrUnsupported, workflows.DetachActivity, detach(uuid.New(), handle))
	h.refused(cyborg.ErrUnsupported, workflows.DetachActivity, undo(detach(operation, handle)))
	h.refused(cyborg.ErrUnsupported, workflows.UninstallActivity, asUndo(workflows.InstallInput{Operation: uuid.New(), Target: target()}))
	h.refused(cyborg.ErrUnsupported, workflows.ConfigureActivity, configure(cyborg.ConfigureUninstall, "fake", "", nil))
	require.True(t, h.attachedNow(handle))
	require.False(t, h.attachedNow(second))
	require.True(t, h.installed())
	require.NoFileExists(t, filepath.Join(h.dir, "backends.json"))

	h.allowed = nil
	h.start()
	h.must(workflows.DetachActivity, undo(detach(operation, handle)), nil)
	require.False(t, h.attachedNow(handle))

	entries, err := os.ReadDir(h.nova)
	require.NoError(t, err)
	require.Empty(t, entries)
}
