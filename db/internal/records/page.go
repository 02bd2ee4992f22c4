package records

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// Page asks for a part of a list, in the list's own order. A list is read by
// key: Marker is the id (for hosts the name) of the last item of the page
// before. An unknown one is an error of kind ErrInvalid.
//
// Page is for /v1, whose lists come in pages. The lists of /v2 are whole, and
// ordered as the caller likes, as OpenStack's clients expect: they take a
// Listing.
type Page struct {
	Limit  int // 1–1000; 0 and more than that mean 1000
	Marker string
}

// UUIDRange chooses the UUIDs from First to Last, both included. All UUIDs with
// the same prefix lie in one range.
type UUIDRange struct{ First, Last uuid.UUID }

// LimitSQL returns the LIMIT of a page. The number is part of the text: with a
// parameter the planner could not know that a page is small, and might sort the
// whole table.
func (p Page) LimitSQL() string { return " LIMIT " + strconv.Itoa(Limit(p.Limit)) }

// Place reads the sort columns of the row that the page's marker names, with a
// statement that finds the row by the marker. An unknown marker is an error of
// kind ErrInvalid.
func (p Page) Place(ctx context.Context, q Querier, sql string, columns ...any) error {
	// PostgreSQL would answer a malformed UUID with an error of its own.
	var marker any = p.Marker
	if strings.Contains(sql, "::uuid") {
		id, err := uuid.Parse(p.Marker)
		if err != nil {
			return BadMarker(p.Marker)
		}
		marker = id
	}

	err := q.QueryRow(ctx, sql, marker).Scan(columns...)
	if errors.Is(err, pgx.ErrNoRows) {
		return BadMarker(p.Marker)
	}

	return err
}

// Limit returns a page's limit: between 1 and 1000, and 1000 where none is
// given.
func Limit(limit int) int {
	const most = 1000
	if limit <= 0 || limit > most {
		return most
	}
	return limit
}

// BadMarker is the error for a marker that names no item of the list.
func BadMarker(marker string) error {
	return cyborg.Errorf(cyborg.ErrInvalid, "marker %q is not in this list", marker).
		WithHint("Give the id of the last item of the page before, or no marker for the first page.")
}
