package cyborg

import (
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Preparation says that a host prepares the handles of a deployable for everybody who
// gets one: its driver attaches them for instances and services as well as for the host
// itself, and detaches them when they are taken back.
type Preparation struct {
	// Parameters are what whoever attaches a handle can choose.
	Parameters []Parameter `json:"parameters,omitempty"`
}

// Parameter is something that can be chosen when a handle is attached, such as the MAC
// address of a virtual function. Where it is left out, its driver chooses.
type Parameter struct {
	Name string        `json:"name"` // a word in small letters (IsParameterName)
	Type ParameterType `json:"type"`
	Help string        `json:"help,omitempty"` // one sentence for people
	// Min and Max bound a ParameterInteger.
	Min int64 `json:"min,omitempty"`
	Max int64 `json:"max,omitempty"`
	// Values are those of a ParameterChoice.
	Values []string `json:"values,omitempty"`
}

// ParameterType says how the values of a parameter look.
type ParameterType string

// The types of parameters.
const (
	ParameterBoolean ParameterType = "boolean" // true or false
	ParameterInteger ParameterType = "integer"
	ParameterChoice  ParameterType = "choice"
	// ParameterMAC is the MAC address of one interface, such as 52:54:00:12:34:56.
	ParameterMAC ParameterType = "mac"
)

// ParameterTypes returns the types of parameters.
func ParameterTypes() []ParameterType {
	return []ParameterType{ParameterBoolean, ParameterInteger, ParameterChoice, ParameterMAC}
}

const (
	// MaxParameters is how many parameters one deployable may have.
	MaxParameters = 32
	// LongestParameter is how many bytes the value of a parameter may have.
	LongestParameter = 255
)

// parameterNamePattern matches a word in small letters.
var parameterNamePattern = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// IsParameterName says whether the text can be the name of a parameter: words in small
// letters, connected by underscores, of 64 characters at most.
func IsParameterName(text string) bool {
	return len(text) <= 64 && parameterNamePattern.MatchString(text)
}

// Check returns an error of kind ErrInvalid that says which values the parameters take,
// where one of those that are given has no such value, or nobody knows it. There are no
// parameters where p is nil.
func (p *Preparation) Check(given map[string]string) error {
	var declared []Parameter
	if p != nil {
		declared = p.Parameters
	}

	for _, name := range slices.Sorted(maps.Keys(given)) {
		at := slices.IndexFunc(declared, func(d Parameter) bool { return d.Name == name })
		if at < 0 {
			return Errorf(ErrInvalid, "there is no parameter %.80q: it has %s", name, parameterNames(declared))
		}
		if err := declared[at].Check(given[name]); err != nil {
			return err
		}
	}
	return nil
}

// parameterNames lists the names of the parameters, in a message without a hint: the
// reason of a failed accelerator request is the message alone.
func parameterNames(parameters []Parameter) string {
	if len(parameters) == 0 {
		return "none"
	}

	names := make([]string, len(parameters))
	for i, p := range parameters {
		names[i] = p.Name
	}
	return strings.Join(names, ", ")
}

// Check returns an error of kind ErrInvalid that says which values the parameter takes,
// where this is none of them.
func (p Parameter) Check(value string) error {
	var fits bool

	switch p.Type {
	case ParameterBoolean:
		fits = value == "true" || value == "false"
	case ParameterInteger:
		n, err := strconv.ParseInt(value, 10, 64)
		fits = err == nil && p.Min <= n && n <= p.Max && strconv.FormatInt(n, 10) == value
	case ParameterChoice:
		fits = slices.Contains(p.Values, value)
	case ParameterMAC:
		fits = isUnicastMAC(value)
	default:
		return Errorf(ErrInvalid, "parameter %.80q is of a type %.80q that this release does not know", p.Name, p.Type)
	}

	if fits {
		return nil
	}
	return Errorf(ErrInvalid, "parameter %s is %.80q; it takes %s", p.Name, value, p.Takes())
}

// Takes says for people which values the parameter takes.
func (p Parameter) Takes() string {
	switch p.Type {
	case ParameterBoolean:
		return "true or false"
	case ParameterInteger:
		return "a whole number from " + strconv.FormatInt(p.Min, 10) + " to " + strconv.FormatInt(p.Max, 10)
	case ParameterChoice:
		return "one of " + strings.Join(p.Values, ", ")
	case ParameterMAC:
		return "the MAC address of one interface, such as 52:54:00:12:34:56"
	default:
		return "values of a type " + string(p.Type) + " that this release does not know"
	}
}

// ParametersText shows for people what was chosen for a handle: "mac=52:54:00:12:34:56,
// vlan=5".
func ParametersText(chosen map[string]string) string {
	texts := make([]string, 0, len(chosen))
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		texts = append(texts, name+"="+chosen[name])
	}
	return strings.Join(texts, ", ")
}

// isUnicastMAC says whether the text is the MAC address of one interface, of six bytes
// with colons: neither zero nor one of a group.
func isUnicastMAC(text string) bool {
	address, err := net.ParseMAC(text)
	if err != nil || len(address) != 6 || len(text) != 17 || strings.Contains(text, "-") {
		return false
	}
	return address[0]&1 == 0 && slices.ContainsFunc(address, func(b byte) bool { return b != 0 })
}
