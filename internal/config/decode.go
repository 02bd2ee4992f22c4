package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// given is one value as it was written, with the place where it was written.
type given struct {
	source string // file, environment variable or flag; empty for a default
	file   bool   // whether the source is a file, so that the node has a line in it
	node   *yaml.Node
}

// origin returns where the value was written, such as cyborg.yaml:12 or
// --listen. It is empty for a default.
func (g given) origin() string {
	if g.file {
		return fmt.Sprintf("%s:%d", g.source, g.node.Line)
	}
	return g.source
}

// problem adds the source to a problem with the node, which is the value or a
// part of it. In a file the node's own line is used: a list spans many lines.
func (g given) problem(node *yaml.Node, problem Problem) Problem {
	problem.Source = g.source
	if g.file {
		problem.Line = node.Line
	}
	return problem
}

// decoder converts given values to typed ones and collects all problems with
// them, so that one run of a process reports every mistake and not only the
// first.
type decoder struct {
	problems Problems
	// checkFiles is set while the options of a section are decoded that this
	// process uses. Files that they name must exist. Files in other sections may be
	// on another machine that shares this configuration file.
	checkFiles bool
}

// addf records a problem with the node.
func (d *decoder) addf(g given, node *yaml.Node, key, value, format string, args ...any) {
	d.problems = append(d.problems, g.problem(node, Problem{Key: key, Value: value, Message: fmt.Sprintf(format, args...)}))
}

// decode sets the target from the node. The tag holds the rules for the value;
// a list passes the tag on, so the rules apply to each of its items.
func (d *decoder) decode(g given, node *yaml.Node, key string, tag reflect.StructTag, target reflect.Value) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}

	switch target.Kind() {
	case reflect.Struct:
		d.decodeStruct(g, node, key, target)
	case reflect.Slice:
		d.decodeList(g, node, key, tag, target)
	case reflect.Map:
		d.decodeMap(g, node, key, target)
	default:
		d.decodeScalar(g, node, key, tag, target)
	}
}

// decodeList replaces the whole target: a list from a later source overrides
// the list of an earlier source and is not appended to it.
func (d *decoder) decodeList(g given, node *yaml.Node, key string, tag reflect.StructTag, target reflect.Value) {
	if node.Kind != yaml.SequenceNode {
		d.addf(g, node, key, "", "expected a list")
		return
	}

	if len(node.Content) == 0 {
		target.SetZero()
		return
	}

	list := reflect.MakeSlice(target.Type(), len(node.Content), len(node.Content))
	for i, item := range node.Content {
		d.decode(g, item, fmt.Sprintf("%s[%d]", key, i), tag, list.Index(i))
	}

	target.Set(list)
}

