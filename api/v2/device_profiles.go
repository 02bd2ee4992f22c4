package v2

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

const (
	// longestName is the largest number of characters of a name; upstream's columns
	// have as many.
	longestName = 255
	// mostRequests is the largest number of accelerator requests that one use of a
	// profile may create.
	mostRequests = 1000
)

var (
	profileNamePattern = regexp.MustCompile(`^[a-zA-Z0-9-_]+$`)
	// customPattern matches what Placement accepts as the name of a custom trait or
	// resource class.
	customPattern = regexp.MustCompile(`^CUSTOM_[A-Z0-9_]{1,248}$`)
)

// standardClassTable has the standard resource classes of Placement that a
// profile may ask for.
var standardClassTable = map[string]bool{"FPGA": true, "GPU": true, "VGPU": true, "PGPU": true}

// deviceProfileView is a device profile as upstream shows it in a list.
type deviceProfileView struct {
	UUID        uuid.UUID           `json:"uuid"`
	Name        string              `json:"name"`
	Description *string             `json:"description"`
	Groups      []map[string]string `json:"groups"`
	CreatedAt   *string             `json:"created_at"`
	UpdatedAt   *string             `json:"updated_at"`
	Links       []linkView          `json:"links"`
}

// oneDeviceProfileView has the same members in the order in which upstream
// shows a single profile.
type oneDeviceProfileView struct {
	Name        string              `json:"name"`
	Description *string             `json:"description"`
	UUID        uuid.UUID           `json:"uuid"`
	Groups      []map[string]string `json:"groups"`
	CreatedAt   *string             `json:"created_at"`
	UpdatedAt   *string             `json:"updated_at"`
	Links       []linkView          `json:"links"`
}

// viewDeviceProfile converts a device profile to its view.
func (a *API) viewDeviceProfile(r *http.Request, p cyborg.DeviceProfile) deviceProfileView {
	return deviceProfileView{
		UUID: p.UUID, Name: p.Name, Description: orNull(p.Description), Groups: p.Groups,
		CreatedAt: viewTime(p.CreatedAt), UpdatedAt: viewTime(p.UpdatedAt),
		Links: []linkView{a.selfLink(r, "device_profiles", p.UUID.String())},
	}
}

// listDeviceProfiles answers with the device profiles that match the query.
func (a *API) listDeviceProfiles(w http.ResponseWriter, r *http.Request) error {
	q := readArguments(r, append(listingArguments(), "name")...)
	listing := q.listing(false)

	var filter db.DeviceProfileFilter

	// An empty name matches no profile, so it is not the same as no name.
	if q.has("name") {
		filter.Names = strings.Split(q.text("name"), ",")
	}

	if q.err != nil {
		return q.err
	}

	found, err := a.store.DeviceProfiles(r.Context(), filter, listing)
	if err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusOK, map[string][]deviceProfileView{
		"device_profiles": each(found, func(p cyborg.DeviceProfile) deviceProfileView { return a.viewDeviceProfile(r, p) }),
	})
}

// showDeviceProfile answers with one device profile, by its UUID or, since
// microversion 2.2, by its name.
func (a *API) showDeviceProfile(w http.ResponseWriter, r *http.Request) error {
	text := pathText(r, "profile")

	if q := readArguments(r); q.err != nil {
		return q.err
	}
	if err := web.CheckText("the device profile", text, longestName); err != nil {
		return err
	}

	filter := chooseProfile(text)
	if len(filter.UUIDs) == 0 {
		if err := needs(r.Context(), minorName); err != nil {
			return err
		}
	}

	found, err := a.store.DeviceProfiles(r.Context(), filter, db.Listing{})
	if err != nil {
		return err
	}

	if len(found) == 0 {
		return cyborg.Errorf(cyborg.ErrNotFound, "there is no device profile %s", text)
	}

	p := a.viewDeviceProfile(r, found[0])
	return web.WriteJSON(w, http.StatusOK, map[string]oneDeviceProfileView{
		"device_profile": {p.Name, p.Description, p.UUID, p.Groups, p.CreatedAt, p.UpdatedAt, p.Links},
	})
}

// chooseProfile returns the filter for what a caller names: a UUID if the text
// is one, otherwise a name.
func chooseProfile(text string) db.DeviceProfileFilter {
	if id, ok := parseUUID(text); ok {
		return db.DeviceProfileFilter{UUIDs: []uuid.UUID{id}}
	}
	return db.DeviceProfileFilter{Names: []string{text}}
}

