package config

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the generated files anew")

const (
	documentPath = "../../docs/configuration.md"
	examplePath  = "../../deploy/cyborg.example.yaml"
)

func TestEveryOptionIsDocumented(t *testing.T) {
	t.Parallel()
	for _, o := range append(options(), itemOptions()...) {
		require.NotEmpty(t, o.tag("doc"), o.key)
		require.True(t, strings.HasSuffix(o.tag("doc"), "."), "%s: the documentation is not a sentence", o.key)
		_, err := o.parseText(o.tag("default"))
		require.True(t, err == nil || o.tag("default") == "", "%s: the default cannot be read: %v", o.key, err)
	}
}

// TestDocumentationIsCurrent compares the tables in docs/configuration.md with
// the struct, or writes them with -update. The text around them is written by
// hand.
func TestDocumentationIsCurrent(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(documentPath)
	require.NoError(t, err)
	current := string(text)

	for field := range reflect.TypeFor[Config]().Fields() {
		section, ok := field.Tag.Lookup("key")
		if !ok {
			continue
		}

		begin, end := fmt.Sprintf("<!-- begin %s -->\n", section), fmt.Sprintf("<!-- end %s -->", section)
		block := regexp.MustCompile(`(?s)` + regexp.QuoteMeta(begin) + `.*?` + regexp.QuoteMeta(end))
		require.Len(t, block.FindAllString(current, -1), 1, "docs/configuration.md must have one block %q", strings.TrimSpace(begin))
		current = block.ReplaceAllLiteralString(current, begin+table(section)+end)
	}

	compare(t, documentPath, current)
}

// TestExampleIsCurrent compares deploy/cyborg.example.yaml with the struct, or
// writes it with -update.
func TestExampleIsCurrent(t *testing.T) {
	t.Parallel()
	compare(t, examplePath, example())
}

// TestExampleEqualsTheDefaults: whoever copies the example changes nothing by
// it.
func TestExampleEqualsTheDefaults(t *testing.T) {
	t.Parallel()
	for _, process := range []Process{ProcessAgent, ProcessStandalone} {
		c, err := Load(LoadOptions{Process: process, File: examplePath, Env: []string{}})
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(Default(), c, cmpopts.IgnoreUnexported(Config{})))
	}
}

// TestExampleWithEverythingUncommentedIsGood: whichever option a reader
// uncomments, the file stays valid, and it mentions every option.
func TestExampleWithEverythingUncommentedIsGood(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(examplePath)
	require.NoError(t, err)

	// A commented option begins with "# " where its key would begin, and an
	// explanation with "## ".
	uncommented := regexp.MustCompile(`(?m)^( *)# ( *)`).ReplaceAllString(string(text), "$1$2")
	path := filepath.Join(t.TempDir(), "cyborg.yaml")
	require.NoError(t, os.WriteFile(path, []byte(uncommented), 0o600))

	c, err := Load(LoadOptions{File: path, Env: []string{}})
	require.NoError(t, err, uncommented)

	for _, o := range options() {
		require.Contains(t, c.origins, o.key, "the example does not mention %s", o.key)
	}
}

// compare requires that the file has this text, or writes it with -update.
func compare(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		return
	}

	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(want, string(got)), "%s is out of date: run make generate", path)
}

// table is the table of one section of the documentation.
func table(section string) string {
	var b strings.Builder
	b.WriteString("| Key | Default | What it does |\n|---|---|---|\n")

	row := func(o option) {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", o.key, o.defaultCell(), o.tag("doc")+o.boundsText())
	}

	for _, o := range options() {
		if o.section() != section {
			continue
		}

		row(o)
		for _, item := range itemOptions() {
			if strings.HasPrefix(item.key, o.key+"[].") {
				row(item)
			}
		}
	}

	return b.String()
}

// defaultCell is the default as the table shows it.
func (o option) defaultCell() string {
	switch text, auto := o.tag("default"), o.tag("auto"); {
	case text != "":
		return "`" + text + "`"
	case auto != "":
		return auto
	}
	return "–"
}

// example is the whole example file. Options with a default are set to it, and
// the others are commented out.
func example() string {
	var b strings.Builder
	b.WriteString("## Cyborg's configuration, with every option at its default. Options that have none are commented out.\n" +
		"## Copy what you change to " + DefaultFile + "; docs/configuration.md explains.\n")

	exampleFields(&b, reflect.TypeFor[Config](), "")
	return b.String()
}

// exampleFields writes the fields of a struct, and those of the structs within
// it, with what their tags say about them.
func exampleFields(b *strings.Builder, t reflect.Type, indent string) {
	for field := range t.Fields() {
		key, ok := field.Tag.Lookup("key")
		if !ok {
			continue
		}

		o := option{key: key, field: field}
		if indent == "" {
			b.WriteString("\n")
		}

		if doc := o.tag("doc"); doc != "" {
			comment(b, indent, doc+o.boundsText())
		}
		if auto := o.tag("auto"); auto != "" {
			comment(b, indent, "Default: "+auto+".")
		}

		switch {
		case field.Type.Kind() == reflect.Struct:
			fmt.Fprintf(b, "%s%s:\n", indent, key)
			exampleFields(b, field.Type, indent+"  ")
		case o.tag("default") != "":
			fmt.Fprintf(b, "%s%s: %s\n", indent, key, o.yamlText(o.tag("default")))
		case o.isList() && field.Type.Elem().Kind() == reflect.Struct:
			fmt.Fprintf(b, "%s# %s:\n", indent, key)
			exampleItem(b, key, indent+"#   ")
		default:
			fmt.Fprintf(b, "%s# %s: %s\n", indent, key, o.yamlText(o.tag("example")))
		}
	}
}

// exampleItem writes an example item of a list of structs.
func exampleItem(b *strings.Builder, key, indent string) {
	items := map[string][]string{
		"tokens":    {"name: ops", "role: admin", "token: replace-me-by-a-long-random-text"},
		"endpoints": {"service: placement", "url: https://placement.example.org"},
		"backends":  {"name: gpus", "driver: generic", "enabled: true", `options: {device_spec: [{vendor_id: "10de"}]}`},
	}

	bullet := "- "
	for _, line := range items[key] {
		fmt.Fprintf(b, "%s%s%s\n", indent, bullet, line)
		bullet = "  "
	}
}

// yamlText writes the text of a default or an example as YAML.
func (o option) yamlText(text string) string {
	if !o.isList() {
		if o.field.Type.Kind() != reflect.String {
			return text
		}

		quoted, err := yaml.Marshal(text)
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(quoted))
	}

	node, err := o.parseText(text)
	if err != nil {
		return text
	}

	var items []string
	for _, item := range node.Content {
		items = append(items, fmt.Sprintf("%q", item.Value))
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// comment writes the text as a comment of at most 120 columns.
func comment(b *strings.Builder, indent, text string) {
	line := bytes.NewBufferString(indent + "##")
	for word := range strings.FieldsSeq(text) {
		if line.Len()+1+len(word) > 120 {
			b.WriteString(line.String() + "\n")
			line = bytes.NewBufferString(indent + "##")
		}
		line.WriteString(" " + word)
	}

	b.WriteString(line.String() + "\n")
}
