package records

import "encoding/json"

// Parsed receives a column of JSON. Hosts are often alike, so a text that was
// seen before in the same read is not decoded again. Rows then share the
// decoded value, and nobody may change it.
type Parsed[T any] struct {
	Value T            // of the row that was read last
	Known map[string]T // decoded values by their text
}

// ScanBytes decodes the text of one row; NULL is the zero value.
func (d *Parsed[T]) ScanBytes(text []byte) error {
	if text == nil {
		d.Value = *new(T)
		return nil
	}

	var ok bool
	if d.Value, ok = d.Known[string(text)]; ok {
		return nil
	}

	var value T
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}

	if d.Known == nil {
		d.Known = map[string]T{}
	}

	d.Known[string(text)], d.Value = value, value
	return nil
}

// TextCache holds the texts of the rows that were read before. Rows are often
// alike, and this way each text is allocated once for a whole list.
type TextCache map[string]string

// Into returns the destination of a column whose text is stored there.
func (w TextCache) Into(place *string) *CachedText { return &CachedText{known: w, place: place} }

// CachedText is the destination of one column; its text is shared through
// known.
type CachedText struct {
	known TextCache
	place *string
}

// ScanBytes stores the text of one row.
func (w *CachedText) ScanBytes(text []byte) error {
	known, ok := w.known[string(text)]
	if !ok {
		known = string(text)
		w.known[known] = known
	}
	*w.place = known
	return nil
}

// JSONText receives the text of a JSON column undecoded.
type JSONText []byte

// ScanBytes copies the text. It reuses the memory of the row before.
func (t *JSONText) ScanBytes(text []byte) error {
	*t = append((*t)[:0], text...)
	return nil
}
