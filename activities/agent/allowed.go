package agent

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// looking is the kind of the activities that only look. Every host allows them.
const looking cyborg.OperationKind = ""

// allowedByTable says by which kind of work each activity is allowed. An
// activity and what undoes it have the same kind: a host that allowed only one
// of them could not undo what has failed.
var allowedByTable = map[string]cyborg.OperationKind{
	workflows.DiscoverActivity: looking,
	workflows.UsageActivity:    looking,
	workflows.CheckUseActivity: looking,

	workflows.InstallActivity:   cyborg.OperationProvision,
	workflows.UninstallActivity: cyborg.OperationProvision,

	workflows.AttachActivity: cyborg.OperationAttach,
	workflows.DetachActivity: cyborg.OperationAttach,
	workflows.SettleActivity: cyborg.OperationAttach,
	workflows.CleanActivity:  cyborg.OperationAttach,

	workflows.StageActivity:   cyborg.OperationProgram,
	workflows.ProgramActivity: cyborg.OperationProgram,
	workflows.RestoreActivity: cyborg.OperationProgram,

	workflows.PartitionActivity:     cyborg.OperationPartition,
	workflows.RestoreLayoutActivity: cyborg.OperationPartition,

	workflows.ConfigureActivity: cyborg.OperationConfigure,

	workflows.PreviewWhitelistActivity: cyborg.OperationWhitelist,
	workflows.WriteWhitelistActivity:   cyborg.OperationWhitelist,
	workflows.RestoreWhitelistActivity: cyborg.OperationWhitelist,
}

// Kinds lists the kinds of work that a host can allow, sorted.
func Kinds() []cyborg.OperationKind {
	var kinds []cyborg.OperationKind
	for _, kind := range allowedByTable {
		if kind != looking && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}

	slices.Sort(kinds)
	return kinds
}

// allows reports whether this host allows that kind of work.
func (a *Activities) allows(kind cyborg.OperationKind) bool {
	return kind == looking || a.Allowed == nil || slices.Contains(a.Allowed, kind)
}

// checkAllowed refuses, with a kind that tells the workflow that nothing was
// changed, an activity that this host does not allow. An activity that the
// table lacks is allowed nowhere.
func (a *Activities) checkAllowed(name string) error {
	kind, known := allowedByTable[name]
	if known && a.allows(kind) {
		return nil
	}

	var names []string
	for _, allowed := range a.Allowed {
		names = append(names, string(allowed))
	}

	return cyborg.Errorf(cyborg.ErrUnsupported, "host %s does not allow step %s of kind %q; in agent.activities it has: %s",
		a.Inventory.Host(), name, kind, cmp.Or(strings.Join(names, ", "), "none")).
		WithHint("Who looks after the host can allow it there, in the configuration of its agent.")
}
