package config

import (
	"bytes"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/redact"
)

// Dump writes the sections that the process uses as YAML, in the format that
// Load reads, with secrets masked. A value that is not a default has a comment
// with its source. An empty value that the machine fills in has a comment that
// says with what. The error is of kind ErrUnavailable if w fails.
func (c *Config) Dump(w io.Writer, process Process) error {
	root := c.node(reflect.ValueOf(c).Elem(), "")

	var used []*yaml.Node
	for i := 0; i+1 < len(root.Content); i += 2 {
		if process.uses(root.Content[i].Value) {
			used = append(used, root.Content[i], root.Content[i+1])
		}
	}
	root.Content = used

	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "cannot write the configuration: %w", err)
	}
	if err := encoder.Close(); err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "cannot write the configuration: %w", err)
	}

	if _, err := w.Write(b.Bytes()); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "cannot write the configuration: %w", err)
	}

	return nil
}

// node converts a value to YAML. A struct becomes a mapping of the keys in its
// tags. The key is the path of the value in Config; it is empty inside lists,
// whose items have no origins of their own.
func (c *Config) node(value reflect.Value, key string) *yaml.Node {
	switch value.Kind() {
	case reflect.Struct:
		mapping := &yaml.Node{Kind: yaml.MappingNode}
		for field, v := range value.Fields() {
			name, ok := field.Tag.Lookup("key")
			if !ok {
				continue
			}
			path := strings.TrimPrefix(key+"."+name, ".")

			keyNode, child := textNode(name), c.node(v, path)
			if given, ok := c.origins[path]; ok {
				// The comment of a list in block style is put at its key. At the list itself it
				// would be printed below the last item.
				commented := child
				if child.Kind == yaml.SequenceNode && child.Style != yaml.FlowStyle {
					commented = keyNode
				}
				commented.LineComment = given.origin()
			} else if auto := field.Tag.Get("auto"); auto != "" && v.IsZero() {
				child.LineComment = auto
			}

			mapping.Content = append(mapping.Content, keyNode, child)
		}
		return mapping
	case reflect.Slice:
		list := &yaml.Node{Kind: yaml.SequenceNode}
		if value.Len() == 0 || value.Index(0).Kind() != reflect.Struct {
			list.Style = yaml.FlowStyle
		}

		for i := range value.Len() {
			list.Content = append(list.Content, c.node(value.Index(i), ""))
		}
		return list
	default:
		if options, ok := reflect.TypeAssert[map[string]any](value); ok {
			value = reflect.ValueOf(redact.Options(options))
		}
		return scalar(value)
	}
}

// scalar converts a single value to YAML. Durations and levels are written in
// the form in which Load reads them.
func scalar(value reflect.Value) *yaml.Node {
	node := &yaml.Node{}

	switch v := value.Interface().(type) {
	case time.Duration:
		node.SetString(durationText(v))
	case slog.Level:
		node.SetString(strings.ToLower(v.String()))
	default:
		if err := node.Encode(v); err != nil {
			node.SetString(err.Error())
		}
	}

	return node
}
