package config

import (
	"bytes"
	"io"
	"log/slog"
	"net/url"
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cyborg-project/cyborg"
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
			value = reflect.ValueOf(maskOptions(options))
		}
		return scalar(value)
	}
}

// maskOptions returns a copy of a driver's options in which everything that
// looks secret is masked: by its name, or as the password of a URL. Drivers
// define their options themselves, so nothing else tells.
func maskOptions(options any) any {
	switch v := options.(type) {
	case map[string]any:
		masked := make(map[string]any, len(v))
		for name, option := range v {
			if looksSecret(name) {
				masked[name] = mask
			} else {
				masked[name] = maskOptions(option)
			}
		}
		return masked
	case []any:
		masked := make([]any, len(v))
		for i := range v {
			masked[i] = maskOptions(v[i])
		}
		return masked
	case string:
		if u, err := url.Parse(v); err == nil && u.User != nil {
			return u.Redacted()
		}
	}
	return options
}

// looksSecret reports whether an option is probably a secret by its name, such
// as api-token, sshKey or BMC_PASSWORD.
func looksSecret(name string) bool {
	lower := strings.ToLower(name)
	for _, word := range []string{"password", "passwd", "passphrase", "secret", "token", "credential", "apikey"} {
		if strings.Contains(lower, word) {
			return true
		}
	}

	// "key" is a word of its own, or the last one: "monkey" is no secret.
	for _, end := range []string{"_key", "-key", ".key", " key"} {
		if strings.HasSuffix(lower, end) {
			return true
		}
	}
	return lower == "key" || strings.HasSuffix(name, "Key")
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