// deleteDeviceProfiles deletes the profiles that the path or the argument value
// names, by UUID or name, separated by commas. It deletes all of them or none.
func (a *API) deleteDeviceProfiles(w http.ResponseWriter, r *http.Request) error {
	q := readArguments(r, "value")
	text := q.text("value")

	if in := pathText(r, "profile"); in != "" {
		if q.has("value") {
			q.fail("the profile is named in the path and by the argument value; name it once")
		}
		q.check("the device profile", in)
		text = in
	}

	if text == "" {
		q.fail("Missing argument: %q", "value")
	}

	if q.err != nil {
		return q.err
	}

	var filters []db.DeviceProfileFilter
	for part := range strings.SplitSeq(text, ",") {
		filters = append(filters, chooseProfile(part))
	}

	if err := a.store.DeleteDeviceProfiles(r.Context(), filters, actor(r)); err != nil {
		return err
	}

	return writeEmpty(w, http.StatusNoContent)
}

// createDeviceProfile creates a device profile and answers with it. The body is
// a list, as in upstream, with exactly one profile in it.
func (a *API) createDeviceProfile(w http.ResponseWriter, r *http.Request) error {
	if q := readArguments(r); q.err != nil {
		return q.err
	}

	body, err := a.body(w, r)
	if err != nil {
		return err
	}

	list, ok := body.([]any)
	if !ok || len(list) != 1 {
		return cyborg.Errorf(cyborg.ErrInvalid, "Only one device profile allowed per POST request for now").
			WithHint("Send a list with one device profile in it.")
	}

	profile, err := readProfile(list[0])
	if err != nil {
		return err
	}

	made, err := a.store.CreateDeviceProfile(r.Context(), profile, actor(r))
	if err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusCreated, a.viewDeviceProfile(r, made))
}

// readProfile reads a device profile. Like upstream, it ignores members that it
// does not know.
func readProfile(value any) (cyborg.DeviceProfile, error) {
	var p cyborg.DeviceProfile
	members, ok := value.(map[string]any)
	if !ok {
		return p, cyborg.Errorf(cyborg.ErrInvalid, "the device profile is %s, not an object", web.Describe(value))
	}

	if members["name"] != nil && members["name"] != "" {
		if p.Name, ok = members["name"].(string); !ok {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "the name is %s, not a text", web.Describe(members["name"]))
		}
	}

	switch {
	case p.Name == "":
		return p, cyborg.Errorf(cyborg.ErrInvalid, "DeviceProfile name needed")
	case !profileNamePattern.MatchString(p.Name):
		return p, cyborg.Errorf(cyborg.ErrInvalid, "Device profile name %q must match %s", web.Shorten(p.Name), profileNamePattern)
	case len(p.Name) > longestName:
		return p, cyborg.Errorf(cyborg.ErrInvalid, "the name %q has more than %d characters", web.Shorten(p.Name), longestName)
	}

	if given := members["description"]; given != nil {
		if p.Description, ok = given.(string); !ok {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "the description is %s, not a text", web.Describe(given))
		}
	}

	if given := members["uuid"]; given != nil {
		text, _ := given.(string)
		if p.UUID, ok = parseUUID(text); !ok || p.UUID == uuid.Nil {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "Expected a uuid but received %s", web.Describe(given))
		}
	}

	var err error
	p.Groups, err = readGroups(members["groups"])
	return p, err
}

// readGroups reads the groups of a device profile. It bounds the resources that
// they ask for together, because each of them becomes an accelerator request.
func readGroups(value any) ([]map[string]string, error) {
	list, ok := value.([]any)
	if value != nil && !ok {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "groups is %s, not a list", web.Describe(value))
	}

	if len(list) == 0 {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "DeviceProfile needs groups field")
	}

	groups := make([]map[string]string, len(list))
	requests := 0

	for i, item := range list {
		members, ok := item.(map[string]any)
		if !ok {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "group %d is %s, not an object", i, web.Describe(item))
		}

		groups[i] = map[string]string{}

		for key, value := range members {
			clean, text, err := readGroupMember(key, value)
			if err != nil {
				return nil, err
			}
			if _, twice := groups[i][clean]; twice {
				return nil, cyborg.Errorf(cyborg.ErrInvalid, "group %d has %s twice", i, clean)
			}

			groups[i][clean] = text
			if amount, err := strconv.Atoi(text); err == nil && strings.HasPrefix(clean, "resources:") {
				requests += amount
			}
		}

		if groups[i]["accel:bitstream_id"] != "" && groups[i]["accel:function_id"] != "" {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "group %d has accel:bitstream_id and accel:function_id, which each choose an image", i).
				WithHint("Keep one of them.")
		}
	}

	if requests > mostRequests {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the groups ask for %d resources, and the most is %d", requests, mostRequests)
	}

	return groups, nil
}

