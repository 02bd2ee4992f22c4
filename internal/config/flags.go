package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// fileFlag is the name of the flag that names the configuration file.
const fileFlag = "config"

// Flag is a flag that sets an option.
type Flag struct {
	Name string
	// Short is a letter, or empty.
	Short string
	// Key is the option, such as api.listen.
	Key string
	// Usage replaces the first sentence of the option's documentation.
	Usage string
}

// AddFlags adds --config and the given flags. Load reads them when it is given the same flag set. A key that does not
// exist is a defect of the caller, and panics.
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
		if added.DefValue == "0" || opt.tag("auto") != "" {
			added.DefValue = ""
		}
		if opt.field.Type.Kind() == reflect.Bool {
			added.NoOptDefVal = "true"
		}
	}
}

// summary is the first sentence of the option's documentation, as help texts want it.
func (o option) summary() string {
	doc := o.tag("doc")
	if first, _, ok := strings.Cut(doc, ". "); ok {
		doc = first
	}
	doc = strings.TrimSuffix(doc, ".")
	if len(doc) > 1 && doc[1] >= 'A' && doc[1] <= 'Z' {
		return doc // it begins with an abbreviation
	}
	return strings.ToLower(doc[:1]) + doc[1:]
}

// flagValue is a flag's value until Load reads it. A flag of a list may be given several times.
type flagValue struct {
	option option
	text   string
	node   *yaml.Node
}

// Set takes what the user gave; it is checked by Load, with everything else.
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

// String is what the user gave.
func (f *flagValue) String() string { return f.text }

// Words are those that the flag takes, where they are few.
func (f *flagValue) Words() []string { return strings.Fields(f.option.tag("oneof")) }

// Type is the word for the value in help texts.
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

// fromFlags gathers the values of flags that were given, by key.
func (d *decoder) fromFlags(flags *pflag.FlagSet) map[string]given {
	values := map[string]given{}
	if flags == nil {
		return values
	}
	flags.Visit(func(flag *pflag.Flag) {
		if value, ok := flag.Value.(*flagValue); ok {
			values[value.option.key] = given{source: "--" + flag.Name, node: value.node}
		}
	})
	return values
}
