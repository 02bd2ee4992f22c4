package db

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// statusSQL is Accelerator.Status in SQL, over the tables of selectAccelerators: the first that applies.
func statusSQL() string {
	var text strings.Builder
	when := func(condition string, status cyborg.Status) {
		fmt.Fprintf(&text, " WHEN %s THEN '%s'", condition, status)
	}
	when(is("d.presence", cyborg.PresenceMissing), cyborg.StatusMissing)
	when(is("d.lifecycle", cyborg.LifecycleError), cyborg.StatusError)
	for _, kind := range cyborg.OperationKinds() {
		when(is("o.kind", kind), kind.Status())
	}
	when(is("d.lifecycle", cyborg.LifecycleInstalling), cyborg.StatusInstalling)
	when("d.fence_reason IS NOT NULL", cyborg.StatusFenced)
	when(maintained, cyborg.StatusMaintaining)
	when(is("d.lifecycle", cyborg.LifecycleInactive), cyborg.StatusInactive)
	when("h.held > 0 AND h.free = 0", cyborg.StatusAttached)
	return "CASE" + text.String() + " ELSE '" + string(cyborg.StatusReady) + "' END"
}

// statusNeeds is a condition without which none of the statuses is possible. It says nothing new; the planner finds the
// few accelerators of a rare status with it.
func statusNeeds(statuses []cyborg.Status) string {
	var needs []string
	need := func(condition string) {
		if !slices.Contains(needs, condition) {
			needs = append(needs, condition)
		}
	}
	for _, status := range statuses {
		switch status {
		case cyborg.StatusMissing:
			need(is("d.presence", cyborg.PresenceMissing))
		case cyborg.StatusError:
			need(is("d.lifecycle", cyborg.LifecycleError))
		case cyborg.StatusProgramming, cyborg.StatusAttaching, cyborg.StatusDetaching, cyborg.StatusConfiguring,
			cyborg.StatusRetiring:
			need("c.operation_id IS NOT NULL")
		case cyborg.StatusInstalling:
			need("c.operation_id IS NOT NULL")
			need(is("d.lifecycle", cyborg.LifecycleInstalling))
		case cyborg.StatusFenced:
			need("d.fence_reason IS NOT NULL")
		case cyborg.StatusMaintaining:
			need(is("d.administration", cyborg.AdministrationMaintaining))
		case cyborg.StatusInactive:
			need(is("d.lifecycle", cyborg.LifecycleInactive))
		case cyborg.StatusAttached:
			need("d.uuid IN (SELECT deployable_uuid FROM attach_handles WHERE holder_kind IS NOT NULL)")
		case cyborg.StatusReady:
			need(is("d.lifecycle", cyborg.LifecycleReady))
		default:
			need("false")
		}
	}
	return "(" + strings.Join(needs, " OR ") + ")"
}

// is compares a column with a constant of the domain.
func is[S ~string](column string, value S) string { return column + " = '" + string(value) + "'" }
