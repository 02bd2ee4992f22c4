package v1

import (
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// Longest texts, in characters.
const (
	maxName   = 255
	maxReason = 1000
	maxSource = 4000
)

// maxTree is the largest free-form data, in bytes as JSON. It is low because
// the data is shown with each accelerator, even in lists of a thousand.
const maxTree = 64 << 10

// object reads the properties of a JSON object one by one, by methods named
// after their types. It keeps the first error, so that callers can read all
// properties and check once, with done. A property that nobody has read by then
// is an error too.
type object struct {
	// path is where the object is in the body; empty for the body itself.
	path string

	// unread are the properties that nobody has asked for yet; known are the names
	// of those that somebody has.
	unread map[string]any
	known  []string

	// failure is shared with the objects inside this one.
	failure *failure

	// canonical is the body as JSON with its properties sorted, so that two bodies
	// with the same meaning have one text. Only the outermost object has it.
	canonical string
}

// failure is the first error in a body, shared by an object and the objects
// inside it.
type failure struct {
	err error
	// missing says that err is about a missing property. An unknown property then
	// replaces err: it is probably the missing one, mistyped.
	missing bool
}

// body reads the request's body as an object; an empty body is an empty object.
// It also rejects a malformed Idempotency-Key, even for requests that do not
// use it, so that a key is valid everywhere or nowhere.
func (a *API) body(w http.ResponseWriter, r *http.Request) (*object, error) {
	if _, err := idempotencyKey(r); err != nil {
		return nil, err
	}

	text, err := web.ReadBody(w, r, a.config.BodyLimit)
	if err != nil {
		return nil, err
	}

	value := any(map[string]any{})
	if strings.TrimSpace(string(text)) != "" {
		if value, err = web.ParseJSON(text); err != nil {
			return nil, err
		}
	}

	properties, ok := value.(map[string]any)
	if !ok {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the body is %s, not an object", web.Describe(value))
	}

	canonical, err := json.Marshal(properties) // sorts the properties
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "the body does not marshal: %w", err)
	}

	return &object{unread: properties, failure: &failure{}, canonical: string(canonical)}, nil
}

// emptyBody checks that the body is empty or an empty object, for requests that
// say everything in their path.
func (a *API) emptyBody(w http.ResponseWriter, r *http.Request) error {
	o, err := a.body(w, r)
	if err != nil {
		return err
	}

	return o.done()
}

// done returns the first error. Call it when all known properties have been
// read: it reports the properties that are left.
func (o *object) done() error {
	if (o.failure.err == nil || o.failure.missing) && len(o.unread) > 0 {
		o.failure.missing = false

		names := slices.Sorted(maps.Keys(o.unread))
		known := "There are none here."
		if len(o.known) > 0 {
			known = "The properties are " + strings.Join(o.known, ", ") + "."
		}

		o.failure.err = cyborg.Errorf(cyborg.ErrInvalid, "%s is no property here; its value was %s",
			o.at(names[0]), web.Describe(o.unread[names[0]])).WithHint("%s", known)
	}

	return o.failure.err
}

// at returns the path of a property in the body, for messages.
func (o *object) at(name string) string { return web.Join(o.path, name) }

// fail records an error of kind ErrInvalid, unless one is recorded already.
func (o *object) fail(format string, args ...any) {
	if o.failure.err == nil {
		o.failure.err = cyborg.Errorf(cyborg.ErrInvalid, format, args...)
	}
}

// missing records that a property must be given.
func (o *object) missing(name string) {
	if o.failure.err == nil {
		o.fail("%s is missing", o.at(name))
		o.failure.missing = true
	}
}

// take returns the value of a property and marks it as read; null counts as
// absent.
func (o *object) take(name string) (any, bool) {
	o.known = append(o.known, name)

	value, ok := o.unread[name]
	delete(o.unread, name)
	return value, ok && value != nil
}

// has reports whether the object has the property, without marking it as read.
func (o *object) has(name string) bool {
	value, ok := o.unread[name]
	return ok && value != nil
}

// text reads a text without control characters of at most longest characters;
// nil if it is absent.
func (o *object) text(name string, longest int) *string {
	value, ok := o.take(name)
	if !ok {
		return nil
	}

	text, ok := value.(string)
	if !ok {
		o.fail("%s is %s, not a text", o.at(name), web.Describe(value))
		return nil
	}

	if err := web.CheckText(o.at(name), text, longest); err != nil && o.failure.err == nil {
		o.failure.err = err
	}
	return &text
}

// name reads a text that must not be empty if it is given; "" if it is absent.
func (o *object) name(name string, longest int) string {
	text := o.text(name, longest)
	if text == nil {
		return ""
	}

	if strings.TrimSpace(*text) == "" {
		o.fail("%s is empty", o.at(name))
	}

	return *text
}

// uuid reads a UUID; uuid.Nil if it is absent.
func (o *object) uuid(name string) uuid.UUID {
	text := o.text(name, maxName)
	if text == nil {
		return uuid.Nil
	}

	id, err := parseUUID(o.at(name), *text)
	if err != nil && o.failure.err == nil {
		o.failure.err = err
	}

	return id
}

// boolean reads true or false; nil if it is absent.
func (o *object) boolean(name string) *bool {
	value, ok := o.take(name)
	if !ok {
		return nil
	}

	flag, ok := value.(bool)
	if !ok {
		o.fail("%s is %s, not true or false", o.at(name), web.Describe(value))
	}

	return &flag
}

