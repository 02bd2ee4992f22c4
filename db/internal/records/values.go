package records

import "github.com/jackc/pgx/v5/pgconn"

// Affected stores how many rows a queued statement has changed.
func Affected(rows *int64) func(tag pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		*rows = tag.RowsAffected()
		return nil
	}
}

// MustAffect returns otherwise, an error, where a queued statement has changed
// no row.
func MustAffect(otherwise error) func(tag pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() == 0 {
			return otherwise
		}
		return nil
	}
}

// Texts converts the values of a string type to plain strings, for SQL.
func Texts[S ~string](values []S) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}
