package policy

import (
	"slices"
	"strconv"
	"strings"
)

// facts are what a rule can ask about: who asks, and whose the thing is.
type facts struct {
	// credentials are the caller's, by the names that oslo.policy has for them.
	credentials map[string][]string
	// target is what %(name)s stands for.
	target map[string]string
}

// check is one rule, or a part of one.
type check interface {
	// allows says whether the facts fulfil it.
	allows(f facts, rules map[string]check) bool
	// String is the check in the syntax in which it was written.
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

// String is @ for everybody and ! for nobody.
func (c constant) String() string {
	if c {
		return "@"
	}
	return "!"
}

func (a anyOf) allows(f facts, rules map[string]check) bool {
	return slices.ContainsFunc(a, func(c check) bool { return c.allows(f, rules) })
}

// String is the checks with or between them.
func (a anyOf) String() string { return join(a, " or ") }

func (a allOf) allows(f facts, rules map[string]check) bool {
	return !slices.ContainsFunc(a, func(c check) bool { return !c.allows(f, rules) })
}

// String is the checks with and between them; what is weaker is in parentheses.
func (a allOf) String() string { return join(a, " and ") }

func (n negation) allows(f facts, rules map[string]check) bool { return !n.check.allows(f, rules) }

// String is the check after not.
func (n negation) String() string { return "not " + parenthesized(n.check) }

func (r reference) allows(f facts, rules map[string]check) bool {
	c, ok := rules[string(r)] // loading has refused those that are not there, and circles
	return ok && c.allows(f, rules)
}

// String is rule: and the name.
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

// String is the kind, a colon, and what it is compared with.
func (c comparison) String() string { return c.kind + ":" + c.match }

// expand puts the target's values into a text; false where it has no value of that name.
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

// literalOf is what stands before the colon where that is a value and not the name of a credential: 'text', 7, True.
func literalOf(kind string) (string, bool) {
	if len(kind) >= 2 && (kind[0] == '\'' || kind[0] == '"') && kind[len(kind)-1] == kind[0] {
		return kind[1 : len(kind)-1], true
	}
	if _, err := strconv.ParseInt(kind, 10, 64); err == nil {
		return kind, true
	}
	return kind, kind == "True" || kind == "False" || kind == "None"
}

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

// parenthesized is the check in parentheses where it has parts.
func parenthesized(c check) string {
	switch c.(type) {
	case anyOf, allOf:
		return "(" + c.String() + ")"
	}
	return c.String()
}
