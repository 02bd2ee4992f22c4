package policy

import (
	"fmt"
	"strings"
	"unicode"
)

// maxNesting is how many parentheses and nots may stand within each other.
const maxNesting = 50

// parse reads a rule in the syntax of oslo.policy ("Policy Rule Expressions" in its documentation): checks such as
// role:admin, combined by and, or, not and parentheses. The empty text allows everybody, as @ does. Where oslo.policy
// takes what it does not understand for "nobody", this is an error that says what.
func parse(text string) (check, error) {
	p := parser{tokens: tokens(text)}
	if len(p.tokens) == 0 {
		return constant(true), nil
	}
	c, err := p.or(0)
	if err != nil {
		return nil, err
	}
	if rest := p.peek(); rest != "" {
		return nil, fmt.Errorf("expected and, or, or the end, not %q", rest)
	}
	return c, nil
}

// tokens takes a rule apart: at white space, and parentheses off the ends of words. Those inside, as of %(project_id)s,
// belong to the word.
func tokens(text string) []string {
	var all []string
	for word := range strings.FieldsSeq(text) {
		for strings.HasPrefix(word, "(") {
			all, word = append(all, "("), word[1:]
		}
		bare := strings.TrimRight(word, ")")
		if bare != "" {
			all = append(all, bare)
		}
		for range len(word) - len(bare) {
			all = append(all, ")")
		}
	}
	return all
}

type parser struct {
	tokens []string
	next   int
}

// peek is the next token; empty at the end.
func (p *parser) peek() string {
	if p.next == len(p.tokens) {
		return ""
	}
	return p.tokens[p.next]
}

// word says whether the next token is that word, in any case, and passes it.
func (p *parser) word(word string) bool {
	found := strings.EqualFold(p.peek(), word)
	if found {
		p.next++
	}
	return found
}

func (p *parser) or(depth int) (check, error) {
	parts, err := p.parts("or", depth, p.and)
	if len(parts) == 1 {
		return parts[0], err
	}
	return anyOf(parts), err
}

func (p *parser) and(depth int) (check, error) {
	parts, err := p.parts("and", depth, p.single)
	if len(parts) == 1 {
		return parts[0], err
	}
	return allOf(parts), err
}

// parts reads checks with the word between them.
func (p *parser) parts(word string, depth int, read func(depth int) (check, error)) ([]check, error) {
	var parts []check
	for {
		next, err := read(depth)
		if err != nil {
			return nil, err
		}
		if parts = append(parts, next); !p.word(word) {
			return parts, nil
		}
	}
}

func (p *parser) single(depth int) (check, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("more than %d parentheses and nots are within each other", maxNesting)
	}
	switch {
	case p.word("not"):
		c, err := p.single(depth + 1)
		return negation{c}, err
	case p.word("("):
		c, err := p.or(depth + 1)
		if err != nil {
			return nil, err
		}
		if !p.word(")") {
			return nil, fmt.Errorf("expected ), not %s", quoteToken(p.peek()))
		}
		return c, nil
	}
	token := p.peek()
	if token == "" || token == ")" || strings.EqualFold(token, "and") || strings.EqualFold(token, "or") {
		return nil, fmt.Errorf("expected a check such as role:admin, not %s", quoteToken(token))
	}
	p.next++
	return parseCheck(token)
}

// parseCheck reads one check.
func parseCheck(token string) (check, error) {
	switch token {
	case "@":
		return constant(true), nil
	case "!":
		return constant(false), nil
	}
	kind, match, ok := strings.Cut(token, ":")
	switch {
	case !ok || kind == "" || match == "", strings.ContainsFunc(token, unicode.IsSpace), token[0] == '(', strings.HasSuffix(token, ")"):
		return nil, fmt.Errorf("%q is no check such as role:admin", token)
	case kind == "rule":
		return reference(match), nil
	case kind == "http" || kind == "https":
		return nil, fmt.Errorf("%q asks a server, which is not supported", token)
	}
	for _, part := range strings.Split(match, "%")[1:] {
		name, _, closed := strings.Cut(strings.TrimPrefix(part, "("), ")s")
		if !strings.HasPrefix(part, "(") || !closed {
			return nil, fmt.Errorf("%q has a %% that is not followed by (name)s", token)
		}
		if !isTarget(name) {
			return nil, fmt.Errorf("%q asks for %q of the target, which has only project_id and user_id", token, name)
		}
	}
	if _, literal := literalOf(kind); !literal && !isCredential(kind) {
		return nil, fmt.Errorf("%q asks for the credential %q; there are %s", token, kind, strings.Join(credentialNames(), ", "))
	}
	return comparison{kind, match}, nil
}

func quoteToken(token string) string {
	if token == "" {
		return "the end"
	}
	return fmt.Sprintf("%q", token)
}
