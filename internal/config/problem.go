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
	// Source is where the value was given: a file, an environment variable or a flag; empty where nobody gave one.
	Source string
	// Line is the line in the file, from 1; 0 where the source is no file.
	Line int
	// Key is the option, such as api.listen.
	Key string
	// Value is what was given, with secrets masked.
	Value string
	// Message says what is expected instead.
	Message string
}

// longestLine is how many characters a problem has at most when it is told.
const longestLine = 1000

// String is one line: where, what, and what is expected.
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

// Problems is every mistake in a configuration.
type Problems []Problem

// Error lists the problems, one a line.
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

// sorted brings the problems of a file into the order of its lines, before all others.
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

// nearest returns the name most like the given one, or "" where none is like it.
func nearest(name string, names []string) string {
	best, bestDistance := "", max(1, len(name)/3)+1 // a third of the letters may be wrong: foo is not log
	for _, candidate := range names {
		if d := distance(strings.ToLower(name), strings.ToLower(candidate)); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// distance is the Levenshtein distance of two texts, in bytes.
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
