package mutants_test

import "slices"

// mutants are the mutants by what they break. One belongs here if somebody
// relies on what it breaks, and nobody would see it in the code at a glance.
func mutants() []mutant {
	return slices.Concat(ofJournal(), ofWorkflows(), ofRecords(), ofFeed(), ofWaker(), ofAgents(), ofHeartbeats(), ofTheAPI(), ofReports(), ofDoors(), ofEnrollment(),
		ofOldJournals(), ofGrants(), ofClocksAndStalls(), ofRaces(), ofWordsOfAgents(), ofWarnings(), ofWrongCertificates(), ofUninstalls(), ofPendingSettlements(), ofFailovers(), ofUsers(), ofSameHolder(), ofExcludes(), ofPreparation(), ofCleaning(), ofPartition(), ofPendingImages(), ofPendingImagesOnHosts(), ofHandleUUIDs(), ofConditions(), ofSysfs(), ofCompanions(), ofPreparedOnHosts(), ofPreparedOperations(),
		ofShares(), ofReconcile(), ofBounds(), ofWriters(), ofCards())
}

// ofJournal are about what the journal and the files below it keep.
func ofJournal() []mutant {
	const (
		journal    = "internal/journal/journal.go"
		atomicfile = "internal/atomicfile/atomicfile.go"
		pkg        = "internal/journal"
	)

	return []mutant{
		{
			breaks: "a late assignment number is refused", file: "internal/journal/assignments.go", pkg: pkg, test: "TestRaiseRefusesLowerNumbers",
			old: "case number < highest:",
			new: "case number < highest-1:",
		},
		{
			breaks: "a refused number raises nothing", file: "internal/journal/assignments.go", pkg: pkg, test: "TestRaiseRefusesLowerNumbers",
			old: "\t\thighest, _ := j.highest(subject)\n\t\tswitch {",
			new: "\t\thighest, _ := j.highest(subject)\n\t\tif number > highest {\n\t\t\tj.raised[subject] = number\n\t\t}\n\t\tswitch {",
		},
		{
			breaks: "a rewritten journal has the numbers", file: "internal/journal/state.go", pkg: pkg, test: "TestRaisedNumbersAreKept",
			old: "if len(s.assigned) > 0 {",
			new: "if len(s.assigned) > 1 {",
		},
		{
			breaks: "a new journal refuses what is older than itself", file: "internal/journal/assignments.go", pkg: pkg, test: "TestFloor",
			old: "number <= j.state.floor.Number &&",
			new: "number < j.state.floor.Number &&",
		},
		{
			breaks: "a record is synced before Write returns", file: journal, pkg: pkg, test: "TestPowerCutAtEveryOperation",
			old: "return j.file.Sync()\n}\n\n// takeBack",
			new: "return nil\n}\n\n// takeBack",
		},
		{
			breaks: "what a failed sync has kept does not come back", file: journal, pkg: pkg, test: "TestEachOperationMayFail",
			old: "return j.file.Sync()\n}\n\n// tryRewrite",
			new: "return nil\n}\n\n// tryRewrite",
		},
		{
			breaks: "nothing is appended to a file that was replaced with an error", file: atomicfile, pkg: pkg, test: "TestEachOperationMayFail",
			old: "if removed == nil {",
			new: "if true {",
		},
		{
			breaks: "a rename that was done with an error is told", file: atomicfile, pkg: "internal/atomicfile", test: "TestEachOperationMayFail",
			old: "if removed == nil {",
			new: "if true {",
		},
		{
			breaks: "the directory is synced after the rename", file: atomicfile, pkg: pkg, test: "TestPowerCutAtEveryOperation",
			old: "\tif err == nil {\n\t\terr = dir.Sync()\n\t}\n\n\treturn file, withPath",
			new: "\treturn file, withPath",
		},
		{
			breaks: "a new file is synced before it gets its name", file: atomicfile, pkg: pkg, test: "TestPowerCutAtEveryOperation",
			old: "\tif err == nil {\n\t\terr = file.Sync()\n\t}\n\tif err != nil {",
			new: "\tif err != nil {",
		},
		{
			breaks: "a file of one's own is replaced as safely", file: atomicfile, pkg: "internal/atomicfile", test: "TestPowerCut",
			old: "\tif err == nil {\n\t\terr = file.Sync()\n\t}\n\tif err != nil {",
			new: "\tif err != nil {",
		},
		{
			breaks: "what a killed process wrote is synced when it is read", file: journal, pkg: pkg, test: "TestPowerCutAfterAKill",
			old: "errors.Join(err, j.file.Sync(), j.dir.Sync())",
			new: "errors.Join(err, j.dir.Sync())",
		},
		{
			breaks: "what a killed process renamed is synced when it is read", file: journal, pkg: pkg, test: "TestPowerCutAfterAKill",
			old: "errors.Join(err, j.file.Sync(), j.dir.Sync())",
			new: "errors.Join(err, j.file.Sync())",
		},
		{
			breaks: "a record that was cut off is removed", file: journal, pkg: pkg, test: "TestPowerCutAtEveryOperation",
			old: "\t\terr = j.file.Truncate(good)\n",
			new: "",
		},
		{
			breaks: "a record that could not be written is removed", file: journal, pkg: pkg, test: "TestEachOperationMayFail",
			old: "errors.Join(err, j.takeBack())",
			new: "err",
		},
		{
			breaks: "nothing is appended to a file whose content is unknown", file: journal, pkg: pkg, test: "TestEachOperationMayFail",
			old: "\t\tj.damaged = true\n\t\treturn unwritable(j.path, errors",
			new: "\t\treturn unwritable(j.path, errors",
		},
		{
			breaks: "nothing is appended to a file whose name is not synced", file: journal, pkg: pkg, test: "TestEachOperationMayFail",
			old: "\t\tj.damaged = true\n\t\treturn unwritable(j.path, err)",
			new: "\t\treturn unwritable(j.path, err)",
		},
		{
			breaks: "a journal that could not be opened leaves no file open", file: journal, pkg: pkg, test: "TestEachOperationMayFail",
			old: "errors.Join(err, j.Close())",
			new: "err",
		},
		{
			breaks: "a closed journal is not written", file: journal, pkg: pkg, test: "TestAClosedJournalIsNotWritten",
			old: "\tif j.closed {\n\t\treturn cyborg",
			new: "\tif j.closed && !j.damaged {\n\t\treturn cyborg",
		},
		{
			breaks: "a damaged journal is refused", file: "internal/journal/record.go", pkg: pkg, test: "TestDamagedJournalIsRefused",
			old: "if holdsRecord(after) {",
			new: "if false {",
		},
		{
			breaks: "the journal of a newer release is refused", file: "internal/journal/record.go", pkg: pkg, test: "TestANewerFormatIsRefused",
			old: "if format > version {",
			new: "if format < version {",
		},
		{
			breaks: "a step that has not ended is kept longer", file: "internal/journal/state.go", pkg: pkg, test: "TestTheFileStaysSmall",
			old: "if age > keepStarted {",
			new: "if age > keepEnded {",
		},
		{
			breaks: "numbers grow though the clock goes back", file: journal, pkg: pkg, test: "TestSequencesGrowOverRestartsAndClocks",
			old: "max(j.state.sequence, j.now().UnixMilli())",
			new: "j.now().UnixMilli()",
		},
		{
			breaks: "a number is reserved before it is given", file: journal, pkg: pkg, test: "TestNumbersAreReservedBeforeTheyAreGiven",
			old: "if j.next >= j.state.sequence {",
			new: "if j.next > j.state.sequence {",
		},
		{
			breaks: "what was only handed out survives a boot", file: journal, pkg: pkg, test: "TestAttachmentsLostAtBoot",
			old: "attachment.State == Attached && !attachment.HandedOut &&",
			new: "attachment.State == Attached &&",
		},
	}
}

