package v1

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// Page sizes of lists.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// shortestPrefix is how much of a UUID a filter takes for its beginning: less would choose by chance.
const shortestPrefix = 8

// maxValues is how many values the parameters of a request may have together.
const maxValues = 500

// query reads the parameters of a request. A filter may be given several times, and chooses what any of its values
// chooses. The first thing that is wrong is kept.
type query struct {
	values url.Values
	err    error
}

// readQuery reads the query; a parameter that is not among the known ones is wrong, and so is an empty one.
func readQuery(r *http.Request, known ...string) *query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	q := &query{values: values}
	if err != nil {
		q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the query %q cannot be read: %v", web.Shorten(r.URL.RawQuery), err))
		return q
	}
	count := 0
	for name, texts := range values {
		if count += len(texts); count > maxValues {
			q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the query has more than %d values", maxValues).WithHint("Send several requests."))
			return q
		}
		if !slices.Contains(known, name) {
			hint := "There are none here."
			if len(known) > 0 {
				hint = "The parameters are " + strings.Join(known, ", ") + "."
			}
			q.fail(cyborg.Errorf(cyborg.ErrInvalid, "%q is no parameter here; its value was %q",
				web.Shorten(name), web.Shorten(strings.Join(texts, ","))).WithHint("%s", hint))
			continue
		}
		for _, text := range texts {
			if text == "" {
				q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the parameter %s is empty", name))
			} else if err := web.CheckText("the parameter "+name, text, maxName); err != nil {
				q.fail(err)
			}
		}
	}
	return q
}

func (q *query) fail(err error) {
	if q.err == nil {
		q.err = err
	}
}

// one reads a parameter that may be given once.
func (q *query) one(name string) string {
	texts := q.values[name]
	if len(texts) > 1 {
		q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the parameter %s is given %d times; it may be given once", name, len(texts)))
	}
	if len(texts) == 0 {
		return ""
	}
	return texts[0]
}

func (q *query) texts(name string) []string { return q.values[name] }

func (q *query) uuids(name string) []uuid.UUID {
	var ids []uuid.UUID
	for _, text := range q.values[name] {
		id, err := parseUUID("the parameter "+name, text)
		if err != nil {
			q.fail(err)
		}
		ids = append(ids, id)
	}
	return ids
}

func (q *query) uuid(name string) uuid.UUID {
	text := q.one(name)
	if text == "" {
		return uuid.Nil
	}
	id, err := parseUUID("the parameter "+name, text)
	if err != nil {
		q.fail(err)
	}
	return id
}

// among reads the beginning of a UUID: those that begin so lie between the one that goes on with zeroes and the one that
// goes on with f's.
func (q *query) among(name string) *db.UUIDRange {
	text := q.one(name)
	if text == "" {
		return nil
	}
	const full = "00000000-0000-0000-0000-000000000000"
	fill := func(digit string) (uuid.UUID, error) {
		return uuid.Parse(text + strings.ReplaceAll(full[min(len(text), len(full)):], "0", digit))
	}
	first, err := fill("0")
	last, other := fill("f")
	if err != nil || other != nil || len(text) < shortestPrefix || len(text) > len(full) {
		q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the parameter %s is %q, not the beginning of a UUID of %d characters or more",
			name, web.Shorten(text), shortestPrefix))
	}
	return &db.UUIDRange{First: first, Last: last}
}

func (q *query) boolean(name string) *bool {
	text := q.one(name)
	if text == "" {
		return nil
	}
	flag := text == "true"
	if !flag && text != "false" {
		q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the parameter %s is %q, not true or false", name, web.Shorten(text)))
	}
	return &flag
}

// words reads a filter whose values come from a list.
func words[S ~string](q *query, name string, allowed []S) []S {
	words := make([]string, len(allowed))
	for i, word := range allowed {
		words[i] = string(word)
	}
	var out []S
	for _, text := range q.values[name] {
		if !slices.Contains(allowed, S(text)) {
			q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the parameter %s is %q, which is none of %s", name, web.Shorten(text),
				strings.Join(words, ", ")))
		}
		out = append(out, S(text))
	}
	return out
}

func (q *query) limit() int {
	text := q.one("limit")
	if text == "" {
		return defaultLimit
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > maxLimit {
		q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the parameter limit is %q, not a whole number from 1 to %d", web.Shorten(text), maxLimit))
	}
	return limit
}

// page reads limit and marker.
func (q *query) page() db.Page { return db.Page{Limit: q.limit(), Marker: q.one("marker")} }

// uuidPage is page for lists whose markers are UUIDs.
func (q *query) uuidPage() db.Page {
	q.uuid("marker")
	return q.page()
}

// holder reads at most one of the parameters that name a holder; the map says which parameter names which kind.
func (q *query) holder(parameters map[string]cyborg.HolderKind) *cyborg.Holder {
	var holder *cyborg.Holder
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		kind, text := parameters[name], q.one(name)
		if text == "" {
			continue
		}
		if holder != nil {
			q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the parameters name two holders, %s %q and %s %q; name one",
				holder.Kind, web.Shorten(holder.ID), kind, web.Shorten(text)))
		}
		if kind == cyborg.HolderInstance {
			q.uuid(name)
		}
		holder = &cyborg.Holder{Kind: kind, ID: text}
	}
	return holder
}

// pathUUID reads a UUID from the path.
func pathUUID(r *http.Request, name string) (uuid.UUID, error) {
	text, err := pathText(r, name)
	if err != nil {
		return uuid.Nil, err
	}
	return parseUUID("the "+name+" in the path", text)
}

// pathText reads a name from the path.
func pathText(r *http.Request, name string) (string, error) {
	text := chi.URLParam(r, name)
	if r.URL.RawPath != "" { // then chi matched the escaped path
		plain, err := url.PathUnescape(text)
		if err != nil {
			return "", cyborg.Errorf(cyborg.ErrInvalid, "the %s in the path cannot be read: %v", name, err)
		}
		text = plain
	}
	if strings.TrimSpace(text) == "" {
		return "", cyborg.Errorf(cyborg.ErrInvalid, "the %s in the path is empty", name)
	}
	return text, web.CheckText("the "+name+" in the path", text, maxName)
}
