package mutants_test

// ofCompanions are about what goes with a function to its holder, and about handles
// that their host prepares for every kind of holder.
func ofCompanions() []mutant {
	const (
		generic     = "drivers/generic"
		passthrough = "drivers/passthrough"
		companions  = passthrough + "/companions.go"
		attach      = passthrough + "/attach.go"
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
			old: "case d.mayLead(other) && chosen && other.Address.Function < f.Address.Function:",
			new: "case d.mayLead(other) && chosen && other.Address.Function > f.Address.Function:",
		},
		{
			breaks: "only graphics lead companions", file: companions, pkg: generic, test: "TestDiscoverReportsCompanions",
			old: "d.cards.Describe(f, nil).Type == cyborg.DeviceTypeGPU\n",
			new: "!accompanies(f)\n",
		},
		{
			breaks: "who types at a card uses it", file: companions, pkg: generic, test: "TestKeyboardAtTheCard",
			old: "user != \"\" || companion.Class.Sub() != sysfs.SubUSB {",
			new: "user != \"\" || companion.Class.Sub() == sysfs.SubUSB {",
		},
		{
			breaks: "a guest that has the card already keeps it", file: attach, pkg: generic, test: "TestGuestHasTheCardAlready",
			old: "	return f.VFIO() && before.Binding == nil\n",
			new: "	return f.VFIO() && before.Binding == nil && request.Prior != nil\n",
		},
		{
			breaks: "nothing is bound in a group that a guest has", file: attach, pkg: generic, test: "TestGuestHasTheCardAlready",
			old: "return slices.DeleteFunc(slices.Clone(with), optional), nil",
			new: "return with, nil",
		},
		{
			breaks: "companions without a driver are no obstacle", file: attach, pkg: generic, test: "TestAttachedWithoutDriversOfCompanions",
			old: "		if companion.Obstructs() {\n			return false, nil",
			new: "		if companion.Driver != companionVFIO {\n			return false, nil",
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
			old: "|| prepared && companion.Driver == companionVFIO {",
			new: "|| !prepared || companion.Driver == companionVFIO {",
		},
		{
			breaks: "a note keeps what was there before the first attach", file: attach, pkg: generic, test: "TestAgentDiesAtEachWriteOfCompanions",
			old: "if before.of(p) != nil {",
			new: "if before.of(p) != nil && p.own {",
		},
		{
			breaks: "a card with which the kernel hangs in part is unready", file: passthrough + "/health.go", pkg: generic, test: "TestHangingCompanion",
			old: "append([]sysfs.Function{f, card}, d.companions(f, all[slotOf(f.Address)])...)",
			new: "append([]sysfs.Function{f, card}, d.companions(f, all[slotOf(f.Address)])[:0]...)",
		},
		{
			breaks: "a companion without the rest of its card gets its driver back", file: attach, pkg: generic, test: "TestDetachOfAPartOfTheCard",
			old: "case kind == cyborg.ErrNotFound && len(before.Companions) > 0:",
			new: "case kind == cyborg.ErrNotFound && len(before.Companions) > 8:",
		},
		{
			breaks: "what goes with another card is no obstacle", file: companions, pkg: generic, test: "TestTwoCardsOfOneGroup",
			old: "if d.cards.Chosen(lead) && slices",
			new: "if d.cards.Chosen(lead) && lead.IOMMUGroup == \"\" && slices",
		},
		{
			breaks: "what somebody uses goes to no other kind of holder", file: "drivers/fake/attach.go", pkg: "drivers/fake", test: "TestAnotherHolderTakesNothing",
			old: "return true, d.checkUnused(request.Handle.Identity, handle)",
			new: "return true, nil",
		},
		{
			breaks: "a guest that gets what was not prepared is noted", file: "drivers/fake/tripwire.go", pkg: "drivers/fake", test: "TestTripwireOfPreparedCard",
			old: "if guest && card.Prepares && !h.prepared() {",
			new: "if guest && card.Prepares && !h.prepared() && h.Attached {",
		},
	}
}
