package v2

import (
	"slices"

	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// listingArguments are those that every list knows. Upstream's lists are always whole.
func listingArguments() []string { return []string{"limit", "marker", "sort_key", "sort_dir"} }

// listing reads them. Unless they say otherwise, a list that is filtered begins with the newest, and any other with the
// oldest, as upstream has it.
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

// Filters, as WSME writes a list of them in a query: filters.field=name&filters.value=x, again and again.
const (
	filterFields = "filters.field"
	filterValues = "filters.value"
)

// knownFilterTable are the fields that upstream knows. What is not read from them has no meaning for these lists.
var knownFilterTable = []string{
	"parent_uuid", "root_uuid", "board", "availability", "interface_type", "instance_uuid", "limit", "marker", "sort_key", "sort_dir", "name",
}

// filters reads the filters as if they were arguments of those names, and says whether there are any.
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
