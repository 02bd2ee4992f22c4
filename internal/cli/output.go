package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/cyborg-project/cyborg"
)

// The output formats. Table is for people; json and yaml are the API's objects;
// value and csv are for scripts.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
	formatValue = "value"
	formatCSV   = "csv"
)

// Names that many commands share.
const (
	listVerb  = "list"
	hostTitle = "Host"
	hostKey   = "host"
	nameTitle = "Name"
	nameKey   = "name"
)

// printer prints results in the format that the command line asked for.
type printer struct {
	shell   *shell
	command *cobra.Command
	format  string
	columns []string
	watch   watching
}

// printer adds -f and -c to a command, and returns what prints as they say.
func (s *shell) printer(cmd *cobra.Command) *printer {
	p := &printer{shell: s, command: cmd}
	cmd.Flags().StringVarP(&p.format, "format", "f", formatTable, "table, json, yaml, value or csv")
	cmd.Flags().StringArrayVarP(&p.columns, "column", "c", nil, "show only this column or field; repeatable")
	before(cmd, p.check)
	return p
}

// check rejects an unknown --format before the command does anything.
func (p *printer) check() error {
	formats := []string{formatTable, formatJSON, formatYAML, formatValue, formatCSV}
	if !slices.Contains(formats, p.format) {
		return usageErrorf(p.command, "there is no format %q; there are %s", p.format, strings.Join(formats, ", "))
	}
	return nil
}

// objects reports whether the output is the API's objects, and not text.
func (p *printer) objects() bool { return p.format == formatJSON || p.format == formatYAML }

// column is one column of a list.
type column[T any] struct {
	// title is the heading in tables.
	title string
	// key is the name in JSON, as in the API.
	key   string
	value func(T) any
	// text formats the cell for tables, where that differs from the value.
	text func(T) string
	// long columns are shown with --long, or when --column names them.
	long bool
	// named columns are shown only when --column names them, or another flag asks for
	// them; asked says whether one does.
	named bool
	asked func() bool
	// id columns together identify a row.
	id bool
}

// is reports whether a user means this column by a name.
func (c column[T]) is(name string) bool { return sameName(c.title, name) || sameName(c.key, name) }

// printList prints a list with the columns that the flags choose.
func printList[T any](p *printer, items []T, columns []column[T], long bool) error {
	chosen, err := chooseColumns(p, columns, long)
	if err != nil {
		return err
	}

	return printColumns(p, items, columns, chosen)
}

// printColumns prints the chosen columns of a list. It needs all columns too,
// since those that identify a row may not be among the chosen ones.
func printColumns[T any](p *printer, items []T, columns, chosen []column[T]) error {
	if p.objects() && len(p.columns) == 0 {
		return p.document(items)
	}

	if p.objects() {
		rows := make([]object, len(items))
		for i, item := range items {
			for _, c := range chosen {
				rows[i] = append(rows[i], member{c.key, c.value(item)})
			}
		}
		return p.document(rows)
	}

	titles := make([]string, len(chosen))
	for i, c := range chosen {
		titles[i] = c.title
	}

	rows, ids := make([][]string, len(items)), make([]string, len(items))
	for i, item := range items {
		for _, c := range columns {
			if c.id {
				ids[i] += fmt.Sprint(c.value(item)) + "\n"
			}
		}

		for _, c := range chosen {
			cell, err := c.cell(item, p.format == formatTable)
			if err != nil {
				return err
			}
			rows[i] = append(rows[i], cell)
		}
	}

	return p.rows(titles, ids, rows)
}

// cell formats one cell, for people (a table) or for scripts.
func (c column[T]) cell(item T, forPeople bool) (string, error) {
	if forPeople && c.text != nil {
		return c.text(item), nil
	}

	tree, err := treeOf(c.value(item))
	if err != nil {
		return "", err
	}

	if forPeople {
		return tableText(tree), nil
	}

	return valueText(tree), nil
}

