package mutants_test

import "slices"

// mutants are the mutants by what they break. One belongs here if somebody
// relies on what it breaks, and nobody would see it in the code at a glance.
func mutants() []mutant {
	return slices.Concat(ofJournal(), ofWorkflows(), ofRecords(), ofAgents(), ofHeartbeats(), ofTheAPI())
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
			breaks: "a record is synced before Write returns", file: journal, pkg: pkg, test: "TestPowerCutAtEveryOperation",
			old: "return j.file.Sync()",
			new: "return nil",
		},
		{
			breaks: "the directory is synced after the rename", file: atomicfile, pkg: pkg, test: "TestPowerCutAtEveryOperation",
			old: "\tif err == nil {\n\t\terr = dir.Sync()\n\t}\n\n\treturn file, withPath",
			new: "\treturn file, withPath",
		},
		{
			breaks: "a new file is synced before it gets its name", file: atomicfile, pkg: pkg, test: "TestPowerCutAtEveryOperation",
			old: "\tif err == nil {\n\t\terr = file.Sync()\n\t}\n\tif err == nil {\n\t\terr = dir.Rename",
			new: "\tif err == nil {\n\t\terr = dir.Rename",
		},
		{
			breaks: "a file of one's own is replaced as safely", file: atomicfile, pkg: "internal/atomicfile", test: "TestPowerCut",
			old: "\tif err == nil {\n\t\terr = file.Sync()\n\t}\n\tif err == nil {\n\t\terr = dir.Rename",
			new: "\tif err == nil {\n\t\terr = dir.Rename",
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
			old: "errors.Join(err, j.file.Truncate(j.size))",
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
			breaks: "one end of a bind counts", file: "workflows/bind.go", pkg: pkg, test: "TestK4LoadedInTimeWhileNoConductorRan",
			old: " == nil && !(b.loaded && decidesOnce(ctx)) {",
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
			breaks: "a step for another agent is refused", file: "activities/agent/activities.go", pkg: "activities/agent",
			test: "TestStepForAnotherAgentIsRefused",
			old:  "err = a.requireMine(&in, info.WorkflowExecution.RunID)",
			new:  "err = nil",
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
			old: "if h.bytes+bytes > h.limit {", new: "if h.bytes+bytes > h.limit && h.limit < 0 {",
			pkg: "api/agents", test: "TestReportsThatWaitAreBounded",
		},
		{
			breaks: "what a step saw under a number out of reach is left out", file: "db/internal/ingest/observe.go",
			old: "if err != nil || sequence <= furthest {", new: "if true {",
			pkg: "db", test: "TestObservedNumberOutOfReach",
		},
		{
			breaks: "a report may follow what was observed of its host", file: "db/internal/ingest/reports.go",
			old: "(SELECT max(observed_seq) FROM devices WHERE host = $1), 0)", new: "0)",
			pkg: "db", test: "TestObservedNumberOutOfReach",
		},
		{
			breaks: "another run cannot write", file: operation + "owner.go", pkg: pkg, test: "TestOtherRunOfAnOperationIsRefused",
			old: "if o.state.Ended() || !o.has(run) {\n\t\treturn superseded",
			new: "if o.state.Ended() {\n\t\treturn superseded",
		},
		{
			breaks: "an ended operation is nobody's", file: operation + "owner.go", pkg: pkg, test: "TestEndedOperationIsNobodys",
			old: "if o.state.Ended() || !o.has(run) {\n\t\treturn superseded",
			new: "if !o.has(run) {\n\t\treturn superseded",
		},
		{
			breaks: "another run cannot begin", file: operation + "owner.go", pkg: pkg, test: "TestOtherRunOfAnOperationIsRefused",
			old: "if !o.has(run) && !replaces {",
			new: "if false && !replaces {",
		},
		{
			breaks: "a run takes over from the run that it replaces only", file: operation + "owner.go", pkg: pkg, test: "TestTakeover",
			old: "run.Replaces != \"\" && o.run == run.Replaces",
			new: "run.Replaces != \"\"",
		},
		{
			breaks: "an attach takes a free handle only", file: operation + "attach.go", pkg: pkg, test: "TestAHandleIsNotTakenFromItsHolder",
			old: "WHERE uuid = $1 AND holder_kind IS NULL AND unconfirmed_kind IS NULL AND presence = 'present'`",
			new: "WHERE uuid = $1`",
		},
		{
			breaks: "a bind takes free handles only", file: operation + "bind.go", pkg: pkg, test: "TestAHandleIsNotTakenFromItsHolder",
			old: "WHERE uuid = ANY($1) AND holder_kind IS NULL AND unconfirmed_kind IS NULL AND presence = 'present'`",
			new: "WHERE uuid = ANY($1)`",
		},
		{
			breaks: "a settlement leaves the handles of a claimed accelerator", file: operation + "disagreements.go", pkg: pkg,
			test: "TestSettlingRespectsClaims",
			old:  "\n\t\t\tAND NOT EXISTS (SELECT FROM claims c WHERE c.deployable_uuid = h.deployable_uuid)",
			new:  "",
		},
		{
			breaks: "a settlement leaves a claimed accelerator in error", file: operation + "disagreements.go", pkg: pkg,
			test: "TestSettlingLeavesAClaimedAcceleratorInError",
			old:  "return inventory.Settle(ctx, tx, free)",
			new:  "return inventory.Settle(ctx, tx, append(free, targets...))",
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
			old: "if err := a.Journal.Write(change); err != nil {\n\t\t\treturn err\n\t\t}\n\n\t\tout = made",
			new: "_ = a.Journal.Write(change)\n\t\tout = made",
		},
		{
			breaks: "an agent attaches to its host only", file: agent + "attach.go", pkg: pkg, test: "TestAttachForInstanceIsRefused",
			old: "if in.Handle.Holder.Kind != cyborg.HolderHost {",
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
			breaks: "a handle of an instance is left to its instance", file: agent + "detach.go", pkg: pkg, test: "TestDetachOfAnInstance",
			old: "\t\tif wanted.Holder.Kind == cyborg.HolderHost {\n\t\t\thandles",
			new: "\t\tif true {\n\t\t\thandles",
		},
		{
			breaks: "no image is loaded into what is in use", file: agent + "program.go", pkg: pkg, test: "TestProgramInUseIsRefused",
			old: "if err := a.checkDisturbedUnused(ctx, t, found, in.Image.WholeDevice); err != nil {",
			new: "if err := error(nil); err != nil {",
		},
		{
			breaks: "no image is loaded without the memory of what was there", file: agent + "program.go", pkg: pkg,
			test: "TestJournalLostDuringAProgram",
			old:  "!staged && !s.begun {",
			new:  "!staged && s.begun {",
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
			breaks: "an option within another is found", file: "drivers/registry.go",
			old: "if isOwn(known, name, inside) {", new: "if name == \"\" && isOwn(known, name, inside) {",
			pkg: "drivers", test: "TestOwnOptions",
		},
		{
			breaks: "no request loads any module", file: "drivers/generic/driver.go",
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
			old: "e.large.beyondShare = true", new: "e.large.beyondShare = false",
			pkg: "api/agents", test: "TestLargeReportsOfOnePeerWait",
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
