package cli

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// parseOrder parses --sort: names of columns, each with an optional direction.
// It returns nil where nothing is to be sorted.
func parseOrder[T any](cmd *cobra.Command, order []string, columns []column[T]) (func(a, b T) int, error) {
	var compares []func(a, b T) int
	for _, key := range order {
		name, direction, _ := strings.Cut(key, ":")
		if direction != "" && direction != "asc" && direction != "desc" {
			return nil, usageErrorf(cmd, "--sort %q: a column is sorted asc or desc, not %q", key, direction)
		}

		i := slices.IndexFunc(columns, func(c column[T]) bool { return c.is(name) })
		if i < 0 {
			return nil, usageErrorf(cmd, "--sort: %w", noColumn(name, columns))
		}

		c := columns[i]
		compares = append(compares, func(a, b T) int { return compareCells(c.sortKey(a), c.sortKey(b), direction == "desc") })
	}

	if compares == nil {
		return nil, nil //nolint:nilnil // no order is no error
	}

	return func(a, b T) int {
		for _, compare := range compares {
			if order := compare(a, b); order != 0 {
				return order
			}
		}
		return 0
	}, nil
}

// sortKey is the value by which a cell is sorted: a time, a number, or a text.
func (c column[T]) sortKey(item T) any {
	switch value := c.value(item).(type) {
	case time.Time, int:
		return value
	case int64:
		return int(value)
	case *int:
		if value != nil {
			return *value
		}
		return ""
	}

	if c.text != nil {
		return c.text(item)
	}

	return fmt.Sprint(c.value(item))
}

// compareCells orders two cells. Empty ones come last in both directions.
func compareCells(a, b any, descending bool) int {
	// An empty cell is last also in descending order, where it would only be in the
	// way.
	if emptyA, emptyB := isEmpty(a), isEmpty(b); emptyA || emptyB {
		switch {
		case emptyA && emptyB:
			return 0
		case emptyA:
			return 1
		}
		return -1
	}

	order := 0
	switch a := a.(type) {
	case time.Time:
		if b, ok := b.(time.Time); ok {
			order = a.Compare(b)
		}
	case int:
		if b, ok := b.(int); ok {
			order = cmp.Compare(a, b)
		}
	case string:
		if b, ok := b.(string); ok {
			order = natural(a, b)
		}
	}

	if descending {
		return -order
	}

	return order
}

// isEmpty reports whether a cell has no value.
func isEmpty(cell any) bool {
	switch cell := cell.(type) {
	case time.Time:
		return cell.IsZero()
	case string:
		return cell == ""
	}
	return false
}

// wordPattern splits a text into the units of comparison: a PCI address or a
// UUID, whose digits are hexadecimal; a number; or any other single character.
var wordPattern = regexp.MustCompile(`(?i)[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]+|(?s:.)`)

// natural compares texts as people sort: card9 before card10, and upper like
// lower case. Texts that differ in case only keep a fixed order.
func natural(a, b string) int {
	as, bs := wordPattern.FindAllString(strings.ToLower(a), -1), wordPattern.FindAllString(strings.ToLower(b), -1)
	return cmp.Or(slices.CompareFunc(as, bs, compareWords), cmp.Compare(a, b))
}

// compareWords compares two units of natural.
func compareWords(a, b string) int {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)

	if errX == nil && errY == nil {
		return cmp.Compare(x, y)
	}

	// On large machines, the domain of a PCI address has more than four digits; the
	// shorter one is the smaller number.
	if strings.Contains(a, ":") && strings.Contains(b, ":") {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	}

	return cmp.Compare(a, b)
}