// ofWorkflows are about runs of operations.
func ofWorkflows() []mutant {
	const pkg = "workflows"

	return []mutant{
		{
			breaks: "a host that was settled leaves its place", file: "workflows/reconcile.go", pkg: pkg, test: "TestReconcileSettlesManyHosts",
			old: "defer places.Release(1)\n",
			new: "\n",
		},
		{
			breaks: "a round says from which report it has decided", file: "activities/conductor/reconcile.go",
			pkg: "activities/conductor", test: "TestSettledAsDecided",
			old: "Assignment: d.Assignment, Report: d.Report,\n\t\tEntry:",
			new: "Assignment: d.Assignment,\n\t\tEntry:",
		},
		{
			breaks: "the next round goes on with the hosts that this one has not come to", file: "workflows/reconcile.go", pkg: pkg,
			test: "TestReconcileGivesEachHostItsTurn",
			old:  "if begun > 0 && begun < len(hosts) {",
			new:  "if false {",
		},
		{
			breaks: "slow hosts do not hold the rounds up", file: "workflows/reconcile.go", pkg: pkg, test: "TestReconcileHasATimeForSlowHosts",
			old: "if roundIsFull(ctx, ends) {",
			new: "if n > 0 && roundIsFull(ctx, ends) {",
		},
		{
			breaks: "what was done last is undone first", file: "workflows/undo.go", pkg: pkg, test: "TestUndosRunInReverse",
			old: "slices.Backward(o.undos)",
			new: "slices.All(o.undos)",
		},
		{
			breaks: "an undo that fails does not stop the others", file: "workflows/undo.go", pkg: pkg, test: "TestAFailedUndoDoesNotStopTheOthers",
			old: "failures = append(failures, message)\n\t\t\tcontinue",
			new: "return append(failures, message)",
		},
		{
			breaks: "each step has a heartbeat timeout", file: "workflows/operation.go", pkg: pkg, test: "TestEveryStepHasAHeartbeat",
			old: "\t\tHeartbeatTimeout:    o.in.Limits.Heartbeat,\n",
			new: "",
		},
		{
			breaks: "a closed run is not started over", file: "workflows/start.go", pkg: pkg, test: "TestAClosedRunIsNotStartedOver",
			old: "enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE",
			new: "enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE",
		},
		{
			breaks: "what began and has no run is undone", file: "activities/conductor/orphans.go", pkg: "activities/conductor",
			test: "TestOrphans",
			old:  "runs.known || state == cyborg.OperationRunning",
			new:  "runs.known",
		},
		{
			breaks: "each step asks whether the operation is still the run's", file: "workflows/operation.go", pkg: pkg,
			test: "TestPlacementRefusesAnOperation",
			old:  "\t\tif err := o.check(ctx); err != nil {\n\t\t\treturn began, err\n\t\t}\n",
			new:  "",
		},
		{
			breaks: "each undo asks whether the operation is still the run's", file: "workflows/undo.go", pkg: pkg, test: "TestUndoFollowsTheHostsAgent",
			old: "err := o.check(ctx)",
			new: "err := error(nil)",
		},
		{
			breaks: "what the records said before a wait is not believed", file: "workflows/operation.go", pkg: pkg, test: "TestUndoFollowsTheHostsAgent",
			old: "o.checked = false // whatever",
			new: "// whatever",
		},
		{
			breaks: "a superseded run ends at once", file: "workflows/operation.go", pkg: pkg, test: "TestRunOfAnEndedOperationEndsWithASentence",
			old: "o.superseded = failure",
			new: "_ = failure",
		},
		{
			breaks: "a rescue whose time is over asks Nova nothing", file: "workflows/rescue.go", pkg: pkg, test: "TestRescueRebootsNothingLate",
			old: "if workflow.Now(ctx).Before(deadline) || !endsInTime(ctx) {",
			new: "if true {",
		},
		{
			breaks: "a rescue asks the records before it asks Nova", file: "workflows/rescue.go", pkg: pkg, test: "TestSupersededRescueRebootsNothing",
			old: "\tif fenced(ctx) {\n\t\tif err := o.ask(ctx, CheckRunActivity, CheckRunInput{Operation: o.in.Operation}, nil); err != nil {",
			new: "\tif false {\n\t\tif err := o.ask(ctx, CheckRunActivity, CheckRunInput{Operation: o.in.Operation}, nil); err != nil {",
		},
		{
			breaks: "a rescue asks the records again before a reboot", file: "workflows/rescue.go", pkg: pkg, test: "TestSupersededRescueRebootsNothing",
			old: "\tif err := o.mayAskNova(ctx, deadline); err != nil {\n\t\treturn cyborg.RescueFailed, FromFailure(err).Message\n\t}\n\n\tvar rebooted",
			new: "\tvar rebooted",
		},
		{
			breaks: "a rescue that Nova's answer finds superseded ends", file: "workflows/rescue.go", pkg: pkg,
			test: "TestSupersededRescueRebootsNothing",
			old:  "\to.notice(err)\n\treturn err\n",
			new:  "\treturn err\n",
		},
		{
			breaks: "what the records said before Placement was asked is not believed", file: "workflows/placement.go", pkg: pkg,
			test: "TestPlacementIsFencedBeforeTheHost",
			old:  "o.checked = false // the answer may take its time",
			new:  "// the answer may take its time",
		},
		{
			breaks: "what the records said before Glance was asked is not believed", file: "workflows/load.go", pkg: pkg,
			test: "TestImageFromGlance",
			old:  "o.checked = false // the answer may take its time",
			new:  "// the answer may take its time",
		},
		{
			breaks: "a run that Placement's answer finds superseded ends", file: "workflows/placement.go", pkg: pkg,
			test: "TestServiceIsNotAskedForASupersededRun",
			old:  "o.notice(err)",
			new:  "_ = err",
		},
		{
			breaks: "a run that Glance's answer finds superseded ends", file: "workflows/load.go", pkg: pkg,
			test: "TestServiceIsNotAskedForASupersededRun",
			old:  "o.notice(err)",
			new:  "_ = err",
		},
		{
			breaks: "a conductor whose clock is ahead asks other services, too", file: "workflows/repeat.go", pkg: pkg, test: "TestServicesAreAskedByTemporalsClock",
			old: "limit := options.StartToCloseTimeout\n",
			new: "limit := options.StartToCloseTimeout\n\toptions.ScheduleToCloseTimeout = r.within\n",
		},
		{
			breaks: "a run waits for the records without a limit", file: "workflows/operation.go", pkg: pkg, test: "TestRecordsAreAwayForDays",
			old: "\t\tScheduleToCloseTimeout: noLimit,\n",
			new: "",
		},
		{
			breaks: "a wait for the records fits into a history", file: "workflows/operation.go", pkg: pkg, test: "TestRecordsAreAwayForDays",
			old: "MaximumInterval:    5 * time.Minute,",
			new: "MaximumInterval:    5 * time.Second,",
		},
		{
			breaks: "an undo has some tries in any case", file: "workflows/undo.go", pkg: pkg, test: "TestUndoEnds",
			old: "if try >= o.in.Limits.Attempts && !workflow",
			new: "if !workflow",
		},
		{
			breaks: "an undo is tried for as long as it may take", file: "workflows/undo.go", pkg: pkg, test: "TestUndoEnds",
			old: "if try >= o.in.Limits.Attempts && !workflow.Now(ctx).Add(pause).Before(ends) {",
			new: "if try >= o.in.Limits.Attempts {",
		},
		{
			breaks: "no cancel reaches a run that takes over", file: "workflows/operation.go", pkg: pkg, test: "TestAbandoned",
			old: "if in.Abandoned && uncancelled(ctx, in) {",
			new: "if false {",
		},
		{
			breaks: "a cancelled takeover of v0.1 replays", file: "workflows/operation.go", pkg: pkg, test: "TestCancelledTakeoverOfV01Replays",
			old: "if in.Abandoned && uncancelled(ctx, in) {",
			new: "if in.Abandoned {",
		},
		{
			breaks: "an attempt for a superseded run asks no service", file: "activities/conductor/operation.go", pkg: "activities/conductor",
			test: "TestAttemptForASupersededRun",
			old:  "if operation == uuid.Nil {",
			new:  "if operation != uuid.Nil {",
		},
		{
			breaks: "one end of a bind counts", file: "workflows/bind.go", pkg: pkg, test: "TestK4LoadedInTimeWhileNoConductorRan",
			old: " == nil && !(b.done && decidesOnce(ctx)) {",
			new: " == nil {",
		},
		{
			breaks: "a waiting instance gives its place back", file: "workflows/rescue.go", pkg: pkg, test: "TestK8WaitingInstancesGiveTheirPlaceBack",
			old: "if !p.givenBack {",
			new: "if true {",
		},
		{
			breaks: "a run that has no right to an operation is terminated", file: "activities/conductor/orphans.go", pkg: "activities/conductor",
			test: "TestOrphans",
			old:  "if runs.stray != \"\" {",
			new:  "if false {",
		},
		{
			breaks: "a run that takes an operation over is left alone", file: "activities/conductor/orphans.go", pkg: "activities/conductor",
			test: "TestOrphans",
			old:  "case workflows.Takeover(info, run):",
			new:  "case false:",
		},
		{
			breaks: "what was repaired before a collision is drift", file: "activities/conductor/placement.go", pkg: "activities/conductor",
			test: "TestPlacementDriftBeforeACollision",
			old:  "repaired = union(result.differences, repaired)",
			new:  "repaired = nil",
		},
		{
			breaks: "the last look at Nova's whitelist counts", file: "activities/agent/inventory/look.go", pkg: "activities/agent/inventory",
			test: "TestTheLastLookAtTheWhitelistCounts",
			old:  "\ti.whitelistLook.Lock()\n\tdefer i.whitelistLook.Unlock()\n",
			new:  "",
		},
		{
			breaks: "a run is told of a cancel that it has missed", file: "activities/conductor/orphans.go", pkg: "activities/conductor", test: "TestOrphans",
			old: "return a.deliverCancel(ctx, op, done)",
			new: "return nil",
		},
		{
			breaks: "a run that no cancel changes is not told of one", file: "workflows/start.go", pkg: "activities/conductor", test: "TestOrphans",
			old: "return !undoes",
			new: "return undoes || !undoes",
		},
		{
			breaks: "a run that undoes is known by its memo", file: "workflows/start.go", pkg: "activities/conductor", test: "TestOrphans",
			old: "if in.Abandoned || in.Replaces != \"\" {",
			new: "if in.Replaces != \"\" {",
		},
		{
			breaks: "each step names the run that sends it", file: "workflows/operation.go", pkg: pkg, test: "TestStepOfAnotherAgent",
			old: "Instance: o.work.Instance, Run: workflow.GetInfo(ctx).WorkflowExecution.RunID, Assignment: o.work.Assignment,",
			new: "Instance: o.work.Instance, Assignment: o.work.Assignment,",
		},
		{
			breaks: "each settlement names the run that sends it", file: "workflows/reconcile.go", pkg: pkg, test: "TestReconcileRepairs",
			old: "Instance: d.Agent.Instance, Run: workflow.GetInfo(ctx).WorkflowExecution.RunID, Assignment",
			new: "Instance: d.Agent.Instance, Assignment",
		},
		{
			breaks: "a step that another run has sent is refused", file: "workflows/contract.go", pkg: "activities/agent",
			test: "TestStepForAnotherAgentIsRefused",
			old:  "SentBy() string { return a.Run }",
			new:  "SentBy() string { return \"\" }",
		},
		{
			breaks: "a step for another agent is refused", file: "activities/agent/grants.go", pkg: "activities/agent",
			test: "TestStepForAnotherAgentIsRefused",
			old:  "err := a.requireMine(step, run); err != nil",
			new:  "err := a.requireMine(step, run); false",
		},
		{
			breaks: "no step repeats the query of an image's URL", file: "workflows/program.go", pkg: pkg, test: "TestQueriesOfImagesAreInNoStep",
			old: "image: work.Program.Image.WithoutQuery()",
			new: "image: work.Program.Image",
		},
	}
}

