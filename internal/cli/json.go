package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/cyborg-project/cyborg"
)

// This file prints values by way of their JSON, as trees. A tree is what JSON
// can say: an object, a list ([]any), a string, a json.Number, a bool, or nil.

// object is a JSON object whose members keep their order, which a map would
// lose.
type object []member

// member is one member of an object.
type member struct {
	name  string
	value any
}

// MarshalJSON writes the members in order.
func (o object) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, m := range o {
		name, errName := encode(m.name)
		value, errValue := encode(m.value)
		if err := errors.Join(errName, errValue); err != nil {
			return nil, err
		}

		if i > 0 {
			out = append(out, ',')
		}
		out = slices.Concat(out, name, []byte{':'}, value)
	}

	return append(out, '}'), nil
}

// encode converts a value to JSON. HTML characters stay as they are. The control
// characters that JSON need not escape are escaped as well, because some terminals
// obey them.
func encode(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "cannot write JSON: %w", err)
	}

	return controls.ReplaceAllFunc(bytes.TrimSpace(out.Bytes()), func(control []byte) []byte {
		r, _ := utf8.DecodeRune(control)
		return fmt.Appendf(nil, `\u%04x`, r)
	}), nil
}

// controls matches DEL and the control characters beyond ASCII. They can be only
// within the strings of a JSON.
var controls = regexp.MustCompile("[\u007f-\u009f]")

// treeOf converts a value to its JSON, as a tree.
func treeOf(value any) (any, error) {
	document, err := encode(value)
	if err != nil {
		return nil, err
	}

	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber() // a number stays as it was written
	return nextTree(decoder)
}

// nextTree reads the next value of a JSON document.
func nextTree(decoder *json.Decoder) (any, error) {
	token, err := decoder.Token()
	delimiter, nested := token.(json.Delim)
	if err != nil || !nested {
		return token, err
	}

	members, items := object{}, []any{}
	for decoder.More() {
		var name json.Token
		if delimiter == '{' {
			if name, err = decoder.Token(); err != nil {
				return nil, err
			}
		}

		value, err := nextTree(decoder)
		if err != nil {
			return nil, err
		}
		members, items = append(members, member{fmt.Sprint(name), value}), append(items, value)
	}

	_, err = decoder.Token() // the end of the object or list
	if delimiter == '{' {
		return members, err
	}

	return items, err
}

// fieldsOf lists the members of a value's JSON object: those of lead first, in
// that order, and the rest in their own order.
func fieldsOf(value any, lead []string) (object, error) {
	tree, err := treeOf(value)
	if err != nil {
		return nil, err
	}
	fields, ok := tree.(object)
	if !ok {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "%T is no JSON object", value)
	}

	rank := func(f member) int {
		if i := slices.Index(lead, f.name); i >= 0 {
			return i
		}
		return len(lead)
	}

	slices.SortStableFunc(fields, func(a, b member) int { return rank(a) - rank(b) })
	return fields, nil
}

// unsetFields lists the members that a value's JSON object can have but omits
// because they are empty. A script that asks for such a field gets an empty
// text; without this it would get an error depending on the present state of
// the hardware.
func unsetFields(value any, fields object) object {
	t := reflect.TypeOf(value)
	if t.Kind() != reflect.Struct {
		return nil
	}

	var omitted object
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || name == "-" || slices.ContainsFunc(fields, func(f member) bool { return f.name == name }) {
			continue
		}

		omitted = append(omitted, member{name, nil})
	}

	return omitted
}

// tableText formats a tree for a table: one line for each member or item,
// deeper levels as JSON.
func tableText(tree any) string {
	var lines []string
	switch tree := tree.(type) {
	case object:
		for _, m := range tree {
			lines = append(lines, m.name+"="+inlineText(m.value))
		}
	case []any:
		for _, item := range tree {
			lines = append(lines, inlineText(item))
		}
	case string:
		return shortTime(tree)
	default:
		return valueText(tree)
	}

	return strings.Join(lines, "\n")
}

// inlineText formats a tree for one line.
func inlineText(tree any) string {
	members, _ := tree.(object)
	items, _ := tree.([]any)
	if len(members)+len(items) > 0 {
		return valueText(tree)
	}
	return tableText(tree)
}

// shortTime formats a text without fractions of a second where it is a time.
func shortTime(text string) string {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return text
	}
	return timeText(at)
}

// timeText formats a time for people: in UTC, to the second, "" for the zero
// time.
func timeText(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

// valueText formats a tree for scripts: a scalar as it is, anything deeper as
// one line of JSON.
func valueText(tree any) string {
	switch tree := tree.(type) {
	case nil:
		return ""
	case string:
		return tree
	}

	// Line breaks stand between the values only: in a string, JSON escapes them.
	var out bytes.Buffer
	document, err := encode(tree)
	if err != nil || json.Indent(&out, document, "", "") != nil {
		return fmt.Sprint(tree) // cannot be: each tree came from JSON
	}

	return strings.NewReplacer(",\n", ", ", "\n", "").Replace(out.String())
}

// yamlNode converts a tree to YAML in block style, with quotes where YAML needs
// them.
func yamlNode(tree any) *yaml.Node {
	switch tree := tree.(type) {
	case object:
		node := &yaml.Node{Kind: yaml.MappingNode}
		for _, m := range tree {
			node.Content = append(node.Content, yamlNode(m.name), yamlNode(m.value))
		}
		return node

	case []any:
		node := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range tree {
			node.Content = append(node.Content, yamlNode(item))
		}
		return node

	case string:
		// The encoder quotes what YAML 1.2 would not read as text.
		node := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: tree}
		if readsOtherwise(tree) || unreadableBlock(tree) {
			node.Style = yaml.DoubleQuotedStyle
		}
		return node

	case nil:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: "null"}
	}

	return &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(tree)}
}

// readsOtherwise reports whether YAML 1.1, which Python's parser implements,
// takes an unquoted text for something else: for a number to base 60, as which
// "0000:03:00.0" counts, or for a boolean.
func readsOtherwise(text string) bool {
	switch strings.ToLower(text) {
	case "y", "n", "yes", "no", "on", "off", "=":
		return true
	}
	return regexp.MustCompile(`^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$`).MatchString(text)
}

// unreadableBlock reports whether the encoder would write a text of several
// lines as a block that cannot be parsed again: a tab at the beginning of any
// of its lines would count as indentation.
func unreadableBlock(text string) bool {
	return strings.Contains(text, "\n") && strings.Contains(text, "\t")
}
