package db

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// clause builds the WHERE of a query together with its values.
type clause struct {
	conditions []string
	values     []any
}

// and adds a condition; each ? in it stands for the next one of the values.
func (c *clause) and(condition string, values ...any) {
	// The placeholders of SQL are numbered over the whole clause.
	for _, value := range values {
		c.values = append(c.values, value)
		condition = strings.Replace(condition, "?", "$"+strconv.Itoa(len(c.values)), 1)
	}
	c.conditions = append(c.conditions, condition)
}

// andAny adds that the column has one of the values; without values it adds
// nothing. A single value is compared with =, because PostgreSQL cannot
// estimate the length of a list that is a parameter, and would make a new plan
// for every call.
func andAny[T any](c *clause, column string, values []T) {
	switch len(values) {
	case 0:
	case 1:
		c.and(column+" = ?", values[0])
	default:
		c.and(column+" = ANY(?)", values)
	}
}

// andAmong adds that the column lies in the range; without a range it adds
// nothing.
func andAmong(c *clause, column string, among *UUIDRange) {
	if among != nil {
		c.and(column+" BETWEEN ? AND ?", among.First, among.Last)
	}
}

// String returns the WHERE clause, or an empty string where there are no
// conditions.
func (c *clause) String() string {
	if len(c.conditions) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(c.conditions, " AND ")
}

// limit returns the LIMIT of a page. The number is part of the text: with a
// parameter the planner could not know that a page is small, and might sort the
// whole table.
func (p Page) limit() string { return " LIMIT " + strconv.Itoa(clamp(p.Limit)) }

// clamp returns a page's limit: between 1 and 1000, and 1000 where none is
// given.
func clamp(limit int) int {
	const most = 1000
	if limit <= 0 || limit > most {
		return most
	}
	return limit
}

// place reads the sort columns of the row that the page's marker names, with a
// statement that finds the row by the marker. An unknown marker is an error of
// kind ErrInvalid.
func (p Page) place(ctx context.Context, q querier, sql string, columns ...any) error {
	// PostgreSQL would answer a malformed UUID with an error of its own.
	var marker any = p.Marker
	if strings.Contains(sql, "::uuid") {
		id, err := uuid.Parse(p.Marker)
		if err != nil {
			return badMarker(p.Marker)
		}
		marker = id
	}

	err := q.QueryRow(ctx, sql, marker).Scan(columns...)
	if errors.Is(err, pgx.ErrNoRows) {
		return badMarker(p.Marker)
	}

	return err
}

// badMarker is the error for a marker that names no item of the list.
func badMarker(marker string) error {
	return cyborg.Errorf(cyborg.ErrInvalid, "marker %q is not in this list", marker).
		WithHint("Give the id of the last item of the page before, or no marker for the first page.")
}
