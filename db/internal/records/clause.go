package records

import (
	"strconv"
	"strings"
)

// Clause builds the WHERE of a query together with its values.
type Clause struct {
	Conditions []string
	Values     []any
}

// And adds a condition; each ? in it stands for the next one of the values.
func (c *Clause) And(condition string, values ...any) {
	// The placeholders of SQL are numbered over the whole clause.
	for _, value := range values {
		c.Values = append(c.Values, value)
		condition = strings.Replace(condition, "?", "$"+strconv.Itoa(len(c.Values)), 1)
	}
	c.Conditions = append(c.Conditions, condition)
}

// AndAny adds that the column has one of the values; without values it adds
// nothing. A single value is compared with =, because PostgreSQL cannot
// estimate the length of a list that is a parameter, and would make a new plan
// for every call.
func AndAny[T any](c *Clause, column string, values []T) {
	switch len(values) {
	case 0:
	case 1:
		c.And(column+" = ?", values[0])
	default:
		c.And(column+" = ANY(?)", values)
	}
}

// AndAmong adds that the column lies in the range; without a range it adds
// nothing.
func AndAmong(c *Clause, column string, among *UUIDRange) {
	if among != nil {
		c.And(column+" BETWEEN ? AND ?", among.First, among.Last)
	}
}

// String returns the WHERE clause, or an empty string where there are no
// conditions.
func (c *Clause) String() string {
	if len(c.Conditions) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(c.Conditions, " AND ")
}

// Equals returns an SQL comparison of a column with a constant.
func Equals[S ~string](column string, value S) string { return column + " = '" + string(value) + "'" }
