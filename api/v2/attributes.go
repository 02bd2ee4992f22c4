package v2

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// longestValue is the largest number of characters of an attribute's value.
const longestValue = 4000

// placementPattern matches what Placement accepts as the name of a trait or a
// resource class.
var placementPattern = regexp.MustCompile(`^[A-Z0-9_]{1,255}$`)

// attributeView is an attribute as upstream shows it. UpdatedAt is always null,
// because attributes are never changed.
type attributeView struct {
	UUID       uuid.UUID  `json:"uuid"`
	Deployable int64      `json:"deployable_id"`
	Key        string     `json:"key"`
	Value      string     `json:"value"`
	CreatedAt  *string    `json:"created_at"`
	UpdatedAt  *string    `json:"updated_at"`
	Links      []linkView `json:"links"`
}

// viewAttribute converts an attribute to its view.
func (a *API) viewAttribute(r *http.Request, attribute db.DeployableAttribute) attributeView {
	return attributeView{
		UUID: attribute.UUID, Deployable: attribute.Deployable, Key: attribute.Key, Value: attribute.Value,
		CreatedAt: viewTime(attribute.CreatedAt),
		Links:     []linkView{a.selfLink(r, "attributes", attribute.UUID.String())},
	}
}

// listAttributes answers with the attributes of one deployable, or of all,
// optionally only those with a certain key.
func (a *API) listAttributes(w http.ResponseWriter, r *http.Request) error {
	q := readArguments(r, "deployable_id", "key")

	var filter db.DeployableFilter
	if q.has("deployable_id") {
		var err error
		if filter, err = chooseDeployable("the argument deployable_id", q.text("deployable_id")); err != nil {
			return err
		}
	}

	if q.err != nil {
		return q.err
	}

	found, err := a.store.Attributes(r.Context(), filter)
	if err != nil {
		return err
	}

	if q.filled("key") {
		found = slices.DeleteFunc(found, func(a db.DeployableAttribute) bool { return a.Key != q.text("key") })
	}

	return web.WriteJSON(w, http.StatusOK, map[string][]attributeView{
		"attributes": each(found, func(found db.DeployableAttribute) attributeView { return a.viewAttribute(r, found) }),
	})
}

// showAttribute answers with one attribute.
func (a *API) showAttribute(w http.ResponseWriter, r *http.Request) error {
	id, ok := parseUUID(pathText(r, "attribute"))
	if !ok {
		return cyborg.Errorf(cyborg.ErrInvalid, "Expected a uuid but received %s", web.Shorten(pathText(r, "attribute")))
	}

	if q := readArguments(r); q.err != nil {
		return q.err
	}

	found, err := a.store.Attribute(r.Context(), id)
	if err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusOK, a.viewAttribute(r, found))
}

// createAttribute adds an attribute to a deployable and answers with it.
func (a *API) createAttribute(w http.ResponseWriter, r *http.Request) error {
	members, err := a.object(w, r)
	if err != nil {
		return err
	}

	filter, attribute, err := readAttribute(members)
	if err != nil {
		return err
	}

	made, err := a.store.CreateAttribute(r.Context(), filter, attribute, actor(r))
	if err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusCreated, a.viewAttribute(r, made))
}

// readAttribute reads the body of a request that creates an attribute. The
// deployable is named by its UUID or by its number.
func readAttribute(members map[string]any) (filter db.DeployableFilter, attribute cyborg.Attribute, err error) {
	var text string

	switch id := members["deployable_id"].(type) {
	case int64:
		text = strconv.FormatInt(id, 10)
	case string:
		text = id
	case nil:
		return filter, attribute, cyborg.Errorf(cyborg.ErrInvalid, "deployable_id is missing")
	default:
		return filter, attribute, cyborg.Errorf(cyborg.ErrInvalid, "deployable_id is %s, neither an integer nor a UUID", web.Describe(id))
	}

	if filter, err = chooseDeployable("deployable_id", text); err != nil {
		return filter, attribute, err
	}

	if attribute.Key, err = readText(members, "key", longestName); err != nil {
		return filter, attribute, err
	}

	if attribute.Value, err = readText(members, "value", longestValue); err != nil {
		return filter, attribute, err
	}

	// Attributes with these keys become traits and resource classes in Placement,
	// which would reject other names.
	named := attribute.Key == "rc" || strings.HasPrefix(attribute.Key, "trait")
	if named && !placementPattern.MatchString(attribute.Value) {
		return filter, attribute, cyborg.Errorf(cyborg.ErrInvalid,
			"the value of %s is %q, which Placement takes for no name; it is of A-Z, 0-9 and _", web.Shorten(attribute.Key), web.Shorten(attribute.Value))
	}

	return filter, attribute, nil
}

// readText reads a member that must be a text and must not be empty.
func readText(members map[string]any, name string, longest int) (string, error) {
	text, ok := members[name].(string)
	switch {
	case members[name] == nil:
		return "", cyborg.Errorf(cyborg.ErrInvalid, "%s is missing", name)
	case !ok || text == "":
		return "", cyborg.Errorf(cyborg.ErrInvalid, "%s is %s, not a text with something in it", name, web.Describe(members[name]))
	}
	return text, web.CheckText(name, text, longest)
}

// deleteAttribute deletes one attribute. As in upstream, an id that is no UUID
// is answered with 404, not with 400.
func (a *API) deleteAttribute(w http.ResponseWriter, r *http.Request) error {
	id, ok := parseUUID(pathText(r, "attribute"))
	if !ok {
		return cyborg.Errorf(cyborg.ErrNotFound, "there is no attribute %s", web.Shorten(pathText(r, "attribute")))
	}

	if q := readArguments(r); q.err != nil {
		return q.err
	}

	if err := a.store.DeleteAttribute(r.Context(), id, actor(r)); err != nil {
		return err
	}

	return writeEmpty(w, http.StatusNoContent)
}