// readGroupMember reads one member of a group. It returns the form in which it
// is stored: the name without spaces around it, and an amount as a text. Nova
// reads both from the profile.
func readGroupMember(key string, value any) (clean, text string, err error) {
	kind, name, ok := strings.Cut(key, ":")
	name = strings.TrimSpace(name)
	if !ok {
		kind = "" // a key without a colon is of no kind
	}

	switch v := value.(type) {
	case string:
		text = v
	case int64:
		text = strconv.FormatInt(v, 10)
	default:
		return "", "", cyborg.Errorf(cyborg.ErrInvalid, "%s is %s, not a text", web.Shorten(key), web.Describe(value))
	}

	switch kind {
	case "accel":
		switch property := strings.ToLower(name); {
		case strings.HasPrefix(property, "parameter"):
			return readParameter(name, text)
		case strings.HasPrefix(property, "clean"):
			return readCleaning(name, text)
		}
		return key, text, nil
	case "trait":
		return readTrait(name, text)
	case "resources":
		return readResources(name, text)
	}

	return "", "", cyborg.Errorf(cyborg.ErrInvalid, "Unsupported group key %q; it begins with none of resources:, trait:, accel:", web.Shorten(key))
}

// readParameter checks what a profile chooses for a handle. Whether the accelerator
// takes it is known when a request of the profile is bound. A property that only looks
// like a parameter is refused: it would choose nothing, and the handle would be without
// its VLAN unnoticed.
func readParameter(property, text string) (clean, value string, err error) {
	name, ok := strings.CutPrefix(property, "parameter:")
	name = strings.TrimSpace(name)
	clean = "accel:parameter:" + name

	switch {
	case !ok:
		return "", "", cyborg.Errorf(cyborg.ErrInvalid, "Unsupported group key %q; a parameter is written as accel:parameter:NAME", web.Shorten("accel:"+property))
	case !cyborg.IsParameterName(name):
		return "", "", cyborg.Errorf(cyborg.ErrInvalid, "Unsupported parameter name %q; it is words in small letters, connected by underscores", web.Shorten(name))
	case len(text) > cyborg.LongestParameter:
		return "", "", cyborg.Errorf(cyborg.ErrInvalid, "The value of parameter %s is longer than %d bytes", name, cyborg.LongestParameter)
	}
	return clean, text, web.CheckText("The value of "+clean, text, cyborg.LongestParameter)
}

// readCleaning checks how a profile demands that a handle is cleaned after its holder.
// Whether the accelerator's driver can is known when a request of the profile is bound. A
// property that only looks like this one is refused: it would demand nothing, and the next
// holder would find what an instance has left.
func readCleaning(property, text string) (clean, value string, err error) {
	if property != "clean" {
		return "", "", cyborg.Errorf(cyborg.ErrInvalid, "Unsupported group key %q; how a handle is cleaned is written as accel:clean", web.Shorten("accel:"+property))
	}

	if _, err := cyborg.ParseCleanMethod(text); err != nil {
		return "", "", cyborg.Errorf(cyborg.ErrInvalid, "Unsupported value of accel:clean: %w", err)
	}
	return "accel:clean", text, nil
}

// readTrait checks the name and value of a trait that a profile requires or
// forbids.
func readTrait(name, text string) (clean, value string, err error) {
	switch {
	case !customPattern.MatchString(name):
		return "", "", cyborg.Errorf(cyborg.ErrInvalid, "Unsupported trait name format %q; it is CUSTOM_ and then A-Z, 0-9 and _", web.Shorten(name))
	case text != "required" && text != "forbidden":
		return "", "", cyborg.Errorf(cyborg.ErrInvalid, "Unsupported trait value %q of %s; it is required or forbidden", web.Shorten(text), name)
	}
	return "trait:" + name, text, nil
}

// readResources checks the resource class and the amount that a profile asks
// for.
func readResources(name, text string) (clean, value string, err error) {
	if !standardClassTable[name] && !customPattern.MatchString(name) {
		return "", "", cyborg.Errorf(cyborg.ErrInvalid, "Unsupported resource class %q; it is FPGA, GPU, VGPU, PGPU, or CUSTOM_ and then A-Z, 0-9 and _", web.Shorten(name))
	}

	amount, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || amount < 1 || amount > mostRequests {
		return "", "", cyborg.Errorf(cyborg.ErrInvalid, "Resources number %s is invalid; it is a whole number from 1 to %d", web.Shorten(text), mostRequests)
	}

	return "resources:" + name, strconv.Itoa(amount), nil
}
