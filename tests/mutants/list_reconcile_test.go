package mutants_test

// ofReconcile are about the rounds of Reconcile, and what they tell of runs.
func ofReconcile() []mutant {
	const (
		inspect   = "activities/conductor/reconcile.go"
		orphans   = "activities/conductor/orphans.go"
		reconcile = "workflows/reconcile.go"
		undone    = "db/internal/inventory/undone.go"
		runs      = "db/internal/operation/corrected_runs.go"
		pkg       = "activities/conductor"
	)

	return []mutant{
		{
			breaks: "an observation that cannot be recorded keeps no operation from its end", file: "db/internal/ingest/observe.go", pkg: "db",
			test: "TestUnrecordableObservation",
			old:  "return hasNull(string(text)), err",
			new:  "return hasNull(string(text)) && false, err",
		},
		{
			breaks: "only the deployable of a step is at work", file: "activities/agent/inventory/content.go", pkg: "activities/agent/inventory",
			test: "TestOperationAtWorkIsReported",
			old:  " && step.deployable == entry.Deployable",
			new:  "",
		},
		{
			breaks: "what the agent sees after an undo is recorded", file: "workflows/undo.go", pkg: "workflows", test: "TestEachStepFails",
			old: "\t\t\to.observe(seen)\n",
			new: "\t\t\t_ = seen\n",
		},
		{
			breaks: "a journal of before a refusal marks nothing as undone", file: "db/internal/inventory/undone.go", pkg: "db", test: "TestRefusedStepLeavesNoDoubt",
			old: " AND NOT coalesce(j.of_before, false)",
			new: "",
		},
		{
			breaks: "a journal of before a refusal disagrees about nothing", file: "db/internal/operation/disagreements.go", pkg: "db", test: "TestRefusedStepLeavesNoDoubt",
			old: " AND NOT p.of_before)",
			new: ")",
		},
		{
			breaks: "a step that has ended is not at work", file: "activities/agent/inventory/lock.go", pkg: "activities/agent/inventory", test: "TestSettlingIsNoOperationAtWork",
			old: "\t\ti.locks.setStep(device, lockingStep{})\n",
			new: "",
		},
		{
			breaks: "the end of a step is reported", file: "activities/agent/inventory/lock.go", pkg: "activities/agent/inventory", test: "TestOperationAtWorkIsReported",
			old: "\t\ti.MarkChanged() // what is still in doubt now, is so without an operation at work\n",
			new: "",
		},
		{
			breaks: "nothing is marked as undone while an operation works on it", file: undone, pkg: "db",
			test: "TestAttachmentIsNotUndoneByAnOldJournal",
			old:  " AND NOT (j.claimed AND j.reason IS NOT NULL)",
			new:  "",
		},
		{
			breaks: "a journal of before an operation says nothing", file: undone, pkg: "db", test: "TestAttachmentIsNotUndoneByAnOldJournal",
			old: " AND v.observed_seq <= s.report_seq",
			new: "",
		},
		{
			breaks: "the answer of a host ends what was undone", file: "db/internal/operation/disagreements.go", pkg: "db",
			test: "TestSettledAttachmentIsNotUndone",
			old:  "\tinventory.QueueClearUndone(tx, free, attached)\n",
			new:  "",
		},
		{
			breaks: "only changed journals have their hosts looked at", file: "db/internal/ingest/reports.go", pkg: "db",
			test: "TestIngesterTellsOfChangedJournals",
			old:  "if !slices.Equal(now.Attachments, before[now.Name]) {",
			new:  "{",
		},
		{
			breaks: "a host that goes on reporting waits longer and longer", file: "workflows/settle_host.go", pkg: "workflows",
			test: "TestSettleHostGathersReports",
			old:  "pause = min(2*pause,",
			new:  "pause = min(pause,",
		},
		{
			breaks: "what fails is tried again before the next round", file: "workflows/settle_host.go", pkg: "workflows",
			test: "TestSettleHostLeavesFailuresToTheRounds",
			old:  "(len(out.Unsettled) == 0 || pause == longest)",
			new:  "len(out.Unsettled) >= 0",
		},
		{
			breaks: "runs are asked for several at once", file: orphans, pkg: pkg, test: "TestInspectAsksSomeAtOnce",
			old: "slices.Chunk(listed, describedAtOnce)",
			new: "slices.Chunk(listed, describedAtOnce/16)",
		},
		{
			breaks: "runs are not asked for all at once", file: orphans, pkg: pkg, test: "TestInspectAsksSomeAtOnce",
			old: "slices.Chunk(listed, describedAtOnce)",
			new: "slices.Chunk(listed, describedAtOnce*16)",
		},
		{
			breaks: "a try of the inspection tells how far it has got", file: orphans, pkg: pkg, test: "TestInspectGoesOnWhereItWasCutOff",
			old: "\t\t\t*next = workflows.OperationPlace(some[len(some)-1].Place)\n",
			new: "",
		},
		{
			breaks: "the next try of an inspection goes on where the one before was cut off", file: inspect, pkg: pkg,
			test: "TestInspectGoesOnWhereItWasCutOff",
			old:  "\t\ti.Inspection = reached\n",
			new:  "",
		},
		{
			breaks: "all tries of an inspection together are bounded", file: orphans, pkg: pkg, test: "TestInspectGoesOnWhereItWasCutOff",
			old: "limit := findingsLimit - i.Looked",
			new: "limit := findingsLimit - 0*i.Looked",
		},
		{
			breaks: "an inspection that is cut off passes nothing by", file: orphans, pkg: pkg, test: "TestInspectGoesOnWhereItWasCutOff",
			old: "\t\tif ctx.Err() != nil {\n\t\t\treturn workflows.Unavailable(ctx.Err())\n\t\t}\n",
			new: "",
		},
		{
			breaks: "a list that nobody has looked at keeps its place", file: inspect, pkg: pkg, test: "TestInspectGoesOnWhereItWasCutOff",
			old: "workflows.Inspection{Found: workflows.Findings{Next: in.From}}",
			new: "workflows.Inspection{}",
		},
		{
			breaks: "a list that fails does not keep the others from being looked at", file: inspect, pkg: pkg, test: "TestInspectPassesAListThatFails",
			old: "\t\t\tif ctx.Err() != nil {\n\t\t\t\treturn i.Found",
			new: "\t\t\tif err != nil {\n\t\t\t\treturn i.Found",
		},
		{
			breaks: "an inspection fails where all of its lists do", file: inspect, pkg: pkg, test: "TestInspectPassesAListThatFails",
			old: "if len(i.Found.Failed) == len(lists) {",
			new: "if len(i.Found.Failed) > len(lists) {",
		},
		{
			breaks: "an inspection that failed begins anew", file: inspect, pkg: pkg, test: "TestInspectPassesAListThatFails",
			old: "{ *reached = begin }",
			new: "{}",
		},
		{
			breaks: "a round repairs what an inspection has found that was cut off", file: reconcile, pkg: "workflows",
			test: "TestReconcileGoesOnWhereInspectWasCutOff",
			old:  "reached != nil && repairsWhatWasReached(ctx) {",
			new:  "reached != nil && false {",
		},
		{
			breaks: "a cut-off inspection of release 0.1 replays", file: reconcile, pkg: "workflows", test: "TestInspectionOfV01ThatWasCutOffReplays",
			old: "reached != nil && repairsWhatWasReached(ctx) {",
			new: "reached != nil {",
		},
		{
			breaks: "a round that has looked at nothing fails", file: reconcile, pkg: "workflows", test: "TestReconcileGoesOnWhereInspectWasCutOff",
			old: " || reached.List == 0 && reached.Looked == 0 {",
			new: " {",
		},
		{
			breaks: "what could not be looked at is told", file: reconcile, pkg: "workflows", test: "TestReconcileGoesOnWhereInspectWasCutOff",
			old: "\tout.leave(out.Found.Failed...)\n",
			new: "",
		},
		{
			breaks: "an operation that has got its run meanwhile is left alone", file: orphans, pkg: pkg, test: "TestOrphanThatChangesMeanwhile",
			old: "cyborg.ErrorKindOf(err) == cyborg.ErrChanged {\n\t\t\treturn nil // it has got",
			new: "cyborg.ErrorKindOf(err) == cyborg.ErrChanged {\n\t\t\terr = nil // it has got",
		},
		{
			breaks: "a stray run is told before it is terminated", file: orphans, pkg: pkg, test: "TestOrphans",
			old: "if err := a.store.RecordStrayRun(ctx, db.Run{Operation: op.ID, ID: op.Run}, stray); err != nil {",
			new: "if err := error(nil); err != nil {",
		},
		{
			breaks: "a late cancel is told before it is repeated", file: orphans, pkg: pkg, test: "TestOrphans",
			old: "err := a.store.RecordLateCancel(ctx, db.Run{Operation: op.ID, ID: op.Run})",
			new: "var err error",
		},
		{
			breaks: "an operation that has ended is not cancelled late", file: orphans, pkg: pkg, test: "TestOrphanThatChangesMeanwhile",
			old: "cyborg.ErrorKindOf(err) == cyborg.ErrChanged {\n\t\treturn nil // it has ended",
			new: "cyborg.ErrorKindOf(err) == cyborg.ErrChanged {\n\t\terr = nil // it has ended",
		},
		{
			breaks: "a run that may have the operation is no stray one", file: runs, pkg: "db", test: "TestStrayRunIsTold",
			old: "SET stray_run = $3 WHERE id = $1 AND run_id = $2",
			new: "SET stray_run = $3 WHERE id = $1 AND $2::text <> ''",
		},
		{
			breaks: "a stray run is told once", file: "db/migrations/00021_corrections_and_writers.sql", pkg: "db", test: "TestStrayRunIsTold",
			old: "OLD.stray_run <> NEW.stray_run)",
			new: "true)",
		},
		{
			breaks: "a late cancel is told once", file: "db/migrations/00021_corrections_and_writers.sql", pkg: "db", test: "TestLateCancelIsTold",
			old: "OLD.cancel_repeated_at IS NULL AND NEW.cancel_repeated_at IS NOT NULL)",
			new: "true)",
		},
		{
			breaks: "no cancel is repeated that nobody wants", file: runs, pkg: "db", test: "TestLateCancelIsTold",
			old: " AND open AND cancel_at IS NOT NULL`",
			new: " AND open`",
		},
		{
			breaks: "nor one of an operation that has ended", file: runs, pkg: "db", test: "TestLateCancelIsTold",
			old: " AND open AND cancel_at IS NOT NULL`",
			new: " AND cancel_at IS NOT NULL`",
		},
		{
			breaks: "nor is another run told of it", file: runs, pkg: "db", test: "TestLateCancelIsTold",
			old: "WHERE id = $1 AND run_id = $2 AND open",
			new: "WHERE id = $1 AND $2::text <> '' AND open",
		},
		{
			breaks: "a correction waits for the host", file: runs, pkg: "db", test: "TestChangesWaitForTheirHost",
			old: "lockHostOfOperation(ctx, tx, run.Operation); err != nil {",
			new: "ctx.Err(); err != nil {",
		},
	}
}

