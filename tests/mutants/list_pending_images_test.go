package mutants_test

// ofPendingImages are about images that are loaded and do not take effect yet.
func ofPendingImages() []mutant {
	const (
		schema = "db/migrations/00035_pending_image.sql"
		images = "db/internal/operation/lost_images.go"
		run    = "db/internal/operation/run.go"
		binds  = "db/internal/operation/bind_images.go"
		reload = "activities/conductor/reload.go"
	)

	return []mutant{
		{
			breaks: "an image that waits over a reboot is not lost", file: schema, pkg: "db", test: "TestPendingImageOfAProgram",
			old: "    IF waits THEN\n        RETURN NEW;\n    ELSIF",
			new: "    IF",
		},
		{
			breaks: "a lost image that is pending is not there again", file: schema, pkg: "db", test: "TestLostImageIsPending",
			old: "    IF waits THEN\n        RETURN NEW;\n",
			new: "    IF waits THEN\n        NEW.image_lost_at := NULL;\n        RETURN NEW;\n",
		},
		{
			breaks: "the end of a reload that is pending does not bring the image back", file: images, pkg: "db", test: "TestLostImageIsPending",
			old: "CASE WHEN d.pending_image IS NOT NULL AND $3 THEN d.image_lost_at END",
			new: "CASE WHEN false THEN d.image_lost_at END",
		},
		{
			breaks: "an image that is dropped once more is lost once more", file: schema, pkg: "db", test: "TestLostImageIsPending",
			old: " AND (NOT waited OR NEW.image_boot = OLD.image_boot) THEN",
			new: " THEN",
		},
		{
			breaks: "what was lost and is dropped in the same boot stays lost", file: schema, pkg: "db", test: "TestLostImageIsPending",
			old: "(NOT waited OR NEW.image_boot = OLD.image_boot)",
			new: "NOT waited",
		},
		{
			breaks: "what somebody else has loaded over ours is not lost", file: schema, pkg: "db", test: "TestPendingImageOfSomebodyElse",
			old: "    ELSIF is_ours OR NEW.image_boot = OLD.image_boot THEN",
			new: "    ELSIF NEW.image_boot = OLD.image_boot THEN",
		},
		{
			breaks: "what a server of 0.1 shows in effect is not pending", file: schema, pkg: "db", test: "TestServerWithoutPendingImages",
			old: "    NEW.pending_image := NULL;\n",
			new: "",
		},
		{
			breaks: "an image that is pending is not loaded again", file: images, pkg: "db", test: "TestLostImageIsPending",
			old: " AND d.pending_image ->> 'bitstream_id' IS DISTINCT FROM d.image_bitstream",
			new: "",
		},
		{
			breaks: "what an operation has loaded may be pending when a later report is recorded", file: run, pkg: "db", test: "TestPendingImageAndALaterReport",
			old: "\t\tif loaded == \"\" {\n\t\t\tloaded = pendingIn(outcome.Observations, t)\n\t\t}\n",
			new: "",
		},
		{
			breaks: "a host is told which image was loaded last", file: run, pkg: "db", test: "TestPendingImageOfAProgram",
			old: "= o.targets[i].LoadedLast()",
			new: "= o.targets[i].BitstreamID",
		},
		{
			breaks: "a bind does not get an image that is pending", file: binds, pkg: "db", test: "TestBindWithPendingImage",
			old: "\t\tcase a.LoadedLast():\n\t\t\treturn load, \"\", pendingImage(a)\n",
			new: "",
		},
		{
			breaks: "a bind does not take a function that may be pending", file: binds, pkg: "db", test: "TestBindWithPendingImage",
			old: "function != \"\" && a.PendingImage != nil:",
			new: "function != \"\" && false:",
		},
		{
			breaks: "an instance waits for an image that is pending", file: reload, pkg: "activities/conductor", test: "TestReloadThatIsPending",
			old: "return a.LostImage != nil && a.PendingImage != nil &&",
			new: "return false && a.PendingImage != nil &&",
		},
		{
			breaks: "a rescue does not load once more what is pending", file: reload, pkg: "activities/conductor", test: "TestReloadThatIsPending",
			old: "if lost[i].Claim == nil && waits(&lost[i]) {",
			new: "if false && waits(&lost[i]) {",
		},
		{
			breaks: "what an operation still works on may be undone", file: reload, pkg: "activities/conductor", test: "TestReloadThatIsPending",
			old: "if lost[i].Claim == nil && waits",
			new: "if waits",
		},
	}
}
