package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// maxDepth is how deep objects and lists in a body may be nested. It is more
// than any tree of capabilities needs, and too little to exhaust the stack.
const maxDepth = 32

// ReadBody reads the whole body. A body that is longer than limit bytes is an
// error of kind ErrTooLarge.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err == nil {
		return body, nil
	}

	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, cyborg.Errorf(cyborg.ErrTooLarge, "the body is longer than %d bytes", limit)
	}

	if r.Context().Err() != nil {
		return nil, fmt.Errorf("reading the body: %w", r.Context().Err())
	}

	return nil, cyborg.Errorf(cyborg.ErrInvalid, "the body cannot be read: %w", err)
}

// ParseJSON reads one JSON value: objects as map[string]any, whole numbers as
// int64 where they fit, other numbers as float64. It rejects what two readers
// could understand differently and what cannot be stored: a property that is
// given twice, text after the value, a NUL character, nesting deeper than 32.
// The error is of kind ErrInvalid and names the place.
func ParseJSON(body []byte) (any, error) {
	p := &parser{decoder: json.NewDecoder(bytes.NewReader(body))}
	p.decoder.UseNumber()

	value, err := p.value("", 0)
	if err != nil {
		return nil, err
	}

	if _, err := p.decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the body goes on after its JSON value, at byte %d", p.decoder.InputOffset())
	}

	return value, nil
}

// parser reads a JSON value token by token, because encoding/json accepts
// duplicate properties.
type parser struct {
	decoder *json.Decoder
}

// token reads the next token.
func (p *parser) token() (json.Token, error) {
	token, err := p.decoder.Token()
	if err == nil {
		return token, nil
	}

	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the body ends before its JSON value does")
	}

	return nil, cyborg.Errorf(cyborg.ErrInvalid, "the body is not JSON: %v, at byte %d", err, p.decoder.InputOffset())
}

// value reads the value at the path.
func (p *parser) value(path string, depth int) (any, error) {
	token, err := p.token()
	if err != nil {
		return nil, err
	}

	switch t := token.(type) {
	case json.Delim:
		if depth >= maxDepth {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s is nested deeper than %d", place(path), maxDepth)
		}
		if t == '{' {
			return p.object(path, depth)
		}
		return p.list(path, depth)
	case json.Number:
		return number(path, t)
	case string:
		return t, storable(path, t)
	default:
		return t, nil
	}
}

// object reads the rest of an object, up to its closing brace.
func (p *parser) object(path string, depth int) (any, error) {
	out := map[string]any{}
	for p.decoder.More() {
		token, err := p.token()
		if err != nil {
			return nil, err
		}

		name, ok := token.(string)
		if !ok {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "the body is not JSON: a property's name is %v, at byte %d", token, p.decoder.InputOffset())
		}

		inner := Join(path, name)
		if err := storable(inner, name); err != nil {
			return nil, err
		}

		if _, twice := out[name]; twice {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s is given twice", inner)
		}

		out[name], err = p.value(inner, depth+1)
		if err != nil {
			return nil, err
		}
	}

	_, err := p.token() // the closing brace
	return out, err
}

// list reads the rest of a list, up to its closing bracket.
func (p *parser) list(path string, depth int) (any, error) {
	out := []any{}
	for p.decoder.More() {
		item, err := p.value(fmt.Sprintf("%s[%d]", path, len(out)), depth+1)
		if err != nil {
			return nil, err
		}

		out = append(out, item)
	}

	_, err := p.token() // the closing bracket
	return out, err
}

// number converts a number: to int64 if it is whole and fits, else to float64.
func number(path string, text json.Number) (any, error) {
	if whole, err := text.Int64(); err == nil {
		return whole, nil
	}

	value, err := text.Float64()
	if err != nil || math.IsInf(value, 0) {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s is %.40s, which is out of range", place(path), text.String())
	}

	return value, nil
}

// storable rejects a text with a NUL character, which PostgreSQL cannot store.
func storable(path, text string) error {
	if strings.ContainsRune(text, 0) {
		return cyborg.Errorf(cyborg.ErrInvalid, "%q has a NUL character, which cannot be stored", place(path))
	}
	return nil
}

// Join returns the path of a property inside the object at the path.
func Join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// place returns the path for messages.
func place(path string) string {
	if path == "" {
		return "the body"
	}
	return path
}
