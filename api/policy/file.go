package policy

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cyborg-project/cyborg"
)

// override is a rule of the operator's file.
type override struct {
	name  string
	line  int
	text  string // the rule as it was understood, for readers
	check check
}

// readFile reads the operator's file. The error is of kind ErrInvalid, and
// names each mistake with its line.
func readFile(path string) ([]override, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the policy file cannot be read: %w", err)
	}

	overrides, mistakes := parseFile(text)
	if len(mistakes) == 0 {
		return overrides, nil
	}

	lines := make([]string, len(mistakes))
	for i, mistake := range mistakes {
		lines[i] = path + mistake.Error()
	}

	return nil, cyborg.Errorf(cyborg.ErrInvalid, "the policy file has mistakes: %s", strings.Join(lines, "; ")).
		WithHint("Rules are in the syntax of oslo.policy; docs/security.md lists what they can ask.")
}

// parseFile reads the names and rules of a file. Each mistake begins with its
// place in the file, as :line:.
func parseFile(text []byte) (overrides []override, mistakes []error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, []error{fmt.Errorf(": it is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))}
	}

	// A file of comments only is an empty document.
	if len(document.Content) == 0 || document.Content[0].ShortTag() == "!!null" {
		return nil, nil // all its lines may be comments
	}

	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, []error{fmt.Errorf(":%d: expected names of rules with what they require", root.Line)}
	}

	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		name, value := root.Content[i], root.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}

		c, err := parseNode(value)
		if first, double := seen[name.Value]; double {
			err = fmt.Errorf("is given twice, first in line %d", first)
		}

		seen[name.Value] = name.Line
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf(":%d: %s: %w", name.Line, name.Value, err))
			continue
		}

		overrides = append(overrides, override{name: name.Value, line: name.Line, text: c.String(), check: c})
	}

	return overrides, mistakes
}

// parseNode reads a rule: a text, or a list in the older form. Any item of a
// list suffices; an item is a check, or a list of checks that must all hold.
func parseNode(node *yaml.Node) (check, error) {
	switch {
	case node.ShortTag() == "!!null":
		return nil, errors.New(`has no rule; write "@" to allow everybody, "!" to allow nobody`)
	case node.Kind == yaml.ScalarNode:
		return parse(node.Value)
	case node.Kind != yaml.SequenceNode:
		return nil, errors.New("expected a text or a list")
	case len(node.Content) == 0:
		return constant(true), nil
	}

	var some anyOf
	for _, item := range node.Content {
		parts := []*yaml.Node{item}
		if item.Kind == yaml.SequenceNode {
			parts = item.Content
		}

		var all allOf
		for _, part := range parts {
			if part.Kind != yaml.ScalarNode {
				return nil, errors.New("expected a list of checks, or of lists of checks")
			}
			c, err := parseCheck(part.Value)
			if err != nil {
				return nil, err
			}
			all = append(all, c)
		}

		switch len(all) {
		case 0: // oslo.policy ignores an empty item
		case 1:
			some = append(some, all[0])
		default:
			some = append(some, all)
		}
	}

	switch len(some) {
	case 0:
		return constant(false), nil
	case 1:
		return some[0], nil
	}
	return some, nil
}

// combine lays the operator's rules over the built-in ones, and checks that
// each rule they refer to exists and that no rule refers to itself, directly or
// through others. Such a rule would never come to a decision.
func combine(builtin map[string]check, overrides []override) (map[string]check, error) {
	rules := maps.Clone(builtin)
	lines := map[string]int{}
	for _, o := range overrides {
		rules[o.name], lines[o.name] = o.check, o.line
	}

	acyclic := map[string]bool{}
	for _, o := range overrides {
		for _, name := range references(o.check) {
			if rules[name] == nil {
				return nil, fmt.Errorf(":%d: %s: there is no rule %q", o.line, o.name, name)
			}
		}

		if cycle := cycleFrom(o.name, rules, nil, acyclic); cycle != nil {
			return nil, fmt.Errorf(":%d: %s: the rules go round in a circle: %s", o.line, o.name, strings.Join(cycle, " → "))
		}
	}

	return rules, nil
}

// references lists the rules that a check refers to.
func references(c check) []string {
	var names []string
	switch of := c.(type) {
	case reference:
		names = append(names, string(of))
	case negation:
		names = references(of.check)
	case anyOf:
		for _, part := range of {
			names = append(names, references(part)...)
		}
	case allOf:
		for _, part := range of {
			names = append(names, references(part)...)
		}
	}

	return names
}

// cycleFrom follows the references of a rule. It returns the path to a rule
// that is on the path already, or nil if there is none. Rules that are known to
// lead into no circle are kept in acyclic, so that each rule is followed only
// once.
func cycleFrom(name string, rules map[string]check, path []string, acyclic map[string]bool) []string {
	if slices.Contains(path, name) {
		return append(slices.Clone(path), name)
	}

	if rules[name] == nil || acyclic[name] {
		return nil
	}

	for _, next := range references(rules[name]) {
		if cycle := cycleFrom(next, rules, append(slices.Clone(path), name), acyclic); cycle != nil {
			return cycle
		}
	}

	acyclic[name] = true
	return nil
}