// chooseColumns returns the columns of --column in that order, or else the
// default ones.
func chooseColumns[T any](p *printer, columns []column[T], long bool) ([]column[T], error) {
	chosen := []column[T]{}
	if len(p.columns) == 0 {
		for _, c := range columns {
			if !c.named && (long || !c.long) || c.asked != nil && c.asked() {
				chosen = append(chosen, c)
			}
		}
		return chosen, nil
	}

	for _, name := range p.columns {
		i := slices.IndexFunc(columns, func(c column[T]) bool { return c.is(name) })
		if i < 0 {
			return nil, usageErrorf(p.command, "%w", noColumn(name, columns))
		}
		chosen = append(chosen, columns[i])
	}

	return chosen, nil
}

// noColumn is the error about an unknown column; it lists those that exist.
func noColumn[T any](name string, columns []column[T]) error {
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	return cyborg.Errorf(cyborg.ErrInvalid, "there is no column %q; there are %s", name, strings.Join(titles, ", "))
}

// sameName compares names of columns as people write them: "Device Type" is
// "device_type".
func sameName(a, b string) bool {
	plain := func(s string) string { return strings.ToLower(strings.NewReplacer("_", " ", "-", " ").Replace(s)) }
	return plain(a) == plain(b)
}

// printShow prints one object: the fields of its JSON, those of lead first. In
// a table, the texts replace the JSON of their fields.
func printShow(p *printer, value any, lead []string, texts map[string]string) error {
	if p.objects() && len(p.columns) == 0 {
		return p.document(value)
	}

	fields, err := fieldsOf(value, lead)
	if err != nil {
		return err
	}

	// A field that is empty now may be absent from the JSON, but can still be asked
	// for.
	if len(p.columns) > 0 {
		fields = append(fields, unsetFields(value, fields)...)
	}

	if fields, err = p.chooseFields(fields); err != nil {
		return err
	}

	if p.objects() {
		return p.document(fields)
	}

	rows, ids := make([][]string, len(fields)), make([]string, len(fields))
	for i, f := range fields {
		cell, ok := texts[f.name]
		switch {
		case p.format != formatTable:
			cell = valueText(f.value)
		case !ok:
			cell = tableText(f.value)
		}
		rows[i], ids[i] = []string{f.name, cell}, f.name
	}

	// Scripts want the values alone, without the names of the fields.
	if p.format == formatValue {
		for i := range rows {
			rows[i] = rows[i][1:]
		}
	}

	return p.rows([]string{"Field", "Value"}, ids, rows)
}

// chooseFields returns the fields of --column in that order, or else all.
func (p *printer) chooseFields(fields object) (object, error) {
	if len(p.columns) == 0 {
		return fields, nil
	}

	chosen := object{}
	for _, name := range p.columns {
		i := slices.IndexFunc(fields, func(f member) bool { return sameName(f.name, name) })
		if i < 0 {
			names := make([]string, len(fields))
			for i, f := range fields {
				names[i] = f.name
			}
			return nil, usageErrorf(p.command, "there is no field %q; there are %s", name, strings.Join(names, ", "))
		}

		chosen = append(chosen, fields[i])
	}

	return chosen, nil
}

// rows prints rows of text as a table, as values or as CSV. The ids identify
// the rows, so that a watch can mark what has changed.
func (p *printer) rows(titles, ids []string, rows [][]string) error {
	var out strings.Builder
	switch p.format {
	case formatCSV:
		w := csv.NewWriter(&out)
		if err := w.WriteAll(append([][]string{titles}, rows...)); err != nil {
			return cyborg.Errorf(cyborg.ErrInternal, "cannot write csv: %w", err)
		}
	case formatValue:
		for _, row := range rows {
			fmt.Fprintln(&out, strings.Join(row, " "))
		}
	default:
		out.WriteString(p.table(titles, ids, rows) + "\n")
	}

	printed := out.String()
	// A script gets the text as it is; what comes from a host must not steer the
	// terminal of somebody who looks. A table is clean already, and has colours.
	if p.shell.OutWidth > 0 && p.format != formatTable {
		printed = clean(printed)
	}
	return p.write(printed)
}

// table draws a table, and begins a new comparison for the marks of a watch.
func (p *printer) table(titles, ids []string, rows [][]string) string {
	p.watch.begin()
	return p.drawTable(titles, ids, rows, nil)
}