// ofRecords are about the locks and guards of the store.
func ofRecords() []mutant {
	const (
		operation = "db/internal/operation/"
		pkg       = "db"
	)

	return []mutant{
		{
			breaks: "a clock that was set back holds nothing up", file: "db/internal/records/within.go", pkg: pkg, test: "TestSilentSinceAnotherTime",
			old: `time + " BETWEEN clock_timestamp() - " + interval + " AND clock_timestamp() + " + interval`,
			new: `time + " >= clock_timestamp() - " + interval`,
		},
		{
			breaks: "after a restore nobody waits for a run of before", file: "db/internal/openstack/placement_due.go", pkg: pkg, test: "TestPlacementIsFollowedAfterARestore",
			old: "OR asked_at < (SELECT began_at FROM feed_epochs",
			new: "OR asked_at > (SELECT began_at + interval '1 day' FROM feed_epochs",
		},
		{
			breaks: "creators of requests pass one by one", file: "db/internal/openstack/arqs.go",
			old: "pg_advisory_xact_lock(hashtextextended('quota of '", new: "pg_advisory_xact_lock_shared(hashtextextended('quota of '",
			pkg: "db", test: "TestUnboundARQsAreLimitedTogether",
		},
		{
			breaks: "a report counts as held until nothing keeps it", file: "db/internal/ingest/batch.go",
			old: "\t\tselect {\n\t\tcase <-one.answer:\n\t\tcase <-g.stopped:\n\t\t}\n\t\treturn none", new: "\t\treturn none",
			pkg: "db/internal/ingest", test: "TestSubmitReturnsWhenNothingIsKept",
		},
		{
			breaks: "reports that wait are bounded", file: "api/agents/held.go",
			old: "case h.bytes+bytes > h.limit:", new: "case h.bytes+bytes > h.limit && h.limit < 0:",
			pkg: "api/agents", test: "TestReportsThatWaitAreBounded",
		},
		{
			breaks: "what a step saw under a number out of reach is left out", file: "db/internal/ingest/observe.go",
			old: "if err != nil || sequence <= furthest {", new: "if true {",
			pkg: "db", test: "TestObservedNumberOutOfReach",
		},
		{
			breaks: "a report may follow what was observed of its host", file: "db/internal/ingest/refused_reports.go",
			old: "(SELECT max(observed_seq) FROM devices WHERE host = $1), 0)", new: "0)",
			pkg: "db", test: "TestObservedNumberOutOfReach",
		},
		{
			breaks: "another run cannot write", file: operation + "owner.go", pkg: pkg, test: "TestOtherRunOfAnOperationIsRefused",
			old: "if o.state.Ended() || !o.ownedBy(run) {\n\t\treturn superseded",
			new: "if o.state.Ended() {\n\t\treturn superseded",
		},
		{
			breaks: "an ended operation is nobody's", file: operation + "owner.go", pkg: pkg, test: "TestEndedOperationIsNobodys",
			old: "if o.state.Ended() || !o.ownedBy(run) {\n\t\treturn superseded",
			new: "if !o.ownedBy(run) {\n\t\treturn superseded",
		},
		{
			breaks: "another run cannot begin", file: operation + "owner.go", pkg: pkg, test: "TestOtherRunOfAnOperationIsRefused",
			old: "if !o.ownedBy(run) && !replaces {",
			new: "if false && !replaces {",
		},
		{
			breaks: "a run takes over from the run that it replaces only", file: operation + "owner.go", pkg: pkg, test: "TestTakeover",
			old: "run.Replaces != \"\" && o.run == run.Replaces",
			new: "run.Replaces != \"\"",
		},
		{
			breaks: "an attach takes a free handle only", file: operation + "attach.go", pkg: pkg, test: "TestAHandleIsNotTakenFromItsHolder",
			old: "WHERE uuid = $1 AND holder_kind IS NULL AND unconfirmed_kind IS NULL AND unclean = '' AND presence = 'present'`",
			new: "WHERE uuid = $1`",
		},
		{
			breaks: "a bind takes free handles only", file: operation + "bind.go", pkg: pkg, test: "TestAHandleIsNotTakenFromItsHolder",
			old: "WHERE h.uuid = t.handle AND holder_kind IS NULL AND unconfirmed_kind IS NULL AND unclean = '' AND presence = 'present'`",
			new: "WHERE h.uuid = t.handle`",
		},
		{
			breaks: "a settlement leaves the handles of a claimed accelerator", file: operation + "disagreements.go", pkg: pkg,
			test: "TestSettlingRespectsClaims",
			old:  "\n\t\tAND NOT EXISTS (SELECT FROM claims c WHERE c.deployable_uuid = h.deployable_uuid)",
			new:  "",
		},
		{
			breaks: "nobody is bound to what a failover may have lost", file: operation + "bind.go", pkg: pkg,
			test: "TestNobodyGetsWhatAFailoverHasLost",
			old:  "inventory.FirstError(b.unclaimed(a), a.Heard(b.silentAfter))",
			new:  "inventory.FirstError(b.unclaimed(a))",
		},
		{
			breaks: "nobody gets what a failover may have lost", file: "db/internal/inventory/guard.go", pkg: pkg,
			test: "TestNobodyGetsWhatAFailoverHasLost",
			old:  "if unheard == nil || *unheard > silentAfter {",
			new:  "if true {",
		},
		{
			breaks: "a program waits for its host, too", file: operation + "program.go", pkg: pkg, test: "TestAHeartbeatIsEnough",
			old: "if err := o.heard(p.silentAfter); err != nil {",
			new: "if err := o.heard(p.silentAfter); err != nil && false {",
		},
		{
			breaks: "a whitelist waits for its host, too", file: operation + "whitelist.go", pkg: pkg, test: "TestAHeartbeatIsEnough",
			old: "if err := o.heard(w.silentAfter); err != nil {",
			new: "if err := o.heard(w.silentAfter); err != nil && false {",
		},
		{
			breaks: "a heartbeat that has not what is recorded is no word of a host", file: "db/internal/ingest/heartbeats.go", pkg: pkg,
			test: "TestHeartbeatsThatDoNotSayWhatTheHostHas",
			old:  "h.boot_id = b.boot AND h.digest = b.digest AND b.digest <> ''",
			new:  "true",
		},
		{
			breaks: "an agent that does not say what its host has says nothing by that", file: "db/internal/ingest/heartbeats.go", pkg: pkg,
			test: "TestHeartbeatsThatDoNotSayWhatTheHostHas",
			old:  " AND b.digest <> ''",
			new:  "",
		},
		{
			breaks: "a host that was not heard is asked", file: "db/internal/ingest/heartbeats.go", pkg: pkg,
			test: "TestHeartbeatsThatDoNotSayWhatTheHostHas",
			old:  "host.Generation != heartbeat.Generation ||\n\t\t\t!host.heard",
			new:  "host.Generation != heartbeat.Generation",
		},
		{
			breaks: "a report that says nothing new is a host's word", file: "db/internal/ingest/reports.go", pkg: pkg,
			test: "TestHeartbeatsThatDoNotSayWhatTheHostHas",
			old:  "heard_epoch = (SELECT epoch_in_force()),",
			new:  "heard_epoch = hosts.heard_epoch,",
		},
		{
			breaks: "so is one that says something new", file: "db/internal/ingest/write.go", pkg: pkg,
			test: "TestHeartbeatsThatDoNotSayWhatTheHostHas",
			old:  "heard_epoch = EXCLUDED.heard_epoch,",
			new:  "heard_epoch = hosts.heard_epoch,",
		},
		{
			breaks: "after a restore a host is not silent because of what was restored", file: "db/migrations/00022_cheaper_epochs.sql", pkg: pkg,
			test: "TestASilentHostIsNotWaitedFor",
			old:  "clock_timestamp() - greatest(last_seen, began_at) END",
			new:  "clock_timestamp() - last_seen END",
		},
		{
			breaks: "what a report has attached and the records call free is fenced", file: "db/internal/ingest/write.go", pkg: pkg,
			test: "TestLostAttachmentInADifference",
			old:  "\tqueueUnconfirmed(batch, hosts, c.Handles.Inserts)\n",
			new:  "",
		},
		{
			breaks: "a released handle that its host has attached for somebody else is fenced", file: "db/internal/inventory/handles.go", pkg: pkg,
			test: "TestLostAttachmentOfAHandleThatIsFreedLater",
			old:  "`\n\t\th.uuid = ANY($3) AND",
			new:  "`\n\t\tfalse AND h.uuid = ANY($3) AND",
		},
		{
			breaks: "a detach fences nothing that it has detached", file: "db/internal/inventory/handles.go", pkg: pkg,
			test: "TestDetachOfAForgottenOperation",
			old:  "unnest($3::uuid[], $4::uuid[])",
			new:  "unnest($4::uuid[], $3::uuid[])",
		},
		{
			breaks: "an operation that never began has attached nothing that is known", file: "db/internal/inventory/unconfirmed.go", pkg: pkg,
			test: "TestLostBeginningOfAnAttachment",
			old:  "(SELECT started_at IS NOT NULL FROM operations",
			new:  "(SELECT true FROM operations",
		},
		{
			breaks: "a report from before an observation fences nothing", file: "db/internal/inventory/unconfirmed.go", pkg: pkg,
			test: "TestDetachOfAForgottenOperation",
			old:  "v.observed_seq > s.report_seq AND (",
			new:  "false AND (",
		},
		{
			breaks: "where an entry may be old, the host is asked", file: "db/internal/inventory/unconfirmed.go", pkg: pkg,
			test: "TestLostAttachmentInALateReport",
			old:  "name IN (SELECT host FROM attached WHERE old)",
			new:  "name IN (SELECT host FROM attached WHERE NOT old)",
		},
		{
			breaks: "a host is asked by the backend that its journal has", file: operation + "disagreements.go", pkg: pkg,
			test: "TestLostAttachmentOfAnotherBackend",
			old:  "coalesce(j.backend, h.backend)",
			new:  "h.backend",
		},
		{
			breaks: "a disagreement does not wait for a report that nobody sends", file: "db/internal/ingest/observe.go", pkg: pkg,
			test: "TestDisagreementsWaitForAReport",
			old:  "THEN j.state IS NOT NULL\n",
			new:  "THEN false\n",
		},
		{
			breaks: "nor does one about what the journal has lost", file: "db/internal/ingest/observe.go", pkg: pkg,
			test: "TestDisagreementsWaitForAReport",
			old:  "ELSE h.attached_at IS NOT NULL AND",
			new:  "ELSE false AND",
		},
		{
			breaks: "an operation that agrees with the journal costs no report", file: "db/internal/ingest/observe.go", pkg: pkg,
			test: "TestDisagreementsWaitForAReport",
			old:  "AND j.state IS DISTINCT FROM 'attached' AND",
			new:  "AND",
		},
		{
			breaks: "what an operation has attached itself costs no report", file: "db/internal/ingest/observe.go", pkg: pkg,
			test: "TestDisagreementsWaitForAReport",
			old:  " AND h.uuid <> ALL(coalesce($3::uuid[], '{}')) END)",
			new:  " AND $3::uuid[] IS NOT NULL END)",
		},
		{
			breaks: "what is taken back is kept from everybody until its host has said whether it has it", file: "db/internal/inventory/handles.go", pkg: pkg,
			test: "TestLostAttachmentInAnOldReport",
			old:  "queueMark(batch, evenIfOld,",
			new:  "queueMark(batch, notIfOld,",
		},
		{
			breaks: "what a backend has attached under another name is detached", file: "activities/agent/settle.go", pkg: "activities/agent",
			test: "TestSettleOfARenamedBackend",
			old:  "backend = cmp.Or(a.Inventory.BackendOf(device, entry.Deployable), backend)",
			new:  "backend = cmp.Or(backend, a.Inventory.BackendOf(device, entry.Deployable))",
		},
		{
			breaks: "a report from before a settlement asks for no other", file: operation + "disagreements.go", pkg: pkg,
			test: "TestSettledIsToldOnce",
			old:  "tx, host, observations, handles); err != nil {",
			new:  "tx, host, observations[:0], handles); err != nil {",
		},
		{
			breaks: "what a host need not change is not told", file: operation + "pending_settlements.go", pkg: pkg,
			test: "TestSettledIsToldOnce",
			old:  "corrected = *d.Changed",
			new:  "corrected = true",
		},
		{
			breaks: "nobody gets what is to be detached", file: operation + "disagreements.go", pkg: pkg,
			test: "TestNobodyGetsWhatIsToBeDetached",
			old:  "if err := keepFree(ctx, tx, &decided); err != nil {",
			new:  "if err := error(nil); err != nil {",
		},
		{
			breaks: "a settlement leaves what a later operation has left", file: operation + "disagreements.go", pkg: pkg,
			test: "TestSettlementBeforeALaterOperation",
			old:  "o.assignment > d.assignment)",
			new:  "o.assignment > d.assignment + 1000)",
		},
		{
			breaks: "what is not forgotten stays unconfirmed", file: "db/internal/inventory/forget_missing.go", pkg: pkg,
			test: "TestForgetKeepsUnconfirmed",
			old:  "ClearUnconfirmed(ctx, tx, handles, host,",
			new:  `ClearUnconfirmed(ctx, tx, missing+"true", host,`,
		},
		{
			breaks: "what a forgotten host may have attached is unconfirmed when it comes back", file: "db/internal/ingest/unconfirmed.go", pkg: pkg,
			test: "TestForgottenHostComesBackWithAnInstance",
			old:  "\t\tinventory.QueueMarkForgotten(batch, uuids)\n",
			new:  "",
		},
		{
			breaks: "a correction is told once for each report", file: "db/migrations/00008_assignments.sql", pkg: pkg,
			test: "TestSettledIsToldOncePerReport",
			old:  "(data->'assignment' = what->'assignment' OR data @> correction)",
			new:  "data->'assignment' = what->'assignment'",
		},
		{
			breaks: "what the records decide later is told, too", file: "db/migrations/00008_assignments.sql", pkg: pkg,
			test: "TestSettledIsToldOncePerReport",
			old:  "        'now', what->'now', 'report',",
			new:  "        'report',",
		},
		{
			breaks: "a settlement leaves a claimed accelerator in error", file: operation + "disagreements.go", pkg: pkg,
			test: "TestSettlingLeavesAClaimedAcceleratorInError",
			old:  "inventory.QueueSettle(tx, free)",
			new:  "inventory.QueueSettle(tx, append(free, targets...))",
		},
		{
			breaks: "a decision waits for the host", file: operation + "disagreements.go", pkg: pkg, test: "TestDecideWaitsForAdmissions",
			old: "records.LockHosts(ctx, tx, d.Host)",
			new: "records.LockHosts(ctx, tx)",
		},
		{
			breaks: "a run that takes over gets a new number", file: operation + "owner.go", pkg: pkg, test: "TestAssignmentsGrow",
			old: "CASE WHEN run_id = '' THEN assignment ELSE next_assignment() END",
			new: "assignment",
		},
		{
			breaks: "a new journal is told of open operations", file: "db/internal/ingest/assignments.go", pkg: pkg, test: "TestFloorForANewJournal",
			old: "WHERE host = name AND open)",
			new: "WHERE host = name AND state = 'running')",
		},
		{
			breaks: "no decision passes a claim", file: operation + "disagreements.go", pkg: pkg, test: "TestDecideLooksAgain",
			old: "if err == nil && claimed {",
			new: "if err == nil && false {",
		},
		{
			breaks: "a number is drawn for the operation's own run only", file: operation + "owner.go", pkg: pkg, test: "TestRenumber",
			old: "\t\tif err := o.requireOwner(ctx, tx, run); err != nil {\n\t\t\treturn err\n\t\t}\n\n\t\treturn tx.QueryRow",
			new: "\t\t_ = o\n\n\t\treturn tx.QueryRow",
		},
		{
			breaks: "a settlement waits for the host", file: operation + "disagreements.go", pkg: pkg, test: "TestSettlingRespectsClaims",
			old: "records.LockHosts(ctx, tx, host)",
			new: "records.LockHosts(ctx, tx)",
		},
		{
			breaks: "a cancel waits for the host", file: operation + "operations.go", pkg: pkg, test: "TestChangesWaitForTheirHost",
			old: "\t\tif err := lockHostOfOperation(ctx, tx, id); err != nil {\n\t\t\treturn err\n\t\t}\n\n",
			new: "",
		},
		{
			breaks: "a change of an accelerator waits for its host", file: "db/internal/inventory/lock_accelerators.go", pkg: pkg,
			test: "TestChangesWaitForTheirHost",
			old:  `"SELECT pg_advisory_xact_lock(hashtextextended(host, 0)) FROM deployables WHERE uuid = $1"`,
			new:  `"SELECT pg_advisory_xact_lock(hashtextextended(host, 1)) FROM deployables WHERE uuid = $1"`,
		},
		{
			breaks: "an attach does not pass by a bind", file: "db/internal/inventory/lock_accelerators.go", pkg: pkg,
			test: "TestBindsOfOneHostRunConcurrently",
			old:  `"SELECT pg_advisory_xact_lock(hashtextextended(host, 0)) FROM deployables WHERE uuid = $1"`,
			new:  `"SELECT pg_advisory_xact_lock_shared(hashtextextended(host, 0)) FROM deployables WHERE uuid = $1"`,
		},
		{
			breaks: "a repeat does not wait for its host", file: operation + "admit.go", pkg: pkg, test: "TestARepeatDoesNotWaitForItsHost",
			old: "('the idempotency key of operation ' || id || ' was used again')::boolean FROM",
			new: "true FROM",
		},
		{
			breaks: "what is queued is done, and checked, before the commit", file: "db/internal/records/message.go", pkg: "db/internal/records",
			test: "TestAQueuedStatementCanRefuse",
			old:  "if err := Send(ctx, t); err != nil {\n\t\treturn err\n\t}\n\treturn t.Tx.Commit(ctx)",
			new:  "return t.Tx.Commit(ctx)",
		},
		{
			breaks: "a row that is not there fails no message", file: "db/internal/records/message.go", pkg: "db/internal/records",
			test: "TestNoRowIsNoFailure",
			old:  "none, err = err, nil",
			new:  "none = err",
		},
		{
			breaks: "a database that stood still is no defect of ours", file: "db/internal/records/errors.go", pkg: pkg,
			test: "TestTransientFailuresAreUnavailable",
			old:  "[]string{readOnly, idleInTransaction, transactionTimeout}",
			new:  "[]string{readOnly, transactionTimeout}",
		},
		{
			breaks: "a change of a host keeps others out", file: "db/internal/records/locks.go", pkg: pkg, test: "TestChangesWaitForTheirHost",
			old: "\tSELECT pg_advisory_xact_lock(key) FROM (\n\t\tSELECT DISTINCT",
			new: "\tSELECT pg_advisory_xact_lock_shared(key) FROM (\n\t\tSELECT DISTINCT",
		},
		{
			breaks: "hosts are locked in one order", file: "db/internal/records/locks.go", pkg: pkg, test: "TestHostsAreLockedInOneOrder",
			old: "AS name ORDER BY key) AS keys",
			new: "AS name ORDER BY key DESC) AS keys",
		},
		{
			breaks: "an idempotency key is for one request", file: operation + "admit.go", pkg: pkg, test: "TestIdempotency",
			old: "*fingerprint != a.Fingerprint",
			new: "*fingerprint == \"\"",
		},
		{
			breaks: "protected hardware is not touched", file: "db/internal/inventory/guard.go", pkg: pkg, test: "TestAdmissionGuards",
			old: `if a.Protected != "" {`,
			new: `if a.Protected == "-" {`,
		},
		{
			breaks: "an accelerator is given to one holder once", file: "db/internal/inventory/guard.go", pkg: pkg, test: "TestAdmissionGuards",
			old: "if h.Holder != nil && *h.Holder == holder {",
			new: "if false {",
		},
		{
			breaks: "a run does not get the query of an image's URL", file: operation + "program.go", pkg: pkg,
			test: "TestQueryOfAnImageIsKeptWhileItsOperationRuns",
			old:  "\trequest.Image = request.Image.WithoutQuery()\n",
			new:  "",
		},
		{
			breaks: "the query of an image's URL is deleted with the end", file: operation + "run.go", pkg: pkg,
			test: "TestQueryOfAnImageIsKeptWhileItsOperationRuns",
			old:  "input = secretive.forget()",
			new:  "_ = secretive.forget()",
		},
	}
}

