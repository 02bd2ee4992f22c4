package v2

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// patch is the change that a PATCH asks for on one accelerator request.
type patch struct {
	bind bool // false: unbind

	host     string
	provider uuid.UUID // resource provider, as Placement allocated it
	holder   cyborg.Holder
	project  string

	// namesProject is true if the patch mentions /project_id at all, even to remove
	// it. That needs a newer microversion and an administrator.
	namesProject bool
}

// readPatches reads the body of a PATCH: an object with a list of changes under
// the UUID of each accelerator request. All must ask for the same thing, for
// the same holder on the same host.
func readPatches(body any) (map[uuid.UUID]patch, error) {
	members, ok := body.(map[string]any)
	if !ok || len(members) == 0 {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the request is %s, not an object with changes by the UUIDs of accelerator requests", web.Describe(body))
	}

	out := map[uuid.UUID]patch{}
	var first *patch

	// The keys are sorted so that the same body always leads to the same error.
	for _, key := range slices.Sorted(maps.Keys(members)) {
		id, ok := parseUUID(key)
		if !ok {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "Expected a uuid but received %s", web.Shorten(key))
		}
		p, err := readPatch(key, members[key])
		if err != nil {
			return nil, err
		}

		if first == nil {
			first = &p
		}
		switch {
		case p.bind != first.bind:
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "one request binds or unbinds; it cannot do both")
		case p.host != first.host || p.holder != first.holder || p.project != first.project:
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "the requests are not all of one instance on one host").
				WithHint("Send one PATCH for each instance.")
		}

		if _, twice := out[id]; twice {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "accelerator request %s is named twice", id)
		}

		out[id] = p
	}

	return out, nil
}

// longestProject is the largest number of characters that a value in a patch
// may have, such as the id of a project.
const longestProject = 255

// readPatch reads the changes of one accelerator request. All of them must add,
// which is a bind, or all must remove, which is an unbind. An unbind may name
// any of the known fields; as in upstream, it makes no difference which.
func readPatch(key string, value any) (patch, error) {
	var p patch
	changes, ok := value.([]any)
	if !ok || len(changes) == 0 {
		return p, cyborg.Errorf(cyborg.ErrInvalid, "the value of %s is %s, not a list of changes", web.Shorten(key), web.Describe(value))
	}

	given := map[string]string{}

	for i, item := range changes {
		change, ok := item.(map[string]any)
		if !ok {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "a change is %s, not an object", web.Describe(item))
		}

		path, _ := change["path"].(string)
		path = "/" + strings.TrimLeft(path, "/") // upstream accepts any number of leading slashes
		if !slices.Contains([]string{"/hostname", "/device_rp_uuid", "/instance_uuid", "/project_id", "/service"}, path) {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "Invalid path in patch: %s", web.Describe(change["path"])).
				WithHint("The paths are /hostname, /device_rp_uuid, /instance_uuid and /project_id; a service has /service instead of /instance_uuid.")
		}

		if _, twice := given[path]; twice {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "the path %s is given twice", path)
		}

		p.namesProject = p.namesProject || path == "/project_id"

		add := change["op"] == "add"
		if !add && change["op"] != "remove" {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "op is %s; it is add or remove", web.Describe(change["op"]))
		}

		if i > 0 && add != p.bind {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "Every op must be either add or remove")
		}

		p.bind = add
		if !add {
			given[path] = ""
			continue
		}

		text, ok := change["value"].(string)
		if !ok || text == "" {
			return p, cyborg.Errorf(cyborg.ErrInvalid, "the value of %s is %s, not a text", path, web.Describe(change["value"]))
		}

		if err := web.CheckText("the value of "+path, text, longestProject); err != nil {
			return p, err
		}

		given[path] = text
	}

	if !p.bind {
		return p, nil
	}

	return p, p.readBind(given)
}

// readBind checks that the fields of a bind are complete, and reads them into
// the patch. The holder is an instance, or a service of the infrastructure.
func (p *patch) readBind(given map[string]string) error {
	var absent []string
	for _, path := range []string{"/hostname", "/device_rp_uuid"} {
		if given[path] == "" {
			absent = append(absent, path)
		}
	}

	if given["/instance_uuid"] == "" && given["/service"] == "" {
		absent = append(absent, "/instance_uuid")
	}

	if len(absent) > 0 {
		return cyborg.Errorf(cyborg.ErrInvalid, "Fields absent in patch: %v", absent)
	}

	var ok bool
	p.host, p.project = given["/hostname"], given["/project_id"]
	if p.provider, ok = parseUUID(given["/device_rp_uuid"]); !ok {
		return cyborg.Errorf(cyborg.ErrInvalid, "Expected a uuid but received %s, in /device_rp_uuid", web.Shorten(given["/device_rp_uuid"]))
	}

	if given["/instance_uuid"] == "" {
		p.holder = cyborg.Holder{Kind: cyborg.HolderService, ID: given["/service"]}
		return nil
	}

	if given["/service"] != "" {
		return cyborg.Errorf(cyborg.ErrInvalid, "a request is bound to an instance or to a service, not to both")
	}

	instance, ok := parseUUID(given["/instance_uuid"])
	if !ok || instance == uuid.Nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "Expected a uuid but received %s, in /instance_uuid", web.Shorten(given["/instance_uuid"]))
	}

	p.holder = cyborg.Holder{Kind: cyborg.HolderInstance, ID: instance.String()}
	return nil
}
