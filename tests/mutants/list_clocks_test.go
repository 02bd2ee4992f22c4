package mutants_test

// ofClocksAndStalls are about clocks that are wrong, and about who does not answer
// for a while.
func ofClocksAndStalls() []mutant {
	const temporal = "internal/temporalclient"

	return []mutant{
		{
			breaks: "what the host has said since a bind tells that a boot has lost it", file: "db/internal/ingest/lost_arqs.go", pkg: "db",
			test: "TestLossThoughTheClockWasSetBack",
			old:  "IS DISTINCT FROM (was.boot_id, was.uptime)",
			new:  "IS DISTINCT FROM (a.bound_boot, a.bound_uptime)",
		},
		{
			breaks: "a bind in the future was before the boot", file: "db/internal/ingest/lost_arqs.go", pkg: "db",
			test: "TestLossThoughTheClockWasSetBack",
			old:  "h.attached_at NOT BETWEEN clock_timestamp() - b.uptime AND clock_timestamp()",
			new:  "h.attached_at < clock_timestamp() - b.uptime",
		},
		{
			breaks: "a bind says in which boot of its host it was", file: "db/internal/operation/arqs.go", pkg: "db",
			test: "TestLossCoversEarlierBindsOnly",
			old:  "WHERE name = a.host AND $2 = 'Bound'",
			new:  "WHERE name = a.host AND $2 = 'Unbound'",
		},
		{
			breaks: "the host's uptime tells how long ago its boot was", file: "db/internal/openstack/lost_arqs.go", pkg: "activities/conductor",
			test: "TestLossThoughClocksDiffer",
			old:  "LEFT JOIN hosts h ON h.name = $1 AND h.uptime IS NOT NULL",
			new:  "LEFT JOIN hosts h ON h.name = $1 AND h.uptime IS NULL",
		},
		{
			breaks: "what was created while the host was not heard may be before its boot or after it", file: "activities/conductor/instances.go",
			pkg: "activities/conductor", test: "TestLossWhileTheHostIsNotHeard",
			old: "return false, ever && atMost > atLeast && ago < atMost+slack, nil",
			new: "return false, ever && atMost > atLeast && ago < atLeast+slack, nil",
		},
		{
			breaks: "the database's clock is no proof that a guest was created since a boot", file: "activities/conductor/instances.go",
			pkg: "activities/conductor", test: "TestLossWhileTheHostIsNotHeard",
			old: "if ever && ago < atLeast {",
			new: "if ever && ago < atMost {",
		},
		{
			breaks: "the uptime of a boot is not taken for that of the next one", file: "db/migrations/00026_uptime_of_its_boot.sql", pkg: "db",
			test: "TestUptimeIsOfThePresentBoot",
			old:  "NEW.uptime := NULL;",
			new:  "NEW.uptime := OLD.uptime;",
		},
		{
			breaks: "Nova's times are compared with Nova's clock", file: "internal/openstack/nova/reboot.go", pkg: "internal/openstack/nova",
			test: "TestCreated",
			old:  "return sent.Add(time.Second)",
			new:  "return time.Now().Add(0 * time.Since(sent))",
		},
		{
			breaks: "a lost image is loaded again once more where a host did not answer", file: "activities/conductor/reload.go", pkg: "activities/conductor",
			test: "TestReloadIsRepeated",
			old:  " || kind == cyborg.ErrHostSilent ||",
			new:  " ||",
		},
		{
			breaks: "a lost image is loaded again once more where a host had lost what was staged", file: "activities/conductor/reload.go",
			pkg: "activities/conductor", test: "TestReloadIsRepeated",
			old: " || kind == cyborg.ErrNotStaged",
			new: "",
		},
		{
			breaks: "a rescue that waits for another try says why the one before failed", file: "activities/conductor/reload.go",
			pkg: "activities/conductor", test: "TestReloadIsRepeated",
			old: "		before = op.Error",
			new: "		_ = op.Error",
		},
		{
			breaks: "a host without the staged image has it staged again", file: "workflows/load.go", pkg: "workflows", test: "TestStagedAgain",
			old: "FromFailure(err).Kind != cyborg.ErrNotStaged ||",
			new: "FromFailure(err).Kind != \"\" ||",
		},
		{
			breaks: "an image is staged again a few times only", file: "workflows/load.go", pkg: "workflows", test: "TestStagedAgain",
			old: "try >= l.in.Limits.Attempts ||",
			new: "try > l.in.Limits.Attempts ||",
		},
		{
			breaks: "an image that is staged again is found again", file: "workflows/load.go", pkg: "workflows", test: "TestStagedAgain",
			old: "		if err := l.find(ctx); err != nil {\n			return err\n		}\n	}\n}",
			new: "	}\n}",
		},
		{
			breaks: "a load that may have begun is undone, and not staged again", file: "workflows/load.go", pkg: "workflows",
			test: "TestNotStagedAgainAfterAnAttempt",
			old:  "if mayHaveBegun ||",
			new:  "if mayHaveBegun && false ||",
		},
		{
			breaks: "what an earlier load has done keeps none from being repeated", file: "workflows/load.go", pkg: "workflows",
			test: "TestSecondImageOfABindIsStagedAgain",
			old:  "mayHaveBegun := len(l.undos) > undos",
			new:  "mayHaveBegun := len(l.undos) > 0*undos",
		},
		{
			breaks: "a host that has lost the staged file says so", file: "activities/agent/program.go", pkg: "activities/agent",
			test: "TestProgramWithoutTheStagedImage",
			old:  "if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {\n		return image, cyborg.Errorf(cyborg.ErrNotStaged,",
			new:  "if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {\n		return image, cyborg.Errorf(cyborg.ErrNotFound,",
		},
		{
			breaks: "no worker sees the limit of all attempts", file: temporal + "/limits.go", pkg: temporal,
			test: "TestLimitOfAllAttemptsIsTemporals",
			old:  "		given.ScheduleToCloseTimeout = nil",
			new:  "		given.HeartbeatTimeout = nil",
		},
		{
			breaks: "no worker sees the limit of all attempts of a task that comes with an answer", file: temporal + "/limits.go",
			pkg: temporal, test: "TestLimitOfAllAttemptsIsTemporals",
			old: "			task.ScheduleToCloseTimeout = nil",
			new: "			task.HeartbeatTimeout = nil",
		},
		{
			breaks: "a host that is asked in vain is no internal error, nor is Temporal away", file: temporal + "/queries.go", pkg: temporal,
			test: "TestAnswersThatCannotBeHad",
			old:  "late, errors.Is(err, context.DeadlineExceeded):",
			new:  "late && failed, errors.Is(err, context.DeadlineExceeded) && failed:",
		},
		{
			breaks: "an answer that cannot be read does not look as if Temporal were away", file: temporal + "/queries.go", pkg: temporal,
			test: "TestAnswersThatCannotBeHad",
			old:  "	case away:",
			new:  "	case away || !failed:",
		},
	}
}
