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

// given is a value as somebody wrote it, and where.
type given struct {
	source string // file, environment variable or flag; empty for a default
	file   bool   // the node has a line in the source
	node   *yaml.Node
}

// origin says where a value comes from, in words.
func (g given) origin() string {
	if g.file {
		return fmt.Sprintf("%s:%d", g.source, g.node.Line)
	}
	return g.source
}

// problem says where the problem with a part of the value is.
func (g given) problem(node *yaml.Node, problem Problem) Problem {
	problem.Source = g.source
	if g.file {
		problem.Line = node.Line
	}
	return problem
}

// decoder turns given values into typed ones and gathers what is wrong with them.
type decoder struct {
	problems Problems
	// checkFiles says whether the values are used on this machine, so that files they name must exist.
	checkFiles bool
}

func (d *decoder) addf(g given, node *yaml.Node, key, value, format string, args ...any) {
	d.problems = append(d.problems, g.problem(node, Problem{Key: key, Value: value, Message: fmt.Sprintf(format, args...)}))
}

// decode sets target from the node. The tag carries the rules that the value, or each item of it, must obey.
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
	// As JSON has them: the same options may come through the API, and are kept as JSON.
	text, err := json.Marshal(values)
	if err == nil {
		err = json.Unmarshal(text, target.Addr().Interface())
	}
	if err != nil {
		d.addf(g, node, key, "", "cannot be kept as JSON: %v", err)
	}
}

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

// eachPair calls visit for each pair of a mapping whose key is known, and complains about all others and about
// repeated ones.
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

// unknown says that there is no such key, and which one was probably meant.
func unknown(path, name string, siblings []string) string {
	prefix := strings.TrimSuffix(path, name)
	if like := nearest(name, siblings); like != "" {
		return fmt.Sprintf("there is no such option; did you mean %s%s?", prefix, like)
	}
	for _, o := range options() { // the right name in the wrong place
		if o.key == name || strings.HasSuffix(o.key, "."+name) {
			return fmt.Sprintf("there is no such option here; did you mean %s?", o.key)
		}
	}
	return fmt.Sprintf("there is no such option; there are %s", strings.Join(siblings, ", "))
}

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
	if isSecret(target.Type()) && strings.Contains(text, mask) {
		d.addf(g, node, key, "", "expected the secret itself, not the mask that config dump prints")
		return
	}
	shown := text
	if strings.Contains(text, "@") { // of a URL with a password in it
		shown = mask
	}
	if name := tag.Get("check"); name != "" && text != "" {
		if message := d.check(name, target); message != "" {
			d.addf(g, node, key, shown, "%s", message)
		}
	}
}

// setScalar reads the text as the target's type.
func setScalar(target reflect.Value, text string) error {
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

// within says whether the value obeys the tags oneof, min and max.
func within(value reflect.Value, text string, tag reflect.StructTag) bool {
	if words := tag.Get("oneof"); words != "" {
		return slices.Contains(strings.Fields(words), text)
	}
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

// expected says in words what a value must look like.
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

func isSecret(t reflect.Type) bool {
	return t == reflect.TypeFor[Secret]() || t == reflect.TypeFor[DatabaseURL]()
}

// show is the text of a value with its secrets masked.
func show(t reflect.Type, text string) string {
	switch t {
	case reflect.TypeFor[Secret]():
		return Secret(text).String()
	case reflect.TypeFor[DatabaseURL]():
		return DatabaseURL(text).String()
	}
	return text
}

func textNode(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: text} }

// parseText turns the text of an environment variable, a flag or a default into a node: lists are YAML where they
// begin with a bracket, and else are split at the option's separator.
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