// ofBounds are about what one host can make larger than others can bear.
func ofBounds() []mutant {
	const (
		inspect = "activities/conductor/reconcile.go"
		check   = "db/internal/ingest/check_report.go"
		ingest  = "db/internal/ingest"
		merged  = "db/internal/merge"
		pkg     = "activities/conductor"

		reconcile = "workflows/reconcile.go"
		census    = "workflows/census.go"
		queries   = "internal/temporalclient/queries.go"
		engine    = "internal/temporalclient"
	)

	return []mutant{
		{
			breaks: "an attachment has names", file: check, pkg: ingest, test: "TestAttachmentsAreNamed",
			old: "!cyborg.IsName(a.Backend) || !cyborg.IsName(a.Deployable) || !cyborg.IsName(a.Handle):",
			new: "a.Handle == \"\":",
		},
		{
			breaks: "an attachment has a state that exists", file: check, pkg: ingest, test: "TestAttachmentsAreNamed",
			old: "case a.State != cyborg.AttachmentDone && a.State",
			new: "case false && a.State",
		},
		{
			breaks: "a report is so large at most", file: check, pkg: ingest, test: "TestTextsOfAReportAreBounded",
			old: "if len(text) > maxContent {",
			new: "if len(text) > maxContent<<10 {",
		},
		{
			breaks: "the options of a backend are so large at most", file: check, pkg: ingest, test: "TestTextsOfAReportAreBounded",
			old: "if len(options) > maxOptions {",
			new: "if len(options) > maxOptions<<10 {",
		},
		{
			breaks: "a backend has so many services", file: check, pkg: ingest, test: "TestTextsOfAReportAreBounded",
			old: "case len(b.Services) > maxServices || ",
			new: "case ",
		},
		{
			breaks: "a service has a name", file: check, pkg: ingest, test: "TestTextsOfAReportAreBounded",
			old: "{ return !cyborg.IsName(service) }",
			new: "{ return service == \"\" }",
		},
		{
			breaks: "the texts of a device are bounded", file: "db/internal/merge/devices.go", pkg: merged, test: "TestWhatAHostTellsIsBounded",
			old: "v.tooLarge(this, deviceTexts(&r)...) || ",
			new: "",
		},
		{
			breaks: "its documents are bounded", file: "db/internal/merge/devices.go", pkg: merged, test: "TestWhatAHostTellsIsBounded",
			old: "v.tooLargeDocument(this, board, path, partitioning)",
			new: "v.tooLargeDocument(this)",
		},
		{
			breaks: "the texts of a deployable are bounded", file: "db/internal/merge/deployables.go", pkg: merged, test: "TestWhatAHostTellsIsBounded",
			old: "v.tooLarge(this, r.BitstreamID, r.ProgramSet, r.SameHolder) || ",
			new: "",
		},
		{
			breaks: "the documents of a deployable are bounded", file: "db/internal/merge/deployables.go", pkg: merged,
			test: "TestWhatAHostTellsIsBounded",
			old:  "v.tooLargeDocument(this, specs, attributes)",
			new:  "v.tooLargeDocument(this)",
		},
		{
			breaks: "the document of a handle is bounded", file: "db/internal/merge/handles.go", pkg: merged, test: "TestWhatAHostTellsIsBounded",
			old: "key.Identity, ok}, w.info) {",
			new: "key.Identity, ok}) {",
		},
		{
			breaks: "a handle that is too large to move stays", file: "db/internal/merge/handles.go", pkg: merged, test: "TestHandleThatIsTooLargeToMove",
			old: " && !stays[key]",
			new: "",
		},
		{
			breaks: "what is too large at first is said to be left out", file: "db/internal/merge/texts.go", pkg: merged, test: "TestTooLargeAtFirst",
			old: "if p.recorded {",
			new: "if true {",
		},
		{
			breaks: "why a function is protected is bounded", file: "db/internal/merge/deployables.go", pkg: merged, test: "TestProtectionIsCut",
			old: "cyborg.Sanitize(r.Protected, LongestError)",
			new: "r.Protected",
		},
		{
			breaks: "the texts of a heartbeat are bounded", file: "db/internal/ingest/heartbeats.go", pkg: ingest,
			test: "TestTextsOfAHeartbeatAreBounded",
			old:  "if !optionalName(text) {",
			new:  "if !optionalName(text[:min(len(text), 200)]) {",
		},
		{
			breaks: "what one inspection finds fits into Temporal", file: inspect, pkg: pkg, test: "TestInspectIsBoundedInBytes",
			old: "case len(encoded) > left:",
			new: "case len(encoded) < 0:",
		},
		{
			breaks: "an attachment that is too large keeps no round", file: inspect, pkg: pkg, test: "TestInspectIsBoundedInBytes",
			old: "|| len(encoded) > maxDisagreement:",
			new: ":",
		},
		{
			breaks: "nor is its name a place", file: inspect, pkg: pkg, test: "TestInspectIsBoundedInBytes",
			old: "len(d.Deployable)+len(d.Handle.Identity) > maxDisagreement {",
			new: "d.Host == \"\" {",
		},
		{
			breaks: "a sentence of a round is short", file: reconcile, pkg: "workflows", test: "TestReconcileBearsWhatHostsSay",
			old: "\t\tsentence = cyborg.Sanitize(sentence, longestSentence)\n",
			new: "",
		},
		{
			breaks: "the sentences of a round are bounded together", file: reconcile, pkg: "workflows", test: "TestReconcileBearsWhatHostsSay",
			old: "\t\tif left < 0 {",
			new: "\t\tif left < -1<<40 {",
		},
		{
			breaks: "the text of a failure is cut", file: "workflows/failure.go", pkg: "workflows", test: "TestLongFailuresAreCut",
			old: "if failure == nil || len(failure.Message)",
			new: "if failure == nil || len(failure.Kind) > 0 || len(failure.Message)",
		},
		{
			breaks: "a round has room in its history", file: reconcile, pkg: "workflows", test: "TestReconcileLeavesRoomInItsHistory",
			old: "GetCurrentHistorySize() > fullHistory",
			new: "GetCurrentHistorySize() < 0",
		},
		{
			breaks: "a round that hangs ends", file: "workers/conductor/schedule.go", pkg: "workers/conductor", test: "TestARoundThatHangsEnds",
			old: "\t\tWorkflowRunTimeout: in.RunTimeout(),\n",
			new: "",
		},
		{
			breaks: "a round is given the time that it needs", file: reconcile, pkg: "workflows", test: "TestARoundHasTheTimeThatItNeeds",
			old: "return activities + 2*(in.AgentWait+in.Limits.Step)",
			new: "return activities",
		},
		{
			breaks: "a host speaks only for itself in a census", file: census, pkg: "workflows", test: "TestCensusIsBounded",
			old: "\t\tusage.Host = host // whatever it calls itself\n",
			new: "",
		},
		{
			breaks: "a census fits into Temporal, without the largest answer", file: census, pkg: "workflows", test: "TestCensusIsBounded",
			old: "\tleaveOutLargest(out.Hosts)\n",
			new: "",
		},
		{
			breaks: "only the largest answer is left out of a census", file: census, pkg: "workflows", test: "TestCensusIsBounded",
			old: "total > maxCensus",
			new: "total > maxCensus/8",
		},
		{
			breaks: "a run of a census that fails costs its own hosts only", file: queries, pkg: engine, test: "TestCensusRunThatFails",
			old: "if len(errs) > 0 && !slices.Contains(errs, nil) {",
			new: "if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {",
		},
		{
			breaks: "a census without any answer fails", file: queries, pkg: engine, test: "TestCensusRunThatFails",
			old: "if len(errs) > 0 && !slices.Contains(errs, nil) {",
			new: "if len(errs) > 1<<40 {",
		},
		{
			breaks: "a run that nobody waits for ends", file: queries, pkg: engine, test: "TestCensusOfManyHosts",
			old: "\t\tWorkflowRunTimeout: limit + time.Minute,\n",
			new: "",
		},
	}
}

