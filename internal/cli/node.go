package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cyborg-project/cyborg"
)

// This file prints values by way of their JSON. A yaml.Node keeps the order of
// an object's members, which a map would lose; JSON is YAML, so it reads both.

// field is one member of an object, as a show prints it.
type field struct {
	name string
	node *yaml.Node
}

// fieldsOf lists the members of a value's JSON object: those of lead first, in
// that order, and the rest in their own order.
func fieldsOf(value any, lead []string) ([]field, error) {
	node, err := nodeOf(value)
	if err != nil {
		return nil, err
	}
	if node.Kind != yaml.MappingNode {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "%T is no JSON object", value)
	}

	fields := []field{}
	for i := 0; i < len(node.Content); i += 2 {
		fields = append(fields, field{name: node.Content[i].Value, node: node.Content[i+1]})
	}

	rank := func(f field) int {
		if i := slices.Index(lead, f.name); i >= 0 {
			return i
		}
		return len(lead)
	}

	slices.SortStableFunc(fields, func(a, b field) int { return rank(a) - rank(b) })
	return fields, nil
}

// unsetFields lists the members that a value's JSON object can have but omits
// because they are empty. A script that asks for such a field gets an empty
// text; without this it would get an error depending on the present state of
// the hardware.
func unsetFields(value any, fields []field) []field {
	t := reflect.TypeOf(value)
	if t.Kind() != reflect.Struct {
		return nil
	}

	var omitted []field
	for _, member := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(member.Tag.Get("json"), ",")
		if name == "" || name == "-" || slices.ContainsFunc(fields, func(f field) bool { return f.name == name }) {
			continue
		}

		omitted = append(omitted, field{name: name, node: &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}})
	}

	return omitted
}

// nodeOf converts a value to its JSON, as a tree. HTML characters stay as they
// are.
func nodeOf(value any) (*yaml.Node, error) {
	if node, ok := value.(*yaml.Node); ok {
		return node, nil
	}

	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "cannot write JSON: %w", err)
	}

	return parseNode(out.Bytes())
}

// parseNode parses a JSON document to a tree.
func parseNode(document []byte) (*yaml.Node, error) {
	var node yaml.Node
	if err := yaml.Unmarshal(asYAML(document), &node); err != nil || len(node.Content) != 1 {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "cannot read JSON again: %w", err)
	}
	return node.Content[0], nil
}

// asYAML escapes the few characters that JSON allows in a string and YAML does
// not.
func asYAML(document []byte) []byte {
	var out bytes.Buffer
	for _, r := range string(document) {
		if r == 0xfeff || r == 0xfffe || r == 0xffff || (r >= 0x7f && r < 0xa0) {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}

	return out.Bytes()
}

// isNull reports whether a node is JSON's null.
func isNull(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.Tag == "!!null" }

// nodeText formats a value for a table: one line for each member or item,
// deeper levels as JSON.
func nodeText(node *yaml.Node) string {
	switch {
	case isNull(node):
		return ""
	case node.Kind == yaml.ScalarNode:
		return shortTime(node)
	}

	var lines []string
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i < len(node.Content); i += 2 {
			lines = append(lines, node.Content[i].Value+"="+inlineText(node.Content[i+1]))
		}
	default:
		for _, item := range node.Content {
			lines = append(lines, inlineText(item))
		}
	}

	return strings.Join(lines, "\n")
}

// inlineText formats a value for one line.
func inlineText(node *yaml.Node) string {
	if node.Kind == yaml.ScalarNode {
		return nodeText(node)
	}

	if len(node.Content) == 0 {
		return ""
	}

	return compactJSON(node)
}

// shortTime formats a value without fractions of a second where it is a time.
func shortTime(node *yaml.Node) string {
	if node.Style&yaml.DoubleQuotedStyle == 0 || len(node.Value) < len("2006-01-02T15:04:05Z") {
		return node.Value
	}

	at, err := time.Parse(time.RFC3339Nano, node.Value)
	if err != nil {
		return node.Value
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

// nodeValue formats a value for scripts: a scalar as it is, anything deeper as
// JSON.
func nodeValue(node *yaml.Node) string {
	switch {
	case isNull(node):
		return ""
	case node.Kind == yaml.ScalarNode:
		return node.Value
	}
	return compactJSON(node)
}

// compactJSON writes a tree that came from JSON as one line of JSON, with its
// members in their order.
func compactJSON(node *yaml.Node) string {
	var out strings.Builder
	writeJSON(&out, node)
	return out.String()
}

// writeJSON writes a tree as JSON. Only strings are double-quoted in a tree
// that came from JSON, so that the style tells them from numbers and booleans.
func writeJSON(out *strings.Builder, node *yaml.Node) {
	switch node.Kind {
	case yaml.MappingNode:
		out.WriteByte('{')
		for i := 0; i < len(node.Content); i += 2 {
			if i > 0 {
				out.WriteString(", ")
			}
			out.WriteString(quoted(node.Content[i].Value) + ": ")
			writeJSON(out, node.Content[i+1])
		}
		out.WriteByte('}')

	case yaml.SequenceNode:
		out.WriteByte('[')
		for i, item := range node.Content {
			if i > 0 {
				out.WriteString(", ")
			}
			writeJSON(out, item)
		}
		out.WriteByte(']')

	default:
		if node.Style&yaml.DoubleQuotedStyle != 0 {
			out.WriteString(quoted(node.Value))
		} else {
			out.WriteString(node.Value)
		}
	}
}

// quoted is a JSON string.
func quoted(s string) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(s) //nolint:errchkjson // a string always encodes
	return strings.TrimSpace(out.String())
}

// blockStyle changes a tree that came from JSON to YAML's block style, and
// removes quotes where YAML does not need them.
func blockStyle(node *yaml.Node) {
	if node.Kind != yaml.ScalarNode && len(node.Content) > 0 {
		node.Style = 0
	}

	if node.Kind == yaml.ScalarNode && node.Style&yaml.DoubleQuotedStyle != 0 && !readsOtherwise(node.Value) && !unreadableBlock(node.Value) {
		node.Style, node.Tag = 0, "!!str" // the encoder quotes what YAML 1.2 would not read as text
	}

	for _, child := range node.Content {
		blockStyle(child)
	}
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

// object is a JSON object whose members keep their order.
type object []member

// member is one member of an object.
type member struct {
	name  string
	value any
}

// MarshalJSON writes the members in order.
func (o object) MarshalJSON() ([]byte, error) {
	var out strings.Builder
	out.WriteByte('{')

	for i, m := range o {
		if i > 0 {
			out.WriteByte(',')
		}

		node, err := nodeOf(m.value)
		if err != nil {
			return nil, err
		}

		out.WriteString(quoted(m.name) + ":" + compactJSON(node))
	}

	out.WriteByte('}')
	return []byte(out.String()), nil
}
