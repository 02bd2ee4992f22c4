package mutants_test

// ofReconcile are about the rounds of Reconcile.
func ofReconcile() []mutant {
	const (
		inspect   = "activities/conductor/reconcile.go"
		orphans   = "activities/conductor/orphans.go"
		reconcile = "workflows/reconcile.go"
		pkg       = "activities/conductor"
	)

	return []mutant{
		{
			breaks: "runs are asked for several at once", file: orphans, pkg: pkg, test: "TestInspectAsksSomeAtOnce",
			old: "slices.Chunk(listed, describedAtOnce)",
			new: "slices.Chunk(listed, describedAtOnce/16)",
		},
		{
			breaks: "runs are not asked for all at once", file: orphans, pkg: pkg, test: "TestInspectAsksSomeAtOnce",
			old: "slices.Chunk(listed, describedAtOnce)",
			new: "slices.Chunk(listed, describedAtOnce*16)",
		},
		{
			breaks: "a try of the inspection tells how far it has got", file: orphans, pkg: pkg, test: "TestInspectGoesOnWhereItWasCutOff",
			old: "\t\t\t*next = workflows.OperationPlace(some[len(some)-1].Place)\n",
			new: "",
		},
		{
			breaks: "the next try of an inspection goes on where the one before was cut off", file: inspect, pkg: pkg,
			test: "TestInspectGoesOnWhereItWasCutOff",
			old:  "\t\ti.Inspection = reached\n",
			new:  "",
		},
		{
			breaks: "all tries of an inspection together are bounded", file: orphans, pkg: pkg, test: "TestInspectGoesOnWhereItWasCutOff",
			old: "limit := findingsLimit - i.Looked",
			new: "limit := findingsLimit - 0*i.Looked",
		},
		{
			breaks: "an inspection that is cut off passes nothing by", file: orphans, pkg: pkg, test: "TestInspectGoesOnWhereItWasCutOff",
			old: "\t\tif ctx.Err() != nil {\n\t\t\treturn workflows.Unavailable(ctx.Err())\n\t\t}\n",
			new: "",
		},
		{
			breaks: "a list that nobody has looked at keeps its place", file: inspect, pkg: pkg, test: "TestInspectGoesOnWhereItWasCutOff",
			old: "workflows.Inspection{Found: workflows.Findings{Next: in.From}}",
			new: "workflows.Inspection{}",
		},
		{
			breaks: "a list that fails does not keep the others from being looked at", file: inspect, pkg: pkg, test: "TestInspectPassesAListThatFails",
			old: "\t\t\tif ctx.Err() != nil {\n\t\t\t\treturn i.Found",
			new: "\t\t\tif err != nil {\n\t\t\t\treturn i.Found",
		},
		{
			breaks: "an inspection fails where all of its lists do", file: inspect, pkg: pkg, test: "TestInspectPassesAListThatFails",
			old: "if len(i.Found.Failed) == len(lists) {",
			new: "if len(i.Found.Failed) > len(lists) {",
		},
		{
			breaks: "an inspection that failed begins anew", file: inspect, pkg: pkg, test: "TestInspectPassesAListThatFails",
			old: "{ *reached = begin }",
			new: "{}",
		},
		{
			breaks: "a round repairs what an inspection has found that was cut off", file: reconcile, pkg: "workflows",
			test: "TestReconcileGoesOnWhereInspectWasCutOff",
			old:  "reached != nil {",
			new:  "reached != nil && false {",
		},
		{
			breaks: "a round that has looked at nothing fails", file: reconcile, pkg: "workflows", test: "TestReconcileGoesOnWhereInspectWasCutOff",
			old: " || reached.List == 0 && reached.Looked == 0 {",
			new: " {",
		},
		{
			breaks: "what could not be looked at is told", file: reconcile, pkg: "workflows", test: "TestReconcileGoesOnWhereInspectWasCutOff",
			old: "\tout.Unsettled = append(out.Unsettled, out.Found.Failed...)\n",
			new: "",
		},
	}
}