// decodeMap decodes free-form values, such as the options of a driver.
func (d *decoder) decodeMap(g given, node *yaml.Node, key string, target reflect.Value) {
	if node.Kind != yaml.MappingNode {
		d.addf(g, node, key, "", "expected keys with values")
		return
	}

	var values any
	if err := node.Decode(&values); err != nil {
		d.addf(g, node, key, "", "cannot be read: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}

	// The values take the types that JSON has, for example float64 for every
	// number. The same options may also come through the API as JSON, and a driver
	// must see the same types from both.
	text, err := json.Marshal(values)
	if err == nil {
		err = json.Unmarshal(text, target.Addr().Interface())
	}
	if err != nil {
		d.addf(g, node, key, "", "cannot be kept as JSON: %v", err)
	}
}

// decodeStruct decodes an item of a list, such as a token. Keys that are not
// given get the default of their tag here, because viper knows only the
// defaults of options that are outside of lists.
func (d *decoder) decodeStruct(g given, node *yaml.Node, key string, target reflect.Value) {
	if node.Kind != yaml.MappingNode {
		d.addf(g, node, key, "", "expected keys with values, of %s", strings.Join(keysOf(target.Type()), ", "))
		return
	}

	values := map[string]*yaml.Node{}
	d.eachPair(g, node, key, keysOf(target.Type()), func(name string, value *yaml.Node) { values[name] = value })

	for field, v := range target.Fields() {
		name, ok := field.Tag.Lookup("key")
		if !ok {
			continue
		}

		if value, ok := values[name]; ok {
			d.decode(g, value, key+"."+name, field.Tag, v)
		} else if text := field.Tag.Get("default"); text != "" {
			d.decode(given{}, textNode(text), key+"."+name, field.Tag, v)
		}
	}
}

// eachPair calls visit for each pair of the mapping whose key is known. It
// records a problem for every unknown key and for every key that is repeated.
func (d *decoder) eachPair(g given, node *yaml.Node, key string, known []string, visit func(name string, value *yaml.Node)) {
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		path := strings.TrimPrefix(key+"."+name.Value, ".")

		if line, ok := seen[name.Value]; ok {
			d.addf(g, name, path, "", "is given twice, first in line %d", line)
			continue
		}
		seen[name.Value] = name.Line

		if !slices.Contains(known, name.Value) {
			d.addf(g, name, path, "", "%s", unknown(path, name.Value, known))
			continue
		}

		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		visit(name.Value, value)
	}
}

// unknown returns the message for a key that does not exist. It suggests a
// similar key of the same section, or else a key of that name in another
// section.
func unknown(path, name string, siblings []string) string {
	prefix := strings.TrimSuffix(path, name)
	if like := nearest(name, siblings); like != "" {
		return fmt.Sprintf("there is no such option; did you mean %s%s?", prefix, like)
	}

	for _, o := range options() {
		if o.key == name || strings.HasSuffix(o.key, "."+name) {
			return fmt.Sprintf("there is no such option here; did you mean %s?", o.key)
		}
	}

	return fmt.Sprintf("there is no such option; there are %s", strings.Join(siblings, ", "))
}

// decodeScalar sets the target from a single value, and checks the value
// against the tag.
func (d *decoder) decodeScalar(g given, node *yaml.Node, key string, tag reflect.StructTag, target reflect.Value) {
	if node.Kind != yaml.ScalarNode {
		d.addf(g, node, key, "", "expected %s", expected(target.Type(), tag))
		return
	}

	if g.file && node.ShortTag() == "!!null" {
		d.addf(g, node, key, "", "has no value; remove the line for the default, or give %s", expected(target.Type(), tag))
		return
	}

	text := strings.TrimSpace(node.Value)
	if err := setScalar(target, text); err != nil || !within(target, text, tag) {
		d.addf(g, node, key, show(target.Type(), text), "expected %s", expected(target.Type(), tag))
		return
	}

	// Somebody may use the output of config dump as a configuration file. Without
	// this check the mask would become the password.
	if isSecret(target.Type()) && strings.Contains(text, mask) {
		d.addf(g, node, key, "", "expected the secret itself, not the mask that config dump prints")
		return
	}

	// A text with an @ may be a URL with a password in it, which the message must
	// not repeat.
	shown := text
	if strings.Contains(text, "@") {
		shown = mask
	}

	if name := tag.Get("check"); name != "" && text != "" {
		if message := d.check(name, target); message != "" {
			d.addf(g, node, key, shown, "%s", message)
		}
	}
}

// setScalar parses the text as the target's type and sets the target.
func setScalar(target reflect.Value, text string) error {
	// These types have a text form of their own. Their kinds are integers, so they
	// are handled before the kinds.
	switch v := target.Addr().Interface().(type) {
	case *time.Duration:
		parsed, err := time.ParseDuration(text)
		*v = parsed
		return err
	case *Size:
		parsed, err := ParseSize(text)
		*v = parsed
		return err
	case *slog.Level:
		return v.UnmarshalText([]byte(text))
	}

	switch target.Kind() {
	case reflect.String:
		target.SetString(text)
	case reflect.Bool:
		parsed, err := strconv.ParseBool(text)
		if err != nil {
			return err
		}
		target.SetBool(parsed)
	case reflect.Int, reflect.Int32, reflect.Int64:
		parsed, err := strconv.ParseInt(text, 10, target.Type().Bits())
		if err != nil {
			return err
		}
		target.SetInt(parsed)
	default:
		return fmt.Errorf("options of type %s cannot be read", target.Type())
	}

	return nil
}

// within reports whether the value obeys the tags oneof, min and max.
func within(value reflect.Value, text string, tag reflect.StructTag) bool {
	if words := tag.Get("oneof"); words != "" {
		return slices.Contains(strings.Fields(words), text)
	}

	// A log level is an integer too, but its values are names.
	if !value.CanInt() || value.Type() == reflect.TypeFor[slog.Level]() {
		return true
	}

	if low, ok := bound(value.Type(), tag, "min"); ok && value.Int() < low {
		return false
	} else if !ok && value.Type() == reflect.TypeFor[time.Duration]() && value.Int() <= 0 {
		return false
	}

	high, ok := bound(value.Type(), tag, "max")
	return !ok || value.Int() <= high
}

// bound parses the tag min or max as a value of the type. The result is false
// if the tag is not there.
func bound(t reflect.Type, tag reflect.StructTag, name string) (int64, bool) {
	text, ok := tag.Lookup(name)
	if !ok {
		return 0, false
	}

	value := reflect.New(t).Elem()
	if err := setScalar(value, text); err != nil {
		return 0, false
	}

	return value.Int(), true
}

// expected describes in words the values that the type and the tag allow.
func expected(t reflect.Type, tag reflect.StructTag) string {
	if words := tag.Get("oneof"); words != "" {
		all := strings.Fields(words)
		return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
	}

	what := "text"
	switch {
	case t == reflect.TypeFor[time.Duration]():
		what = "a duration such as 500ms, 10s or 5m"
	case t == reflect.TypeFor[Size]():
		what = "a size such as 64MiB or 4GiB"
	case t.Kind() == reflect.Bool:
		what = "true or false"
	case reflect.Zero(t).CanInt():
		what = "a whole number"
	}

	low, high := tag.Get("min"), tag.Get("max")
	switch {
	case low != "" && high != "":
		return fmt.Sprintf("%s from %s to %s", what, low, high)
	case low != "":
		return fmt.Sprintf("%s, at least %s", what, low)
	case high != "":
		return fmt.Sprintf("%s, at most %s", what, high)
	case t == reflect.TypeFor[time.Duration]():
		return what + ", longer than 0"
	}
	return what
}

// isSecret reports whether values of the type are masked in messages and dumps.
func isSecret(t reflect.Type) bool {
	return t == reflect.TypeFor[Secret]() || t == reflect.TypeFor[DatabaseURL]()
}

// show returns the text of a value of the type with its secrets masked.
func show(t reflect.Type, text string) string {
	switch t {
	case reflect.TypeFor[Secret]():
		return Secret(text).String()
	case reflect.TypeFor[DatabaseURL]():
		return DatabaseURL(text).String()
	}
	return text
}

// textNode returns a scalar node that has no line in any file.
func textNode(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: text} }

// parseText converts the text of an environment variable, a flag or a default
// to a node. The text of a list is YAML if it begins with a bracket; otherwise
// it is split at the option's separator. A list of mappings has to be YAML.
func (o option) parseText(text string) (*yaml.Node, error) {
	if !o.isList() {
		return textNode(text), nil
	}

	trimmed := strings.TrimSpace(text)
	if strings.HasPrefix(trimmed, "[") {
		var document yaml.Node
		if err := yaml.Unmarshal([]byte(trimmed), &document); err != nil {
			return nil, fmt.Errorf("expected a YAML list: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
		return document.Content[0], nil
	}

	if o.field.Type.Elem().Kind() == reflect.Struct {
		return nil, fmt.Errorf("expected a YAML list such as [{%s: …}]", keysOf(o.field.Type.Elem())[0])
	}

	list := &yaml.Node{Kind: yaml.SequenceNode}
	separator := func(r rune) bool { return r == ',' }
	if o.tag("sep") == " " {
		separator = func(r rune) bool { return r == ' ' || r == '\n' || r == '\t' }
	}

	for item := range strings.FieldsFuncSeq(trimmed, separator) {
		list.Content = append(list.Content, textNode(strings.TrimSpace(item)))
	}

	return list, nil
}
