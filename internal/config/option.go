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
	index []int  // the path to the field, for reflect.Value.FieldByIndex
	field reflect.StructField
}

// options lists every option in the order of the struct.
func options() []option { return fieldOptions(reflect.TypeFor[Config](), "", nil) }

// fieldOptions lists the options of a struct type, and of the structs in it.
// The prefix begins their keys, and index is the path to the struct.
func fieldOptions(t reflect.Type, prefix string, index []int) []option {
	var all []option
	for field := range t.Fields() {
		name, ok := field.Tag.Lookup("key")
		if !ok {
			continue
		}

		// Clip makes append copy the slice. Without it, two fields of the same struct
		// would share their last element.
		o := option{key: prefix + name, index: append(slices.Clip(index), field.Index...), field: field}
		if field.Type.Kind() == reflect.Struct {
			all = append(all, fieldOptions(field.Type, o.key+".", o.index)...)
			continue
		}
		all = append(all, o)
	}

	return all
}

// tag returns a tag of the option's field, or "".
func (o option) tag(name string) string { return o.field.Tag.Get(name) }

// section returns the first part of the key, such as api.
func (o option) section() string {
	section, _, _ := strings.Cut(o.key, ".")
	return section
}

// env returns the name of the environment variable that sets the option.
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
