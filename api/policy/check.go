package policy

import (
	"slices"
	"strconv"
	"strings"
)

// facts are what a rule can ask about: the caller, and the values for its
// placeholders.
type facts struct {
	// credentials are the caller's values under the names that oslo.policy gives
	// them.
	credentials map[string][]string
	// target has the values that %(name)s stands for.
	target map[string]string
}

// check is a rule, or a part of one.
type check interface {
	// allows reports whether the facts satisfy the check. The rules are those that
	// a reference can name.
	allows(f facts, rules map[string]check) bool
	// String returns the check in the syntax of oslo.policy.
	String() string
}

type (
	constant   bool            // @ and !
	anyOf      []check         // or
	allOf      []check         // and
	negation   struct{ check } // not
	reference  string          // rule:name
	comparison struct {        // kind:match
		kind  string
		match string
	}
)

func (c constant) allows(facts, map[string]check) bool { return bool(c) }

// String returns @ for everybody and ! for nobody.
func (c constant) String() string {
	if c {
		return "@"
	}
	return "!"
}

func (a anyOf) allows(f facts, rules map[string]check) bool {
	return slices.ContainsFunc(a, func(c check) bool { return c.allows(f, rules) })
}

// String returns the checks with or between them.
func (a anyOf) String() string { return join(a, " or ") }

func (a allOf) allows(f facts, rules map[string]check) bool {
	return !slices.ContainsFunc(a, func(c check) bool { return !c.allows(f, rules) })
}

// String returns the checks with and between them. Alternatives are in
// parentheses, because and binds more tightly than or.
func (a allOf) String() string { return join(a, " and ") }

func (n negation) allows(f facts, rules map[string]check) bool { return !n.check.allows(f, rules) }

// String returns the check after the word not.
func (n negation) String() string { return "not " + parenthesized(n.check) }

func (r reference) allows(f facts, rules map[string]check) bool {
	// Loading the rules has rejected missing rules and circles, so the recursion
	// ends.
	c, ok := rules[string(r)]
	return ok && c.allows(f, rules)
}

// String returns rule: and the name of the rule.
func (r reference) String() string { return "rule:" + string(r) }

func (c comparison) allows(f facts, _ map[string]check) bool {
	match, ok := f.expand(c.match)
	if !ok {
		return false
	}

	if c.kind == "role" {
		return slices.ContainsFunc(f.credentials["roles"], func(role string) bool { return strings.EqualFold(role, match) })
	}

	if literal, ok := literalOf(c.kind); ok {
		return literal == match
	}

	return slices.Contains(f.credentials[c.kind], match)
}

// String returns the kind, a colon, and the value to compare with.
func (c comparison) String() string { return c.kind + ":" + c.match }

// expand replaces each %(name)s in a text with the target's value. It returns
// false if the target has no such value; the check then fails.
func (f facts) expand(text string) (string, bool) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "%(")
		out.WriteString(before)
		if !found {
			return out.String(), true
		}

		name, after, closed := strings.Cut(rest, ")s")
		value, known := f.target[name]
		if !closed || !known {
			return "", false
		}

		out.WriteString(value)
		text = after
	}
}

// literalOf returns what stands before the colon if that is a literal value
// ('text', 7, True) and not the name of a credential.
func literalOf(kind string) (string, bool) {
	if len(kind) >= 2 && (kind[0] == '\'' || kind[0] == '"') && kind[len(kind)-1] == kind[0] {
		return kind[1 : len(kind)-1], true
	}

	if _, err := strconv.ParseInt(kind, 10, 64); err == nil {
		return kind, true
	}

	return kind, kind == "True" || kind == "False" || kind == "None"
}

// join returns the checks with the word between them.
func join[S ~[]check](checks S, word string) string {
	texts := make([]string, len(checks))
	for i, c := range checks {
		texts[i] = c.String()
		if _, weaker := c.(anyOf); weaker && word == " and " {
			texts[i] = parenthesized(c)
		}
	}

	return strings.Join(texts, word)
}

// parenthesized returns the check, in parentheses if it has several parts.
func parenthesized(c check) string {
	switch c.(type) {
	case anyOf, allOf:
		return "(" + c.String() + ")"
	}

	return c.String()
}
