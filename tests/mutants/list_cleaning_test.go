package mutants_test

// ofCleaning are about handles that are cleaned before anybody else gets them.
func ofCleaning() []mutant {
	const (
		schema    = "db/migrations/00033_cleaning.sql"
		inventory = "db/internal/inventory"
		operation = "db/internal/operation"
		agent     = "activities/agent"
	)

	return []mutant{
		{
			breaks: "what a holder has left is unclean", file: schema, pkg: "db", test: "TestNobodyGetsAnUncleanHandle",
			old: "    IF needed <> '' THEN",
			new: "    IF needed = 'burn' THEN",
		},
		{
			breaks: "what the backend demands when the holder leaves counts", file: schema, pkg: "db", test: "TestStrongestCleaningCounts",
			old: "needed text := stronger_cleaning(OLD.clean, cleaning_after(OLD.deployable_uuid));",
			new: "needed text := OLD.clean;",
		},
		{
			breaks: "what the backend demands when the holder gets it counts", file: schema, pkg: "db", test: "TestStrongestCleaningCounts",
			old: "    NEW.clean := stronger_cleaning(NEW.clean, cleaning_after(NEW.deployable_uuid));\n",
			new: "",
		},
		{
			breaks: "a profile does not weaken what the backend demands", file: schema, pkg: "db", test: "TestStrongestCleaningCounts",
			old: "cleaning_strength(a) >= cleaning_strength(b)",
			new: "a <> ''",
		},
		{
			breaks: "what the records have lost is unclean", file: schema, pkg: "db", test: "TestWhatTheRecordsHaveLostIsUnclean",
			old: "    IF NEW.unclean <> '' THEN",
			new: "    NEW.unclean := '';\n    IF NEW.unclean <> '' THEN",
		},
		{
			breaks: "another card has nothing of the former one", file: schema, pkg: "db", test: "TestForgottenHandlesStayUnclean",
			old: "AND NOT other_card(f.fingerprint, v.fingerprint)",
			new: "AND (true OR other_card(f.fingerprint, v.fingerprint))",
		},
		{
			breaks: "nobody gets the whole while a part is unclean", file: schema, pkg: "db", test: "TestUncleanPartsAreExcluded",
			old: "coalesce(h.holder_kind, h.unconfirmed_kind) IS NOT NULL OR h.unclean <> ''",
			new: "coalesce(h.holder_kind, h.unconfirmed_kind) IS NOT NULL",
		},
		{
			breaks: "Nova gets nothing unclean", file: schema, pkg: "db", test: "TestNovaGetsNothingUnclean",
			old: "WHERE deployable_uuid = NEW.uuid AND unclean <> ''",
			new: "WHERE deployable_uuid = NEW.uuid AND unclean = 'burn'",
		},
		{
			breaks: "Placement has what is unclean reserved", file: "db/internal/openstack/placement.go", pkg: "db", test: "TestUncleanIsReservedInPlacement",
			old: "(h.unclean <> '' OR h.unconfirmed_kind",
			new: "(h.unconfirmed_kind",
		},
		{
			breaks: "what nobody got is as clean as before", file: inventory + "/handles.go", pkg: "db", test: "TestWhatNobodyGotIsClean",
			old: `unused = ", clean = ''"`,
			new: `unused = ""`,
		},
		{
			breaks: "an accelerator is cleaned only while nobody has its parts", file: inventory + "/unclean.go", pkg: "db", test: "TestUncleanPartsAreExcluded",
			old: "	return clean.NotExcluded()\n",
			new: "	return nil\n",
		},
		{
			breaks: "unclean parts do not keep each other from being cleaned", file: inventory + "/unclean.go", pkg: "db", test: "TestUncleanPartsAreExcluded",
			old: "return h.Unclean }",
			new: "return h.Left }",
		},
		{
			breaks: "an attach is refused because of what is unclean", file: operation + "/attach.go", pkg: "db", test: "TestNobodyGetsAnUncleanHandle",
			old: "inventory.FirstError(t.Unheld(), t.AllClean())",
			new: "t.Unheld()",
		},
		{
			breaks: "nothing is cleaned before its host has said that nobody has it", file: operation + "/clean.go", pkg: "db", test: "TestWhatNobodyGotIsClean",
			old: "h.Unclean != nil && h.Unconfirmed == nil && ",
			new: "h.Unclean != nil && ",
		},
		{
			breaks: "evidence of a weaker method counts for nothing", file: operation + "/clean.go", pkg: "db", test: "TestFailedClean",
			old: " && e.Method.Covers(h.Method)",
			new: " && e.Method.Covers(cyborg.CleanReset)",
		},
		{
			breaks: "the evidence of a run says nothing of what is declared clean", file: operation + "/clean.go", pkg: "db", test: "TestDeclaredClean",
			old: "			cleaned = c.declared(o)\n",
			new: "			cleaned = append(outcome.Cleaned, c.declared(o)...)\n",
		},
		{
			breaks: "a clean that has failed is tried again within an hour", file: operation + "/due_cleanings.go", pkg: "db", test: "TestDueCleaningsPause",
			old: "least('1 hour',",
			new: "least('1 day',",
		},
		{
			breaks: "nothing is cleaned of what somebody maintains", file: operation + "/due_cleanings.go", pkg: "db", test: "TestDueCleaningsOnlyWhereItCanBe",
			old: "		  AND NOT `+inventory.Maintained+` AND ",
			new: "		  AND ",
		},
		{
			breaks: "a bind waits for a clean", file: operation + "/bind.go", pkg: "db", test: "TestBindWaitsForTheCleaning",
			old: "		unsettled, err = b.uncleaned(ctx, tx, a)",
			new: "		_, err = b.uncleaned(ctx, tx, a)",
		},
		{
			breaks: "a bind does not wait for long for a clean", file: operation + "/bind_settled.go", pkg: "db", test: "TestBindWaitsForTheCleaning",
			old: "const uncleanWait = time.Minute",
			new: "const uncleanWait = time.Hour",
		},
		{
			breaks: "a bind needs a driver that cleans as its profile demands", file: operation + "/bind_clean.go", pkg: "db", test: "TestBindNeedsWhatItsProfileDemands",
			old: "	if err == nil && demanded != \"\" {",
			new: "	if err == nil && demanded == \"burn\" {",
		},
		{
			breaks: "the journal knows of a clean before the hardware does", file: agent + "/clean.go", pkg: agent, test: "TestCleanKilledAtEachPoint",
			old: "Steps: []journal.Step{s.at(journal.Started)}, Cleanings: []journal.Cleaning{plan.entry}}",
			new: "Steps: []journal.Step{s.at(journal.Started)}}",
		},
		{
			breaks: "a clean goes on where an interrupted one was", file: agent + "/clean.go", pkg: agent, test: "TestCleanKilledAtEachPoint",
			old: "plan.prior, plan.entry.Note = before.Note, before.Note",
			new: "plan.entry.Note = before.Note",
		},
		{
			breaks: "nobody gets what was not cleaned to its end", file: agent + "/clean.go", pkg: agent, test: "TestCleanKilledAtEachPoint",
			old: "	if !wanted.DeclaredClean {\n		return",
			new: "	if !known {\n		return",
		},
		{
			breaks: "nothing is cleaned that somebody uses", file: agent + "/clean.go", pkg: agent, test: "TestCleanIsRefused",
			old: "if err := a.checkHandleIdle(ctx, t, found, handle); err != nil {",
			new: "if err := a.checkHandleIdle(ctx, t, found, handle); err != nil && cyborg.ErrorKindOf(err) != cyborg.ErrInUse {",
		},
		{
			breaks: "a driver has done what it was asked for", file: agent + "/clean.go", pkg: agent, test: "TestCleanFails",
			old: " || !evidence.Method.Covers(plan.method) {",
			new: " {",
		},
		{
			breaks: "a clean that a try of before has begun is not refused as if nothing were touched", file: agent + "/clean.go", pkg: agent,
			test: "TestDriverRefusesToClean",
			old:  "if s.begun || !bytes.Equal(plan.entry.Note, plan.prior) {",
			new:  "if !bytes.Equal(plan.entry.Note, plan.prior) {",
		},
		{
			breaks: "what was not cleaned to its end is one card", file: agent + "/clean.go", pkg: agent, test: "TestCleanOfAnotherCard",
			old: "return entry, known && entry.Of(found.Device.Fingerprint)",
			new: "return entry, known",
		},
		{
			breaks: "what was cleaned stays so where another handle fails", file: "workflows/clean.go", pkg: "workflows", test: "TestWhatWasCleanedStaysSo",
			old: "		o.outcome.Cleaned = append(o.outcome.Cleaned, cyborg.CleanedHandle{UUID: input.Handle.UUID, Evidence: result.Evidence})\n",
			new: "		if len(cleaned) == len(inputs) {\n			o.outcome.Cleaned = append(o.outcome.Cleaned, cyborg.CleanedHandle{UUID: input.Handle.UUID, Evidence: result.Evidence})\n		}\n",
		},
		{
			breaks: "a run that was terminated cleans nothing more", file: "workflows/clean.go", pkg: "workflows", test: "TestAbandonedClean",
			old: "if o.in.Abandoned && len(inputs) > 0 {",
			new: "if o.in.Abandoned && len(inputs) > 5 {",
		},
	}
}