// ofWaker are about the readers of events, and who wakes them.
func ofWaker() []mutant {
	const (
		waker    = "db/internal/feed/waker.go"
		notifier = "db/internal/feed/notifier.go"
		pkg      = "db"
	)

	return []mutant{
		{
			breaks: "readers are woken after the last commit", file: "db/internal/records/transaction.go", pkg: pkg,
			test: "TestReadersAreWokenAfterTheLastCommit",
			old:  "case d.Committed <- struct{}{}:",
			new:  "case make(chan struct{}) <- struct{}{}:",
		},
		{
			breaks: "a lost connection of the waker is replaced", file: waker, pkg: pkg, test: "TestReadersAreWokenAfterALostConnection",
			old: "if err := w.notify(ctx); err == nil {\n\t\t\treturn nil\n\t\t}\n\t\tw.disconnect(ctx)\n",
			new: "return w.notify(ctx)\n",
		},
		{
			breaks: "a wake-up that failed is owed", file: waker, pkg: pkg, test: "TestAFailedWakeUpIsOwed",
			old: "owed = err != nil",
			new: "owed = false",
		},
		{
			breaks: "a store that is closed has woken the readers", file: waker, pkg: pkg, test: "TestAStoreThatIsClosedHasWokenTheReaders",
			old: "\tselect {\n\tcase <-w.committed:\n\t\treturn true\n\tdefault:\n\t\treturn false\n\t}\n",
			new: "\treturn false\n",
		},
		{
			breaks: "readers look each second", file: notifier, pkg: pkg, test: "TestReadersFindWhatNobodyTold",
			old: "pause = idleTick\n\t\tcase fresh",
			new: "pause = time.Hour\n\t\tcase fresh",
		},
	}
}

