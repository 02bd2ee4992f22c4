package mutants_test

// ofHandleUUIDs are about what a driver makes for a handle under the handle's UUID.
func ofHandleUUIDs() []mutant {
	const (
		agent  = "activities/agent"
		known  = agent + "/inventory"
		fake   = "drivers/fake"
		nobody = "cyborg.WorkHandle{Holder: "
	)

	return []mutant{
		{
			breaks: "the journal has the UUID of a handle", file: agent + "/attach.go", pkg: agent, test: "TestMediatedDeviceHasTheUUIDOfItsHandle",
			old: "HandleUUID: recorded.UUID",
			new: "HandleUUID: uuid.Nil",
		},
		{
			breaks: "a device is made under the UUID of its handle", file: agent + "/attach.go", pkg: agent, test: "TestMediatedDeviceHasTheUUIDOfItsHandle",
			old: "HandleUUID: plan.entry.HandleUUID",
			new: "HandleUUID: plan.entry.Operation",
		},
		{
			breaks: "the hardware is asked for the UUID of a handle", file: agent + "/attach.go", pkg: agent, test: "TestHandleUnderAnotherUUIDIsNotPrepared",
			old: "Holder: holderOf(entry).Kind, HandleUUID: entry.HandleUUID,",
			new: "Holder: holderOf(entry).Kind,",
		},
		{
			breaks: "a handle that is given away is prepared under its UUID", file: agent + "/check_use.go", pkg: agent, test: "TestHandleUnderAnotherUUIDIsNotPrepared",
			old: "newEntry(found, handle, uuid.Nil, wanted)",
			new: "newEntry(found, handle, uuid.Nil, " + nobody + "wanted.Holder})",
		},
		{
			breaks: "a detach leaves a device of another UUID", file: agent + "/detach.go", pkg: agent, test: "TestDetachLeavesAnotherDevice",
			old: "Holder: holderOf(entry), HandleUUID: entry.HandleUUID, Prior",
			new: "Holder: holderOf(entry), Prior",
		},
		{
			breaks: "an undo without a journal leaves a device of another UUID", file: agent + "/detach.go", pkg: agent, test: "TestDeviceOfAStrangerIsLeftAlone",
			old: "newEntry(found, handle, in.Operation, wanted)); err",
			new: "newEntry(found, handle, in.Operation, " + nobody + "wanted.Holder})); err",
		},
		{
			breaks: "a settlement leaves a device of another UUID", file: agent + "/settle.go", pkg: agent, test: "TestDeviceOfAStrangerIsLeftAlone",
			old: "newEntry(found, handle, entry.Operation, entry.Handle))",
			new: "newEntry(found, handle, entry.Operation, " + nobody + "entry.Handle.Holder}))",
		},
		{
			breaks: "a device of another UUID is not what was attached", file: known + "/verify.go", pkg: known, test: "TestAttachmentsAreVerified",
			old: "HolderKind(entry.HolderKind), HandleUUID: entry.HandleUUID,",
			new: "HolderKind(entry.HolderKind),",
		},
		{
			breaks: "no device is made anew under its user", file: fake + "/attach.go", pkg: fake, test: "TestMediatedDeviceOfAUser",
			old: " || handle.UUID != device) {",
			new: ") {",
		},
		{
			breaks: "a device that is made anew is taken from its user", file: fake + "/tripwire.go", pkg: fake, test: "TestMediatedDeviceOfAUser",
			old: " || h.UUID != after.UUID",
			new: "",
		},
	}
}
