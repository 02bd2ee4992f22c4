package mutants_test

// ofSameHolder are about what goes to one holder.
func ofSameHolder() []mutant {
	const (
		schema = "db/migrations/00031_excludes.sql" // the newest version of its functions
		guards = "db/internal/inventory/guard.go"
	)

	return []mutant{
		{
			breaks: "the schema lets nobody else have what goes to one holder", file: schema, pkg: "db", test: "TestTogetherInTheSchema",
			old: "    RAISE exclusion_violation USING TABLE = relation, CONSTRAINT = 'attach_handles_same_holder'",
			new: "    RAISE NOTICE USING TABLE = relation, CONSTRAINT = 'attach_handles_same_holder'",
		},
		{
			breaks: "the schema gives Nova nothing of what somebody has", file: schema, pkg: "db", test: "TestTogetherWithWhitelist",
			old: "    PERFORM check_given(NEW.uuid, NULL, NULL, NULL, 'deployables');",
			new: "    PERFORM NULL;",
		},
		{
			breaks: "what goes to one holder is looked at in turn", file: schema, pkg: "db", test: "TestTogetherInTheSchema",
			old: "    PERFORM pg_advisory_xact_lock(hashtextextended(of_host, 2));",
			new: "    PERFORM pg_advisory_xact_lock(hashtextextended(given::text, 2));",
		},
		{
			breaks: "an attach and a bind are refused what goes to one holder", file: guards, pkg: "db", test: "TestTogetherToOneHolder",
			old: "if h := &a.HeldTogether[i]; h.Precludes(holder) {",
			new: "if h := &a.HeldTogether[i]; h.Precludes(holder) && a.Name == \"\" {",
		},
		{
			breaks: "all handles of what goes to one holder go to it", file: guards, pkg: "db", test: "TestTogetherPartsOfOne",
			old: "if by := h.Holder; by != nil && *by != holder {",
			new: "if by := h.Holder; by != nil && by == &holder {",
		},
		{
			breaks: "Nova gets nothing that goes to one holder with what is given out", file: "db/internal/operation/whitelist.go", pkg: "db",
			test: "TestTogetherWithWhitelist",
			old:  "a.Unheld(), a.NotTogether(), a.NotExcluded(), ",
			new:  "a.Unheld(), a.NotExcluded(), ",
		},
		{
			breaks: "a function names its group", file: "drivers/passthrough/discover.go", pkg: "drivers/generic", test: "TestDiscoverReportsGroups",
			old: "SameHolder: group,",
			new: "SameHolder: group[:0],",
		},
		{
			breaks: "a boot ends what goes to one holder with what is missing", file: "db/internal/merge/merge.go", pkg: "db", test: "TestTogetherWithTheMissing",
			old: "	if v.Booted {",
			new: "	if false {",
		},
		{
			breaks: "Placement gives nobody what goes to one holder with what is held", file: "internal/openstack/placement/wanted.go",
			pkg: "activities/conductor", test: "TestPlacementReservesWhatGoesToOneHolder",
			old: "d.SameHolder != \"\" && (held > 0 || d.Stuck > 0 || len(d.HeldTogether) > 0)",
			new: "d.SameHolder != \"\" && (held > 0 || d.Stuck > 0)",
		},
		{
			breaks: "a bind of what goes to one holder tells Placement", file: schema, pkg: "activities/conductor",
			test: "TestPlacementReservesWhatGoesToOneHolder",
			old:  "WHERE d.uuid = n.deployable_uuid AND d.same_holder <> ''",
			new:  "WHERE false AND d.same_holder <> ''",
		},
	}
}
