package mutants_test

// ofPendingImagesOnHosts are about images that take effect later, as agents, drivers and
// workflows see them.
func ofPendingImagesOnHosts() []mutant {
	const (
		agent    = "activities/agent"
		programs = agent + "/program.go"
		restores = agent + "/restore.go"
		flows    = "workflows"
		fake     = "drivers/fake"
	)

	return []mutant{
		{
			breaks: "a host says that an image takes effect later", file: programs, pkg: agent, test: "TestPendingProgram",
			old: "cmp.Or(one.LoadedLast(), in.Image.ID, in.SHA256), one.PendingImage",
			new: "cmp.Or(one.LoadedLast(), in.Image.ID, in.SHA256), nil",
		},
		{
			breaks: "the journal has the image that is pending", file: programs, pkg: agent, test: "TestPendingProgram",
			old: "entry.Fingerprint = key, one.LoadedLast(), ",
			new: "entry.Fingerprint = key, one.BitstreamID, ",
		},
		{
			breaks: "a program remembers what was loaded last before", file: programs, pkg: agent, test: "TestUndoOfAProgramOverAPendingImage",
			old: "note.BitstreamIDs[one.Name] = one.LoadedLast()",
			new: "note.BitstreamIDs[one.Name] = one.BitstreamID",
		},
		{
			breaks: "an undo brings back an image that was pending", file: programs, pkg: agent, test: "TestUndoOfAProgramOverAPendingImage",
			old: "loaded.BitstreamID == one.LoadedLast() {",
			new: "loaded.BitstreamID == one.BitstreamID {",
		},
		{
			breaks: "an undo does not load again what is pending", file: restores, pkg: agent, test: "TestPendingImageIsNotLost",
			old: "id == one.LoadedLast() || asked[key]",
			new: "id == one.BitstreamID || asked[key]",
		},
		{
			breaks: "an undo is not done while the other image is pending", file: restores, pkg: agent, test: "TestJournalLostDuringAPendingProgram",
			old: "now[one.Name] = one.LoadedLast()",
			new: "now[one.Name] = one.BitstreamID",
		},
		{
			breaks: "the records are told of no image in effect that is pending", file: flows + "/program.go", pkg: flows, test: "TestProgramOfAPendingImage",
			old: "if l.result.Pending == nil {",
			new: "if l.result.BitstreamID != \"\" {",
		},
		{
			breaks: "an instance does not start without the image that it needs", file: flows + "/bind.go", pkg: flows, test: "TestBindOfAPendingImage",
			old: "if pending := l.result.Pending; pending != nil {",
			new: "if pending := l.result.Pending; pending != nil && b.in.Abandoned {",
		},
		{
			breaks: "what was not written to its end takes no effect", file: fake + "/card.go", pkg: fake, test: "TestHalfWrittenFlash",
			old: "case pending != nil && pending.BitstreamID != halfWritten:",
			new: "case pending != nil:",
		},
	}
}