// ofFeed are about the order of events, and cursors that lead nowhere.
func ofFeed() []mutant {
	const (
		epochs  = "db/migrations/00013_epochs_of_restores.sql"
		begin   = "db/migrations/00019_epochs_of_clocks_set_back.sql"
		writers = "db/migrations/00021_corrections_and_writers.sql"
		pkg     = "db"
	)

	return []mutant{
		{
			breaks: "a start of PostgreSQL is noticed by writers", file: epochs, pkg: pkg, test: "TestFeedSurvivesAFailoverThatLosesCommits",
			old: "(SELECT CASE WHEN server_started = pg_postmaster_start_time() AND relation = tableoid THEN base END\n        FROM",
			new: "(SELECT base\n        FROM",
		},
		{
			breaks: "a start of PostgreSQL is noticed by readers", file: epochs, pkg: pkg, test: "TestFeedSurvivesARestoreIntoAnotherServer",
			old: "CASE WHEN server_started = pg_postmaster_start_time() AND relation = tableoid OR pg_is_in_recovery()",
			new: "CASE WHEN true",
		},
		{
			breaks: "events wait for the oldest transaction", file: epochs, pkg: pkg, test: "TestFeedWaitsForOlderTransactions",
			old: "CASE WHEN server_started = pg_postmaster_start_time() AND relation = tableoid OR pg_is_in_recovery()",
			new: "CASE WHEN false",
		},
		{
			breaks: "one transaction begins an epoch", file: epochs, pkg: pkg, test: "TestTheFirstWritersOfAnEpochAgree",
			old: "        LOCK TABLE feed_epochs IN EXCLUSIVE MODE;\n",
			new: "",
		},
		{
			breaks: "an epoch is above all that is stored, whatever the clock says", file: begin, pkg: pkg, test: "TestAnEpochIsAboveAllThatIsStored",
			old: "(SELECT transaction::text::bigint FROM events ORDER BY transaction DESC LIMIT 1)",
			new: "0",
		},
		{
			breaks: "an epoch begins with the oldest transaction that runs", file: begin, pkg: pkg, test: "TestAnEpochIsAboveAllThatIsStored",
			old: "- pg_snapshot_xmin(pg_current_snapshot())::text::bigint,",
			new: "- pg_current_xact_id()::text::bigint,",
		},
		{
			breaks: "numbers of lost events are not given again, whatever the clock says", file: begin, pkg: pkg, test: "TestFeedSurvivesAClockThatWasSetBack",
			old: "+ ((1 + floor(random() * 1024)::bigint) << 30)",
			new: "+ 1",
		},
		{
			breaks: "the doctor tells standbys of a quorum apart", file: "db/health.go", pkg: "db", test: "TestHealthOfReplication",
			old: "WHERE sync_state = 'quorum'",
			new: "WHERE sync_state IN ('quorum', 'sync')",
		},
		{
			breaks: "a reader of a lost epoch goes on before the present one", file: "db/internal/feed/gone.go", pkg: pkg, test: "TestFeedSurvivesAClockThatWasSetBack",
			old: "(least($1, epoch.first), CASE WHEN epoch.first <= $1 THEN -1 ELSE $2 END)",
			new: "($1, $2 + epoch.first::text::bigint * 0)",
		},
		{
			breaks: "an epoch that is begun by hand waits for those that have written before", file: writers, pkg: pkg,
			test: "TestAnEpochBeginsWhileOthersWrite",
			old:  "    LOCK TABLE events IN SHARE MODE;\n",
			new:  "",
		},
		{
			breaks: "after a restore that nothing tells, an epoch can be begun by hand", file: writers, pkg: pkg,
			test: "TestARestoreThatNothingTells",
			old:  "PERFORM begin_feed_epoch();",
			new:  "PERFORM feed_base();",
		},
		{
			breaks: "a copy of the database is noticed", file: epochs, pkg: pkg, test: "TestFeedSurvivesARestoreIntoTheSameServer",
			old: " AND relation = tableoid THEN base END\n        FROM",
			new: " THEN base END\n        FROM",
		},
		{
			breaks: "drawing a number begins an epoch", file: writers, pkg: pkg, test: "TestAssignmentsGoOnBehindThoseThatWereLost",
			old: "    PERFORM feed_base();\n",
			new: "",
		},
		{
			breaks: "an epoch draws no number again", file: begin, pkg: pkg, test: "TestAssignmentsGoOnBehindThoseThatWereLost",
			old: "    FROM assignment_numbers WHERE last_value <",
			new: "    FROM assignment_numbers WHERE false AND last_value <",
		},
		{
			breaks: "a cursor that leads nowhere is refused", file: "db/internal/feed/events.go", pkg: pkg, test: "TestFeedSurvivesARestoreIntoTheSameServer",
			old: "if after != (cyborg.Cursor{}) {",
			new: "if false {",
		},
		{
			breaks: "the newest event is kept", file: "db/prune.go", pkg: pkg, test: "TestCursorOlderThanTheRetention",
			old: "AND id <> (SELECT id FROM events ORDER BY transaction DESC, id DESC LIMIT 1) ORDER BY at",
			new: "ORDER BY at",
		},
		{
			breaks: "a heartbeat says how far the stream is", file: "api/v1/stream.go", pkg: "api", test: "TestHeartbeatsSayHowFarTheStreamIs",
			old: "\t\ts.after = newest\n\t}\n\n\treturn s.write",
			new: "\t}\n\n\treturn s.write",
		},
	}
}

