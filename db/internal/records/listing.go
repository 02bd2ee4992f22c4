package records

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

// Listing asks for a whole list or a part of it, in an order that the caller
// chooses. The zero value asks for all items in the order in which they were
// found. It is for /v2; see Page for /v1.
type Listing struct {
	Limit int // 0 means all

	// Marker is the item after which the part begins. An unknown one is an error of
	// kind ErrInvalid.
	Marker uuid.UUID
	// SortKey is the key by which the list is sorted. One that the list does not
	// have is an error of kind ErrInvalid.
	SortKey    string
	Descending bool
}

// Sorted describes the order of a list: its table, its unique columns, and the
// column of each key that it can be sorted by.
type Sorted struct {
	Table string // with its aliases
	ID    string // with the alias of the row
	UUID  string
	Keys  map[string]string
}

// Order adds to the clause that only items after the marker are listed, and
// returns the ORDER BY and LIMIT that follow it.
func (l Listing) Order(ctx context.Context, q Querier, c *Clause, list Sorted) (string, error) {
	columns := []string{list.ID}
	if l.SortKey != "" && l.SortKey != "id" {
		column, ok := list.Keys[l.SortKey]
		if !ok {
			return "", cyborg.Errorf(cyborg.ErrInvalid, "the list cannot be sorted by %q", l.SortKey).
				WithHint("It can by %s.", strings.Join(slices.Sorted(maps.Keys(list.Keys)), ", "))
		}

		columns = []string{column, list.ID}
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
		// The limit stands in the text for the sake of the plan; see Page.LimitSQL.
		out += " LIMIT " + strconv.Itoa(l.Limit)
	}

	return out, nil
}

// after adds to the clause that only rows after the marker's are listed, in the
// order of the columns.
func (l Listing) after(ctx context.Context, q Querier, c *Clause, list Sorted, columns []string) error {
	var known bool
	if err := q.QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE %s = $1)", list.Table, list.UUID), l.Marker).Scan(&known); err != nil {
		return err
	}
	if !known {
		return BadMarker(l.Marker.String())
	}

	compare := ">"
	if l.Descending {
		compare = "<"
	}

	row := strings.Join(columns, ", ")
	c.And(fmt.Sprintf("(%s) %s (SELECT %s FROM %s WHERE %s = ?)", row, compare, row, list.Table, list.UUID), l.Marker)
	return nil
}
