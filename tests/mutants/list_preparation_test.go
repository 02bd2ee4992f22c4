package mutants_test

// ofPreparation are about handles that their host prepares for instances and services.
func ofPreparation() []mutant {
	const (
		schema    = "db/migrations/00032_preparation.sql"
		inventory = "db/internal/inventory"
		operation = "db/internal/operation"
	)

	return []mutant{
		{
			breaks: "who gets a handle next has no parameters of before", file: schema, pkg: "db", test: "TestOldServerFreesWhatWasPrepared",
			old: "    NEW.parameters := '{}';",
			new: "    NEW.parameters := NEW.parameters;",
		},
		{
			breaks: "nothing is prepared for the host itself", file: inventory + "/on_host.go", pkg: "db", test: "TestAttachIsPrepared",
			old: "return holder.Kind != cyborg.HolderHost && a.Preparation != nil",
			new: "return a.Preparation != nil",
		},
		{
			breaks: "an attach is refused what the accelerator does not take", file: operation + "/attach.go", pkg: "db", test: "TestAttachRefusesParameters",
			old: "inventory.FirstError(t.Preparation.Check(a.request.Parameters), t.NotHeldBy(holder))",
			new: "inventory.FirstError(t.NotHeldBy(holder))",
		},
		{
			breaks: "a bind is refused what the accelerator does not take", file: operation + "/bind.go", pkg: "db", test: "TestBindIsPrepared",
			old: "if err := a.Preparation.Check(parameters); err != nil {",
			new: "if err := a.Preparation.Check(nil); err != nil {",
		},
		{
			breaks: "a boot undoes what was prepared", file: inventory + "/undone.go", pkg: "db", test: "TestPreparedIsAttachedOnItsHost",
			old: "`+OnHost+` AND h.attached_at",
			new: "h.holder_kind = 'host' AND h.attached_at",
		},
		{
			breaks: "what is prepared is in the journal", file: operation + "/disagreements.go", pkg: "db", test: "TestPreparedIsAttachedOnItsHost",
			old: "		WHERE ` + inventory.OnHost + ` AND h.host >= $1",
			new: "		WHERE h.holder_kind = 'host' AND h.host >= $1",
		},
		{
			breaks: "a bind that is open is no disagreement", file: operation + "/disagreements.go", pkg: "db", test: "TestBindInFlightIsNoDisagreement",
			old: "WHERE o.id = h.operation_id AND o.open) AS claimed",
			new: "WHERE o.id = h.operation_id AND o.open AND false) AS claimed",
		},
		{
			breaks: "the doubt about what was prepared is settled", file: operation + "/disagreements.go", pkg: "db", test: "TestAttachOfPreparedInDoubt",
			old: "host = $1 AND `+inventory.OnHost+` AND attached_at IS NULL",
			new: "host = $1 AND holder_kind = 'host' AND attached_at IS NULL",
		},
		{
			breaks: "a journal that has what is prepared agrees", file: "db/internal/ingest/observe.go", pkg: "db", test: "TestObservationAsksForTheJournal",
			old: "CASE WHEN ` + inventory.OnHost + ` IS NOT TRUE THEN",
			new: "CASE WHEN (` + inventory.OnHost + ` AND NOT h.prepared) IS NOT TRUE THEN",
		},
		{
			breaks: "only its host takes back what it has prepared", file: inventory + "/handles.go", pkg: "db",
			test: "TestDeletedRequestIsTakenBackByItsHost",
			old:  `	preparedLeft = "prepared"`,
			new:  `	preparedLeft = "false"`,
		},
		{
			breaks: "what a host has still to take back keeps nobody from the others", file: inventory + "/on_host.go", pkg: "db",
			test: "TestDeletedRequestIsTakenBackByItsHost",
			old:  "return h.Unconfirmed != nil && !h.Prepared })",
			new:  "return h.Unconfirmed != nil })",
		},
		{
			breaks: "what a host has prepared fences nothing when it is taken back by force", file: operation + "/unconfirmed.go", pkg: "db",
			test: "TestForcedDetachOfPrepared",
			old:  "deployable_uuid = d.uuid AND `+inventory.Doubted+`)`",
			new:  "deployable_uuid = d.uuid)`",
		},
		{
			breaks: "Placement has what its host could not take back reserved", file: "internal/openstack/placement/wanted.go",
			pkg: "internal/openstack/placement", test: "TestStuckIsReserved",
			old: "	taken := d.HeldOutsideNova + d.Stuck\n",
			new: "	taken := d.HeldOutsideNova\n",
		},
		{
			breaks: "a bind that has something prepared is alone on its host", file: operation + "/bind.go", pkg: "db",
			test: "TestObservationsOfPreparedBinds",
			old:  "		out.before.Prepares = out.before.Prepares || a.Prepares(b.request.Holder)\n",
			new:  "",
		},
		{
			breaks: "the end of a bind compares with the journal again", file: operation + "/run.go", pkg: "db",
			test: "TestBootBeforeTheEndOfABind",
			old:  "	if o.hasPrepared() {\n",
			new:  "	if len(o.targets) > 0 && o.hasPrepared() {\n",
		},
		{
			breaks: "a report of before says nothing at the end", file: inventory + "/undone.go", pkg: "db", test: "TestEndWithoutANewReport",
			old: " AND ($10 OR j.operation_id = h.operation_id)`",
			new: " AND ($10 OR true)`",
		},
		{
			breaks: "others who get handles do not keep one from being settled", file: operation + "/disagreements.go", pkg: "db",
			test: "TestSettlementBesideOthers",
			old:  "d.assignment = 0 OR d.stays OR NOT",
			new:  "d.assignment = 0 OR d.stays AND d.n < 0 OR NOT",
		},
		{
			breaks: "a bind waits until its host has taken a handle back", file: operation + "/bind_settled.go", pkg: "db",
			test: "TestDeletedRequestIsTakenBackByItsHost",
			old:  "	if !a.Unsettled() ||",
			new:  "	if len(a.Handles) > 0 ||",
		},
		{
			breaks: "a bind does not wait for a silent host", file: operation + "/bind_settled.go", pkg: "db", test: "TestBindDoesNotWaitForEver",
			old: "	if err != nil || !heard {\n		return nil, err",
			new: "	if err != nil || heard && !heard {\n		return nil, err",
		},
		{
			breaks: "a bind waits for what a boot has undone", file: operation + "/bind.go", pkg: "db", test: "TestBindWaitsForWhatABootHasUndone",
			old: "		case undone != nil:",
			new: "		case undone != nil && err != nil:",
		},
		{
			breaks: "a bind does not wait for long for what a boot has undone", file: operation + "/bind_settled.go", pkg: "db",
			test: "TestBindWaitsForWhatABootHasUndone",
			old:  "const undoneWait = time.Minute",
			new:  "const undoneWait = time.Hour",
		},
		{
			breaks: "a bind waits until its host has taken a part back", file: operation + "/bind_others.go", pkg: "db",
			test: "TestBindWaitsForWhatAPartLeaves",
			old:  "		unsettled, err = b.unsettledOther(ctx, tx, a)",
			new:  "		unsettled, err = false, nil",
		},
		{
			breaks: "what a bind could not undo is not free", file: operation + "/bind.go", pkg: "db", test: "TestBindThatEndsBadly",
			old: "	if outcome.State == cyborg.OperationNeedsOperator {\n		release = o.abandonHandles",
			new: "	if outcome.State == cyborg.OperationAdmitted {\n		release = o.abandonHandles",
		},
		{
			breaks: "what a bind has undone is free", file: operation + "/bind.go", pkg: "db", test: "TestBindThatEndsBadly",
			old: "	release := inventory.TakeBackHandles\n",
			new: "	release := o.abandonHandles\n",
		},
		{
			breaks: "what an unbind has not taken back is not free", file: operation + "/unbind.go", pkg: "db", test: "TestUnbindOfADeletedRequest",
			old: `concludeARQs(ctx, tx, o, "", "", o.abandonHandles)`,
			new: `concludeARQs(ctx, tx, o, "", "", inventory.ReleaseHandles)`,
		},
		{
			breaks: "the end of an operation has the host take back what is left", file: operation + "/run.go", pkg: "db", test: "TestBindThatEndsBadly",
			old: "	return o.settle\n",
			new: "	return nil\n",
		},
		{
			breaks: "an instance is rebooted only when its host has prepared its card again", file: operation + "/rescue.go", pkg: "db",
			test: "TestInstanceIsNotRescuedBeforeItsHostIsReady",
			old:  "OR b.state = 'failed' OR h.undone_at IS NOT NULL OR ` + notReady + ` OR ` + workedOn + `))`",
			new:  "OR b.state = 'failed'))`",
		},
		{
			breaks: "a host that was forgotten knows what it has to take back", file: inventory + "/unconfirmed.go", pkg: "db",
			test: "TestForcedDetachOfPrepared",
			old:  "unconfirmed_operation = b.unconfirmed_operation, prepared = b.prepared",
			new:  "unconfirmed_operation = b.unconfirmed_operation",
		},
		{
			breaks: "a stuck handle is not forgotten for what becomes of the others", file: "db/internal/ingest/pending_settlements.go", pkg: "db",
			test: "TestStuckHandleIsNotForgotten",
			old:  "AND NOT `+stillLeft+` AND (r.emptied",
			new:  "AND (r.emptied",
		},
		{
			breaks: "a stuck handle that the journal lacks is not forgotten", file: "db/internal/operation/pending_settlements.go", pkg: "db",
			test: "TestStuckHandleIsNotForgotten",
			old:  "if !d.journalDiffers() && !d.stillLeft() {",
			new:  "if !d.journalDiffers() {",
		},
	}
}