// ofAgents are about the steps on a host.
func ofAgents() []mutant {
	const (
		agent = "activities/agent/"
		pkg   = "activities/agent"
	)

	return []mutant{
		{
			breaks: "a late step is refused", file: agent + "step.go", pkg: pkg, test: "TestLateStepsAreRefused",
			old: "a.Journal.Raise(to.Assignment, subjectOf(target))",
			new: "a.Journal.Raise(0, subjectOf(target))",
		},
		{
			breaks: "a late image for a neighbour is refused", file: agent + "program.go", pkg: pkg, test: "TestLateImageForANeighbour",
			old: "a.Journal.Raise(in.Assignment, subjects...)",
			new: "a.Journal.Raise(0, subjects...)",
		},
		{
			breaks: "a late configure is refused", file: agent + "configure.go", pkg: pkg, test: "TestLateConfigure",
			old: "return a.keepNumber(in.Addressee, journal.BackendSubject(in.Request.Backend))",
			new: "return a.keepNumber(workflows.Addressee{}, journal.BackendSubject(in.Request.Backend))",
		},
		{
			breaks: "a backend changes after its number is written", file: agent + "step.go", pkg: pkg, test: "TestLateConfigure",
			old: "\treturn a.Journal.KeepRaised()",
			new: "\treturn nil",
		},
		{
			breaks: "a late whitelist is refused", file: agent + "whitelist.go", pkg: pkg, test: "TestLateWhitelist",
			old: "return result, err\n\t}\n\n\t// Read the step again",
			new: "_ = err\n\t}\n\n\t// Read the step again",
		},
		{
			breaks: "a late undo of a whitelist is refused", file: agent + "whitelist.go", pkg: pkg, test: "TestLateWhitelist",
			old: "return struct{}{}, err\n\t}\n\n\ts := step{",
			new: "_ = err\n\t}\n\n\ts := step{",
		},
		{
			breaks: "a late whitelist that had begun gets another number", file: agent + "whitelist.go", pkg: pkg, test: "TestLateWhitelistThatHasBegun",
			old: "if err != nil && s.begun && cyborg.ErrorKindOf(err) != cyborg.ErrLate {",
			new: "if err != nil && s.begun {",
		},
		{
			breaks: "an image that comes too late is not fetched", file: agent + "stage.go", pkg: pkg, test: "TestLateStage",
			old: "\tif err := a.Journal.Raise(in.Assignment, subjectOf(in.Target)); err != nil {\n\t\treturn result, err\n\t}\n\n\tfound, err",
			new: "\tfound, err",
		},
		{
			breaks: "an image that was overtaken while it came is not kept", file: agent + "stage.go", pkg: pkg, test: "TestLateStage",
			old: "\tif err := a.Journal.Raise(in.Assignment, subjectOf(in.Target)); err != nil {\n\t\treturn result, err\n\t}\n\n\t// The journal",
			new: "\t// The journal",
		},
		{
			breaks: "a step that writes nothing keeps its number", file: agent + "activities.go", pkg: pkg,
			test: "TestDetachOfAGoneDeviceKeepsItsNumber",
			old:  "keepErr := a.Journal.KeepRaised(); err == nil",
			new:  "keepErr := error(nil); err == nil",
		},
		{
			breaks: "a new journal waits for its floor", file: "workers/agent/reporter.go", pkg: "workers/agent", test: "TestStepsWaitForTheFloor",
			old: "case err == nil && !r.lacksFloor():",
			new: "case err == nil:",
		},
		{
			breaks: "a step that was undone does not begin", file: agent + "step.go", pkg: pkg, test: "TestUndoBeforeTheAttachBegan",
			old: `return s, false, cyborg.Errorf(cyborg.ErrCancelled, "%s has been undone; this try comes too late", attemptOf(name, operation))`,
			new: "return s, false, nil",
		},
		{
			breaks: "a step that was done is not done again", file: agent + "step.go", pkg: pkg, test: "TestAttachAndDetach",
			old: "return s, true, nil",
			new: "return s, false, nil",
		},
		{
			breaks: "a refusal after a change is no refusal", file: agent + "step.go", pkg: pkg, test: "TestRefusedAttachIsUndone",
			old: "if !isRefusal(err) {",
			new: "if true {",
		},
		{
			breaks: "what the host lives on is not touched", file: agent + "step.go", pkg: pkg, test: "TestProtectedDevicesAreRefused",
			old: `if why := found.Deployable.Protected; why != "" {`,
			new: `if why := found.Deployable.Protected; why == "-" {`,
		},
		{
			breaks: "a step stays on the device that was meant", file: agent + "step.go", pkg: pkg, test: "TestUnknownTargetsAreRefused",
			old: "if found.Device.Identity != target.Device {",
			new: "if false {",
		},
		{
			breaks: "a step succeeds only in the journal", file: agent + "step.go", pkg: pkg, test: "TestAStepSucceedsOnlyInTheJournal",
			old: "if err := a.writeLayouts(change); err != nil {\n\t\t\treturn err\n\t\t}\n\n\t\tout = made",
			new: "_ = a.writeLayouts(change)\n\t\tout = made",
		},
		{
			breaks: "an agent attaches to its host only", file: agent + "attach.go", pkg: pkg, test: "TestAttachForInstanceIsRefused",
			old: "if !in.Handle.OnHost() {",
			new: "if false {",
		},
		{
			breaks: "an attach is in the journal before the hardware is touched", file: agent + "attach.go", pkg: pkg,
			test: "TestTheJournalKnowsBeforeTheHardware",
			old:  "append(plan.steps, s.at(journal.Started)), Attachments: []journal.Attachment{plan.entry},",
			new:  "plan.steps,",
		},
		{
			breaks: "a handle in use does not change hands", file: agent + "attach.go", pkg: pkg, test: "TestAHandleInUseDoesNotChangeHands",
			old: `if who != "" {`,
			new: `if who == "-" {`,
		},
		{
			breaks: "a note from before a boot is not given to the driver", file: agent + "attach.go", pkg: pkg, test: "TestABootUndoesAttachments",
			old: "plan.before != nil && plan.before.BootID == a.Journal.BootID()",
			new: "plan.before != nil",
		},
		{
			breaks: "nothing is detached while one handle is in use", file: agent + "detach.go", pkg: pkg,
			test: "TestDetachOfSeveralWhileOneIsInUse",
			old:  "if len(used) > 0 {",
			new:  "if len(used) > len(in.Handles) {",
		},
		{
			breaks: "a repeated detach remembers what the first one found", file: agent + "detach.go", pkg: pkg,
			test: "TestARepeatedDetachRemembersWhatTheFirstFound",
			old:  "\tif !s.begun {\n\t\ttext, err := json.Marshal(note)",
			new:  "\tif true {\n\t\ttext, err := json.Marshal(note)",
		},
		{
			breaks: "no image is loaded into what is in use", file: agent + "program.go", pkg: pkg, test: "TestProgramInUseIsRefused",
			old: "return found, a.checkDisturbed(ctx, t, found, in.Image.WholeDevice)",
			new: "return found, nil",
		},
		{
			breaks: "no image is loaded without the memory of what was there", file: agent + "program.go", pkg: pkg,
			test: "TestJournalLostDuringAProgram",
			old:  "staged, ok := a.Journal.Staged(in.Operation)\n\tif !ok {",
			new:  "staged, ok := a.Journal.Staged(in.Operation)\n\tif !ok {\n\t\treturn a.Images.Get(ctx, in.SHA256)\n\t}\n\tif !ok {",
		},
		{
			breaks: "a redirect does not tell the URL before", file: "internal/imagesource/imagesource.go", pkg: "internal/imagesource",
			test: "TestRedirectsKeepQueries",
			old:  "req.Header.Del(\"Referer\")",
			new:  "req.Header.Del(\"X-None\")",
		},
		{
			breaks: "only the host's agent gets an image", file: "api/agents/image.go", pkg: "api/agents",
			test: "TestImagesAreServedToTheHostsAgentOnly",
			old:  "err := e.checkProof(r, host); err != nil",
			new:  "err := e.checkProof(r, host); false && err != nil",
		},
		{
			breaks: "a host does not learn which operations others have", file: "api/agents/image.go", pkg: "api/agents",
			test: "TestOneTimeURLIsRefused",
			old:  "kind == cyborg.ErrNotFound || kind == cyborg.ErrForbidden {",
			new:  "kind == cyborg.ErrForbidden {",
		},
		{
			breaks: "an operation that is not there is refused like another's", file: "api/agents/image.go", pkg: "api/agents",
			test: "TestImageForAnotherHostIsRefused",
			old:  "kind == cyborg.ErrNotFound || kind == cyborg.ErrForbidden {",
			new:  "kind == cyborg.ErrNotFound {",
		},
		{
			breaks: "an agent of release 0.1 gets no image by its name", file: "api/agents/image.go", pkg: "api/agents",
			test: "TestImagesAreServedToTheHostsAgentOnly",
			old:  "named := err == nil; !named &&",
			new:  "named := err == nil && false; !named &&",
		},
		{
			breaks: "nobody gets the images of an agent in a server's process", file: "api/agents/image.go", pkg: "api/agents",
			test: "TestImagesAreServedToTheHostsAgentOnly",
			old:  "!named && agentapi.HasNoProof(host.Instance)",
			new:  "!named && len(host.Instance) != 32",
		},
		{
			breaks: "an agent with a certificate has a proof, too", file: "workers/agent/identity.go", pkg: "workers/agent",
			test: "TestAgentsProveTheirInstance",
			old:  "if a.deps.Dial != nil {\n\t\treturn identity",
			new:  "if a.deps.Dial != nil || a.config.TLS != nil {\n\t\treturn identity",
		},
		{
			breaks: "no request sets what the host has set", file: "activities/agent/inventory/configure.go", pkg: "activities/agent/inventory",
			test: "TestNoRequestSetsWhatTheHostHasSet",
			old:  "if strings.EqualFold(option, set) {",
			new:  "if false && strings.EqualFold(option, set) {",
		},
		{
			breaks: "only the host's agent gives an image back", file: "api/agents/image.go", pkg: "api/agents",
			test: "TestImagesAreServedToTheHostsAgentOnly",
			old:  "\top, err := e.authorizeImage(r)\n\tif err != nil {\n\t\treturn err\n\t}\n\n\tif err := e.deps",
			new:  "\tid, err := operationOf(r)\n\top := cyborg.Operation{ID: id}\n\tif err != nil {\n\t\treturn err\n\t}\n\n\tif err := e.deps",
		},
	}
}

