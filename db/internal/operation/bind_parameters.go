package operation

import "strings"

// parameterProperty is how the properties in a group of a device profile begin that choose
// a parameter of the handle.
const parameterProperty = "accel:parameter:"

// parametersOf returns the parameters that a group of a device profile chooses; never nil.
func parametersOf(group map[string]string) map[string]string {
	chosen := map[string]string{}
	for property, value := range group {
		if name, ok := strings.CutPrefix(property, parameterProperty); ok {
			chosen[name] = value
		}
	}
	return chosen
}
