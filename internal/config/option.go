package config

import (
	"reflect"
	"slices"
	"strings"
)

// EnvPrefix begins the name of every environment variable that sets an option.
const EnvPrefix = "CYBORG_"

// option is one field of Config that can be set.
type option struct {
	key   string // such as api.tls.cert
	index []int  // of the field, as reflect.Value.FieldByIndex wants it
	field reflect.StructField
}

// options lists every option in the order of the struct.
func options() []option { return fieldOptions(reflect.TypeFor[Config](), "", nil) }

func fieldOptions(t reflect.Type, prefix string, index []int) []option {
	var all []option
	for field := range t.Fields() {
		name, ok := field.Tag.Lookup("key")
		if !ok {
			continue
		}
		o := option{key: prefix + name, index: append(slices.Clip(index), field.Index...), field: field}
		if field.Type.Kind() == reflect.Struct {
			all = append(all, fieldOptions(field.Type, o.key+".", o.index)...)
			continue
		}
		all = append(all, o)
	}
	return all
}

func (o option) tag(name string) string { return o.field.Tag.Get(name) }

func (o option) section() string {
	section, _, _ := strings.Cut(o.key, ".")
	return section
}

// env is the environment variable that sets the option.
func (o option) env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(o.key, ".", "_"))
}

func (o option) isList() bool { return o.field.Type.Kind() == reflect.Slice }

// sections lists the top level keys.
func sections() []string {
	var names []string
	for field := range reflect.TypeFor[Config]().Fields() {
		if name, ok := field.Tag.Lookup("key"); ok {
			names = append(names, name)
		}
	}
	return names
}

// keysOf lists the keys of a struct's fields.
func keysOf(t reflect.Type) []string {
	var keys []string
	for field := range t.Fields() {
		if key, ok := field.Tag.Lookup("key"); ok {
			keys = append(keys, key)
		}
	}
	return keys
}
