package mutants_test

// ofUsers are about the agent's own look for who uses a device: a driver may
// forget it.
func ofUsers() []mutant {
	const pkg = "activities/agent"
	return []mutant{
		{
			breaks: "an attach looks whether somebody uses what the journal does not know", file: pkg + "/attach.go", pkg: pkg,
			test: "TestAnAttachTakesNothingFromAnUnknownUser",
			old:  "err = a.checkNoStranger(ctx, t, plan, in.Undo)",
			new:  "err = ctx.Err()",
		},
		{
			breaks: "what is attached already is not handed out under an unknown user", file: pkg + "/attach.go", pkg: pkg,
			test: "TestAnAttachedHandleWithAnUnknownUserIsNotHandedOut",
			old:  "is && (restores || plan.before != nil) {",
			new:  "is {",
		},
		{
			breaks: "what is used and not attached is not attached again for a holder that the journal knows", file: pkg + "/attach.go", pkg: pkg,
			test: "TestAnAttachDoesNotBeginAgainUnderAUser",
			old:  "is && (restores || plan.before != nil) {",
			new:  "is || restores || plan.before != nil {",
		},
		{
			breaks: "what goes to an instance is used by nobody", file: pkg + "/check_use.go", pkg: pkg, test: "TestCheckUse",
			old: "if who != \"\" {",
			new: "if who == \"-\" {",
		},
		{
			breaks: "what goes to an instance is looked at now", file: pkg + "/check_use.go", pkg: pkg, test: "TestCheckUseLooksNow",
			old: "if err := a.Inventory.LookAt(ctx, at.backend, at.device); err != nil {",
			new: "if err := ctx.Err(); err != nil {",
		},
		{
			breaks: "what the host has attached goes to no instance", file: pkg + "/check_use.go", pkg: pkg, test: "TestCheckUseOfWhatIsAttached",
			old: "if known && !a.Journal.Lost(entry) && entry.Of(",
			new: "if known && a.Journal.Lost(entry) && entry.Of(",
		},
		{
			breaks: "an attach to an instance asks its host", file: "workflows/attach.go", pkg: "workflows", test: "TestAHandleInUseIsNotGiven",
			old: "if err := o.checkUse(ctx); err != nil {",
			new: "if err := o.checkUse(ctx); err != nil && ctx.Err() != nil {",
		},
		{
			breaks: "a bind asks its host", file: "workflows/bind.go", pkg: "workflows", test: "TestAHandleInUseIsNotGiven",
			old: "if err := b.checkUse(ctx); err != nil {",
			new: "if err := b.checkUse(ctx); err != nil && ctx.Err() != nil {",
		},
		{
			breaks: "an attach to an instance of which nobody knows the answer is undone", file: "workflows/attach.go", pkg: "workflows",
			test: "TestAbandonedAttachToOthers",
			old:  "if o.in.Abandoned && len(o.work.Given)+len(o.undos) > 0 {",
			new:  "if o.in.Abandoned && len(o.undos) > 0 {",
		},
		{
			breaks: "the work says what its host has to look at", file: "db/internal/operation/given.go", pkg: "db",
			test: "TestWorkHasWhatItsHostMustLookAt",
			old:  "WHERE q.claimed_by = $1",
			new:  "WHERE q.claimed_by = $1 AND false",
		},
		{
			breaks: "a settlement looks whether somebody uses what it attaches", file: pkg + "/settle.go", pkg: pkg,
			test: "TestSettlingTakesNothingFromAnUnknownUser",
			old:  "if err := a.checkNoStranger(ctx, t, plan, true); err != nil {",
			new:  "if err := ctx.Err(); err != nil {",
		},
		{
			breaks: "a settlement looks whether somebody uses what the journal does not know", file: pkg + "/detach.go", pkg: pkg,
			test: "TestSettlingTakesNothingFromAnUnknownUser",
			old:  "if err := a.checkUnused(ctx, t, found, handle); err != nil {",
			new:  "if err := ctx.Err(); err != nil {",
		},
		{
			breaks: "the undo of an attach looks whether somebody uses the handle", file: pkg + "/detach.go", pkg: pkg,
			test: "TestAnUndoTakesNothingFromAUser",
			old:  "if err := a.checkAttachedUnused(ctx, t, found, handle, entry); err != nil {",
			new:  "if err := ctx.Err(); err != nil {",
		},
		{
			breaks: "the undo of an image looks whether somebody uses the device", file: pkg + "/restore.go", pkg: pkg,
			test: "TestAnUndoTakesNothingFromAUser",
			old:  "if err := a.checkDisturbed(ctx, t, found, loaded.WholeDevice); err != nil {",
			new:  "if err := a.checkDisturbed(ctx, t, found, loaded.WholeDevice); err != nil && ctx.Err() != nil {",
		},
		{
			breaks: "the undo of an image looks at the parts that get theirs back", file: pkg + "/restore.go", pkg: pkg,
			test: "TestAnUndoLooksAtEachPartThatItFills",
			old:  "\tfound.Deployable = found.Device.Deployables[at]\n",
			new:  "\t_ = at\n",
		},
		{
			breaks: "an undo whose device is away is repeated", file: pkg + "/restore.go", pkg: pkg, test: "TestAnUndoIsRepeatedWhereTheDeviceIsAway",
			old: "return result, cyborg.Errorf(cyborg.ErrBusy, ",
			new: "return result, cyborg.Errorf(cyborg.ErrNotFound, ",
		},
		{
			breaks: "an undo loads again what a boot has emptied", file: pkg + "/restore.go", pkg: pkg, test: "TestRestoreAfterABootBeforeProgramBegan",
			old: "\tif prior.Note == nil {\n",
			new: "\tif prior.Note == nil && ctx.Err() != nil {\n",
		},
		{
			breaks: "an undo leaves alone what is in place", file: pkg + "/restore.go", pkg: pkg, test: "TestRestoreAfterABootBeforeProgramBegan",
			old: "!told || id == one.LoadedLast() || asked[key]",
			new: "!told || id == \"?\" || asked[key]",
		},
		{
			breaks: "an undo loads only what the records name", file: pkg + "/restore.go", pkg: pkg, test: "TestRestoreAfterABootBeforeProgramBegan",
			old: "loaded.Of(found.Device.Fingerprint) && loaded.BitstreamID == ids[one.Name] &&",
			new: "loaded.Of(found.Device.Fingerprint) &&",
		},
		{
			breaks: "an undo replaces no image of another region", file: pkg + "/restore.go", pkg: pkg, test: "TestRestoreAfterABootOfTheWholeDevice",
			old: "return !known || loaded.SHA256 != image.SHA256",
			new: "return !known && loaded.SHA256 != image.SHA256",
		},
		{
			breaks: "a program looks whether somebody uses the device", file: pkg + "/program.go", pkg: pkg,
			test: "TestOtherStepsTakeNothingFromAUser",
			old:  "return found, a.checkDisturbed(ctx, t, found, in.Image.WholeDevice)",
			new:  "return found, nil",
		},
		{
			breaks: "an uninstall looks whether somebody uses the device", file: pkg + "/install.go", pkg: pkg,
			test: "TestOtherStepsTakeNothingFromAUser",
			old:  "err = a.checkIdle(ctx, t, found)",
			new:  "err = ctx.Err()",
		},
		{
			breaks: "a detach looks whether somebody uses the handle", file: pkg + "/detach.go", pkg: pkg,
			test: "TestOtherStepsTakeNothingFromAUser",
			old:  "if len(used) > 0 {",
			new:  "if len(used) > 1 {",
		},
	}
}
