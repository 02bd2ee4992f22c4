package mutants_test

// ofRaces are about operations that meet each other, force, Nova's whitelist and
// backends that change; and about the model with which the races are judged.
func ofRaces() []mutant {
	const (
		operation = "db/internal/operation/"
		races     = "tests/races/"
		pkg       = "tests/races"
	)

	return []mutant{
		{
			breaks: "force that is not needed any more is refused", file: operation + "detach.go", pkg: "db", test: "TestForceIsRefusedWhileNotNeeded",
			old: "o.before.Stuck, err = d.forceReason(ctx, tx, &o.targets[0])",
			new: "o.before.Stuck, _ = d.forceReason(ctx, tx, &o.targets[0])",
		},
		{
			breaks: "what was detached by force is unconfirmed", file: operation + "detach.go", pkg: "db", test: "TestForceStuckHandles",
			old: "\t\tif d.request.Force {\n\t\t\treturn markUnconfirmed",
			new: "\t\tif d.request.Force && o.cancelled {\n\t\t\treturn markUnconfirmed",
		},
		{
			breaks: "a host has one whitelist at a time", file: operation + "whitelist.go", pkg: "db", test: "TestConcurrentWhitelists",
			old: "case other != nil:",
			new: "case other != nil && !known:",
		},
		{
			breaks: "a whitelist that is undone gives nothing to Nova", file: operation + "whitelist.go", pkg: "db", test: "TestWhitelist",
			old: "return setNovaSpecs(ctx, tx, inventory.UUIDs(o.targets), o.before.Whitelist)",
			new: "return nil",
		},
		{
			breaks: "no backend is uninstalled under a holder", file: operation + "configure.go", pkg: "db", test: "TestConfigure",
			old: "c.request.Action == cyborg.ConfigureUninstall && err != nil",
			new: "c.request.Action == cyborg.ConfigureInstall && err != nil",
		},
		{
			breaks: "a key that two requests use at once is no fault", file: operation + "admit.go", pkg: "db", test: "TestOneKeyOnTwoHostsAtOnce",
			old: "\n\t\tON CONFLICT (actor, actor_id, project, idempotency_key) DO NOTHING`",
			new: "`",
		},
		{
			breaks: "in the races nothing fails without a cause", file: races + "model_test.go", pkg: pkg, test: "TestCheckerKnowsTheHardware",
			old: `was.refused == "" && (was.disturbed || r.ofHost() || was.refusedByHost(out.kind))`,
			new: `was.refused == ""`,
		},
		{
			breaks: "in the races a host refuses only a card that has worsened", file: races + "model_test.go", pkg: pkg, test: "TestCheckerKnowsTheHardware",
			old: `return c.begun && c.worsened && `,
			new: `return c.begun && `,
		},
		{
			breaks: "in the races only Reconcile settles", file: races + "model_test.go", pkg: pkg, test: "TestCheckerKnowsTheHardware",
			old: "a.handles[i] = held{left: r.force}",
			new: "a.handles[i] = held{}",
		},
		{
			breaks: "what changes nothing now may change something later", file: races + "linearizable_test.go", pkg: pkg,
			test: "TestCheckerRefusesIllegalHistories",
			old:  "now.told = tells(input, output) && ",
			new:  "now.told = ",
		},
		{
			breaks: "a search that was given up proves nothing", file: races + "linearizable_test.go", pkg: pkg, test: "TestSearchIsBounded",
			old: "out.result = porcupine.Unknown",
			new: "out.result = porcupine.Illegal",
		},
	}
}
