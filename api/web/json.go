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

// maxDepth is how deep objects and lists in a body may be nested: more than any capability tree, less than any stack.
const maxDepth = 32

// ReadBody reads the whole body. A longer one is an error of kind ErrTooLarge.
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

// ParseJSON reads one JSON value: objects as map[string]any, whole numbers as int64 where they fit, other numbers as
// float64. What two readers could understand differently, or what cannot be stored, is an error of kind ErrInvalid that
// names the place: a property given twice, text after the value, a NUL character, nesting deeper than 32.
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

type parser struct {
	decoder *json.Decoder
}

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
		if out[name], err = p.value(inner, depth+1); err != nil {
			return nil, err
		}
	}
	_, err := p.token() // the closing brace
	return out, err
}

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

// storable refuses a text that the database does not take.
func storable(path, text string) error {
	if strings.ContainsRune(text, 0) {
		return cyborg.Errorf(cyborg.ErrInvalid, "%q has a NUL character, which cannot be stored", place(path))
	}
	return nil
}

// Join is the path of a property inside another.
func Join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func place(path string) string {
	if path == "" {
		return "the body"
	}
	return path
}
