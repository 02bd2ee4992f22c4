package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// Problem is one mistake in a configuration.
type Problem struct {
	// Source is where the value was given: a file, an environment variable, a flag
	// or the word default. It is empty if a required value was not given.
	Source string
	// Line is the line in the file, from 1. It is 0 if the source is not a file.
	Line int
	// Key names the option, such as api.listen.
	Key string
	// Value is the given value with secrets masked.
	Value string
	// Message says what is expected instead.
	Message string
}

// longestLine bounds the characters of a problem when it is printed, because it
// repeats text that somebody else wrote.
const longestLine = 1000

// String returns the problem in one line: its source, the option with its
// value, and what is expected. Control characters in it are replaced.
func (p Problem) String() string {
	var b strings.Builder
	if p.Source != "" {
		b.WriteString(p.Source)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
		b.WriteString(": ")
	}

	if p.Key != "" {
		b.WriteString(p.Key)
		if p.Value != "" {
			fmt.Fprintf(&b, " = %.200q", p.Value)
		}
		b.WriteString(": ")
	}

	b.WriteString(p.Message)
	return cyborg.Sanitize(b.String(), longestLine)
}

// Problems are all mistakes in a configuration.
type Problems []Problem

// Error lists the problems, one per line.
func (p Problems) Error() string {
	lines := make([]string, 0, len(p)+1)
	lines = append(lines, fmt.Sprintf("the configuration has %d mistakes:", len(p)))
	if len(p) == 1 {
		lines[0] = "the configuration has a mistake:"
	}

	for _, problem := range p {
		lines = append(lines, "  "+problem.String())
	}

	return strings.Join(lines, "\n")
}

// sorted sorts in place and returns the problems: those of a file first, in the
// order of its lines, and then the others in the order in which they were
// found.
func (p Problems) sorted() Problems {
	slices.SortStableFunc(p, func(a, b Problem) int {
		switch {
		case a.Line > 0 && b.Line > 0:
			return cmp.Compare(a.Line, b.Line)
		case a.Line > 0:
			return -1
		case b.Line > 0:
			return 1
		}
		return 0
	})

	return p
}

// nearest returns the most similar of the names, or "" if none is similar
// enough.
func nearest(name string, names []string) string {
	// At most a third of the letters may be wrong, so that log is no suggestion for
	// foo.
	best, bestDistance := "", max(1, len(name)/3)+1

	for _, candidate := range names {
		if d := distance(strings.ToLower(name), strings.ToLower(candidate)); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}

	return best
}

// distance returns the Levenshtein distance of two texts in bytes: how many
// bytes must be changed, added or removed to make one from the other. It keeps
// only one row of the usual table.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}

	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}

	return row[len(b)]
}
