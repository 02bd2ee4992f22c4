package v2

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
)

// longestArgument is how many characters an argument may have: a list of a thousand UUIDs, and less than a server that
// reads them need fear.
const longestArgument = 40_000

// arguments are the parameters of a request's query, each of which may be given once. The first thing that is wrong is
// kept.
type arguments struct {
	values map[string]string
	fields url.Values // of filters, which may be given several times
	err    error
}

// readArguments reads the query; what is not among the known ones is wrong.
func readArguments(r *http.Request, known ...string) *arguments {
	q := &arguments{values: map[string]string{}}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		q.fail("the query %q cannot be read: %v", web.Shorten(r.URL.RawQuery), err)
		return q
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(known, name) {
			q.fail("Unknown argument: %q", web.Shorten(name))
			return q
		}
		given := values[name]
		if len(given) > 1 && name != filterFields && name != filterValues {
			q.fail("the argument %s is given %d times; it may be given once", name, len(given))
		}
		for _, text := range given {
			q.check("the argument "+name, text)
		}
		q.values[name] = given[0]
	}
	q.fields = values
	return q
}

func (q *arguments) fail(format string, args ...any) {
	if q.err == nil {
		q.err = cyborg.Errorf(cyborg.ErrInvalid, format, args...)
	}
}

// check refuses what could not be stored, or would garble a log.
func (q *arguments) check(place, text string) {
	if err := web.CheckText(place, text, longestArgument); err != nil {
		q.fail("%s", cyborg.AsError(err).Message)
	}
}

// has says whether the argument is given, if only as an empty text.
func (q *arguments) has(name string) bool { _, ok := q.values[name]; return ok }

func (q *arguments) text(name string) string { return q.values[name] }

// filled says whether the argument is given with something in it: upstream takes an empty one for none where it filters.
func (q *arguments) filled(name string) bool { return q.values[name] != "" }

// list reads an argument whose values are separated by commas.
func (q *arguments) list(name string) []string {
	if q.values[name] == "" {
		return nil
	}
	return strings.Split(q.values[name], ",")
}

func (q *arguments) uuid(name string) uuid.UUID {
	if !q.has(name) {
		return uuid.Nil
	}
	id, ok := parseUUID(q.values[name])
	if !ok {
		q.fail("Expected a uuid but received %s, in the argument %s", web.Shorten(q.values[name]), name)
	}
	return id
}

// whole reads a whole number that is not negative; 0 where the argument is not given.
func (q *arguments) whole(name string) int {
	if !q.has(name) {
		return 0
	}
	number, err := strconv.ParseInt(q.values[name], 10, 32)
	if err != nil || number < 0 {
		q.fail("the argument %s is %q, not a whole number", name, web.Shorten(q.values[name]))
	}
	return int(number)
}

// parseUUID reads a UUID as upstream does (oslo.utils is_uuid_like): hyphens and the case of letters do not matter.
func parseUUID(text string) (uuid.UUID, bool) {
	plain := strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(strings.ReplaceAll(text, "urn:", ""), "{"), "}"), "uuid:", "")
	plain = strings.ReplaceAll(plain, "-", "")
	const digits = 32
	if len(plain) != digits {
		return uuid.Nil, false
	}
	id, err := uuid.Parse(plain)
	return id, err == nil
}

// parseNumber reads one of the small integers that deployables and devices have beside their UUIDs.
func parseNumber(text string) (int64, bool) {
	number, err := strconv.ParseInt(text, 10, 64)
	return number, err == nil && number > 0
}

// pathText is what the path has for that name.
func pathText(r *http.Request, name string) string { return chi.URLParam(r, name) }
