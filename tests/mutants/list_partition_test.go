package mutants_test

// ofPartition are about devices that are divided into parts.
func ofPartition() []mutant {
	const (
		schema      = "db/migrations/00034_partition.sql"
		operation   = "db/internal/operation/partition.go"
		agent       = "activities/agent"
		divides     = agent + "/partition.go"
		restores    = agent + "/restore_layout.go"
		generic     = "drivers/generic"
		passthrough = "drivers/passthrough"
		known       = agent + "/inventory"
		doubt       = "TestCardWithNothingInServiceThatNeedsAnOperator"
	)

	return []mutant{
		{
			breaks: "what appears on a device that is being divided is nobody else's", file: schema, pkg: "db", test: "TestNobodyGetsHalfMadeParts",
			old: "CREATE TRIGGER partitioned_added AFTER INSERT ON deployables REFERENCING NEW TABLE AS new_rows\n    FOR EACH STATEMENT EXECUTE FUNCTION partitioned_added();\n",
			new: "",
		},
		{
			breaks: "what moves to a device that is being divided is nobody else's", file: schema, pkg: "db", test: "TestPartOfAnotherCardMovesHere",
			old: "WHERE v.partition_operation <> o.operation_id ORDER BY",
			new: "WHERE v.partition_operation = o.operation_id ORDER BY",
		},
		{
			breaks: "a device is divided by one operation", file: schema, pkg: "db", test: "TestPartitionOfTheSchema",
			old: "OLD.partition_operation <> NEW.partition_operation)",
			new: "OLD.partition_operation <> NEW.partition_operation AND false)",
		},
		{
			breaks: "no operation ends before it lets go of its device", file: schema, pkg: "db", test: "TestPartitionOfTheSchema",
			old: "    ADD CONSTRAINT devices_partition_fkey FOREIGN KEY (partition_operation, partition_open) REFERENCES operations (id, open);",
			new: "    ADD CONSTRAINT devices_partition_fkey CHECK (true);",
		},
		{
			breaks: "a device that is divided otherwise than wanted is drift", file: schema, pkg: "db", test: "TestLayoutDrift",
			old: "CREATE TRIGGER devices_layout BEFORE UPDATE OF partitioning, wanted_layout ON devices",
			new: "CREATE TRIGGER devices_layout BEFORE UPDATE OF wanted_layout ON devices",
		},
		{
			breaks: "a device that is being divided is no drift", file: schema, pkg: "db", test: "TestLayoutDrift",
			old: "presence = 'present' AND partition_operation IS NULL;",
			new: "presence = 'present';",
		},
		{
			breaks: "nothing is divided of which somebody has a part", file: operation, pkg: "db", test: "TestPartitionGuards",
			old: "inventory.FirstError(t.Unprotected(), t.Unheld(), t.Confirmed(), t.AllClean(),",
			new: "inventory.FirstError(t.Unprotected(), t.Confirmed(), t.AllClean(),",
		},
		{
			breaks: "nothing is divided of which a host may still have a part", file: operation, pkg: "db", test: "TestPartitionGuards",
			old: "t.Unheld(), t.Confirmed(), t.AllClean(), t.NotExcludedBut",
			new: "t.Unheld(), t.AllClean(), t.NotExcludedBut",
		},
		{
			breaks: "nothing is divided on which a holder has left something", file: operation, pkg: "db", test: "TestPartitionGuards",
			old: "t.AllClean(), t.NotExcludedBut(targets)",
			new: "t.NotExcludedBut(targets)",
		},
		{
			breaks: "a partition does not begin under another operation", file: operation, pkg: "db", test: "TestPartitionDoesNotBeginUnderAnotherOperation",
			old: "device.Heard(p.silentAfter), p.guard(targets, o.id))",
			new: "device.Heard(p.silentAfter))",
		},
		{
			breaks: "two partitions of a device do not meet", file: operation, pkg: "db", test: "TestPartitionOfACardWithNothing",
			old: "inventory.FirstError(device.Unclaimed(operation), device.Present(),",
			new: "inventory.FirstError(device.Present(),",
		},
		{
			breaks: "a device that is divided like that by chance is divided", file: operation, pkg: "db", test: "TestPartitionHasNothingToDo",
			old: "device.WantedLayout != nil && device.WantedLayout.Equal(p.request.Layout) &&",
			new: "",
		},
		{
			breaks: "a partition settles the doubt of an earlier one", file: operation, pkg: "db", test: "TestPartitionSettlesWhatIsLeftInDoubt",
			old: "		!device.LayoutInDoubt && !slices.ContainsFunc(targets, layoutInDoubt)\n",
			new: "		!device.LayoutInDoubt\n",
		},
		{
			breaks: "what the new layout lacks leaves the records", file: operation, pkg: "db", test: "TestPartition",
			old: "case inventory.FirstError(t.Unheld(), t.Confirmed(), t.AllClean()) == nil:",
			new: "case state != cyborg.OperationSucceeded:",
		},
		{
			breaks: "what somebody has of a device stays in the records", file: operation, pkg: "db", test: "TestPartsThatSomebodyHasStay",
			old: "case inventory.FirstError(t.Unheld(), t.Confirmed(), t.AllClean()) == nil:",
			new: "default:",
		},
		{
			breaks: "an undone partition leaves the records as they were", file: operation, pkg: "db", test: "TestUndonePartition",
			old: "case state != cyborg.OperationSucceeded && slices.Contains(",
			new: "case state == cyborg.OperationCancelled && slices.Contains(",
		},
		{
			breaks: "what was in doubt is not taken into service by itself", file: operation, pkg: "db", test: "TestPartitionThatNeedsAnOperator",
			old: "		WHERE uuid = ANY($1) AND untouched AND lifecycle = $6`",
			new: "		WHERE uuid = ANY($1) AND NOT untouched AND lifecycle = $6`",
		},
		{
			breaks: "what was never in service is not installed by a partition", file: operation, pkg: "db", test: "TestPartitionThatNeedsAnOperator",
			old: " AND lifecycle <> $2 AND NOT untouched AND error_kind",
			new: " AND lifecycle <> $2 AND error_kind",
		},
		{
			breaks: "nothing is deleted of a device that is missing", file: operation, pkg: "db", test: "TestPartitionOfACardThatGoesAway",
			old: " AND EXISTS (SELECT FROM devices WHERE uuid = $2 AND presence = 'present')",
			new: " AND EXISTS (SELECT FROM devices WHERE uuid = $2)",
		},
		{
			breaks: "nothing is divided that somebody uses", file: divides, pkg: agent, test: "TestPartitionIsRefused",
			old: "			if who != \"\" {\n",
			new: "			if who == \"root\" {\n",
		},
		{
			breaks: "nothing is divided that is attached", file: divides, pkg: agent, test: "TestPartitionIsRefused",
			old: "if mine && !over(entry) && entry.Of(",
			new: "if mine && over(entry) && entry.Of(",
		},
		{
			breaks: "nothing is divided that is half cleaned", file: divides, pkg: agent, test: "TestPartitionIsRefused",
			old: "		case handles[entry.Handle]:\n			return nil, cyborg.Errorf(cyborg.ErrChanged, \"handle %s was not cleaned",
			new: "		case !handles[entry.Handle]:\n			return nil, cyborg.Errorf(cyborg.ErrChanged, \"handle %s was not cleaned",
		},
		{
			breaks: "nothing is divided on which the host lives", file: divides, pkg: agent, test: "TestPartitionIsRefused",
			old: "		if one.Protected != \"\" {",
			new: "		if one.Protected == \"burnt\" {",
		},
		{
			breaks: "the undo divides a device as it was before the first try", file: divides, pkg: agent, test: "TestUndoOfARetriedPartition",
			old: "	if !s.begun {\n		note :=",
			new: "	if s.prior.Result == nil {\n		note :=",
		},
		{
			breaks: "a partition that a try of before has begun is not refused as if nothing were touched", file: divides, pkg: agent,
			test: "TestDriverRefusesToPartition",
			old:  "	if s.begun || plan.noted {",
			new:  "	if plan.noted {",
		},
		{
			breaks: "the note of a driver is about one boot", file: divides, pkg: agent, test: "TestPartition",
			old: "			if before.NoteBootID == a.Journal.BootID() {",
			new: "			if before.NoteBootID != \"\" {",
		},
		{
			breaks: "a driver has divided as it was asked to", file: divides, pkg: agent, test: "TestPartitionFails",
			old: "		if p.Layout.Equal(plan.layout) {\n",
			new: "		if p.Layout != nil {\n",
		},
		{
			breaks: "late steps on new parts are refused", file: divides, pkg: agent, test: "TestLatePartition",
			old: "return workflows.PartitionResult{Observation: seen}, change, a.raiseShown(in.Addressee, plan.found.Backend, seen.Device)",
			new: "return workflows.PartitionResult{Observation: seen}, change, nil",
		},
		{
			breaks: "what was in service is installed again when its device is divided", file: divides, pkg: agent, test: "TestPartitionInstallsAgain",
			old: "		if !slices.Contains(target.Installed, one.Name) {\n",
			new: "		if slices.Contains(target.Installed, one.Name) {\n",
		},
		{
			breaks: "an undone partition is not begun late", file: restores, pkg: agent, test: "TestRestoreLayoutWhereNothingIsToDo",
			old: "s.at(journal.Started), divide.at(journal.Undone)}})",
			new: "s.at(journal.Started)}})",
		},
		{
			breaks: "what a boot has to bring back is what the last partition that succeeded has made", file: restores, pkg: agent,
			test: "TestPartitionOfABareCard",
			old:  "change := plan.divided(note.Wanted, seen, a.Journal.BootID())",
			new:  "change := plan.divided(note.Layout, seen, a.Journal.BootID())",
		},
		{
			breaks: "a boot restores no layout under its user", file: restores, pkg: agent, test: "TestBootRestoresNothing",
			old: "	if err := a.checkDeviceFree(ctx, t, found, before); err != nil {\n		return false, err\n	}\n",
			new: "	_ = before\n",
		},
		{
			breaks: "what was attached before a boot does not keep it from restoring a layout", file: restores, pkg: agent, test: "TestBootRestoresLayouts",
			old: "return attachment.BootID != a.Journal.BootID() }",
			new: "return attachment.BootID == a.Journal.BootID() }",
		},
		{
			breaks: "a driver that hangs after a boot holds up only its backend", file: restores, pkg: agent, test: "TestBootWithADriverThatHangs",
			old: "release := a.Inventory.Withhold(backend, ",
			new: "release := a.Inventory.Withhold(\"\", ",
		},
		{
			breaks: "a journal that is written anew knows the layouts", file: "internal/journal/state.go", pkg: "internal/journal", test: "TestTheFileStaysSmall",
			old: "		each(layouts, func(l Layout) Change { return Change{Layouts: []Layout{l}} }),\n",
			new: "",
		},
		{
			breaks: "a lost partition is not undone by guess", file: restores, pkg: agent, test: "TestPartitionWithALostJournal",
			old: "	if mayBeLost && !showsRecorded(found.Device, in.Device) {",
			new: "	if mayBeLost && showsRecorded(found.Device, in.Device) {",
		},
		{
			breaks: "a partition that was terminated is undone", file: "workflows/partition.go", pkg: "workflows", test: "TestAbandoned",
			old: "	if o.in.Abandoned {\n",
			new: "	if o.in.Abandoned && o.in.Limits.Program == 0 {\n",
		},
		{
			breaks: "a partition that has failed is undone", file: "workflows/partition.go", pkg: "workflows", test: "TestUndonePartitionIsRecorded",
			old: "result: &result, limit: o.in.Limits.Program,\n	}, restore)",
			new: "result: &result, limit: o.in.Limits.Program,\n	}, nil)",
		},
		{
			breaks: "only an admin divides devices", file: "api/v1/v1.go", pkg: "api", test: "TestPartitionNeedsAdmin",
			old: `{"POST", device + "/partition", auth.Admin, a.partition},`,
			new: `{"POST", device + "/partition", auth.Member, a.partition},`,
		},
		{
			breaks: "a layout that was left out makes nothing whole", file: "api/v1/partition.go", pkg: "api", test: "TestMessagesNamePropertyAndValue",
			old: "		o.missing(name)\n",
			new: "",
		},
		{
			breaks: "the driver notes a division before it makes it", file: passthrough + "/partition.go", pkg: generic, test: "TestPartitionNotesFirst",
			old: "	if err := before.store(request.Note); err != nil {\n		return err\n	}\n	err = d.divide(ctx, pf, now, wanted, request.Progress)\n",
			new: "	err = d.divide(ctx, pf, now, wanted, request.Progress)\n	if err := before.store(request.Note); err != nil {\n		return err\n	}\n",
		},
		{
			breaks: "no driver takes virtual functions for its own", file: passthrough + "/partition.go", pkg: generic, test: "TestPartition",
			old: "		wanted.autoprobe = \"0\"\n",
			new: "		wanted.autoprobe = now.autoprobe\n",
		},
		{
			breaks: "a function is divided only while nobody uses it or its parts", file: passthrough + "/partition.go", pkg: generic, test: "TestPartitionIsRefused",
			old: "	if err := d.checkPartsFree(ctx, parts); err != nil {",
			new: "	if err := d.checkPartsFree(ctx, parts[:0]); err != nil {",
		},
		{
			breaks: "a function that could not be divided is put back", file: passthrough + "/partition.go", pkg: generic, test: "TestPartitionIsPutBack",
			old: "		d.putBack(ctx, pf, now)\n",
			new: "",
		},
		{
			breaks: "a function has as many parts as were asked for", file: passthrough + "/partition.go", pkg: generic, test: "TestPartitionIsPutBack",
			old: "made != to.vfs || there != to.vfs {",
			new: "made < 0 || there < 0 {",
		},
		{
			breaks: "nobody gets what a boot has left of a device that appears later", file: known + "/layouts.go", pkg: agent, test: "TestCardThatAppearsAfterABoot",
			old: "	return is && entry.Of(device.Fingerprint) && !i.restores[key]\n",
			new: "	return is && entry.Of(device.Fingerprint) && !i.restores[key] && key.Device == \"\"\n",
		},
		{
			breaks: "a report gives up no layout of a device that it does not show yet", file: known + "/layouts.go", pkg: known, test: "TestDevicesWithAnUndoneLayout",
			old: "	return device, is && !i.heldBack(undone, key, device)\n",
			new: "	return device, is\n",
		},
		{
			breaks: "another card in the place of a divided one is reported at once", file: known + "/layouts.go", pkg: agent, test: "TestOtherCardAppearsAfterABoot",
			old: "	return is && entry.Of(device.Fingerprint) && !i.restores[key]\n",
			new: "	return is && entry.Device == device.Identity && !i.restores[key]\n",
		},
		{
			breaks: "a layout is tried to be restored once in a boot", file: known + "/layouts.go", pkg: known, test: "TestDevicesWithAnUndoneLayout",
			old: "i.restores[key]; begun || !there ||",
			new: "i.restores[key]; begun && !there ||",
		},
		{
			breaks: "a device that was pulled again at once is divided when it is back", file: known + "/layouts.go", pkg: known, test: "TestDevicesWithAnUndoneLayout",
			old: "		delete(i.restores, key)\n",
			new: "		i.restores[key] = true\n",
		},
		{
			breaks: "what has appeared is divided soon", file: known + "/look.go", pkg: known, test: "TestRestoreFollowsLooks",
			old: "	notify(i.looked)\n",
			new: "",
		},
		{
			breaks: "an agent that stops gives up no layout", file: restores, pkg: agent, test: "TestAgentStopsWhileItRestores",
			old: "			if !errors.Is(ctx.Err(), context.Canceled) {\n",
			new: "			if !errors.Is(ctx.Err(), errNotYet) {\n",
		},
		{
			breaks: "the undo of a partition that has changed nothing touches nothing", file: restores, pkg: agent, test: "TestUndoInstallsNothingUnderAUser",
			old: "	if lost || plan.changed || !right {\n",
			new: "	if lost || !plan.changed || !right {\n",
		},
		{
			breaks: "an undo installs nothing under a user", file: restores, pkg: agent, test: "TestUndoInstallsNothingUnderAUser",
			old: "	if !right || len(target.Installed) > 0 {\n",
			new: "	if !right {\n",
		},
		{
			breaks: "an undo installs what an operation of an earlier release has made anew", file: "internal/journal/change.go", pkg: agent,
			test: "TestUndoInstallsNothingUnderAUser",
			old:  "		return l.Note != nil && l.Operation == operation\n",
			new:  "		return l.Note == nil && l.Operation == operation\n",
		},
		{
			breaks: "the records know how a device was divided", file: restores, pkg: agent, test: "TestUndoByTheRecords",
			old: "		note.Layout = in.Device.Layout // the records know, if anybody does\n",
			new: "		note.Layout = nil\n",
		},
		{
			breaks: "an undo by the records touches nothing that is as they had it", file: restores, pkg: agent, test: "TestUndoByTheRecords",
			old: "	if lost && right && showsRecorded(",
			new: "	if lost && !right && showsRecorded(",
		},
		{
			breaks: "a host is told how its device was divided", file: operation, pkg: "db", test: "TestPartition",
			old: "			Layout: device.Partitioning.Layout.Normal(), Deployables: names,",
			new: "			Deployables: names,",
		},
		{
			breaks: "a partition that could not be undone marks a device with nothing in service", file: operation, pkg: "db", test: doubt,
			old: "	records.Queue(tx, \"UPDATE devices SET layout_doubt_operation = $2 WHERE uuid = $1\", p.request.Device, o.id)\n",
			new: "",
		},
		{
			breaks: "nothing of a device in doubt is taken into service by itself", file: "db/internal/inventory/accelerators.go", pkg: "db", test: doubt,
			old: "		  AND v.layout_doubt_operation IS NULL\n",
			new: "",
		},
		{
			breaks: "a partition settles the doubt about a device with nothing in service", file: operation, pkg: "db", test: doubt,
			old: "		!device.LayoutInDoubt && !slices",
			new: "		!slices",
		},
		{
			breaks: "who asks for anything that fits has looked at no device", file: "db/internal/operation/provision.go", pkg: "db", test: doubt,
			old: "		if p.request.Accelerator != uuid.Nil || p.request.Name == o.before.Name {\n",
			new: "		if p.request.Accelerator != uuid.Nil || p.request.Name != \"\" {\n",
		},
		{
			breaks: "a device that cannot be divided is whole", file: "db/migrations/00037_layout_drift.sql", pkg: "db", test: "TestLayoutDrift",
			old: "coalesce(NEW.partitioning -> 'layout', '{}')",
			new: "coalesce(NEW.partitioning -> 'layout', 'null')",
		},
	}
}
