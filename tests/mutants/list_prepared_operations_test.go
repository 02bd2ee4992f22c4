package mutants_test

// ofPreparedOperations are about the steps with which a host prepares handles of
// instances, and about their undos.
func ofPreparedOperations() []mutant {
	const pkg = "workflows"

	return []mutant{
		{
			breaks: "a host prepares what a bind gives", file: "workflows/bind.go", pkg: pkg, test: "TestHostPreparesHandles",
			old: "if err := b.attachHandles(ctx, preparedInputs(b.work)); err != nil {",
			new: "if err := b.attachHandles(ctx, nil); err != nil {",
		},
		{
			breaks: "what a bind has its host prepare is permitted", file: "workflows/bind.go", pkg: pkg, test: "TestHostPreparesHandles",
			old: "return append(out, permittedAttaches(preparedInputs(work))...)",
			new: "return out",
		},
		{
			breaks: "a bind that is taken over takes back what its host has prepared", file: "workflows/bind.go", pkg: pkg,
			test: "TestAbandonedPreparation",
			old:  "len(b.work.Loads) == 0 && !prepares:",
			new:  "len(b.work.Loads) == 0:",
		},
		{
			breaks: "a failed bind without an image talks of none", file: "workflows/bind.go", pkg: pkg, test: "TestUndoOfAPreparationFails",
			old: "		b.remedy = remedyPrepared\n",
			new: "",
		},
		{
			breaks: "what an unbind has detached is attached again", file: "workflows/unbind.go", pkg: pkg, test: "TestHostPreparesHandles",
			old: "}, again)",
			new: "}, nil)",
		},
		{
			breaks: "an unbind that is taken over is completed", file: "workflows/unbind.go", pkg: pkg, test: "TestAbandonedPreparation",
			old: "err != nil && !(o.in.Abandoned && again != nil) {",
			new: "err != nil {",
		},
		{
			breaks: "an unbind that has touched nothing is not completed against Placement", file: "workflows/unbind.go", pkg: pkg,
			test: "TestAbandonedUnbindOfPlainHandles",
			old:  "err != nil && !(o.in.Abandoned && again != nil) {",
			new:  "err != nil && !o.in.Abandoned {",
		},
		{
			breaks: "an attach that is taken over takes back what its host has prepared", file: "workflows/attach.go", pkg: pkg,
			test: "TestAbandonedPreparation",
			old:  "			o.undos = append(o.undos, undo{step: name, run: takeBack})\n",
			new:  "",
		},
		{
			breaks: "only the last look at a device is recorded", file: "workflows/operation.go", pkg: pkg, test: "TestLastLookAtADeviceIsRecorded",
			old: "&& before.Sequence < seen.Sequence",
			new: "&& before.Sequence > seen.Sequence",
		},
		{
			breaks: "a choice for a handle is no longer than can be recorded", file: "api/v1/body.go", pkg: "api", test: "TestInvalidParameters",
			old: "if len(*value) > cyborg.LongestParameter {",
			new: "if len(*value) < 0 {",
		},
		{
			breaks: "null chooses nothing", file: "api/v1/body.go", pkg: "api", test: "TestInvalidParameters",
			old: "if given.unread[parameter] == nil {",
			new: "if given.unread[parameter] == false {",
		},
		{
			breaks: "a typing mistake in a profile is no parameter that is left out", file: "api/v2/device_profiles.go", pkg: "api",
			test: "TestL32L38InvalidDeviceProfiles",
			old:  `case strings.HasPrefix(property, "parameter"):`,
			new:  `case strings.HasPrefix(property, "parameter:"):`,
		},
		{
			breaks: "a profile chooses what can be a parameter", file: "api/v2/device_profiles.go", pkg: "api", test: "TestL32L38InvalidDeviceProfiles",
			old: "case !cyborg.IsParameterName(name):",
			new: "case !cyborg.IsParameterName(name) && name == \"\":",
		},
	}
}
