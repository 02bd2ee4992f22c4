package mutants_test

// ofOldJournals are about journals that are old copies.
func ofOldJournals() []mutant {
	const (
		journal = "internal/journal"
		agent   = "activities/agent"
		records = "db"
	)

	return []mutant{
		{
			breaks: "a journal that is given up is kept aside", file: "internal/journal/forget.go", pkg: "internal/agentcmd", test: "TestForgetJournal",
			old: "os.Link(path, kept)",
			new: "error(nil)",
		},
		{
			breaks: "nobody gives up a journal without a yes", file: "internal/agentcmd/forget.go", pkg: "internal/agentcmd", test: "TestForgetJournalIsRefused",
			old: "\tif !yes {",
			new: "\tif yes {",
		},
		{
			breaks: "a write counts", file: "internal/journal/journal.go", pkg: journal, test: "TestOldCopyHoldsNotWhatCameLater",
			old: "j.state.writesOf(j.opening) + 1, Told",
			new: "1, Told",
		},
		{
			breaks: "each process of an agent has a name of its own in the journal", file: "internal/journal/journal.go", pkg: journal,
			test: "TestOldCopyHoldsNotWhatCameLater",
			old:  "opening: uuid.New(),",
			new:  "opening: uuid.Max,",
		},
		{
			breaks: "a rewritten journal has its positions", file: "internal/journal/state.go", pkg: journal, test: "TestPositions",
			old: "each(s.positions, func(p Position) Change { return Change{Position: p} }),",
			new: "",
		},
		{
			breaks: "a journal that was emptied has no floor", file: "internal/journal/restart.go", pkg: journal, test: "TestRestart",
			old: "DropFloor:       true,",
			new: "",
		},
		{
			breaks: "a position that a conductor knows is kept", file: "internal/journal/restart.go", pkg: journal, test: "TestPositionsThatWereToldAreKept",
			old: "func(p Position) bool { return !p.Told }",
			new: "func(Position) bool { return true }",
		},
		{
			breaks: "no step is taken before it is known which numbers count", file: "internal/journal/restart.go", pkg: journal, test: "TestRestart",
			old: " && (j.Forgot() == Position{} || j.HasFloor())",
			new: "",
		},
		{
			breaks: "a floor counts for what the journal has numbers of", file: "internal/journal/assignments.go", pkg: journal, test: "TestRestart",
			old: "case j.state.floor != nil &&",
			new: "case highest == 0 && j.state.floor != nil &&",
		},
		{
			breaks: "no step goes by an old copy", file: "activities/agent/grants.go", pkg: agent, test: "TestStepsWithAnOldJournal",
			old: "err := a.requireTrueJournal(ctx, step); err != nil",
			new: "err := a.requireTrueJournal(ctx, step); false",
		},
		{
			breaks: "a report of another process must prove its journal", file: "db/internal/ingest/journals.go", pkg: records, test: "TestOldJournal",
			old: "return r.Follows != known",
			new: "return false",
		},
		{
			breaks: "heartbeats tell how far the journal has got", file: "db/internal/ingest/journals.go", pkg: records, test: "TestHeartbeatsTellTheJournal",
			old: "h.journal_opening = b.opening AND h.journal_writes < b.writes",
			new: "h.journal_opening = b.opening AND h.journal_writes > b.writes",
		},
		{
			breaks: "a heartbeat of another process must prove its journal", file: "db/internal/ingest/journals.go", pkg: records,
			test: "TestHeartbeatsTellTheJournal",
			old:  " AND h.journal_writes = b.followed_writes",
			new:  "",
		},
		{
			breaks: "a heartbeat does not overtake a report", file: "workers/agent/heartbeats.go", pkg: "workers/agent", test: "TestHeartbeatsTellTheJournal",
			old: "if !r.posting.Load() {",
			new: "{",
		},
		{
			breaks: "a heartbeat's answer shows an old copy", file: "workers/agent/heartbeats.go", pkg: "workers/agent",
			test: "TestHeartbeatsCompareTheJournal",
			old:  "case !r.assignments.Holds(known) || ",
			new:  "case ",
		},
		{
			breaks: "an emptied journal is for a report to tell", file: "workers/agent/heartbeats.go", pkg: "workers/agent",
			test: "TestHeartbeatsCompareTheJournal",
			old:  " || r.assignments.Forgot() == known:",
			new:  ":",
		},
		{
			breaks: "a snapshot of a process is an old copy", file: "db/internal/ingest/journals.go", pkg: records, test: "TestOldJournal",
			old: "return r.Journal.Writes < known.Writes",
			new: "return false",
		},
		{
			breaks: "the loss of a journal is told once", file: "db/internal/ingest/journals.go", pkg: records, test: "TestOldJournal",
			old: "r.Forgot && r.Journal.Opening != host.journal().Opening",
			new: "r.Forgot && host.Name != \"\"",
		},
	}
}