// drawTable draws a table. Where short is given, it shortens the cells of a
// list.
func (p *printer) drawTable(titles, ids []string, rows [][]string, short func(string) string) string {
	w := table.NewWriter()
	style := table.StyleDefault
	style.Format.Header = text.FormatDefault
	w.SetStyle(style)
	w.AppendHeader(tableRow(titles))

	for n, row := range rows {
		cells := tableRow(row)
		for i := range cells {
			painted := p.paint(titles, row, i)
			if short != nil {
				painted = short(painted)
			}
			cells[i] = p.watch.mark(ids[n], titles[i], row[i], painted)
		}
		w.AppendRow(cells)
	}

	// Field and Value are the titles of a show, which has one object.
	if width := p.shell.outWidth(); width > 0 && titles[0] == "Field" {
		// A value as wide as the terminal would break the frame; a list's columns are
		// few and left alone.
		longest := len(titles[0])
		for _, row := range rows {
			longest = max(longest, len(row[0]))
		}
		const frame, atLeast = 7, 20 // "| " + " | " + " |"
		w.SetColumnConfigs([]table.ColumnConfig{
			{Number: 2, WidthMax: max(width-longest-frame, atLeast), WidthMaxEnforcer: text.WrapText},
		})
	}

	drawn := w.Render()
	// A list that is too wide for the terminal is drawn once more with short UUIDs.
	if width := p.shell.outWidth(); width > 0 && titles[0] != "Field" && text.LongestLineLen(drawn) > width && short == nil {
		return p.drawTable(titles, ids, rows, shortUUID)
	}

	return drawn
}

// shortUUID shortens a UUID to a prefix, which commands accept in place of the
// whole.
func shortUUID(cell string) string {
	if _, ok := fullUUID(cell); ok {
		return cell[:shortestPrefix]
	}
	return cell
}

// tableRow converts cells for the table writer, without control characters.
func tableRow(cells []string) table.Row {
	row := make(table.Row, len(cells))
	for i, cell := range cells {
		row[i] = clean(cell)
	}
	return row
}

// paint colours the cell of a status or state on a terminal. In a show, the
// name of the field is in the row and not in the title.
func (p *printer) paint(titles, row []string, i int) string {
	cell := clean(row[i])

	name := titles[i]
	if name == "Value" {
		name = row[0]
	}

	if !p.shell.steers() || p.shell.Env("NO_COLOR") != "" || (!sameName(name, "status") && !sameName(name, "state")) {
		return cell
	}

	return statusColour(cell) + cell + noColour
}

// noColour ends a colour.
const noColour = "\x1b[0m"

// statusColour returns the escape sequence for a status: green is good, red
// needs attention.
func statusColour(status string) string {
	switch status {
	case string(cyborg.StatusReady), string(cyborg.StatusAttached), string(cyborg.OperationSucceeded), string(cyborg.BackendOK), "alive":
		return "\x1b[32m" // green

	case string(cyborg.StatusMissing), string(cyborg.StatusError), string(cyborg.OperationFailed), string(cyborg.OperationNeedsOperator), "silent":
		return "\x1b[31m" // red

	case string(cyborg.StatusInactive), string(cyborg.BackendDisabled), string(cyborg.OperationCancelled):
		return "\x1b[90m" // grey
	}

	return "\x1b[33m" // yellow: something is under way
}

// document prints a value as JSON or YAML. The YAML is made from the JSON, so
// both have the same names and order.
func (p *printer) document(value any) error {
	document, err := encode(value)
	if err != nil {
		return err
	}

	var out bytes.Buffer
	if p.format == formatYAML {
		tree, err := treeOf(value)
		if err != nil {
			return err
		}

		encoder := yaml.NewEncoder(&out)
		encoder.SetIndent(2)
		if err := encoder.Encode(yamlNode(tree)); err != nil {
			return cyborg.Errorf(cyborg.ErrInternal, "cannot write YAML: %w", err)
		}
		return p.write(out.String())
	}

	if err := json.Indent(&out, append(document, '\n'), "", "  "); err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "cannot write JSON: %w", err)
	}

	return p.write(out.String())
}

// write prints to standard output, or into the buffer of a watch, which decides
// whether to show it.
func (p *printer) write(text string) error {
	if p.watch.buffer != nil {
		p.watch.buffer.WriteString(text)
		return nil
	}
	if _, err := io.WriteString(p.shell.Out, text); err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "cannot write the result: %w", err)
	}

	return nil
}
