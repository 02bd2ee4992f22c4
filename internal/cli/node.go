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

// A yaml.Node keeps the order of an object's members, which a map would lose; JSON is YAML, so it reads both.

// field is one member of an object, as a show prints it.
type field struct {
	name string
	node *yaml.Node
}

// fieldsOf lists the members of a value's JSON object: those of lead first, the others in their order.
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

// unset lists the members that a value's JSON object may have and leaves out where they are empty. A script that asks for
// one gets nothing, and not a mistake that depends on what the hardware is doing.
func unset(value any, fields []field) []field {
	t := reflect.TypeOf(value)
	if t.Kind() != reflect.Struct {
		return nil
	}
	var left []field
	for _, member := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(member.Tag.Get("json"), ",")
		if name == "" || name == "-" || slices.ContainsFunc(fields, func(f field) bool { return f.name == name }) {
			continue
		}
		left = append(left, field{name: name, node: &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}})
	}
	return left
}

// nodeOf is a value's JSON as a tree.
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

func parseNode(document []byte) (*yaml.Node, error) {
	var node yaml.Node
	if err := yaml.Unmarshal(asYAML(document), &node); err != nil || len(node.Content) != 1 {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "cannot read JSON again: %w", err)
	}
	return node.Content[0], nil
}

// asYAML escapes the few characters that JSON allows in a text and YAML does not.
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

func isNull(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.Tag == "!!null" }

// nodeText is how a table shows a value: one line per member or item, and what is deeper as JSON.
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

func inlineText(node *yaml.Node) string {
	if node.Kind == yaml.ScalarNode {
		return nodeText(node)
	}
	if len(node.Content) == 0 {
		return ""
	}
	return compactJSON(node)
}

// shortTime leaves the fractions of a second out.
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

// timeText is how people see a moment: to the second, in UTC.
func timeText(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

// nodeValue is how scripts get a value: text as it is, what is deeper as JSON.
func nodeValue(node *yaml.Node) string {
	switch {
	case isNull(node):
		return ""
	case node.Kind == yaml.ScalarNode:
		return node.Value
	}
	return compactJSON(node)
}

// compactJSON writes a tree that came from JSON as JSON again, members in their order.
func compactJSON(node *yaml.Node) string {
	var out strings.Builder
	writeJSON(&out, node)
	return out.String()
}

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

func quoted(s string) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(s) //nolint:errchkjson // a string always encodes
	return strings.TrimSpace(out.String())
}

// blockStyle takes JSON's braces and quotes away where YAML needs none.
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

// readsOtherwise says whether YAML 1.1, which Python reads, takes the text for something else: a number to base 60, which
// "0000:03:00.0" would be, or a truth.
func readsOtherwise(text string) bool {
	switch strings.ToLower(text) {
	case "y", "n", "yes", "no", "on", "off", "=":
		return true
	}
	return regexp.MustCompile(`^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$`).MatchString(text)
}

// unreadableBlock says that the encoder would write the text of several lines as a block that cannot be read again: the
// tab it begins with, on whichever line, would be taken for indentation.
func unreadableBlock(text string) bool {
	return strings.Contains(text, "\n") && strings.Contains(text, "\t")
}

// object is a JSON object whose members keep their order.
type object []member

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