// ofHeartbeats are about how an agent and Temporal know of each other.
func ofHeartbeats() []mutant {
	const (
		agent = "activities/agent/"
		pkg   = "activities/agent"
	)

	return []mutant{
		{
			breaks: "a late try asks first whether anybody waits", file: agent + "heartbeat.go", pkg: pkg, test: "TestFirstHeartbeatComesBeforeTheWork",
			old: "if handedOut.Abs() > promptStart {",
			new: "if handedOut.Abs() < 0 {",
		},
		{
			breaks: "a step that goes on says so", file: agent + "heartbeat.go", pkg: pkg, test: "TestALongStepSendsHeartbeats",
			old: "activity.RecordHeartbeat(ctx, b.current())",
			new: "b.current()",
		},
		{
			breaks: "what changes no hardware ends when the agent stops", file: agent + "activities.go", pkg: pkg, test: "TestStopEndsReadOnlySteps",
			old: "if stop == yields {",
			new: "if stop == finishes {",
		},
		{
			breaks: "what changes hardware is finished when the agent stops", file: agent + "activities.go", pkg: pkg,
			test: "TestStopLetsHardwareChangesFinish",
			old:  "if stop == yields {",
			new:  "if true {",
		},
	}
}

// ofTheAPI are about what callers are promised.
func ofTheAPI() []mutant {
	const (
		operate = "api/operate/"
		pkg     = "api"
	)

	return []mutant{
		{
			breaks: "a repeat is answered although what it names has gone", file: "api/v1/operate.go", pkg: "api", test: "TestIdempotencyKeyOfWhatHasGone",
			old: "return a.operations.Repeat(ctx, request, err)",
			new: "return operate.Outcome{}, err",
		},
		{
			breaks: "a reader sees no secret of a driver's options", file: "api/v1/view.go",
			old: "backend.Options = redact.Options(backend.Options)", new: "_ = redact.Options",
			pkg: "api", test: "TestNoRouteShowsASecret",
		},
		{
			breaks: "a reader sees no secret in the input of an operation", file: "api/v1/view.go",
			old: "shown[\"options\"] = redact.Options(options)", new: "shown[\"options\"] = options",
			pkg: "api", test: "TestNoRouteShowsASecret",
		},
		{
			breaks: "no request puts a secret into the records", file: "db/internal/operation/configure.go",
			old: "len(secrets) > 0 {", new: "len(secrets) < 0 {",
			pkg: "db", test: "TestConfigure",
		},
		{
			breaks: "no step sets an option that looks secret", file: "activities/agent/inventory/configure.go",
			old: "_, refused := i.splitOwn(want.Driver, options)", new: "_, refused := i.registry.SplitOwn(want.Driver, options)",
			pkg: "activities/agent", test: "TestNoStepSetsASecret",
		},
		{
			breaks: "an option that looks secret is the host's own", file: "activities/agent/inventory/inventory.go",
			old: "len(redact.Secrets(map[string]any{option: value})) > 0 {", new: "len(redact.Secrets(map[string]any{option: value})) < 0 {",
			pkg: "activities/agent", test: "TestSecretsStayOnTheHost",
		},
		{
			breaks: "a secret in JSON within a text is found", file: "internal/redact/redact.go",
			old: "found = secretsIn(at, document(v))", new: "found = secretsIn(at, nil)",
			pkg: "internal/redact", test: "TestSecretsWithinOptions",
		},
		{
			breaks: "an option within another is found", file: "drivers/registry.go",
			old: "if isOwn(known, name, inside) {", new: "if name == \"\" && isOwn(known, name, inside) {",
			pkg: "drivers", test: "TestOwnOptions",
		},
		{
			breaks: "no request loads any module", file: "drivers/passthrough/options.go",
			old: "Open: isVFIODriver}", new: "Open: func(any) bool { return true }}",
			pkg: "drivers/generic", test: "TestRequestsChooseOnlyVFIODrivers",
		},
		{
			breaks: "an admin has a share of the event streams", file: "api/v1/streams.go",
			old: "case s.byCaller[caller.ID] >= s.forEach:", new: "case !admin && s.byCaller[caller.ID] >= s.forEach:",
			pkg: "api", test: "TestEventStreamsAreShared",
		},
		{
			breaks: "nobody of Keystone sees requests without a project", file: "api/v2/accelerator_requests.go",
			old: "caller.UserID == \"\" && caller.Has(\"member\")", new: "caller.Has(\"member\")",
			pkg: "api", test: "TestRequestsWithoutAProject",
		},
		{
			breaks: "failures of strangers have one line a minute", file: "api/web/observe.go",
			old: "now.Sub(f.began) < strangersWindow", new: "now.Sub(f.began) < 0",
			pkg: "api/web", test: "TestStrangersAreNotLogged",
		},
		{
			breaks: "the agent endpoint tells no instance", file: "api/agents/host.go",
			old: "Address: found.Address, LastSeen", new: "Address: found.Address + found.Instance, LastSeen",
			pkg: "api/agents", test: "TestInstanceIsNotTold",
		},
		{
			breaks: "of bodies that are as good as each other, the first arrive", file: "api/agents/bodies.go",
			old: "if most > 1 {", new: "if most > 0 {",
			pkg: "api/agents", test: "TestTheFirstBodiesArrive",
		},
		{
			breaks: "agents of this process are several peers", file: "api/agents/bodies.go",
			old: "return r.Header.Get(agentapi.HostHeader)", new: "return r.Header.Get(agentapi.HostHeader)[:1]",
			pkg: "api/agents", test: "TestTheFirstBodiesArrive",
		},
		{
			breaks: "heartbeats have room of their own", file: "api/agents/heartbeats.go",
			old: "return e.beats.read(", new: "return e.bodies.read(",
			pkg: "api/agents", test: "TestTheFirstBodiesArrive",
		},
		{
			breaks: "large reports of one peer wait", file: "api/agents/agents.go",
			old: "e.large.most = config.MaxBodies + config.MaxLarge", new: "",
			pkg: "api/agents", test: "TestLargeReportsOfOnePeerWait",
		},
		{
			breaks: "hosts of one network that enroll at once wait", file: "api/agents/places.go",
			old: "	p.most = maxDoorsOfOne\n", new: "",
			pkg: "api/agents", test: "TestDoorsOfOneAddressAreBounded",
		},
		{
			breaks: "no more requests for certificates of one address wait than fit", file: "api/agents/places.go",
			old: "if own.users >= p.most {", new: "if own.users >= p.most && p.most == sharePerIdentity {",
			pkg: "api/agents", test: "TestDoorsOfOneAddressAreBounded",
		},
		{
			breaks: "a wait for a place is not the body's time", file: "api/agents/bodies.go",
			old: "one.until = one.until.Add(time.Since(began))", new: "_ = began",
			pkg: "api/agents", test: "TestWaitIsNotTheBodysTime",
		},
		{
			breaks: "a body that waits for its place is given up", file: "api/agents/bodies.go",
			old: "\tsurplus.giveUp()\n", new: "",
			pkg: "api/agents", test: "TestBodyThatWaitsIsGivenUp",
		},
		{
			breaks: "nothing is recorded while Temporal is away", file: operate + "do.go", pkg: pkg, test: "TestOperationsWhileTemporalIsAway",
			old: "if err := r.Available(ctx); err != nil {",
			new: "if err := error(nil); err != nil {",
		},
		{
			breaks: "an admission outlives its caller", file: operate + "do.go", pkg: "api/operate", test: "TestACallerLeavesDuringTheAdmission",
			old: "context.WithTimeout(context.WithoutCancel(ctx), admitLimit)",
			new: "context.WithTimeout(ctx, admitLimit)",
		},
		{
			breaks: "a cancel outlives its caller", file: operate + "cancel.go", pkg: "api/operate", test: "TestACallerLeavesDuringACancel",
			old: "context.WithTimeout(context.WithoutCancel(ctx), admitLimit)",
			new: "context.WithTimeout(ctx, admitLimit)",
		},
		{
			breaks: "a long operation gives its place back", file: operate + "in_flight.go", pkg: "api/operate",
			test: "TestALongOperationGivesItsPlaceBack",
			old:  "time.AfterFunc(l.hold, releaseOnce)",
			new:  "time.AfterFunc(time.Hour, releaseOnce)",
		},
		{
			breaks: "an operation without a caller keeps its place", file: operate + "do.go", pkg: pkg, test: "TestInFlightLimitOfAsyncRequests",
			old: "\t_ = run.Wait(ctx)",
			new: "\t_ = ctx",
		},
		{
			breaks: "a place in flight is given back", file: operate + "do.go", pkg: pkg, test: "TestInFlightLimit",
			old: "\tdefer release()\n\top, err := r.awaitRun",
			new: "\top, err := r.awaitRun",
		},
		{
			breaks: "a cancel that Temporal did not take is told", file: operate + "cancel.go", pkg: pkg, test: "TestCancelWhileTemporalIsAway",
			old: "if err := r.engine.Cancel(ctx, op); err != nil {",
			new: "if err := r.engine.Cancel(ctx, op); err == nil {",
		},
		{
			breaks: "a start that failed is told", file: operate + "do.go", pkg: "api/operate", test: "TestAStartThatFailsIsTold",
			old: "startPending: true}",
			new: "startPending: false}",
		},
	}
}

