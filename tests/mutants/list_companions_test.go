package mutants_test

// ofCompanions are about what goes with a function to its holder, and about handles
// that their host prepares for every kind of holder.
func ofCompanions() []mutant {
	const (
		generic    = "drivers/generic"
		companions = generic + "/companions.go"
		attach     = generic + "/attach.go"
	)

	return []mutant{
		{
			breaks: "what the backend offers goes with nothing", file: companions, pkg: generic, test: "TestDiscoverReportsCompanions",
			old: "case accompanies(other) && !chosen:",
			new: "case accompanies(other):",
		},
		{
			breaks: "only what shares its group goes with a function", file: companions, pkg: generic, test: "TestDiscoverReportsCompanions",
			old: "other.IOMMUGroup != f.IOMMUGroup || ",
			new: "",
		},
		{
			breaks: "one function has what a card brings along", file: companions, pkg: generic, test: "TestDiscoverReportsCompanions",
			old: "case !accompanies(other) && chosen && other.Address.Function < f.Address.Function:",
			new: "case !accompanies(other) && chosen && other.Address.Function > f.Address.Function:",
		},
		{
			breaks: "what the host lives on goes with nothing", file: companions, pkg: generic, test: "TestDiscoverLeavesProtectedCompanions",
			old: "_, protected := protection[other.Address]; protected {",
			new: "_, protected := protection[other.Address]; protected && other.PF != nil {",
		},
		{
			breaks: "the hypervisor binds the function of an instance", file: attach, pkg: generic, test: "TestCompanionsGoAlong",
			old: "	if isHost(holder) {\n		parts",
			new: "	if holder != \"\" {\n		parts",
		},
		{
			breaks: "who uses a companion uses the card", file: attach, pkg: generic, test: "TestCompanionInUse",
			old: "for _, companion := range with {\n		user,",
			new: "for _, companion := range with[:0] {\n		user,",
		},
		{
			breaks: "a companion that somebody uses is not attached", file: attach, pkg: generic, test: "TestCompanionInUse",
			old: "if companion.Driver == companionVFIO && again {",
			new: "if companion.Driver == companionVFIO || !again {",
		},
		{
			breaks: "a note keeps what was there before the first attach", file: attach, pkg: generic, test: "TestAgentDiesAtEachWriteOfCompanions",
			old: "if before.of(p) != nil {",
			new: "if before.of(p) != nil && p.own {",
		},
		{
			breaks: "a card with which the kernel hangs in part is unready", file: generic + "/health.go", pkg: generic, test: "TestHangingCompanion",
			old: "append([]sysfs.Function{f, card}, d.companions(f, all[slotOf(f.Address)])...)",
			new: "append([]sysfs.Function{f, card}, d.companions(f, all[slotOf(f.Address)])[:0]...)",
		},
		{
			breaks: "a companion without the rest of its card gets its driver back", file: attach, pkg: generic, test: "TestDetachOfAPartOfTheCard",
			old: "case kind == cyborg.ErrNotFound && len(before.Companions) > 0:",
			new: "case kind == cyborg.ErrNotFound && len(before.Companions) > 8:",
		},
		{
			breaks: "a guest that gets what was not prepared is noted", file: "drivers/fake/tripwire.go", pkg: "drivers/fake", test: "TestTripwireOfPreparedCard",
			old: "if guest && card.Prepares && !h.prepared() {",
			new: "if guest && card.Prepares && !h.prepared() && h.Attached {",
		},
	}
}
