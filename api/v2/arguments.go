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

// longestArgument is the largest number of characters of an argument. It has
// room for a list of a thousand UUIDs and bounds what the server has to parse.
const longestArgument = 40_000

// arguments holds the query parameters of a request. It keeps only the first
// error, so that a handler can read all parameters and check for an error once.
type arguments struct {
	values map[string]string // each parameter may be given once
	fields url.Values        // the filters, which may be given several times
	err    error
}

// readArguments reads the query. A parameter that is not among the known ones
// is an error.
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

// fail keeps the error, of kind ErrInvalid, unless there already is one.
func (q *arguments) fail(format string, args ...any) {
	if q.err == nil {
		q.err = cyborg.Errorf(cyborg.ErrInvalid, format, args...)
	}
}

// check rejects a text that could not be stored or would garble a log.
func (q *arguments) check(place, text string) {
	if err := web.CheckText(place, text, longestArgument); err != nil {
		q.fail("%s", cyborg.AsError(err).Message)
	}
}

// has reports whether the argument is given, possibly as an empty text.
func (q *arguments) has(name string) bool { _, ok := q.values[name]; return ok }

// text returns the argument's value, or an empty text.
func (q *arguments) text(name string) string { return q.values[name] }

// filled reports whether the argument is given and not empty. Where upstream
// filters, an empty argument counts as absent.
func (q *arguments) filled(name string) bool { return q.values[name] != "" }

// list reads an argument whose values are separated by commas. It returns nil
// for an empty or absent argument.
func (q *arguments) list(name string) []string {
	if q.values[name] == "" {
		return nil
	}
	return strings.Split(q.values[name], ",")
}

// uuid reads an argument that is a UUID; uuid.Nil if it is absent.
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

// whole reads a whole number that is not negative; 0 if the argument is absent.
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

// parseUUID reads a UUID as leniently as upstream does (oslo.utils
// is_uuid_like): hyphens, letter case, braces and the prefix urn:uuid: make no
// difference.
func parseUUID(text string) (uuid.UUID, bool) {
	plain := strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(strings.ReplaceAll(text, "urn:", ""), "{"), "}"), "uuid:", "")
	plain = strings.ReplaceAll(plain, "-", "")

	const digits = 32

	// uuid.Parse accepts other lengths with other meanings, so the length is
	// checked first.
	if len(plain) != digits {
		return uuid.Nil, false
	}

	id, err := uuid.Parse(plain)
	return id, err == nil
}

// parseNumber reads one of the small integer ids that deployables and devices
// have besides their UUIDs.
func parseNumber(text string) (int64, bool) {
	number, err := strconv.ParseInt(text, 10, 64)
	return number, err == nil && number > 0
}

// pathText returns the part of the path that the route's pattern names so.
func pathText(r *http.Request, name string) string { return chi.URLParam(r, name) }