// ofWriters are about roles that may only read, and about what is told of revocations.
func ofWriters() []mutant {
	const (
		writers = "db/migrations/00021_corrections_and_writers.sql"
		clauses = "internal/history/clauses.go"
		pkg     = "db"
	)

	return []mutant{
		{
			breaks: "a reader draws no number", file: writers, pkg: pkg, test: "TestReadersRaiseNothing",
			old: "    PERFORM require_writer();\n    PERFORM feed_base();\n",
			new: "    PERFORM feed_base();\n",
		},
		{
			breaks: "a reader raises no number", file: writers, pkg: pkg, test: "TestReadersRaiseNothing",
			old: "    PERFORM require_writer();\n    PERFORM pg_advisory_xact_lock(",
			new: "    PERFORM pg_advisory_xact_lock(",
		},
		{
			breaks: "a reader keeps nobody waiting", file: writers, pkg: pkg, test: "TestReadersKeepNobodyWaiting",
			old: "    PERFORM require_writer();\n    LOCK TABLE feed_epochs",
			new: "    LOCK TABLE feed_epochs",
		},
		{
			breaks: "a reader begins no epoch that is due", file: writers, pkg: pkg, test: "TestReadersRaiseNothing",
			old: "    PERFORM require_writer();\n    RETURN NULL;\n",
			new: "    RETURN NULL;\n",
		},
		{
			breaks: "the role counts that was set", file: writers, pkg: pkg, test: "TestReadersRaiseNothing",
			old: "coalesce(nullif(current_setting('role'), 'none')::name, session_user)",
			new: "session_user",
		},
		{
			breaks: "the caller counts, and not who has made the function", file: writers, pkg: pkg, test: "TestReadersRaiseNothing",
			old: "'none')::name, session_user)",
			new: "'none')::name, current_user)",
		},
		{
			breaks: "another table of the same name does not count", file: writers, pkg: pkg, test: "TestReadersRaiseNothing",
			old: "'events'::regclass::oid, 'INSERT');",
			new: "'events'::text, 'INSERT');",
		},
		{
			breaks: "a revocation that was lost has its reason", file: writers, pkg: pkg, test: "TestALaterEnrollmentSurvivesARevocation",
			old: "CASE WHEN NEW.revoked_through > coalesce(OLD.revoked_through, -1) THEN",
			new: "CASE NEW.state WHEN 'revoked' THEN",
		},
		{
			breaks: "it is not told as an enrollment", file: clauses, pkg: "internal/history", test: "TestRevocationsAreSentences",
			old: "\tcase reason != \"\":\n\t\treturn \"revoked the earlier",
			new: "\tcase reason == \"-\":\n\t\treturn \"revoked the earlier",
		},
		{
			breaks: "a cancel is told as repeated where it was", file: clauses, pkg: "internal/history", test: "TestCorrectionsOfRunsAreSentences",
			old: "if c.To != \"repeated\" {",
			new: "if c.To == \"\" {",
		},
		{
			breaks: "who has wanted a cancel is named, and not who has repeated it", file: "internal/history/operation.go", pkg: "internal/history",
			test: "TestCorrectionsOfRunsAreSentences",
			old:  "event.From == \"\" && event.Actor != \"\" {",
			new:  "event.From != \"\" && event.Actor != \"\" {",
		},
	}
}
