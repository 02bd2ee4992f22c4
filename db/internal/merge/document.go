package merge

import (
	"bytes"
	"encoding/json"
)

// Document is a JSON value in a canonical form, with sorted keys and without
// spaces, so that two of them can be compared as texts.
type Document string

// DocumentOf converts a value; nil maps and slices become the empty document.
func DocumentOf(value any, empty Document) (Document, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", err
	}

	out, err := respell(text)
	if out == "null" {
		out = empty
	}

	return out, err
}

// respell brings JSON into the canonical form. Numbers keep their digits:
// through a float64 large ones would lose some.
func respell(text []byte) (Document, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return "", err
	}

	out, err := json.Marshal(value)
	return Document(out), err
}

// MarshalJSON returns the JSON itself, not a string that contains it.
func (d Document) MarshalJSON() ([]byte, error) { return []byte(d), nil }

// UnmarshalJSON brings JSON that PostgreSQL wrote into the canonical form.
func (d *Document) UnmarshalJSON(text []byte) error {
	out, err := respell(text)
	*d = out
	return err
}
