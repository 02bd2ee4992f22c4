package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Documentation is the entry of one option in a manual.
type Documentation struct {
	// Key names the option, such as api.listen. The key of an option in the items
	// of a list has [] in it, such as api.tokens[].name.
	Key string
	// Default is the value that is used if none is given. Where the value depends
	// on the machine it is described in words. Empty means that there is none.
	Default string
	// Text says what the option does and which values are allowed.
	Text string
}

// Document returns the documentation of every option, in the order of the
// fields of Config. docs/configuration.md is generated from it.
func Document() []Documentation {
	var all []Documentation
	add := func(o option) {
		fallback := o.tag("default")
		if fallback == "" {
			fallback = o.tag("auto")
		}
		all = append(all, Documentation{Key: o.key, Default: fallback, Text: o.tag("doc") + strings.ReplaceAll(o.boundsText(), "`", "")})
	}

	for _, o := range options() {
		add(o)
		for _, item := range itemOptions() {
			if strings.HasPrefix(item.key, o.key+"[].") {
				add(item)
			}
		}
	}

	return all
}

// itemOptions lists the options of the items of lists, such as
// api.tokens[].name.
func itemOptions() []option {
	var all []option
	for _, o := range options() {
		if o.isList() && o.field.Type.Elem().Kind() == reflect.Struct {
			all = append(all, fieldOptions(o.field.Type.Elem(), o.key+"[].", nil)...)
		}
	}
	return all
}

// boundsText returns a sentence with the allowed values, or "" if the option
// has neither bounds nor a list of words.
func (o option) boundsText() string {
	low, high := o.tag("min"), o.tag("max")
	switch words := o.tag("oneof"); {
	case words != "":
		return " One of `" + strings.Join(strings.Fields(words), "`, `") + "`."
	case low != "" && high != "":
		return fmt.Sprintf(" From %s to %s.", low, high)
	case low != "":
		return fmt.Sprintf(" At least %s.", low)
	case high != "":
		return fmt.Sprintf(" At most %s.", high)
	}

	return ""
}
