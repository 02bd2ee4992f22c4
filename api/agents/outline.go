package agents

import "github.com/cyborg-project/cyborg"

// What a body may have besides its bytes. A host with 512 cards sends about 20,000
// elements, and none nests deeper than about ten.
const (
	maxElements = 500_000
	maxDepth    = 100
)

// elementMemory is about how many bytes an element takes at most once it is
// decoded, however few bytes of text it has. An empty card is "{}," and takes 180.
const elementMemory = 128

// outline is what can be told of JSON text without decoding it.
type outline struct {
	elements int // of all lists and objects, and these themselves
	depth    int // how deep lists and objects are nested

	// nul says that a string has the escaped character \u0000, which is not u0000
	// after an escaped backslash.
	nul bool
}

// outlineOf looks at JSON text. Of a text that is no JSON, what it says means
// nothing: the decoder refuses that before it decodes anything.
func outlineOf(text []byte) outline {
	var (
		o      outline
		depth  int
		quoted bool
	)

	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\':
			i++ // the escaped character
			if i+4 < len(text) && text[i] == 'u' && string(text[i+1:i+5]) == "0000" {
				o.nul = true
			}
		case quoted:
		case c == '{' || c == '[':
			o.elements++
			depth++
			o.depth = max(o.depth, depth)
		case c == '}' || c == ']':
			depth--
		case c == ',':
			o.elements++
		}
	}

	return o
}

// check refuses a body that must not be decoded. A small text can have millions
// of elements, which need gigabytes when they are decoded. PostgreSQL cannot store
// NUL, nor nesting that is too deep, and one such report would fail the whole batch
// of reports that is recorded together.
func (o outline) check() error {
	switch {
	case o.elements > maxElements:
		return cyborg.Errorf(cyborg.ErrTooLarge, "the body has %d elements of lists and objects, more than %d", o.elements, maxElements)
	case o.depth > maxDepth:
		return cyborg.Errorf(cyborg.ErrInvalid, "the body nests lists and objects %d deep, more than %d", o.depth, maxDepth)
	case o.nul:
		return cyborg.Errorf(cyborg.ErrInvalid, "the body has a NUL character, which cannot be stored")
	}
	return nil
}

// memory is about how many bytes the body takes, as text or decoded.
func (o outline) memory(text []byte) int64 {
	return int64(max(len(text), o.elements*elementMemory))
}
