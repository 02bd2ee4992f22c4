package mutants_test

// ofCards are about which card is in a slot.
func ofCards() []mutant {
	const (
		agent       = "activities/agent"
		calls       = "drivers/sysfs/kernelcall"
		generic     = "drivers/generic"
		passthrough = "drivers/passthrough"
		fake        = "drivers/fake"
	)

	return []mutant{
		{
			breaks: "a step is about one card", file: agent + "/step.go", pkg: agent, test: "TestStepsOnAnotherCard",
			old: "now.Other(wanted)",
			new: "now.Model != \"\" && now.Other(cyborg.Fingerprint{})",
		},
		{
			breaks: "a card in whose place another one is counts as gone", file: agent + "/step.go", pkg: agent, test: "TestDetachOfAnotherCard",
			old: "return errors.Is(err, errOtherCard) || ",
			new: "return ",
		},
		{
			breaks: "what the journal has of another card is not detached", file: agent + "/detach.go", pkg: agent, test: "TestDetachOfAnotherCard",
			old: "known && onHost && !entry.Of(found.Device.Fingerprint)",
			new: "known && onHost && !entry.Of(cyborg.Fingerprint{})",
		},
		{
			breaks: "an undo takes nothing from another card", file: agent + "/detach.go", pkg: agent, test: "TestDetachOfAnotherCard",
			old: "err != nil || !entry.Of(found.Device.Fingerprint)",
			new: "err != nil",
		},
		{
			breaks: "Reconcile takes nothing from another card", file: agent + "/settle.go", pkg: agent, test: "TestDetachOfAnotherCard",
			old: "err != nil || isKnown && !known.Of(found.Device.Fingerprint)",
			new: "err != nil",
		},
		{
			breaks: "a late detach leaves what another card has", file: agent + "/detach.go", pkg: agent, test: "TestAttachOfAnotherCard",
			old: "isOnHost(handle, entry) && entry.Of(in.Target.Fingerprint)",
			new: "isOnHost(handle, entry) && entry.Of(cyborg.Fingerprint{})",
		},
		{
			breaks: "Reconcile gives no other card to a holder", file: agent + "/attach.go", pkg: agent, test: "TestAnotherCardIsNotGivenToTheHolder",
			old: "if in.Undo || before.Operation == in.Operation {",
			new: "if in.Undo {",
		},
		{
			breaks: "an undo gives no other card to a holder", file: agent + "/attach.go", pkg: agent, test: "TestAnotherCardIsNotGivenToTheHolder",
			old: "if in.Undo || before.Operation == in.Operation {",
			new: "if before.Operation == in.Operation {",
		},
		{
			breaks: "the note of another card is not given to the driver", file: agent + "/attach.go", pkg: agent, test: "TestAttachOfAnotherCard",
			old: "\t\tplan.before = nil\n",
			new: "\n",
		},
		{
			breaks: "what was attached to another card does not block this one", file: agent + "/check_use.go", pkg: agent, test: "TestAttachOfAnotherCard",
			old: " && entry.Of(found.Device.Fingerprint)",
			new: "",
		},
		{
			breaks: "the image of another card is not loaded again", file: agent + "/restore.go", pkg: agent, test: "TestImagesOfAnotherCard",
			old: "if !image.Of(found.Device.Fingerprint) {",
			new: "if !image.Of(cyborg.Fingerprint{}) {",
		},
		{
			breaks: "the image of another card is not what was there", file: agent + "/program.go", pkg: agent, test: "TestAnotherCardsImageOfTheSameName",
			old: "known && loaded.Of(found.Device.Fingerprint) && ",
			new: "known && ",
		},
		{
			breaks: "the image of another card was not lost at a boot", file: agent + "/restore.go", pkg: agent, test: "TestAnotherCardsImageOfTheSameName",
			old: "known && loaded.Of(found.Device.Fingerprint) && ",
			new: "known && ",
		},
		{
			breaks: "an attachment of another card is in doubt", file: agent + "/inventory/content.go", pkg: agent, test: "TestDetachOfAnotherCard",
			old: "!entry.Of(cards[place{entry.Backend, entry.Device}])",
			new: "!entry.Of(cards[place{}])",
		},
		{
			breaks: "the serial number of a card that slept is kept", file: agent + "/attach.go", pkg: agent, test: "TestSerialOfACardThatSlept",
			old: "attached := learnCard(plan.entry, now)",
			new: "attached := learnCard(plan.entry, cyborg.Observation{})",
		},
		{
			breaks: "a driver is told which card it is about, also where the card sleeps", file: agent + "/step.go", pkg: agent,
			test: "TestStepsOnAnotherCardThatSleeps",
			old:  "found.Device.Fingerprint = wanted.Learn(found.Device.Fingerprint)",
			new:  "found.Device.Fingerprint = found.Device.Fingerprint.Learn(found.Device.Fingerprint)",
		},
		{
			breaks: "the restore of a whitelist has the line of a card that was exchanged for one of its model", file: agent + "/whitelist.go", pkg: agent,
			test: "TestRestoreOfAWhitelistWithAnotherCard",
			old:  "entry.Target.Fingerprint.Serial = \"\"",
			new:  "entry.Target.Fingerprint.Serial += \"\"",
		},
		{
			breaks: "an attach to another card is taken back", file: agent + "/attach.go", pkg: agent, test: "TestDriverThatDoesNotCompare",
			old: "if errors.Is(err, errOtherCard) {",
			new: "if errors.Is(err, errOtherCard) && ctx.Err() != nil {",
		},
		{
			breaks: "an attach to another card is not taken from its user", file: agent + "/attach.go", pkg: agent, test: "TestDriverThatDoesNotCompare",
			old: "if err := a.checkAttachedUnused(ctx, t, found, handle, entry); err != nil {",
			new: "if err := ctx.Err(); err != nil {",
		},
		{
			breaks: "Reconcile takes back what it has attached to another card", file: agent + "/settle.go", pkg: agent,
			test: "TestSettleWithADriverThatDoesNotCompare",
			old:  "case known.Of(now):",
			new:  "case known.Of(now) || ctx.Err() == nil:",
		},
		{
			breaks: "an image in another card is no success", file: agent + "/program.go", pkg: agent, test: "TestOtherStepsWithADriverThatDoesNotCompare",
			old: "if err := sameCard(found, seen); err != nil {",
			new: "if err := sameCard(found, seen); err != nil && result.BitstreamID != \"\" {",
		},
		{
			breaks: "Reconcile keeps the serial number that the journal has", file: agent + "/attach.go", pkg: agent, test: "TestSettleKeepsTheSerial",
			old: "before != nil && (in.Undo || before.Operation == in.Operation) {",
			new: "before != nil && in.Undo {",
		},
		{
			breaks: "Reconcile learns the serial number of a card that slept", file: agent + "/settle.go", pkg: agent, test: "TestSettleKeepsTheSerial",
			old: "if learned.Fingerprint == known.Fingerprint {",
			new: "if learned.Fingerprint != known.Fingerprint {",
		},
		{
			breaks: "a late detach leaves what a card has that sleeps", file: agent + "/detach.go", pkg: agent, test: "TestLateDetachFromACardThatSleeps",
			old: "known && isOnHost(handle, entry) && entry.Of(in.Target.Fingerprint)",
			new: "known && isOnHost(handle, entry) && entry.Of(cyborg.Fingerprint{})",
		},
		{
			breaks: "capabilities are behind what everybody may read", file: calls + "/registers.go", pkg: calls, test: "TestSerialNumber",
			old: "offset >= extendedStart && n < most",
			new: "offset >= 0 && n < most",
		},
		{
			breaks: "a card that is pulled out while it is read has no serial number", file: calls + "/registers.go", pkg: calls, test: "TestSerialNumber",
			old: " || !read(0, again) || isFilledWith(0xff, again)",
			new: " || !read(0, again)",
		},
		{
			breaks: "a detach asks the card which one it is", file: passthrough + "/attach.go", pkg: generic, test: "TestDetachLeavesAnotherCardOfTheModelAlone",
			old: "f, err := d.findSame(ctx, request.Target",
			new: "f, err := d.find(ctx, request.Target",
		},
		{
			breaks: "a card that sleeps is asked which one it is before it is given away", file: passthrough + "/attach.go", pkg: generic,
			test: "TestInUseOfACardThatSleeps",
			old:  "d.checkSerial(ctx, target, f, nil, true)",
			new:  "d.checkSerial(ctx, target, f, nil, false)",
		},
		{
			breaks: "a virtual function is known by its card", file: passthrough + "/discover.go", pkg: generic, test: "TestDetachLeavesAnotherCardOfTheModelAlone",
			old: "own := physical(f)",
			new: "own := f.Address",
		},
		{
			breaks: "function 0 has the serial number of the others", file: passthrough + "/discover.go", pkg: generic, test: "TestSerialOfFunction0",
			old: "if first == own {",
			new: "if first.Domain == own.Domain {",
		},
		{
			breaks: "nothing is done to a card that does not answer in time", file: passthrough + "/install.go", pkg: generic, test: "TestDetachOfWhatDoesNotAnswerInTime",
			old: "if answer, err = d.presence(ctx, card, wake); cyborg.ErrorKindOf(err) == cyborg.ErrTimeout {",
			new: "if answer, err = d.presence(ctx, card, wake); cyborg.ErrorKindOf(err) == cyborg.ErrBusy {",
		},
		{
			breaks: "the card of a virtual function is the one that was attached", file: passthrough + "/install.go", pkg: generic, test: "TestFingerprintOfAnotherModel",
			old: "if target.Device.Identity != identity {",
			new: "if target.Device.Identity == identity {",
		},
		{
			breaks: "the fake driver leaves another card alone", file: fake + "/step.go", pkg: fake, test: "TestConformance",
			old: "case c.of.Other(now) && undoes:",
			new: "case c.of.Other(cyborg.Fingerprint{}) && undoes:",
		},
		{
			breaks: "another card in the slot of one is another device", file: "db/internal/merge/devices.go", pkg: "db", test: "TestReplacedDeviceIsForgotten",
			old: "case d.row.Fingerprint.Other(r.Fingerprint):",
			new: "case false:",
		},
		{
			breaks: "the records keep a card that somebody has", file: "db/internal/inventory/forget_replaced.go", pkg: "db", test: "TestReplacedDeviceStaysWithItsHolder",
			old: "(holder_kind IS NOT NULL\n",
			new: "(holder_kind IS NULL AND false\n",
		},
		{
			breaks: "Nova gives no instance the card that is in the place of its own", file: "db/internal/operation/rescue.go", pkg: "db", test: "TestInstanceThatLacksItsCardIsNotRescued",
			old: "(h.presence = 'missing' OR b.state = 'failed' OR h.undone_at IS NOT NULL OR ` + notReady + ` OR ` + workedOn + `))`",
			new: "(b.state = 'failed' OR h.undone_at IS NOT NULL OR ` + notReady + ` OR ` + workedOn + `))`",
		},
		{
			breaks: "parts do not move to another card", file: "db/internal/merge/deployables.go", pkg: "db", test: "TestReplacedDeviceOfAnotherName",
			old: "p.row.DeviceUUID != d.row.UUID && v.isOfAnother(p, d)",
			new: "false",
		},
		{
			breaks: "what was installed on another card is not uninstalled", file: "db/internal/inventory/uninstall.go", pkg: "db", test: "TestInstallOfAForgottenCardIsNotThatOfAnother",
			old: "WHERE NOT on_another",
			new: "WHERE true",
		},
		{
			breaks: "the end of an operation has the host show what is in the place of a card", file: "db/internal/operation/run.go", pkg: "db", test: "TestReplacedDeviceStaysWithItsHolder",
			old: "inventory.QueueWantReportOfReplaced(batch, o.host)",
			new: "inventory.QueueWantReportOfReplaced(batch)",
		},
	}
}