// ofUninstalls are about accelerators that left service while they were away.
func ofUninstalls() []mutant {
	const uninstall = "db/internal/operation/uninstall.go"

	return []mutant{
		{
			breaks: "a card that is away is not called uninstalled", file: "workflows/provision.go", pkg: "workflows", test: "TestOutcomeSaysWhetherItWasUninstalled",
			old: "changed := result.changed()",
			new: "changed := true",
		},
		{
			breaks: "a retire is not undone without its card", file: "workflows/retire.go", pkg: "workflows", test: "TestRetireIsNotUndoneWithoutTheCard",
			old: "err == nil && !undoResult.changed()",
			new: "err != nil && !undoResult.changed()",
		},
		{
			breaks: "what is uninstalled has no uninstall to come", file: uninstall, pkg: "db", test: "TestRetiredWhileAway",
			old: "(uninstall_pending_since IS NULL) <> $2",
			new: "uninstall_pending_since IS NULL AND NOT $2",
		},
		{
			breaks: "what nobody could uninstall is tried again later", file: uninstall, pkg: "db", test: "TestPendingUninstallIsTriedAgain",
			old: "tried.id IS DISTINCT FROM d.lifecycle_operation",
			new: "tried.id IS NOT DISTINCT FROM d.lifecycle_operation",
		},
		{
			breaks: "what may be in use is not uninstalled", file: uninstall, pkg: "db", test: "TestPendingUninstallIsLeftAlone",
			old: " OR a.unconfirmed_kind IS NOT NULL",
			new: "",
		},
		{
			breaks: "Nova does not get what has still to be uninstalled", file: "db/internal/operation/whitelist.go", pkg: "db", test: "TestWhitelistOfAPendingUninstall",
			old: "a.Unfenced(), a.Uninstalled())",
			new: "a.Unfenced())",
		},
		{
			breaks: "a forgotten card is uninstalled when it is back", file: "db/internal/inventory/uninstall.go", pkg: "db", test: "TestForgottenWhileAway",
			old: "d.lifecycle <> 'inactive' OR ",
			new: "",
		},
		{
			breaks: "what is in service has no uninstall to come", file: "db/internal/inventory/lifecycle.go", pkg: "db", test: "TestProvisionEndsAPendingUninstall",
			old: "CASE WHEN $2 <> 'ready' THEN uninstall_pending_since END",
			new: "uninstall_pending_since",
		},
		{
			breaks: "Reconcile retires what is back", file: "activities/conductor/reconcile.go", pkg: "activities/conductor", test: "TestPendingUninstalls",
			old: "out.Retired, err = a.retirePending(ctx, in.Limits)",
			new: "err = nil",
		},
	}
}

// ofPendingSettlements are about corrections of attachments whose answer was lost.
func ofPendingSettlements() []mutant {
	const (
		decisions = "db/internal/operation/pending_settlements.go"
		merges    = "db/internal/ingest/pending_settlements.go"
		pkg       = "db"
	)

	return []mutant{
		{
			breaks: "why an attachment could not be settled is news once", file: decisions, pkg: pkg, test: "TestUnsettled",
			old: " AND error <> $4 ",
			new: " ",
		},
		{
			breaks: "nothing is shown of a card that is away", file: decisions, pkg: pkg, test: "TestUnsettled",
			old: "d.presence IS DISTINCT FROM 'missing' AND",
			new: "true AND",
		},
		{
			breaks: "nothing is shown that an operation may have changed since", file: decisions, pkg: pkg, test: "TestUnsettled",
			old: "'missing' AND NOT `+",
			new: "'missing' AND true OR false AND NOT `+",
		},
		{
			breaks: "a round records what its hosts could not settle", file: "workflows/reconcile.go", pkg: "workflows", test: "TestReconcileContinuesAfterFailures",
			old: "\t\t\t\t\trecordUnsettled(ctx, d, why, out)\n",
			new: "",
		},
		{
			breaks: "what could not be settled is logged once", file: "activities/conductor/reconcile.go", pkg: "activities/conductor",
			test: "TestUnsettledIsLoggedOnce",
			old:  "if err == nil && news {",
			new:  "if err == nil && (news || true) {",
		},
		{
			breaks: "the next report tells a correction whose answer was lost", file: "db/internal/ingest/reports.go", pkg: pkg,
			test: "TestSettledIsToldAfterALostAnswer",
			old:  "\tqueueCorrected(tx, reports, recorded, known, written)\n",
			new:  "",
		},
		{
			breaks: "only a report whose journal agrees does so", file: merges, pkg: pkg, test: "TestSettledIsToldAfterALostAnswer",
			old: "(r.emptied OR",
			new: "(true OR",
		},
		{
			breaks: "the next decision tells a correction whose answer was lost", file: decisions, pkg: pkg, test: "TestSettledIsToldByTheNextDecision",
			old: "THEN EXCLUDED.assignment ELSE p.first_assignment END",
			new: "THEN EXCLUDED.assignment ELSE EXCLUDED.assignment END",
		},
		{
			breaks: "an answer ends what was pending", file: decisions, pkg: pkg, test: "TestWhatWasNotSettledIsNotTold",
			old: "AND first_assignment <= $6",
			new: "AND first_assignment < $6",
		},
		{
			breaks: "a decision is pending where there is something to correct", file: decisions, pkg: pkg, test: "TestWhatWasNotSettledIsNotTold",
			old: "if !d.journalDiffers() && !d.stillLeft() {",
			new: "if false {",
		},
		{
			breaks: "a report from before the host heard of a decision tells no correction", file: merges, pkg: pkg, test: "TestWhatWasNotSettledIsNotTold",
			old: "r.assignment >= p.first_assignment AND",
			new: "r.assignment > 0 AND",
		},
		{
			breaks: "a report after a later operation tells no correction", file: merges, pkg: pkg, test: "TestWhatWasNotSettledIsNotTold",
			old: " AND NOT r.emptied AND NOT `+LaterOperation+` AS corrected",
			new: " AND NOT r.emptied AS corrected",
		},
		{
			breaks: "neither does a decision after one", file: decisions, pkg: pkg, test: "TestWhatWasNotSettledIsNotTold",
			old: "first_assignment = CASE WHEN `+ingest.LaterOperation+` THEN",
			new: "first_assignment = CASE WHEN false AND `+ingest.LaterOperation+` THEN",
		},
		{
			breaks: "a report with a journal that was emptied tells no correction", file: merges, pkg: pkg, test: "TestWhatWasNotSettledIsNotTold",
			old: " AND NOT r.emptied AND NOT `",
			new: " AND NOT `",
		},
	}
}

// ofFailovers are about the embedded Temporal, whose PostgreSQL fails over.
func ofFailovers() []mutant {
	const pkg = standalone + "engine"
	return []mutant{
		{
			breaks: "no connection of Temporal leads to a PostgreSQL that has failed over", file: pkg + "/database.go", pkg: pkg, test: "TestConnectionsLeadToOneTimeline",
			old: "return on.check(ctx, conn)",
			new: "return nil",
		},
		{
			breaks: "Temporal ends where PostgreSQL has failed over", file: pkg + "/lock.go", pkg: pkg, test: "TestFailoverThatLostCommits",
			old: " || errors.As(err, new(failedOver))",
			new: " || errors.As(err, new(failedOver)) && false",
		},
		{
			breaks: "a restart ends Temporal where PostgreSQL does not tell its timeline", file: pkg + "/timeline.go", pkg: pkg, test: "TestPostgresThatDoesNotTellItsTimeline",
			old: "'of the start at ' || extract(epoch FROM pg_postmaster_start_time())",
			new: "'unknown'",
		},
	}
}