// count reads a whole number from 0 to 2147483647; nil if it is absent.
func (o *object) count(name string) *int {
	value, ok := o.take(name)
	if !ok {
		return nil
	}

	number, ok := value.(int64)
	if !ok || number < 0 || number > math.MaxInt32 {
		o.fail("%s is %s, not a whole number from 0 to %d", o.at(name), web.Describe(value), math.MaxInt32)
		return nil
	}

	count := int(number)
	return &count
}

// maxYear is the last year that RFC 3339 can write.
const maxYear = 9999

// time reads a time in the format of RFC 3339, and returns it in UTC; the zero
// time if it is absent.
func (o *object) time(name string) time.Time {
	text := o.text(name, maxName)
	if text == nil {
		return time.Time{}
	}

	at, err := time.Parse(time.RFC3339, *text)
	if err != nil {
		o.fail("%s is %q, not a time such as 2027-01-31T18:00:00Z", o.at(name), *text)
	}

	// Answers show times in UTC, where the last hours of 9999 in the west are in
	// the year 10000, which RFC 3339 cannot write.
	at = at.UTC()
	if at.Year() < 0 || at.Year() > maxYear {
		o.fail("%s is %q, which is not within the years 0 to %d in UTC", o.at(name), *text, maxYear)
	}

	return at
}

// duration reads a positive time span in Go's notation, such as 90m; 0 if it is
// absent.
func (o *object) duration(name string) time.Duration {
	text := o.text(name, maxName)
	if text == nil {
		return 0
	}

	d, err := time.ParseDuration(*text)
	if err != nil || d <= 0 {
		o.fail("%s is %q, not a time span such as 90m or 12h", o.at(name), *text)
	}

	return d
}

// tree reads free-form structured data of at most maxTree bytes; nil if it is
// absent.
func (o *object) tree(name string) cyborg.JSONObject {
	value, ok := o.take(name)
	if !ok {
		return nil
	}

	properties, ok := value.(map[string]any)
	if !ok {
		o.fail("%s is %s, not an object", o.at(name), web.Describe(value))
	}

	if text, err := json.Marshal(properties); err != nil || len(text) > maxTree {
		o.fail("%s is longer than %d bytes", o.at(name), maxTree)
	}

	return properties
}

// parameters reads what is chosen for a handle, by the names of its parameters; nil if
// nothing is. Which parameters and values there are is known only where the accelerator is.
func (o *object) parameters(name string) map[string]string {
	given := o.object(name)
	if given == nil {
		return nil
	}

	var chosen map[string]string
	for _, parameter := range slices.Sorted(maps.Keys(given.unread)) {
		if !cyborg.IsParameterName(parameter) {
			o.fail("%s has %q, which is no name of a parameter: that is words in small letters, connected by underscores",
				given.path, web.Shorten(parameter))
		}

		if given.unread[parameter] == nil { // does it mean the driver's choice, or none at all?
			o.fail("%s is null, not a text", given.at(parameter))
		}

		value := given.text(parameter, cyborg.LongestParameter)
		if value == nil {
			continue
		}
		if len(*value) > cyborg.LongestParameter {
			o.fail("%s has more than %d bytes", given.at(parameter), cyborg.LongestParameter)
		}

		if chosen == nil {
			chosen = map[string]string{}
		}
		chosen[parameter] = *value
	}

	_ = given.done() // the outer object returns the error
	return chosen
}

// object reads an object inside this one; nil if it is absent. The two share
// their first error. The caller must call done on the inner object too.
func (o *object) object(name string) *object {
	value, ok := o.take(name)
	if !ok {
		return nil
	}

	properties, ok := value.(map[string]any)
	if !ok {
		o.fail("%s is %s, not an object", o.at(name), web.Describe(value))
		properties = map[string]any{}
	}

	return &object{path: o.at(name), unread: properties, failure: o.failure}
}

// specs reads acc_specs; it returns the zero patch, which changes nothing, if
// they are absent.
func (o *object) specs(name string) cyborg.SpecsPatch {
	specs := o.object(name)
	if specs == nil {
		return cyborg.SpecsPatch{}
	}

	patch := cyborg.SpecsPatch{
		Remote:     specs.boolean("remote"),
		Remotable:  specs.boolean("remotable"),
		Num:        specs.count("num"),
		Type:       specs.text("acc_type", maxName),
		Capability: specs.tree("acc_capability"),
		VendorID:   specs.text("vendor_id", maxName),
		ProductID:  specs.text("product_id", maxName),
	}

	for _, id := range []*string{patch.VendorID, patch.ProductID} {
		if id != nil {
			*id = cyborg.PCIID(*id)
		}
	}

	if text := specs.text("device_type", maxName); text != nil {
		deviceType := cyborg.DeviceType(*text)
		patch.DeviceType = &deviceType
	}

	_ = specs.done() // the outer object returns the error
	return patch
}

// parseUUID reads a UUID in the usual form with hyphens. The other forms that
// uuid.Parse accepts are rejected, so that each UUID has one spelling.
func parseUUID(place, text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return uuid.Nil, cyborg.Errorf(cyborg.ErrInvalid, "%s is %q, not a UUID", place, web.Shorten(text)).
			WithHint("A UUID looks like 5b7a31d2-6a0c-4a6b-9d33-6a58a2f0c1de.")
	}
	return id, nil
}
