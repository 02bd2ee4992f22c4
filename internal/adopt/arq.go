package adopt

import (
	"database/sql"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// arq converts an accelerator request. holders collects the requests that hold
// a handle, by upstream's id of the handle.
func (c *converter) arq(a arq, holders map[int64]arq) {
	refuse := func(format string, args ...any) {
		c.refuse("extended_accelerator_requests", a.id, a.uuid, format, args...)
	}

	id, err := uuid.Parse(a.uuid)
	profile := c.profiles[a.profile]

	switch {
	case err != nil:
		refuse("uuid %q is no UUID", a.uuid)
		return
	case profile == nil:
		refuse("its device profile %d is not there, or not understood", a.profile)
		return
	case a.group < 0 || a.group >= int64(len(profile.Groups)):
		refuse("its device profile %q has %d groups, and none with number %d", profile.Name, len(profile.Groups), a.group)
		return
	}

	out := db.AdoptedARQ{
		UUID: id, State: cyborg.ARQState(a.state), Profile: profile.UUID, Name: profile.Name, GroupIndex: int(a.group),
		Group: profile.Groups[a.group], CreatedAt: when(a.stamps),
	}

	if a.project.Valid {
		out.Project = &a.project.String
	}

	if a.updated.Valid {
		at := a.updated.Time.UTC()
		out.UpdatedAt = &at
	}

	switch out.State {
	case cyborg.ARQBound:
		if !c.bound(a, &out, holders, refuse) {
			return
		}
	case cyborg.ARQInitial, cyborg.ARQUnbound:
	case cyborg.ARQBindFailed:
		out.Reason = "its bind failed in OpenStack Cyborg"

	// These states belong to work in progress. Nobody will finish it after the
	// adoption, so the bind has failed.
	case cyborg.ARQBindStarted, cyborg.ARQDeleting:
		c.note("extended_accelerator_requests", a.id, a.uuid, "it is %s, and nobody works on it any more; it is adopted as BindFailed", a.state)
		out.State, out.Reason = cyborg.ARQBindFailed, "OpenStack Cyborg was stopped while it was "+a.state
	default:
		refuse("state %q is not known", a.state)
		return
	}

	// A failed bind keeps its host, provider and instance. A bound request has read
	// them already.
	if out.State == cyborg.ARQBindFailed && !c.place(a, &out, refuse) {
		return
	}

	c.adoption.ARQs = append(c.adoption.ARQs, out)
}

// place reads where a request was to be bound: host, resource provider and
// instance. It returns false after a refusal.
func (c *converter) place(a arq, out *db.AdoptedARQ, refuse func(string, ...any)) bool {
	if a.host.Valid {
		out.Host = &a.host.String
	}

	for _, id := range []struct {
		name string
		text sql.NullString
		into **uuid.UUID
	}{{"device_rp_uuid", a.provider, &out.Provider}, {"instance_uuid", a.instance, &out.Instance}} {
		if !id.text.Valid {
			continue
		}

		parsed, err := uuid.Parse(id.text.String)
		if err != nil {
			refuse("%s %q is no UUID", id.name, id.text.String)
			return false
		}

		*id.into = &parsed
	}

	return true
}

// bound converts a request that is bound, and makes its instance the holder of
// the handle. It returns false after a refusal. In upstream's database two
// requests may refer to one handle, which must not happen here.
func (c *converter) bound(a arq, out *db.AdoptedARQ, holders map[int64]arq, refuse func(string, ...any)) bool {
	at, ok := c.handles[a.handle.Int64]
	other, taken := holders[a.handle.Int64]

	switch {
	case !a.handle.Valid:
		refuse("it is Bound and has no attach handle; delete it there, or its instance")
		return false
	case !ok:
		refuse("its attach handle %d is not there, or not understood", a.handle.Int64)
		return false
	case taken:
		refuse("its attach handle %d is also that of accelerator request %s: the handle was given out twice; delete one of the instances there", a.handle.Int64, other.uuid)
		return false
	case !a.instance.Valid:
		refuse("it is Bound and has no instance_uuid; delete it there")
		return false
	}

	// The request counts as the holder even if it is refused below, so that a
	// second one with the same handle is refused, too.
	holders[a.handle.Int64] = a

	if !c.place(a, out, refuse) {
		return false
	}

	handle := &c.adoption.Handles[at]
	deployable, known := c.deployables[a.deployable.Int64]

	switch {
	case a.deployable.Valid && (!known || c.adoption.Deployables[deployable].UUID != handle.Deployable):
		refuse("its deployable %d is not the deployable of its attach handle", a.deployable.Int64)
		return false
	case !a.host.Valid || a.host.String != handle.Host:
		refuse("its hostname is %q, and its attach handle is on %q", a.host.String, handle.Host)
		return false
	}

	// Upstream does not record when the bind succeeded; the last change of the
	// request is closest to it.
	since := when(a.stamps)
	if out.UpdatedAt != nil {
		since = *out.UpdatedAt
	}

	handle.Instance, handle.HeldSince = out.Instance.String(), new(time.Time)
	*handle.HeldSince, out.Handle = since, &handle.UUID

	return true
}
