package v2

import (
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// Long lists are written straight into the answer's text, row by row as the database tells of them: ten thousand rows
// then cost no list of ten thousand things in between, and no reflection.

// text is the JSON of an answer in the making.
type text []byte

// list is the text of a long list. Its rows are often of the same moment, so the last one that was written is kept.
type list struct {
	text

	at    time.Time
	shown []byte
}

// newList begins a list in the place of an earlier one, where there is any.
func (a *API) newList() list {
	if place, ok := a.places.Get().(*[]byte); ok {
		return list{text: (*place)[:0]}
	}
	return list{}
}

// instant appends a time.
func (l *list) instant(at time.Time) {
	if l.shown == nil || !at.Equal(l.at) {
		l.at, l.shown = at, at.UTC().AppendFormat(l.shown[:0], `"`+timeLayout+`"`)
	}
	l.text = append(l.text, l.shown...)
}

// since appends when something changed: null where that is when it was made.
func (l *list) since(made, changed time.Time) {
	if changed.Equal(made) {
		l.raw("null")
		return
	}
	l.instant(changed)
}

// raw appends what is JSON already.
func (t *text) raw(json string) { *t = append(*t, json...) }

// string appends a text as JSON. Most have nothing in them but plain characters, quotes and backslashes.
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

// orNull appends a text, or null for an empty one.
func (t *text) orNull(value string) {
	if value == "" {
		t.raw("null")
		return
	}
	t.string(value)
}

// any appends what json.Marshal makes of a text.
func (t *text) any(value string) {
	out, err := json.Marshal(value)
	if err != nil { // a string always marshals
		panic(err)
	}
	*t = append(*t, out...)
}

func (t *text) number(value int64) { *t = strconv.AppendInt(*t, value, 10) }

// id is the text of a UUID.
type id [36]byte

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

func (t *text) id(id *id) {
	*t = append(*t, '"')
	*t = append(*t, id[:]...)
	*t = append(*t, '"')
}

// link appends one link to the thing of that UUID; before is where it leads but for that, and needs no escape.
func (t *text) link(before string, id *id, rel string) {
	t.raw(`{"href":"`)
	t.raw(before)
	*t = append(*t, id[:]...)
	t.raw(`","rel":"`)
	t.raw(rel)
	t.raw(`"}`)
}

// escaped is the text as it stands between the quotes of JSON.
func escaped(value string) string {
	var t text
	t.string(value)
	return string(t[1 : len(t)-1])
}

// write answers with the list, and keeps its place for a later one.
func (a *API) write(w http.ResponseWriter, list text) error {
	list.raw("\n")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(list)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(list) // the caller may be gone; the access log has the status
	a.places.Put((*[]byte)(&list))
	return nil
}
