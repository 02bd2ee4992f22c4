package mutants_test

// ofSameHolder are about what goes to one holder.
func ofSameHolder() []mutant {
	const (
		schema = "db/migrations/00029_same_holder.sql"
		guards = "db/internal/inventory/guard.go"
	)

	return []mutant{
		{
			breaks: "the schema lets nobody else have what goes to one holder", file: schema, pkg: "db", test: "TestTogetherInTheSchema",
			old: "    IF FOUND THEN\n        RAISE exclusion_violation USING TABLE = 'attach_handles'",
			new: "    IF false THEN\n        RAISE exclusion_violation USING TABLE = 'attach_handles'",
		},
		{
			breaks: "the schema gives Nova nothing of what somebody has", file: schema, pkg: "db", test: "TestTogetherWithWhitelist",
			old: "    IF FOUND THEN\n        RAISE exclusion_violation USING TABLE = 'deployables'",
			new: "    IF false THEN\n        RAISE exclusion_violation USING TABLE = 'deployables'",
		},
		{
			breaks: "what goes to one holder is looked at in turn", file: schema, pkg: "db", test: "TestTogetherInTheSchema",
			old: "    PERFORM pg_advisory_xact_lock(hashtextextended(NEW.host || ' ' || shared, 2));",
			new: "    PERFORM pg_advisory_xact_lock(hashtextextended(NEW.uuid::text, 2));",
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
			old:  "a.Unheld(), a.NotTogether(), ",
			new:  "a.Unheld(), ",
		},
		{
			breaks: "a function names its group", file: "drivers/generic/discover.go", pkg: "drivers/generic", test: "TestDiscoverReportsGroups",
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
			old: "(held > 0 || len(d.HeldTogether) > 0)",
			new: "held > 0",
		},
		{
			breaks: "a bind of what goes to one holder tells Placement", file: schema, pkg: "activities/conductor",
			test: "TestPlacementReservesWhatGoesToOneHolder",
			old:  "WHERE d.uuid = n.deployable_uuid AND d.same_holder <> ''",
			new:  "WHERE false AND d.same_holder <> ''",
		},
	}
}
