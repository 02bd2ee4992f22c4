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

// minUUIDPrefix is how many characters of a UUID a filter needs at least: a
// shorter prefix would match UUIDs by chance.
const minUUIDPrefix = 8

// maxValues is how many values all parameters of a request may have together.
// It bounds the size of the query to the database.
const maxValues = 500

// query reads the parameters of a request. A filter may be given several times,
// and then selects what any of its values selects. The first error is kept, so
// that callers can read all parameters and check err once.
type query struct {
	values url.Values
	err    error
}

// readQuery reads the query. An unknown parameter is an error, and so is an
// empty value.
func readQuery(r *http.Request, known ...string) *query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	q := &query{values: values}
	if err != nil {
		q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the query %q cannot be read: %v", web.Shorten(r.URL.RawQuery), err))
		return q
	}

	count := 0
	for name, texts := range values {
		count += len(texts)
		if count > maxValues {
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

// fail records an error, unless one is recorded already.
func (q *query) fail(err error) {
	if q.err == nil {
		q.err = err
	}
}

// one reads a parameter that may be given only once; "" if it is absent.
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

// texts reads all values of a parameter.
func (q *query) texts(name string) []string { return q.values[name] }

// uuids reads a parameter whose values are UUIDs.
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

// uuid reads a UUID that may be given only once; uuid.Nil if it is absent.
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

// uuidRange reads the beginning of a UUID. The UUIDs that begin with it lie
// between the prefix filled up with zeroes and the prefix filled up with f's, a
// range that the database finds by its index.
func (q *query) uuidRange(name string) *db.UUIDRange {
	text := q.one(name)
	if text == "" {
		return nil
	}

	// full gives the shape: what the prefix lacks is taken from it, hyphens
	// included.
	const full = "00000000-0000-0000-0000-000000000000"
	fill := func(digit string) (uuid.UUID, error) {
		return uuid.Parse(text + strings.ReplaceAll(full[min(len(text), len(full)):], "0", digit))
	}

	first, err := fill("0")
	last, lastErr := fill("f")
	if err != nil || lastErr != nil || len(text) < minUUIDPrefix || len(text) > len(full) {
		q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the parameter %s is %q, not the beginning of a UUID of %d characters or more",
			name, web.Shorten(text), minUUIDPrefix))
	}

	return &db.UUIDRange{First: first, Last: last}
}

// boolean reads true or false; nil if it is absent.
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

// enumFilter reads a filter whose values must be among the allowed ones.
func enumFilter[S ~string](q *query, name string, allowed []S) []S {
	words := make([]string, len(allowed))
	for i, word := range allowed {
		words[i] = string(word)
	}

	var out []S
	for _, text := range q.values[name] {
		if !slices.Contains(allowed, S(text)) {
			q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the parameter %s is %q, not one of %s", name, web.Shorten(text),
				strings.Join(words, ", ")))
		}
		out = append(out, S(text))
	}

	return out
}

// limit reads how many items a page has at most.
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

// uuidPage is page for lists whose markers are UUIDs. A malformed marker is an
// error here, not in the database.
func (q *query) uuidPage() db.Page {
	q.uuid("marker")
	return q.page()
}

// holder reads at most one of the parameters that name a holder. The map says
// which parameter names which kind of holder.
func (q *query) holder(parameters map[string]cyborg.HolderKind) *cyborg.Holder {
	var holder *cyborg.Holder
	// The order is fixed so that the same query always gets the same error.
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		kind, text := parameters[name], q.one(name)
		if text == "" {
			continue
		}

		if holder != nil {
			q.fail(cyborg.Errorf(cyborg.ErrInvalid, "the parameters name two holders, %s %q and %s %q; name one",
				holder.Kind, web.Shorten(holder.ID), kind, web.Shorten(text)))
		}

		// Reading the UUID only checks it.
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

	// chi matches the escaped path if there is one, for names with slashes. Its
	// parameters are then still escaped.
	if r.URL.RawPath != "" {
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
