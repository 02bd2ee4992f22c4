package mutants_test

// ofConditions are about what drivers say of their deployables.
func ofConditions() []mutant {
	const schema = "db/migrations/00030_conditions.sql"

	return []mutant{
		{
			breaks: "an attach is refused what is unready", file: "db/internal/operation/attach.go", pkg: "db", test: "TestUnready",
			old: "t.Unfenced(), t.Available())",
			new: "t.Unfenced())",
		},
		{
			breaks: "a bind is refused what is unready", file: "db/internal/operation/bind.go", pkg: "db", test: "TestUnreadyForNova",
			old: "a.Unfenced(), a.Available())",
			new: "a.Unfenced())",
		},
		{
			breaks: "Nova's whitelist takes in nothing unready", file: "db/internal/operation/whitelist.go", pkg: "db", test: "TestUnreadyForNova",
			old: "	if a.Nova == nil { // what Nova has already",
			new: "	if false { // what Nova has already",
		},
		{
			breaks: "what is in the whitelist stays there", file: "db/internal/operation/whitelist.go", pkg: "db", test: "TestUnreadyForNova",
			old: "	if a.Nova == nil { // what Nova has already",
			new: "	if true { // what Nova has already",
		},
		{
			breaks: "nobody takes into service by itself what is unready", file: "db/internal/inventory/accelerators.go", pkg: "db", test: "TestUnready",
			old: "d.protected = '' AND NOT d.unready AND ",
			new: "d.protected = '' AND ",
		},
		{
			breaks: "an unknown level keeps everybody away", file: "db/internal/merge/conditions.go", pkg: "db", test: "TestConditionsThatCannotBeRecorded",
			old: "			c.Level = cyborg.ConditionUnready",
			new: "			c.Level = cyborg.ConditionNotice",
		},
		{
			breaks: "a condition is as old as it has been at its level", file: schema, pkg: "db", test: "TestConditions",
			old: "jsonb_build_object('code', n ->> 'code', 'level', n ->> 'level'))",
			new: "jsonb_build_object('code', n ->> 'code'))",
		},
		{
			breaks: "a message changes without a new time", file: schema, pkg: "db", test: "TestConditions",
			old: "THEN since -> (n ->> 'code') ELSE",
			new: "THEN to_jsonb(clock_timestamp()) ELSE",
		},
		{
			breaks: "Placement learns of what is unready", file: "db/migrations/00031_excludes.sql", pkg: "db", test: "TestPlacementLearnsOfUnready",
			old: "n.same_holder, n.unready, n.excludes)",
			new: "n.same_holder, o.unready, n.excludes)",
		},
		{
			breaks: "Placement gives nobody what is unready", file: "internal/openstack/placement/wanted.go", pkg: "internal/openstack/placement",
			test: "TestUnreadyIsClosed",
			old:  " || cyborg.Unready(d.Conditions) != nil",
			new:  "",
		},
		{
			breaks: "the host gives away nothing that is unready now", file: "activities/agent/attach.go", pkg: "activities/agent", test: "TestUnreadyIsNotGivenAway",
			old: "		err = available(plan.found)",
			new: "		err = nil",
		},
		{
			breaks: "who had it gets it back, unready or not", file: "activities/agent/attach.go", pkg: "activities/agent", test: "TestUnreadyIsNotGivenAway",
			old: "err == nil && !had {",
			new: "err == nil && (had || !had) {",
		},
		{
			breaks: "an instance is given nothing that is unready now", file: "activities/agent/check_use.go", pkg: "activities/agent", test: "TestUnreadyIsNotGivenAway",
			old: "		err = available(found)",
			new: "		err = nil",
		},
		{
			breaks: "after an error what a driver has said before holds", file: "activities/agent/inventory/health.go", pkg: "activities/agent/inventory",
			test: "TestHealthIsReported",
			old:  "		said = h.conditions",
			new:  "		said = nil",
		},
		{
			breaks: "what was unready before a restart stays so without an answer", file: "activities/agent/inventory/health.go",
			pkg: "activities/agent/inventory", test: "TestHealthOfBefore",
			old: "				h.conditions[d.Name] = []cyborg.Condition{*c}",
			new: "				_ = c",
		},
		{
			breaks: "a look that is given up does not count as the first answer", file: "activities/agent/inventory/guard.go",
			pkg: "activities/agent/inventory", test: "TestHealthThatHangs",
			old: "	if err := n.health.checkFirst(ctx, n, limit); err != nil {",
			new: "	if err := n.health.checkFirst(ctx, n, limit); err != nil && n == nil {",
		},
		{
			breaks: "what an operation may have cured is asked for at once", file: "activities/agent/inventory/look.go",
			pkg: "activities/agent/inventory", test: "TestHealthAfterAChange",
			old: "	in.health.recheck(report)\n",
			new: "",
		},
		{
			breaks: "who asks for any accelerator gets none that is unready", file: "db/internal/operation/fit.go", pkg: "db", test: "TestUnreadyFitsNobody",
			old: "	c.And(\"NOT d.unready\")\n",
			new: "",
		},
		{
			breaks: "an unready condition without a code counts", file: "db/internal/merge/conditions.go", pkg: "db", test: "TestConditionsThatCannotBeRecorded",
			old: "			c.Code = invalidCode",
			new: "			continue",
		},
		{
			breaks: "the first report has what a health check says", file: "activities/agent/inventory/health.go", pkg: "activities/agent/inventory",
			test: "TestHealthIsReported",
			old:  "			h.check(context.WithoutCancel(ctx), in, checker, limit)\n",
			new:  "			_ = checker\n",
		},
		{
			breaks: "who looks for a shorter time does not end the first health check", file: "activities/agent/inventory/health.go",
			pkg: "activities/agent/inventory", test: "TestFirstHealthIsForAll",
			old: "h.check(context.WithoutCancel(ctx), in,",
			new: "h.check(ctx, in,",
		},
		{
			breaks: "a device that hangs is measured once", file: "activities/agent/inventory/measure.go", pkg: "activities/agent/inventory",
			test: "TestMeasureThatHangs",
			old:  "in.measuring.of(identity,",
			new:  "(&measuring{}).of(identity,",
		},
		{
			breaks: "who measures for a shorter time does not end a measurement for others", file: "activities/agent/inventory/measure.go",
			pkg: "activities/agent/inventory", test: "TestMeasureAtTheSameTime",
			old: "		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)",
			new: "		limited, cancel := context.WithTimeout(ctx, limit)",
		},
		{
			breaks: "no driver is asked while it is closed", file: "activities/agent/inventory/guard.go", pkg: "activities/agent/inventory",
			test: "TestNoDriverIsAskedWhileItIsClosed",
			old:  "		n.questions.Wait()\n",
			new:  "",
		},
		{
			breaks: "what a driver that was replaced is asked ends", file: "activities/agent/inventory/guard.go", pkg: "activities/agent/inventory",
			test: "TestNoDriverIsAskedWhileItIsClosed",
			old:  "		case <-n.replaced:\n			cancel()\n",
			new:  "		case <-n.replaced:\n",
		},
		{
			breaks: "nothing is measured of a host without an agent", file: "workers/agent/metrics.go", pkg: "workers/agent", test: "TestMetrics",
			old: "	m.stop()\n",
			new: "",
		},
		{
			breaks: "a function with which the kernel hangs is unready", file: "drivers/passthrough/health.go", pkg: "drivers/generic",
			test: "TestDiscoverWaitsOnceForAllRounds",
			old:  "waits && time.Since(since) >= d.options.deadline",
			new:  "waits && time.Since(since) < 0",
		},
		{
			breaks: "the next agent knows what the kernel has not answered", file: "drivers/sysfs/ask.go", pkg: "drivers/sysfs",
			test: "TestNextAgentDoesNotAsk",
			old:  "	return earlier.Since, waits\n",
			new:  "	return earlier.Since, waits && t == nil\n",
		},
		{
			breaks: "the next agent does not ask beside a question that hangs", file: "drivers/sysfs/ask.go", pkg: "drivers/sysfs",
			test: "TestNextAgentDoesNotAsk",
			old:  "kernelcall.Find(call.Note); asks {",
			new:  "kernelcall.Find(call.Note); asks && earlier.Since.IsZero() {",
		},
		{
			breaks: "two drivers of one process ask once", file: "drivers/sysfs/ask.go", pkg: "drivers/sysfs", test: "TestTwoTreesAskOnce",
			old: "asking.pending.DoChan(call.Root+",
			new: "asking.pending.DoChan(time.Now().String()+",
		},
		{
			breaks: "a look follows what a health check says anew", file: "activities/agent/inventory/health.go", pkg: "activities/agent/inventory",
			test: "TestHealthIsReported",
			old:  "			i.trigger(in.backend)",
			new:  "			_ = in",
		},
	}
}
