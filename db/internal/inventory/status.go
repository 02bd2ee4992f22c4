package inventory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// statusSQL is Accelerator.Status in SQL, over the tables of
// selectAccelerators. The first condition that applies decides, so both must
// keep the same order.
func statusSQL() string {
	var text strings.Builder
	when := func(condition string, status cyborg.Status) {
		fmt.Fprintf(&text, " WHEN %s THEN '%s'", condition, status)
	}

	when(records.Equals("o.kind", cyborg.OperationPartition), cyborg.StatusPartitioning)
	when(records.Equals("d.presence", cyborg.PresenceMissing), cyborg.StatusMissing)
	when(records.Equals("d.lifecycle", cyborg.LifecycleError), cyborg.StatusError)
	for _, kind := range cyborg.OperationKinds() {
		if status := kind.Status(); status != "" && kind != cyborg.OperationPartition {
			when(records.Equals("o.kind", kind), status)
		}
	}

	when(records.Equals("d.lifecycle", cyborg.LifecycleInstalling), cyborg.StatusInstalling)
	when("d.fence_reason IS NOT NULL", cyborg.StatusFenced)
	when("d.unready", cyborg.StatusUnready)
	when(Maintained, cyborg.StatusMaintaining)
	when(records.Equals("d.lifecycle", cyborg.LifecycleInactive), cyborg.StatusInactive)
	when("h.taken > 0 AND h.free = 0", cyborg.StatusAttached)
	when("h.unclean > 0 AND h.free = 0", cyborg.StatusUnclean)

	return "CASE" + text.String() + " ELSE '" + string(cyborg.StatusReady) + "' END"
}

// statusNeeds is an SQL condition that every accelerator with one of the
// statuses meets. It does not change the result of a query that also compares
// statusSQL, but it lets the planner find the few accelerators of a rare status
// by an index.
func statusNeeds(statuses []cyborg.Status) string {
	var needs []string
	need := func(condition string) {
		if !slices.Contains(needs, condition) {
			needs = append(needs, condition)
		}
	}

	for _, status := range statuses {
		claimed := slices.ContainsFunc(cyborg.OperationKinds(), func(k cyborg.OperationKind) bool { return k.Status() == status })
		if claimed {
			need("c.operation_id IS NOT NULL")
		}

		switch status {
		case cyborg.StatusMissing:
			need(records.Equals("d.presence", cyborg.PresenceMissing))
		case cyborg.StatusError:
			need(records.Equals("d.lifecycle", cyborg.LifecycleError))
		case cyborg.StatusInstalling:
			need(records.Equals("d.lifecycle", cyborg.LifecycleInstalling))
		case cyborg.StatusFenced:
			need("d.fence_reason IS NOT NULL")
		case cyborg.StatusUnready:
			need("d.unready")
		case cyborg.StatusMaintaining:
			need(records.Equals("d.administration", cyborg.AdministrationMaintaining))
		case cyborg.StatusInactive:
			need(records.Equals("d.lifecycle", cyborg.LifecycleInactive))
		case cyborg.StatusAttached:
			need("d.uuid IN (SELECT deployable_uuid FROM attach_handles WHERE holder_kind IS NOT NULL OR unconfirmed_kind IS NOT NULL)")
		case cyborg.StatusUnclean:
			need("d.uuid IN (SELECT deployable_uuid FROM attach_handles WHERE unclean <> '')")
		case cyborg.StatusReady:
			need(records.Equals("d.lifecycle", cyborg.LifecycleReady))
		default:
			if !claimed { // there is no such status
				need("false")
			}
		}
	}

	return "(" + strings.Join(needs, " OR ") + ")"
}
