package v2

import (
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// Long lists are written straight into the text of the answer, row by row as
// the database returns them. Ten thousand rows then need neither ten thousand
// values in memory nor reflection.

// text is the JSON of an answer while it is being written.
type text []byte

// list is the text of a long list. Neighbouring rows often have the same time,
// so the last formatted time is kept.
type list struct {
	text

	at    time.Time // the time that shown is the text of
	shown []byte
}

// newList begins a list in memory that an earlier list has left, if there is
// any.
func (a *API) newList() list {
	if place, ok := a.places.Get().(*[]byte); ok {
		return list{text: (*place)[:0]}
	}
	return list{}
}

// instant appends a time as JSON.
func (l *list) instant(at time.Time) {
	if l.shown == nil || !at.Equal(l.at) {
		l.at, l.shown = at, at.UTC().AppendFormat(l.shown[:0], `"`+timeLayout+`"`)
	}
	l.text = append(l.text, l.shown...)
}

// since appends the time of the last change, or null if nothing has changed
// since the row was made.
func (l *list) since(made, changed time.Time) {
	if changed.Equal(made) {
		l.raw("null")
		return
	}
	l.instant(changed)
}

// raw appends text that is JSON already.
func (t *text) raw(json string) { *t = append(*t, json...) }

// string appends a text as JSON. Almost all texts are plain ASCII and need at
// most an escaped quote or backslash; any other text is left to json.Marshal.
func (t *text) string(value string) {
	begin := len(*t)
	*t = append(*t, '"')

	for i := range len(value) {
		switch c := value[i]; {
		case c == '"' || c == '\\':
			*t = append(*t, '\\', c)
		case c >= ' ' && c < 0x7f:
			*t = append(*t, c)
		default:
			*t = (*t)[:begin]
			t.any(value)
			return
		}
	}

	*t = append(*t, '"')
}

// orNull appends a text as JSON, or null if it is empty.
func (t *text) orNull(value string) {
	if value == "" {
		t.raw("null")
		return
	}
	t.string(value)
}

// any appends a text as json.Marshal encodes it.
func (t *text) any(value string) {
	out, err := json.Marshal(value)
	if err != nil { // a string always marshals
		panic(err)
	}
	*t = append(*t, out...)
}

// number appends a whole number.
func (t *text) number(value int64) { *t = strconv.AppendInt(*t, value, 10) }

// id is the text of a UUID.
type id [36]byte

// idOf returns the text of a UUID without allocating memory.
func idOf(value uuid.UUID) id {
	var out id
	hex.Encode(out[:8], value[:4])
	out[8] = '-'
	hex.Encode(out[9:13], value[4:6])
	out[13] = '-'
	hex.Encode(out[14:18], value[6:8])
	out[18] = '-'
	hex.Encode(out[19:23], value[8:10])
	out[23] = '-'
	hex.Encode(out[24:], value[10:])

	return out
}

// id appends the text of a UUID as JSON.
func (t *text) id(id *id) {
	*t = append(*t, '"')
	*t = append(*t, id[:]...)
	*t = append(*t, '"')
}

// link appends a link to the member with that UUID. before is the part of the
// address in front of the UUID, already escaped.
func (t *text) link(before string, id *id, rel string) {
	t.raw(`{"href":"`)
	t.raw(before)
	*t = append(*t, id[:]...)
	t.raw(`","rel":"`)
	t.raw(rel)
	t.raw(`"}`)
}

// escaped returns a text as it appears between the quotes of a JSON string.
func escaped(value string) string {
	var t text
	t.string(value)
	return string(t[1 : len(t)-1])
}

// write answers with the list. Afterwards it puts the list's memory back for a
// later one; the caller must not use it again.
func (a *API) write(w http.ResponseWriter, list text) error {
	list.raw("\n")

	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(list)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(list) // a client may have hung up; the status is in the access log

	a.places.Put((*[]byte)(&list))
	return nil
}
