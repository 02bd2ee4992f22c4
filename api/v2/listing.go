package v2

import (
	"slices"

	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// listingArguments returns the arguments that every list accepts. They are an
// addition: upstream's lists are always whole.
func listingArguments() []string { return []string{"limit", "marker", "sort_key", "sort_dir"} }

// listing reads the paging and sorting arguments. Without them, a filtered list
// begins with the newest row and any other list with the oldest, as in
// upstream.
func (q *arguments) listing(filtered bool) db.Listing {
	l := db.Listing{Limit: q.whole("limit"), Marker: q.uuid("marker"), SortKey: q.text("sort_key")}

	if q.has("limit") && l.Limit < 1 {
		q.fail("the argument limit is %q, not a whole number from 1", web.Shorten(q.text("limit")))
	}

	if filtered {
		l.Descending = true
		if l.SortKey == "" {
			l.SortKey = "created_at"
		}
	}

	if q.has("sort_dir") {
		switch q.text("sort_dir") {
		case "asc":
			l.Descending = false
		case "desc":
			l.Descending = true
		default:
			q.fail("the argument sort_dir is %q, neither asc nor desc", web.Shorten(q.text("sort_dir")))
		}
	}

	return l
}

// WSME, upstream's framework, writes a list of filters as
// filters.field=name&filters.value=x, repeated for each filter.
const (
	filterFields = "filters.field"
	filterValues = "filters.value"
)

// knownFilterTable lists the filter fields that upstream accepts. Those that no
// list reads have no effect, as in upstream.
var knownFilterTable = []string{
	"parent_uuid", "root_uuid", "board", "availability", "interface_type", "instance_uuid", "limit", "marker", "sort_key", "sort_dir", "name",
}

// filters copies the filters into the arguments, as if each were an argument of
// its own name. It reports whether there are any.
func (q *arguments) filters() bool {
	fields, values := q.fields[filterFields], q.fields[filterValues]
	if len(fields) != len(values) {
		q.fail("there are %d %s and %d %s", len(fields), filterFields, len(values), filterValues)
		return false
	}

	for i, field := range fields {
		switch {
		case !slices.Contains(knownFilterTable, field):
			q.fail("%q is no field of a filter", web.Shorten(field))
		case q.has(field):
			q.fail("%s is given twice", field)
		}
		q.values[field] = values[i]
	}

	return len(fields) > 0
}