// ofGrants are about what hosts do although they were only told to by Temporal.
func ofGrants() []mutant {
	const (
		agent     = "activities/agent"
		conductor = "activities/conductor"
		grant     = "internal/grant"
		agentFile = "activities/agent/grants.go"
		signFile  = "activities/conductor/grants.go"

		records     = "db"
		outcomeFile = "db/internal/operation/outcome.go"
	)

	return []mutant{
		{
			breaks: "a step needs a grant", file: agentFile, pkg: agent, test: "TestStepsNeedAGrant",
			old: "if step == nil || step.Granted() == \"\" {",
			new: "if step == nil || step.Granted() == \"\" {\n\t\treturn nil\n\t}\n\tif step == nil {",
		},
		{
			breaks: "to look needs no grant", file: agentFile, pkg: agent, test: "TestStepsNeedAGrant",
			old: "if !slices.Contains(ungrantedTable, name) {",
			new: "if !slices.Contains(ungrantedTable[:0], name) {",
		},
		{
			breaks: "what is decoded is what was compared", file: agentFile, pkg: agent, test: "TestDoubledFieldsAreReadOnce",
			old: "json.Unmarshal(text, &in)",
			new: "json.Unmarshal(append(text[:0], raw.Payload().GetData()...), &in)",
		},
		{
			breaks: "a grant is for its host", file: agentFile, pkg: agent, test: "TestGrant",
			old: "case claims.Host != a.Inventory.Host() || ",
			new: "case ",
		},
		{
			breaks: "a grant is for its run", file: agentFile, pkg: agent, test: "TestGrant",
			old: "case claims.Run != run:",
			new: "case false:",
		},
		{
			breaks: "the number of a step is signed", file: agentFile, pkg: agent, test: "TestGrant",
			old: " || claims.Assignment != step.Number()",
			new: "",
		},
		{
			breaks: "the input of a step is signed", file: agentFile, pkg: agent, test: "TestGrant",
			old: "case !claims.Permits(name, digest):",
			new: "case false:",
		},
		{
			breaks: "a boot ends a grant", file: agentFile, pkg: agent, test: "TestGrant",
			old: "case claims.BootID != \"\" && claims.BootID != a.Journal.BootID():",
			new: "case false:",
		},
		{
			breaks: "a grant ends", file: agentFile, pkg: agent, test: "TestGrant",
			old: "a.Uptime() > claims.Until:",
			new: "false:",
		},
		{
			breaks: "a grant is verified", file: "internal/grant/grant.go", pkg: grant, test: "TestNoOtherGrantOpens",
			old: "!ed25519.Verify(key.Public, signed(key.ID, text), signature)",
			new: "len(signature) == 0",
		},
		{
			breaks: "the image to load is the one that was staged", file: "activities/agent/program.go", pkg: agent, test: "TestProgramLoadsWhatWasStaged",
			old: "if staged.SHA256 != in.SHA256 {",
			new: "if false {",
		},
		{
			breaks: "what is loaded is looked up by what was staged", file: "activities/agent/program.go", pkg: agent, test: "TestProgramRefusesADamagedImage",
			old: "image, err := a.Images.Get(ctx, staged.SHA256)",
			new: "image, err := images.Image{SHA256: staged.SHA256}, error(nil)",
		},
		{
			breaks: "a server of 0.1 finds its images", file: "activities/conductor/image.go", pkg: conductor, test: "TestFoundImageIsSigned",
			old: " || in.JournalID == uuid.Nil {",
			new: " {",
		},
		{
			breaks: "a signature has the id of its key", file: "internal/grant/grant.go", pkg: grant, test: "TestNoOtherGrantOpens",
			old: "fmt.Appendf(nil, \"%s%s\\x00%s\", purpose, id, claims)",
			new: "fmt.Appendf(nil, \"%s%s\\x00%s\", purpose, id[:0], claims)",
		},
		{
			breaks: "numbers in an input are compared exactly", file: "internal/grant/grant.go", pkg: grant, test: "TestCanonical",
			old: "decoder.UseNumber()",
			new: "_ = decoder",
		},
		{
			breaks: "only a grant of the same run is signed anew", file: signFile, pkg: conductor, test: "TestForeignGrantsAreNotSignedAnew",
			old: " && claims.Run == activity.GetInfo(ctx).WorkflowExecution.RunID",
			new: "",
		},
		{
			breaks: "only a grant of the same operation is signed anew", file: signFile, pkg: conductor, test: "TestForeignGrantsAreNotSignedAnew",
			old: "claims.Operation == operation && ",
			new: "",
		},
		{
			breaks: "only images of the operation are looked for", file: "activities/conductor/image.go", pkg: conductor, test: "TestFoundImageIsSigned",
			old: "!slices.Contains(steps, search)",
			new: "!slices.Contains(append(steps, search), search)",
		},
		{
			breaks: "the image that is recorded is the one that was asked for", file: outcomeFile, pkg: records, test: "TestOnlyImagesThatWereAskedForAreRecorded",
			old: "= o.reloadable(load, said.SHA256)",
			new: "= said",
		},
		{
			breaks: "the checksum that was asked for counts", file: outcomeFile, pkg: records, test: "TestOnlyImagesThatWereAskedForAreRecorded",
			old: "if image.SHA256 == \"\" {",
			new: "{",
		},
		{
			breaks: "a bind says nothing of other accelerators", file: outcomeFile, pkg: records, test: "TestBindRecordsItsOwnAcceleratorsOnly",
			old: "outcome.Bitstreams, outcome.Images = bitstreams, images",
			new: "_, outcome.Images = bitstreams, images",
		},
		{
			breaks: "a report tells the boot in which an image was seen under the fence of a forced detach", file: "db/internal/ingest/load.go", pkg: "db",
			test: "TestImageLostUnderForce",
			old:  "NOT loads_image(d.fence_operation)",
			new:  "d.fence_operation IS NULL",
		},
		{
			breaks: "the fence of a forced detach hides no lost image", file: "db/migrations/00024_loss_under_force.sql", pkg: "db", test: "TestImageLostUnderForce",
			old: " AND NOT EXISTS (SELECT FROM operations WHERE id = fence_operation AND kind = 'detach')",
			new: "",
		},
		{
			breaks: "an image that nobody has found is not recorded", file: "db/internal/operation/lost_images.go", pkg: records, test: "TestFoundImage",
			old: " && image.Source != \"\"",
			new: "",
		},
		{
			breaks: "a rescue says nothing of other instances", file: outcomeFile, pkg: records, test: "TestRescueRecordsItsOwnInstancesOnly",
			old: "return !slices.ContainsFunc(o.before.Rescues",
			new: "return false && !slices.ContainsFunc(o.before.Rescues",
		},
		{
			breaks: "a reboot is asked of the records", file: "activities/conductor/rescue.go", pkg: "activities/conductor", test: "TestOnlyARescueReachesNova",
			old: "if _, _, err := a.ownRescue(ctx, in.Operation, in.Instance); err != nil {",
			new: "if err := a.requireOwner(ctx, in.Operation); err != nil {",
		},
		{
			breaks: "a rescue of release 0.1 reboots", file: "activities/conductor/rescue.go", pkg: "activities/conductor", test: "TestRescueOfV01Reboots",
			old: "if operation == uuid.Nil {",
			new: "if false {",
		},
		{
			breaks: "a look takes from Temporal only which instance", file: "activities/conductor/rescue.go", pkg: "activities/conductor",
			test: "TestOnlyARescueReachesNova",
			old:  "if in.Rescue, in.Host, err = a.ownRescue(ctx, in.Operation, in.Rescue.Instance); err != nil {",
			new:  "if _, _, err = a.ownRescue(ctx, in.Operation, in.Rescue.Instance); err != nil {",
		},
		{
			breaks: "a run has only its own instances rebooted", file: "db/internal/operation/rescue.go", pkg: records, test: "TestOwnRescue",
			old: "return r.Instance == instance })",
			new: "return r.Instance != uuid.Nil })",
		},
		{
			breaks: "only a rescue that runs has instances rebooted", file: "db/internal/operation/rescue.go", pkg: records, test: "TestOwnRescue",
			old: " AND state = 'running' AND run_id = $2",
			new: " AND run_id = $2",
		},
		{
			breaks: "only the run that has a rescue has its instances rebooted", file: "db/internal/operation/rescue.go", pkg: records, test: "TestOwnRescue",
			old: " AND state = 'running' AND run_id = $2",
			new: " AND state = 'running' AND $2 <> ''",
		},
		{
			breaks: "only images that an operation asks for are found", file: "db/internal/operation/image_urls.go", pkg: records,
			test: "TestImagesOfOthersAreNotGranted",
			old:  "if !asks {",
			new:  "if false && !asks {",
		},
		{
			breaks: "only the run that has an operation finds its images", file: "db/internal/operation/image_urls.go", pkg: records,
			test: "TestImagesOfOthersAreNotGranted",
			old:  "err := o.requireOwner(ctx, tx, run); err != nil",
			new:  "err := o.requireOwner(ctx, tx, run); false",
		},
		{
			breaks: "the image that was found first counts", file: "db/internal/operation/image_urls.go", pkg: records, test: "TestFoundImage",
			old: "SET secret = EXCLUDED.secret,",
			new: "SET secret = EXCLUDED.secret, image = EXCLUDED.image,",
		},
		{
			breaks: "an image that was found is kept while its operation runs", file: "db/prune.go", pkg: records, test: "TestFoundImage",
			old: "WHERE id = operation_id AND open)",
			new: "WHERE id = operation_id AND NOT open)",
		},
		{
			breaks: "the first answer of a search counts", file: "activities/conductor/image.go", pkg: conductor, test: "TestFindImageKeepsWhatWasFound",
			old: "out.Image, out.Size = url.Image, url.Size",
			new: "_ = url",
		},
		{
			breaks: "an image that was found stays permitted", file: "workflows/load.go", pkg: conductor, test: "TestFoundImageIsSigned",
			old: "if l.found == (cyborg.Image{}) {",
			new: "if true {",
		},
		{
			breaks: "the work of an operation stays as it was signed", file: "db/internal/operation/run.go", pkg: records, test: "TestWorkStaysTheSame",
			old: "target.BitstreamID = bitstream",
			new: "_ = bitstream",
		},
		{
			breaks: "a SHA-256 does not stand for another checksum", file: "activities/agent/images/checksums.go", pkg: "activities/agent/images",
			test: "TestBothChecksumsMustBeKnown",
			old:  " || sum != \"\" && sum != target {",
			new:  " {",
		},
		{
			breaks: "keys are forgotten without waiting for others", file: "db/internal/inventory/grant_keys.go", pkg: records,
			test: "TestGrantKeysAreForgottenWithoutWaiting",
			old:  " FOR UPDATE SKIP LOCKED",
			new:  "",
		},
		{
			breaks: "a jump of the clock forgets no key in use", file: "db/internal/inventory/grant_keys.go", pkg: records, test: "TestGrantKeys",
			old: "if err != nil || !seen {",
			new: "if err != nil {",
		},
		{
			breaks: "steps are signed while grants are off", file: "internal/server/grants.go", pkg: "internal/server",
			test: "TestStepsAreSignedWhileGrantsAreOff",
			old:  "slog.String(\"hint\", \"Set conductor.grants to required.\"))",
			new:  "slog.String(\"hint\", \"Set conductor.grants to required.\"))\n\t\treturn nil",
		},
		{
			breaks: "a server without grants takes nothing back", file: "workers/agent/reporter.go", pkg: "workers/agent",
			test: "TestGrantsAreWhatTheLastServerSaid",
			old:  "if told == nil {\n\t\treturn",
			new:  "if told == nil {\n\t\ttold = &agentapi.Grants{}",
		},
		{
			breaks: "the undo of a detach is permitted", file: "workflows/detach.go", pkg: "workflows", test: "TestEachStepFails",
			old: "out = append(out, Permitted{AttachActivity, again})",
			new: "_ = again",
		},
	}
}
