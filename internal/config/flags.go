package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/cyborg-project/cyborg/internal/redact"
)

// fileFlag is the name of the flag that names the configuration file.
const fileFlag = "config"

// Flag is a command line flag that sets an option.
type Flag struct {
	// Name is the name of the flag without the dashes.
	Name string
	// Short is a letter, or empty.
	Short string
	// Key names the option, such as api.listen.
	Key string
	// Usage is the help text. Empty means the first sentence of the option's
	// documentation.
	Usage string
	// NoDefault says that the process does not use the option's default. Usage says
	// what holds instead.
	NoDefault bool
}

// AddFlags adds --config and the given flags to the flag set. Load reads them
// when it is given the same flag set. AddFlags panics if a key does not exist,
// because that is a defect of the caller.
func AddFlags(flags *pflag.FlagSet, list ...Flag) {
	if flags.Lookup(fileFlag) == nil {
		flags.String(fileFlag, "", fmt.Sprintf("configuration file (default: $%s, else %s where it exists)", FileVariable, DefaultFile))
	}

	known := map[string]option{}
	for _, opt := range options() {
		known[opt.key] = opt
	}

	for _, f := range list {
		opt, ok := known[f.Key]
		if !ok {
			panic(fmt.Sprintf("flag --%s is for the option %q, which does not exist", f.Name, f.Key))
		}

		usage := f.Usage
		if usage == "" {
			usage = opt.summary()
		}
		if auto := opt.tag("auto"); auto != "" {
			usage += " (default: " + auto + ")"
		}

		added := flags.VarPF(&flagValue{option: opt}, f.Name, f.Short, usage)
		added.DefValue = opt.tag("default")
		// A 0 stands for a value that the documentation describes in words.
		if added.DefValue == "0" || opt.tag("auto") != "" || f.NoDefault {
			added.DefValue = ""
		}

		// A flag for a yes or no may be given without a value.
		if opt.field.Type.Kind() == reflect.Bool {
			added.NoOptDefVal = "true"
		}
	}
}

// summary returns the first sentence of the option's documentation in the style
// of help texts: without the full stop, and in lower case unless the sentence
// begins with an abbreviation.
func (o option) summary() string {
	doc := o.tag("doc")
	if first, _, ok := strings.Cut(doc, ". "); ok {
		doc = first
	}

	doc = strings.TrimSuffix(doc, ".")
	if len(doc) > 1 && doc[1] >= 'A' && doc[1] <= 'Z' {
		return doc
	}
	return strings.ToLower(doc[:1]) + doc[1:]
}

// flagValue holds the value of a flag until Load reads it. The flag of a list
// may be given several times, and each time adds items.
type flagValue struct {
	option option
	text   string     // all that the user typed, for help texts
	node   *yaml.Node // the parsed text; nil until the flag is given
}

// Set parses the user's text. It does not check the value: Load does, together
// with all other values, so that every mistake is reported at once.
func (f *flagValue) Set(text string) error {
	node, err := f.option.parseText(text)
	if err != nil {
		return err
	}

	if f.node != nil && f.option.isList() {
		node.Content = append(f.node.Content, node.Content...)
		text = f.text + " " + text
	}

	f.node, f.text = node, text
	return nil
}

// String returns the user's text.
func (f *flagValue) String() string { return f.text }

// Words returns the words that the flag accepts, for shell completion, or none
// if it accepts other values too.
func (f *flagValue) Words() []string { return strings.Fields(f.option.tag("oneof")) }

// Type returns the word for the value in help texts.
func (f *flagValue) Type() string {
	switch t := f.option.field.Type; {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case t == reflect.TypeFor[Size]():
		return "size"
	case t.Kind() == reflect.Bool:
		return "bool"
	case f.option.isList():
		return "list"
	case reflect.Zero(t).CanInt() && f.option.tag("oneof") == "":
		return "number"
	}
	return "string"
}

// fromFlags collects the values of the flags that the user gave, by key.
func (d *decoder) fromFlags(flags *pflag.FlagSet) map[string]given {
	values := map[string]given{}
	if flags == nil {
		return values
	}

	flags.Visit(func(flag *pflag.Flag) {
		value, ok := flag.Value.(*flagValue)
		if !ok {
			return
		}

		g := given{source: "--" + flag.Name, node: value.node}
		values[value.option.key] = g

		// Every user of the machine sees the arguments of a process.
		if t := value.option.field.Type; isSecret(t) && show(t, value.text) != value.text {
			d.problems = append(d.problems, g.problem(g.node, Problem{
				Key: value.option.key, Value: show(t, value.text),
				Message: "has a password, which everybody on this machine could read: use " + value.option.env() +
					", the configuration file, or a file that the parameter passfile names",
			}))
		}

		if value.option.field.Type == reflect.TypeFor[[]Backend]() && hasSecretOption(value.node) {
			d.problems = append(d.problems, g.problem(g.node, Problem{
				Key:     value.option.key,
				Message: "has an option that looks secret, which everybody on this machine could read: use " + value.option.env() + " or the configuration file",
			}))
		}
	})

	return values
}

// hasSecretOption reports whether an option of a backend looks secret.
func hasSecretOption(backends *yaml.Node) bool {
	var given []map[string]any
	if backends == nil || backends.Decode(&given) != nil {
		return false // what is wrong with it is said elsewhere
	}

	return slices.ContainsFunc(given, func(backend map[string]any) bool {
		return len(redact.Secrets(backend)) > 0
	})
}
