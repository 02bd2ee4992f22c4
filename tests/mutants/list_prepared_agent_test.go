package mutants_test

// ofPreparedOnHosts are about what agents prepare for whoever gets a handle, and about
// when they are asked to take it back.
func ofPreparedOnHosts() []mutant {
	const pkg = "activities/agent"

	return []mutant{
		{
			breaks: "nothing that was chosen is dropped", file: "activities/agent/attach.go", pkg: pkg, test: "TestPrepareWhatNeedsNothing",
			old: "found.Deployable.Preparation.Check(in.Handle.Parameters); err != nil",
			new: "found.Deployable.Preparation.Check(nil); err != nil",
		},
		{
			breaks: "a driver attaches for an instance only where it has something to prepare", file: "activities/agent/attach.go", pkg: pkg,
			test: "TestPrepareWhatNeedsNothing",
			old:  "(holder.Kind == cyborg.HolderHost || found.Deployable.Preparation != nil)",
			new:  "(holder.Kind == cyborg.HolderHost || holder.ID != \"\")",
		},
		{
			breaks: "a guest that has started too early is no stranger", file: "activities/agent/attach.go", pkg: pkg, test: "TestGuestThatStartsBeforeItsHostIsReady",
			old: "if restores && holder.Kind != cyborg.HolderHost &&",
			new: "if restores && holder.Kind == cyborg.HolderService &&",
		},
		{
			breaks: "what must be prepared is not given out as it is", file: "activities/agent/check_use.go", pkg: pkg, test: "TestPreparedOnlyInTheRecords",
			old: "if wanted.OnHost() || found.Deployable.Preparation == nil {",
			new: "if wanted.OnHost() || found.Deployable.Preparation != nil {",
		},
		{
			breaks: "what was prepared is taken back for an old server, too", file: "activities/agent/detach.go", pkg: pkg, test: "TestTakeBackForAnOldServer",
			old: "return handle.OnHost() || handle.Holder == holderOf(entry)",
			new: "return handle.OnHost()",
		},
		{
			breaks: "nobody takes from a guest what its host has prepared for it", file: "activities/agent/settle.go", pkg: pkg, test: "TestSettleWhatIsPrepared",
			old: "holder := holderOf(known); holder.Kind != cyborg.HolderHost {",
			new: "holder := holderOf(known); holder.Kind == cyborg.HolderService {",
		},
		{
			breaks: "what a host takes back waits for no window", file: "workflows/settle_host.go", pkg: "workflows", test: "TestSettleHostTakesBackAtOnce",
			old: "either.AddReceive(signal, func(workflow.ReceiveChannel, bool) {})",
			new: "_ = signal",
		},
		{
			breaks: "what a host takes back makes no pause longer", file: "workflows/settle_host.go", pkg: "workflows", test: "TestSettleHostTakesBackAtOnce",
			old: "		if over {",
			new: "		if over || pause > 0 {",
		},
		{
			breaks: "what fails keeps nobody waiting for what a host takes back", file: "workflows/settle_host.go", pkg: "workflows",
			test: "TestSettleHostTakesBackFirst",
			old:  "		if !over {",
			new:  "		if false {",
		},
		{
			breaks: "who waits for what a host takes back does not wait for a report", file: "workers/conductor/settler.go", pkg: "workers/conductor", test: "TestSettler",
			old: "if s.changed[host] != workflows.HostTakesBack {",
			new: "if s.changed[host] != \"\" || reason != \"\" {",
		},
	}
}
