package v2

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/operate"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// A patch may not change these members of a deployable, nor anything inside
// them (openstack/cyborg api/controllers/v2/deployables.py).
var (
	patchPathPattern = regexp.MustCompile(`^(/[\w-]+)+$`)
	ownPathTable     = map[string]bool{
		"/id": true, "/uuid": true, "/links": true, "/created_at": true, "/updated_at": true, "/name": true, "/num_accelerators": true,
	}
)

// programDeployable loads an image of Glance into a deployable. It answers with
// the deployable when the operation has ended, or with 202 when that takes
// longer than SyncWait.
func (a *API) programDeployable(w http.ResponseWriter, r *http.Request) error {
	filter, err := chooseDeployable("the deployable in the path", pathText(r, "deployable"))
	if err != nil {
		return err
	}

	if q := readArguments(r); q.err != nil {
		return q.err
	}

	body, err := a.body(w, r)
	if err != nil {
		return err
	}

	image, err := readImagePatch(body)
	if err != nil {
		return err
	}

	// The operation needs the UUID; the path may have the deployable's number.
	id := uuid.Nil
	if err := a.store.EachDeployable(r.Context(), filter, db.Listing{}, func(d *db.ListedDeployable) { id = d.UUID }); err != nil {
		return err
	}

	if id == uuid.Nil {
		return noDeployable(filter)
	}

	outcome, err := a.operate(w, r, db.Admission{Request: cyborg.ProgramRequest{
		Accelerator: id, Image: cyborg.GlanceImage(image),
	}}, a.config.SyncWait)
	if err != nil {
		return err
	}

	// The operation goes on when SyncWait is over; 202 tells the client to look
	// again.
	if outcome.Result != operate.Succeeded {
		return writeEmpty(w, http.StatusAccepted)
	}

	// The read for the answer waits for its turn: refusing it for overload would
	// hide from the caller that the image is loaded.
	return a.writeDeployable(w, r.WithContext(limiter.NeverRefuse(r.Context())), filter)
}

// readImagePatch reads the UUID of the image from a patch. As in upstream, only
// the first value of the first change counts; the other changes must be
// well-formed.
func readImagePatch(body any) (uuid.UUID, error) {
	changes, ok := body.([]any)
	if !ok || len(changes) == 0 {
		return uuid.Nil, cyborg.Errorf(cyborg.ErrInvalid, "the patch is %s, not a list with a change in it", web.Describe(body)).
			WithHint(`Send [{"path": "/program", "op": "replace", "value": [{"image_uuid": "…"}]}].`)
	}

	for i, change := range changes {
		if err := checkChange(i, change); err != nil {
			return uuid.Nil, err
		}
	}

	first, _ := changes[0].(map[string]any)
	if first["op"] == "remove" {
		return uuid.Nil, cyborg.Errorf(cyborg.ErrInvalid, "what a device is programmed with can be replaced, not removed")
	}

	value := first["value"]
	if list, ok := value.([]any); ok && len(list) > 0 {
		value = list[0]
	}

	members, _ := value.(map[string]any)
	given, _ := members["image_uuid"].(string)
	image, ok := parseUUID(given)
	if !ok {
		return uuid.Nil, cyborg.Errorf(cyborg.ErrInvalid, "Expected a uuid but received %s, for image_uuid", web.Describe(members["image_uuid"]))
	}

	return image, nil
}

// checkChange returns an error unless change number i of a patch is well-formed
// and allowed.
func checkChange(i int, change any) error {
	members, ok := change.(map[string]any)
	if !ok {
		return cyborg.Errorf(cyborg.ErrInvalid, "change %d is %s, not an object", i, web.Describe(change))
	}

	path, _ := members["path"].(string)

	switch {
	case !patchPathPattern.MatchString(path):
		return cyborg.Errorf(cyborg.ErrInvalid, "the path of change %d is %s, which is not a path", i, web.Describe(members["path"]))
	case ownPathTable["/"+strings.Split(path, "/")[1]]: // the first segment covers everything inside the member
		return cyborg.Errorf(cyborg.ErrInvalid, "'%s' is an internal attribute and can not be updated", path)
	}

	switch members["op"] {
	case "add", "replace":
		if members["value"] == nil {
			return cyborg.Errorf(cyborg.ErrInvalid, "'add' and 'replace' operations need a value, and change %d has none", i)
		}

	case "remove":
	default:
		return cyborg.Errorf(cyborg.ErrInvalid, "the op of change %d is %s, none of add, replace and remove", i, web.Describe(members["op"]))
	}

	return nil
}
