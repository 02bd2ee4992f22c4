package db_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestTheTriggersWriteTheAxes: the table in docs/data.md has the subjects and
// axes that the triggers of the migrated database can write, and the axes are
// the constants of the root package. The test reads the triggers and not
// events, because events show only what a test has caused.
func TestTheTriggersWriteTheAxes(t *testing.T) {
	t.Parallel()
	written := newRecords(t).writtenByTriggers(t)
	require.Equal(t, documentedAxes(t), written, "the table of the events in %s", dataPage)

	var axes []cyborg.EventAxis
	for _, one := range written {
		_, axis, _ := strings.Cut(one, " ")
		axes = append(axes, cyborg.EventAxis(axis))
	}
	slices.Sort(axes)

	// Instead of an axis for each class of drift, the triggers and the page have
	// the pattern.
	constants := append(cyborg.EventAxes(), cyborg.DriftClass("CLASS").Axis())
	slices.Sort(constants)
	require.Equal(t, constants, slices.Compact(axes))
}

// documentedAxes reads the table of the events: "SUBJECT AXIS", sorted.
func documentedAxes(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(dataPage)
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(page), "| subject | axis |")
	require.True(t, ok)
	table, _, _ = strings.Cut(table, "\n\n")

	word := regexp.MustCompile("`([^`]+)`")
	var out []string
	for row := range strings.SplitSeq(table, "\n") {
		if cells := strings.Split(row, "|"); len(cells) > 3 {
			for _, subject := range word.FindAllStringSubmatch(cells[1], -1) {
				for _, axis := range word.FindAllStringSubmatch(cells[2], -1) {
					out = append(out, subject[1]+" "+axis[1])
				}
			}
		}
	}

	slices.Sort(out)
	return out
}

// writtenByTriggers lists what the functions of the schema can write into the
// events: "SUBJECT AXIS", sorted.
func (r *records) writtenByTriggers(t *testing.T) []string {
	t.Helper()
	rows, err := r.sql.Query(t.Context(), "SELECT prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosrc ~* 'into\\s+events'")
	require.NoError(t, err)
	functions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)

	var out []string
	for _, source := range functions {
		source = regexp.MustCompile(`--.*`).ReplaceAllString(source, "")
		inserts := regexp.MustCompile(`INSERT INTO events \(([^)]*)\)\s+([^;]*);`).FindAllStringSubmatch(source, -1)
		require.Len(t, inserts, len(regexp.MustCompile(`(?i)into\s+events`).FindAllString(source, -1)), "%s", source)

		for _, insert := range inserts {
			for query := range strings.SplitSeq(insert[2], "UNION ALL") {
				out = append(out, writtenBy(t, sqlList(insert[1]), strings.TrimSpace(query))...)
			}
		}
	}

	slices.Sort(out)
	return slices.Compact(out)
}

// writtenBy lists what one query inserts into these columns of the events. It
// knows the queries that the triggers have: their subject and axis are
// literals, or columns of rows of literals called e. It fails the test at any
// other.
func writtenBy(t *testing.T, columns []string, query string) []string {
	t.Helper()
	values := query
	if _, row, ok := strings.Cut(query, "VALUES ("); ok && strings.HasPrefix(query, "VALUES") {
		values = row
	}
	row := sqlList(strings.TrimPrefix(values, "SELECT "))
	subject, axis := row[slices.Index(columns, "subject_kind")], row[slices.Index(columns, "axis")]

	rows := [][]string{nil}
	var names []string
	if _, alias, ok := strings.Cut(query, " AS e ("); ok {
		names = sqlList(alias)
		_, literals, _ := strings.Cut(query, "(VALUES")
		rows = rows[:0]
		for _, tuple := range sqlList(literals) {
			rows = append(rows, sqlList(tuple[1:]))
		}
	}

	var out []string
	for _, row := range rows {
		value := func(expression string) string {
			if name, ok := strings.CutPrefix(expression, "e."); ok {
				return row[slices.Index(names, name)]
			}
			return expression
		}

		for _, kind := range subjectsIn(t, value(subject)) {
			out = append(out, kind+" "+axisIn(t, value(axis)))
		}
	}
	return out
}

// subjectsIn lists the kinds of subjects that an expression of a trigger can
// have.
func subjectsIn(t *testing.T, expression string) []string {
	t.Helper()
	if expression == "NEW.subject_kind" { // of drift in Placement
		return []string{string(cyborg.SubjectAccelerator), string(cyborg.SubjectHost), string(cyborg.SubjectProvider)}
	}
	require.Regexp(t, `^'\w+'$`, expression)
	return []string{strings.Trim(expression, "'")}
}

// axisIn is the axis that an expression of a trigger has, with CLASS in place
// of a class of drift.
func axisIn(t *testing.T, expression string) string {
	t.Helper()
	if prefix, ok := strings.CutSuffix(expression, " || NEW.class"); ok {
		return strings.Trim(prefix, "'") + "CLASS"
	}
	require.Regexp(t, `^'\w+'$`, expression)

	axis := cyborg.EventAxis(strings.Trim(expression, "'"))
	if class, ok := axis.Drift(); ok {
		require.Contains(t, cyborg.DriftClasses(), class)
		return string(cyborg.DriftClass("CLASS").Axis())
	}
	return string(axis)
}

// sqlList splits a list of SQL expressions at its commas. The list ends with
// the text, with the parenthesis that it is in, or before a FROM.
func sqlList(text string) []string {
	var out []string
	begin, depth, quoted := 0, 0, false
	end := len(text)

	for i, c := range text {
		switch {
		case c == '\'':
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			out = append(out, strings.TrimSpace(text[begin:i]))
			begin = i + 1
		}

		if depth < 0 || depth == 0 && !quoted && strings.HasPrefix(strings.TrimSpace(text[i:]), "FROM ") {
			end = i
			break
		}
	}
	return append(out, strings.TrimSpace(text[begin:end]))
}
