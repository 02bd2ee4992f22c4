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

// maxTree is the largest free-form data, in bytes as JSON. It is shown with each accelerator, also in lists of a thousand.
const maxTree = 64 << 10

// object reads a JSON object property by property. The first thing that is wrong is kept; what nobody asked for is
// wrong too.
type object struct {
	path  string
	left  map[string]any // properties nobody has asked for yet
	known []string
	whole *failure
	// canonical is the whole body in one form, however it was spaced and ordered; only the outermost object has it.
	canonical string
}

// failure is shared by an object and the objects in it.
type failure struct {
	err error
	// missing says that err is about a property that is not there. One that is there and that nobody knows says more: it is
	// probably the same, mistyped.
	missing bool
}

// body reads the request's body as an object; none at all is the empty object.
func (a *API) body(w http.ResponseWriter, r *http.Request) (*object, error) {
	if _, err := idempotencyKey(r); err != nil { // also where nothing depends on it: the same key is good everywhere or nowhere
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
	return &object{left: properties, whole: &failure{}, canonical: string(canonical)}, nil
}

// emptyBody is for requests that say all in their path.
func (a *API) emptyBody(w http.ResponseWriter, r *http.Request) error {
	o, err := a.body(w, r)
	if err != nil {
		return err
	}
	return o.done()
}

// done returns what was wrong, if anything.
func (o *object) done() error {
	if (o.whole.err == nil || o.whole.missing) && len(o.left) > 0 {
		o.whole.missing = false
		names := slices.Sorted(maps.Keys(o.left))
		known := "There are none here."
		if len(o.known) > 0 {
			known = "The properties are " + strings.Join(o.known, ", ") + "."
		}
		o.whole.err = cyborg.Errorf(cyborg.ErrInvalid, "%s is no property here; its value was %s",
			o.at(names[0]), web.Describe(o.left[names[0]])).WithHint("%s", known)
	}
	return o.whole.err
}

func (o *object) at(name string) string { return web.Join(o.path, name) }

func (o *object) fail(format string, args ...any) {
	if o.whole.err == nil {
		o.whole.err = cyborg.Errorf(cyborg.ErrInvalid, format, args...)
	}
}

// missing says that a property must be given.
func (o *object) missing(name string) {
	if o.whole.err == nil {
		o.fail("%s is missing", o.at(name))
		o.whole.missing = true
	}
}

// take returns a property's value; null is as good as none.
func (o *object) take(name string) (any, bool) {
	o.known = append(o.known, name)
	value, ok := o.left[name]
	delete(o.left, name)
	return value, ok && value != nil
}

// has says whether the object has the property, which must be asked for later.
func (o *object) has(name string) bool {
	value, ok := o.left[name]
	return ok && value != nil
}

// text reads a text without control characters; nil where there is none.
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
	if err := web.CheckText(o.at(name), text, longest); err != nil && o.whole.err == nil {
		o.whole.err = err
	}
	return &text
}

// name reads a text that is not empty; "" where there is none.
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

func (o *object) uuid(name string) uuid.UUID {
	text := o.text(name, maxName)
	if text == nil {
		return uuid.Nil
	}
	id, err := parseUUID(o.at(name), *text)
	if err != nil && o.whole.err == nil {
		o.whole.err = err
	}
	return id
}

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

func (o *object) time(name string) time.Time {
	text := o.text(name, maxName)
	if text == nil {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, *text)
	if err != nil {
		o.fail("%s is %q, not a time such as 2027-01-31T18:00:00Z", o.at(name), *text)
	}
	return at
}

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

// tree reads free-form structured data.
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

// object reads an object of known properties; nil where there is none.
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
	return &object{path: o.at(name), left: properties, whole: o.whole}
}

// specs reads acc_specs; the zero patch where there are none.
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
	_ = specs.done() // kept in the whole
	return patch
}

// parseUUID accepts the usual form with hyphens only.
func parseUUID(place, text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return uuid.Nil, cyborg.Errorf(cyborg.ErrInvalid, "%s is %q, not a UUID", place, web.Shorten(text)).
			WithHint("A UUID looks like 5b7a31d2-6a0c-4a6b-9d33-6a58a2f0c1de.")
	}
	return id, nil
}
