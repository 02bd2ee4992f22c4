package policy

import (
	"fmt"
	"strings"
	"unicode"
)

// maxNesting is how many parentheses and nots may be nested. It bounds the
// recursion of the parser.
const maxNesting = 50

// parse reads a rule in the syntax of oslo.policy ("Policy Rule Expressions" in
// its documentation): checks such as role:admin, combined with and, or, not and
// parentheses. The empty text allows everybody, as @ does. A text that
// oslo.policy does not understand means "nobody" there; here it is an error
// that says what is wrong.
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

// tokens splits a rule at white space, and splits parentheses off the ends of
// words. Parentheses inside a word, as in %(project_id)s, belong to the word.
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

// parser reads checks from the tokens of a rule.
type parser struct {
	tokens []string
	next   int // index of the next token
}

// peek returns the next token; "" at the end.
func (p *parser) peek() string {
	if p.next == len(p.tokens) {
		return ""
	}
	return p.tokens[p.next]
}

// word consumes the next token if it is the given word, in upper or lower case,
// and reports whether it was.
func (p *parser) word(word string) bool {
	found := strings.EqualFold(p.peek(), word)
	if found {
		p.next++
	}
	return found
}

// or reads checks with or between them.
func (p *parser) or(depth int) (check, error) {
	parts, err := p.parts("or", depth, p.and)
	if len(parts) == 1 {
		return parts[0], err
	}
	return anyOf(parts), err
}

// and reads checks with and between them; and binds more tightly than or.
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
		parts = append(parts, next)
		if !p.word(word) {
			return parts, nil
		}
	}
}

// single reads one check, a check after not, or checks in parentheses.
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

// parseCheck reads one check, such as @, rule:name or role:admin.
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

// quoteToken quotes a token for a message.
func quoteToken(token string) string {
	if token == "" {
		return "the end"
	}
	return fmt.Sprintf("%q", token)
}
