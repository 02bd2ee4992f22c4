package db

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Listing asks for a whole list or a part of it, in an order of the caller's. The zero value asks for all, in the order
// in which they were found.
type Listing struct {
	Limit int // 0 means all
	// Marker is the item after which the part begins; one that the store does not know is an error of kind ErrInvalid.
	Marker uuid.UUID
	// SortKey is what it is sorted by; one that the list does not have is an error of kind ErrInvalid.
	SortKey    string
	Descending bool
}

// sorted says of a list what it can be sorted by: the column of each key. The row's alias is before the dot of its id.
type sorted struct {
	table string // with its alias
	id    string
	uuid  string
	keys  map[string]string
}

// order adds to the clause what the marker leaves out, and returns what follows it.
func (l Listing) order(ctx context.Context, q querier, c *clause, list sorted) (string, error) {
	columns := []string{list.id}
	if l.SortKey != "" && l.SortKey != "id" {
		column, ok := list.keys[l.SortKey]
		if !ok {
			return "", cyborg.Errorf(cyborg.ErrInvalid, "the list cannot be sorted by %q", l.SortKey).
				WithHint("It can by %s.", strings.Join(slices.Sorted(maps.Keys(list.keys)), ", "))
		}
		columns = []string{column, list.id}
	}
	if l.Marker != uuid.Nil {
		if err := l.after(ctx, q, c, list, columns); err != nil {
			return "", err
		}
	}
	direction := ""
	if l.Descending {
		direction = " DESC"
	}
	out := " ORDER BY " + strings.Join(columns, direction+", ") + direction
	if l.Limit > 0 {
		out += " LIMIT " + strconv.Itoa(l.Limit) // in the text, for the sake of the plan; see Page.limit
	}
	return out, nil
}

func (l Listing) after(ctx context.Context, q querier, c *clause, list sorted, columns []string) error {
	var known bool
	if err := q.QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE %s = $1)", list.table, list.uuid), l.Marker).Scan(&known); err != nil {
		return err
	}
	if !known {
		return badMarker(l.Marker.String())
	}
	compare := ">"
	if l.Descending {
		compare = "<"
	}
	row := strings.Join(columns, ", ")
	c.and(fmt.Sprintf("(%s) %s (SELECT %s FROM %s WHERE %s = ?)", row, compare, row, list.table, list.uuid), l.Marker)
	return nil
}
