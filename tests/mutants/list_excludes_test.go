package mutants_test

// ofExcludes are about a whole and its parts, of which nobody gets one while somebody has
// the other.
func ofExcludes() []mutant {
	const (
		schema = "db/migrations/00031_excludes.sql"
		guards = "db/internal/inventory/guard.go"
		merges = "db/internal/merge/excludes.go"
	)

	return []mutant{
		{
			breaks: "the schema refuses the whole and a part", file: schema, pkg: "db", test: "TestExcludesInTheSchema",
			old: "    IF apart THEN\n        RAISE exclusion_violation",
			new: "    IF apart THEN\n        RETURN;\n        RAISE exclusion_violation",
		},
		{
			breaks: "the whole and a part are looked at in turn", file: schema, pkg: "db", test: "TestExcludesInTheSchema",
			old: "    PERFORM pg_advisory_xact_lock(hashtextextended(of_host, 2));",
			new: "    PERFORM pg_advisory_xact_lock(hashtextextended(given::text, 2));",
		},
		{
			breaks: "it is enough that the other one names it", file: schema, pkg: "db", test: "TestExcludes",
			old: "AND d.local_name = ANY(o.excludes) AND",
			new: "AND d.local_name = ANY(o.excludes) AND false AND",
		},
		{
			breaks: "it is enough that it names the other one", file: schema, pkg: "db", test: "TestExcludes",
			old: "AND o.local_name = ANY(d.excludes) AND",
			new: "AND o.local_name = ANY(d.excludes) AND false AND",
		},
		{
			breaks: "names are those of one host", file: schema, pkg: "db", test: "TestExcludesOnTheSameHostOnly",
			old: "ON o.host = d.host AND o.local_name = ANY(d.excludes)",
			new: "ON o.local_name = ANY(d.excludes)",
		},
		{
			breaks: "the same holder does not get the whole and a part, says the schema", file: schema, pkg: "db", test: "TestExcludesInTheSchema",
			old: "        AND (o.apart OR (coalesce",
			new: "        AND ((coalesce",
		},
		{
			breaks: "what Nova may give out excludes what Nova gets, says the schema", file: schema, pkg: "db", test: "TestExcludesWithWhitelist",
			old: "d.nova_spec IS NOT NULL AND (o.apart OR to_kind IS NOT NULL)",
			new: "d.nova_spec IS NOT NULL AND (to_kind IS NOT NULL)",
		},
		{
			breaks: "an attach and a bind are refused what is excluded", file: guards, pkg: "db", test: "TestExcludes",
			old: "	if at < 0 {\n		return nil\n	}\n\n	h := &a.ExcludedBy[at]",
			new: "	if at < 1 {\n		return nil\n	}\n\n	h := &a.ExcludedBy[at]",
		},
		{
			breaks: "one bind does not get the whole and a part", file: "db/internal/operation/bind_others.go", pkg: "db", test: "TestExcludesBind",
			old: "		if err := a.NotBoth(&uses[i]); err != nil {",
			new: "		if err := a.NotBoth(&uses[i]); err != nil && len(taken) == 0 {",
		},
		{
			breaks: "a bind waits for what frees the part of its own instance", file: "db/internal/operation/bind_others.go", pkg: "db",
			test: "TestExcludesBindWaits",
			old:  "AND (other.apart OR (h.holder_kind",
			new:  "AND ((h.holder_kind",
		},
		{
			breaks: "Nova gets nothing that what is given out excludes", file: "db/internal/operation/whitelist.go", pkg: "db",
			test: "TestExcludesWithWhitelist",
			old:  "a.NotTogether(), a.NotExcluded(), ",
			new:  "a.NotTogether(), ",
		},
		{
			breaks: "Nova does not get the whole and a part at once", file: "db/internal/operation/whitelist.go", pkg: "db",
			test: "TestExcludesWithWhitelist",
			old:  "			added = append(added, &targets[i])",
			new:  "			added = added[:0]",
		},
		{
			breaks: "nothing is recorded of what names too many", file: merges, pkg: "db", test: "TestExcludesAsReported",
			old: "	if len(names) > cyborg.MaxExcludes {",
			new: "	if len(names) > 1<<20 {",
		},
		{
			breaks: "no image is loaded into what excludes something held", file: "db/internal/operation/program.go", pkg: "db",
			test: "TestExcludesWhileProgrammed",
			old:  "unused(&targets[i]), targets[i].NotExcludedBut(targets), ",
			new:  "unused(&targets[i]), ",
		},
		{
			breaks: "a lost image is loaded again for the holder of a part", file: "db/internal/operation/program.go", pkg: "db",
			test: "TestExcludesWithALostImage",
			old:  "targets[i].NotExcludedBut(targets)",
			new:  "targets[i].NotExcluded()",
		},
		{
			breaks: "Placement hears of two parts that are given out at once", file: "db/migrations/00031_excludes.sql", pkg: "db",
			test: "TestExcludesTellsPlacementOnce",
			old:  "AND NOT EXISTS (SELECT FROM old_rows b WHERE b.uuid = h.uuid AND",
			new:  "AND NOT EXISTS (SELECT FROM old_rows b WHERE false AND",
		},
		{
			breaks: "what only a discovery says is over once it says so no more", file: "activities/agent/inventory/inventory.go",
			pkg: "activities/agent/inventory", test: "TestConditionsOfADiscoveryEnd",
			old: "		if _, checks := made.driver.(drivers.HealthChecker); checks {",
			new: "		if made.driver != nil {",
		},
		{
			breaks: "Placement hears of the first part and of the last one only", file: "db/migrations/00031_excludes.sql", pkg: "db",
			test: "TestExcludesTellsPlacementOnce",
			old:  "                      WHERE h.uuid <> n.uuid AND coalesce(",
			new:  "                      WHERE false AND coalesce(",
		},
		{
			breaks: "a report says what excludes what in one order", file: "activities/agent/inventory/content.go", pkg: "activities/agent/inventory",
			test: "TestTheDigestDoesNotDependOnOrder",
			old:  "			d.Excludes = cyborg.SortExcludes(d.Name, d.Excludes)\n",
			new:  "",
		},
		{
			breaks: "Placement gives nobody what is excluded", file: "internal/openstack/placement/wanted.go", pkg: "activities/conductor",
			test: "TestPlacementReservesWhatIsExcluded",
			old:  "if len(d.ExcludedBy) > 0 || ",
			new:  "if ",
		},
		{
			breaks: "a bind of what excludes something tells Placement", file: schema, pkg: "activities/conductor", test: "TestPlacementReservesWhatIsExcluded",
			old: "SELECT FROM excluded_with(n.deployable_uuid) AS e WHERE NOT EXISTS (",
			new: "SELECT FROM excluded_with(n.deployable_uuid) AS e WHERE false AND NOT EXISTS (",
		},
		{
			breaks: "a change of what excludes what tells Placement", file: schema, pkg: "activities/conductor", test: "TestPlacementReservesWhatIsExcluded",
			old: "n.same_holder, n.unready, n.excludes)",
			new: "n.same_holder, n.unready, o.excludes)",
		},
		{
			breaks: "a whole card says what it excludes", file: "drivers/fake/driver.go", pkg: "drivers/fake", test: "TestWholeCard",
			old: "slices.Clone(part.excludes)",
			new: "slices.Clone(part.excludes[:0])",
		},
	}
}
