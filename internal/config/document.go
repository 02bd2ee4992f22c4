package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Documentation is what a manual says of one option.
type Documentation struct {
	// Key is the option, such as api.listen; those of the items of a list have [] in it.
	Key string
	// Default is its value where nobody gives one: itself, or in words what it becomes; empty for none.
	Default string
	// Text says what it does and what is allowed.
	Text string
}

// Document lists what a manual says of each option, in the order of the file.
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

// itemOptions lists the options of the items of lists, such as api.tokens[].name.
func itemOptions() []option {
	var all []option
	for _, o := range options() {
		if o.isList() && o.field.Type.Elem().Kind() == reflect.Struct {
			all = append(all, fieldOptions(o.field.Type.Elem(), o.key+"[].", nil)...)
		}
	}
	return all
}

// boundsText says what values are allowed, where that is not plain.
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
