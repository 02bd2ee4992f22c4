package mutants_test

// ofSysfs are about what the agent reads of a host: who uses a function, and what
// the host needs itself.
func ofSysfs() []mutant {
	const pkg = "drivers/sysfs"
	return []mutant{
		{
			breaks: "a partition of a multipath disk stands on its disk", file: pkg + "/disks.go", pkg: pkg, test: "TestUsers",
			old: "if whole := path.Dir(dir); d.byName[path.Base(whole)] == whole {",
			new: "if whole := path.Dir(dir); whole == \"\" {",
		},
		{
			breaks: "a controller without a path to a disk does not carry it", file: pkg + "/disks.go", pkg: pkg, test: "TestUsers",
			old: "if len(reaching) > 0 {",
			new: "if len(reaching) > len(all) {",
		},
		{
			breaks: "a disk that stands on a function through multipath is looked at", file: pkg + "/users.go", pkg: pkg, test: "TestUsers",
			old: "slices.Concat(children.nodes, v.nodes(standing), extra)",
			new: "slices.Concat(children.nodes, extra)",
		},
		{
			breaks: "a VFIO device of somebody does not hide a process that cannot be seen", file: pkg + "/users.go", pkg: pkg, test: "TestUsersWhoCannotBeSeen",
			old: "v.groupHolder(ctx, f); held != \"\" || err != nil {",
			new: "v.groupHolder(ctx, f); held != \"\" || true {",
		},
		{
			breaks: "a VFIO group that is not there tells nothing", file: pkg + "/users.go", pkg: pkg, test: "TestUsersOfADeviceFile",
			old: "errors.Is(err, syscall.ENXIO), !v.hasVFIO(f):",
			new: "isGone(err), !v.hasVFIO(f):",
		},
		{
			breaks: "a device through which a mounted file system comes is protected", file: pkg + "/protection.go", pkg: pkg, test: "TestProtection",
			old: "range s.view.shares(storage) {",
			new: "range s.view.shares(storage)[:0] {",
		},
		{
			breaks: "a virtual function without links is found by its routing id", file: pkg + "/virtual_functions.go", pkg: pkg,
			test: "TestFunctionsWhileVirtualOnesGo",
			old:  "ok && !linked && v.isVirtualFunction(d, pf, address) {",
			new:  "ok && !linked && pf.TotalVFs < 0 && v.isVirtualFunction(d, pf, address) {",
		},
		{
			breaks: "a second card is no virtual function of the first", file: pkg + "/virtual_functions.go", pkg: pkg,
			test: "TestFunctionsWhileVirtualOnesGo",
			old:  "if err != nil || other.count(\"sriov_totalvfs\") > 0 {",
			new:  "if err != nil {",
		},
		{
			breaks: "a virtual function of a GPU is no whole one", file: "drivers/generic/classify.go", pkg: "drivers/generic", test: "TestDiscoverPartsOfGPU",
			old: "case t == cyborg.DeviceTypeGPU && f.PF != nil:",
			new: "case t == cyborg.DeviceTypeGPU && f.PF != nil && f.TotalVFs > 0:",
		},
		{
			breaks: "who has a unit in a class of before keeps it from others", file: "internal/openstack/placement/plan.go",
			pkg: "internal/openstack/placement", test: "TestPlanReservesAllocatedProviders",
			old: "want.Reserved = min(want.Reserved+held, want.Total)",
			new: "want.Reserved = min(want.Reserved+0*held, want.Total)",
		},
		{
			breaks: "what makes an access does not outlive the agent", file: pkg + "/kernelcall/process.go", pkg: pkg + "/kernelcall", test: "TestNobodyElse",
			old: "if syscall.Signal(sent) != syscall.SIGKILL {",
			new: "if syscall.Signal(sent) == syscall.SIGTERM {",
		},
		{
			breaks: "a process is known by when it was started, too", file: pkg + "/kernelcall/note.go", pkg: pkg + "/kernelcall", test: "TestEndsWithItsParent",
			old: "err == nil && start == r.Start",
			new: "err == nil && start != \"\"",
		},
		{
			breaks: "an access is noted before it is made", file: pkg + "/kernelcall/kernelcall.go", pkg: pkg + "/kernelcall", test: "TestFailures",
			old: "if o.Note != \"\" {",
			new: "if o.Note == \"-\" {",
		},
		{
			breaks: "an access that an earlier agent has begun still counts", file: pkg + "/binder.go", pkg: pkg, test: "TestBinderLeavesAloneWhatHangs",
			old: "return access{running.Action, running.Since}, ok",
			new: "return access{running.Action, running.Since}, ok && running.PID == 0",
		},
		{
			breaks: "a module that does not come back from its loading ends the wait", file: pkg + "/binder.go", pkg: pkg, test: "TestBinderLoadsNoLongerThanItsDeadline",
			old: "err := b.withDeadline(ctx, address, \"loading the kernel driver \"+driver, func() error {",
			new: "err := func(call func() error) error { return call() }(func() error {",
		},
		{
			breaks: "what stops the agent does not stop an access that it waits for", file: pkg + "/kernelcall/process.go", pkg: pkg + "/kernelcall", test: "TestHangs",
			old: "signal.Ignore(syscall.SIGTERM, ",
			new: "signal.Ignore(",
		},
		{
			breaks: "a failure of the process is none of the device", file: pkg + "/binder.go", pkg: pkg, test: "TestBinderWithoutNotes",
			old: "case errors.Is(err, kernelcall.ErrProcess):",
			new: "case errors.Is(err, kernelcall.ErrProcess) && address.Bus == 0:",
		},
		{
			breaks: "a card that reads as ones does not answer", file: pkg + "/config_space.go", pkg: pkg, test: "TestPresence",
			old: "header != strings.Repeat(\"\\xff\", len(header)):",
			new: "header != strings.Repeat(\"\\xff\", len(header)+1):",
		},
		{
			breaks: "a card that does not answer is not attached", file: "drivers/passthrough/install.go", pkg: "drivers/generic", test: "TestDiscoverLeavesOutSilentCards",
			old: "if !presence.Answers {",
			new: "if !presence.Answers && f.PF != nil {",
		},
	}
}
