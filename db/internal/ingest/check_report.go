package ingest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// What a host may have at most: several times what a machine full of cards has.
// Whoever speaks for a host could otherwise keep the records of all others waiting
// with a single report. The largest one takes seconds to write.
const (
	maxBackends    = 256
	maxDevices     = 2048
	maxDeployables = 4096
	maxHandles     = 8192 // as many may be attached

	maxContent  = 16 << 20 // in bytes of JSON, without what is gone
	maxOptions  = 64 << 10 // of one backend
	maxServices = 64
)

// rowsOf counts what a report shows that has rows of its own in the records.
func rowsOf(r *agentapi.Report) (devices, deployables, handles int) {
	for _, b := range r.Content.Backends {
		devices += len(b.Devices)
		for _, d := range b.Devices {
			deployables += len(d.Deployables)
			for _, p := range d.Deployables {
				handles += len(p.Handles)
			}
		}
	}

	return devices, deployables, handles
}

// checkCounts refuses a report that shows too much.
func checkCounts(r *agentapi.Report) error {
	devices, deployables, handles := rowsOf(r)
	for _, has := range []struct {
		what       string
		many, most int
	}{
		{"backends", len(r.Content.Backends), maxBackends},
		{"devices", devices, maxDevices},
		{"deployables", deployables, maxDeployables},
		{"attach handles", handles, maxHandles},
		{"attachments", len(r.Content.Attachments), maxHandles},
		{"devices that are gone", len(r.Gone), maxDevices},
	} {
		if has.many > has.most {
			return cyborg.Errorf(cyborg.ErrTooLarge, "the report of host %.300q cannot be recorded: it has %d %s, more than %d", r.Host, has.many, has.what, has.most)
		}
	}

	return nil
}

// checkReport refuses a report that no record can hold. A single device that is
// wrong only leads to a complaint; see merge.Inventory.complain.
func checkReport(r *agentapi.Report) error {
	bad := func(format string, args ...any) error {
		return cyborg.Errorf(cyborg.ErrInvalid, "the report of host %.300q cannot be recorded: %s", r.Host, fmt.Sprintf(format, args...))
	}

	switch {
	case cyborg.CheckHostName(r.Host) != nil:
		return bad("that is no name of a host")
	case r.Sequence <= 0:
		return bad("sequence %d is not positive", r.Sequence)
	case r.Sequence > agentapi.MaxSequence:
		return bad("sequence %d is above %d", r.Sequence, int64(agentapi.MaxSequence))
	case r.Journal.Writes < 0:
		return bad("%d writes of its journal are fewer than none", r.Journal.Writes)
	case r.Uptime < 0:
		return bad("an uptime of %s is less than none", r.Uptime)
	case r.Digest == "":
		return bad("it has no digest")
	case !optionalName(r.BootID) || !optionalName(r.Instance) || !optionalName(r.AgentVersion) || !optionalName(r.Digest):
		return bad("its boot id, instance, version or digest has a control character, or more than 255 characters")
	}

	if err := checkCounts(r); err != nil {
		return err
	}

	for _, a := range r.Content.Attachments {
		switch {
		case !cyborg.IsName(a.Backend) || !cyborg.IsName(a.Deployable) || !cyborg.IsName(a.Handle):
			return bad("attachment %.80q of %.80q, with backend %.80q, is not named", a.Handle, a.Deployable, a.Backend)
		case a.State != cyborg.AttachmentDone && a.State != cyborg.AttachmentInDoubt && a.State != cyborg.AttachmentLost:
			return bad("attachment %.80q is in state %.80q, which does not exist", a.Handle, a.State)
		}
	}

	names := map[string]bool{}
	for _, b := range r.Content.Backends {
		switch {
		case !cyborg.IsName(b.Name) || !cyborg.IsName(b.Driver):
			return bad("backend %.80q with driver %.80q is not named", b.Name, b.Driver)
		case names[b.Name]:
			return bad("it has backend %.80q twice", b.Name)
		case b.State != cyborg.BackendOK && b.State != cyborg.BackendFailed && b.State != cyborg.BackendDisabled:
			return bad("backend %.80q is in state %.80q, which does not exist", b.Name, b.State)
		case len(b.Services) > maxServices || slices.ContainsFunc(b.Services, func(service string) bool { return !cyborg.IsName(service) }):
			return bad("backend %.80q has a service without a name, or more than %d", b.Name, maxServices)
		}

		options, err := json.Marshal(b.Options)
		if err != nil {
			return bad("%v", err)
		}
		if len(options) > maxOptions {
			return bad("backend %.80q has options of %d bytes, more than %d", b.Name, len(options), maxOptions)
		}

		names[b.Name] = true
	}

	if facts := r.Content.Facts; facts != nil {
		if err := facts.Check(); err != nil {
			return bad("%v", err)
		}
	}

	text, err := json.Marshal(r.Content)
	if err != nil {
		return bad("%v", err)
	}
	if len(text) > maxContent {
		return cyborg.Errorf(cyborg.ErrTooLarge, "the report of host %.300q cannot be recorded: it has %d bytes, more than %d", r.Host, len(text), maxContent)
	}
	if hasNull(string(text)) {
		return bad("it contains a null character")
	}

	return nil
}

// optionalName reports whether the text is empty or a valid name.
func optionalName(text string) bool { return text == "" || cyborg.IsName(text) }

// hasNull reports whether JSON text contains an escaped null character, which
// PostgreSQL cannot store. An escaped backslash followed by "u0000" is no null
// character: the backslashes before it are counted.
func hasNull(text string) bool {
	const null = `\u0000`
	for {
		i := strings.Index(text, null)
		if i < 0 {
			return false
		}

		backslashes := 0
		for j := i - 1; j >= 0 && text[j] == '\\'; j-- {
			backslashes++
		}

		if backslashes%2 == 0 {
			return true
		}

		text = text[i+len(null):]
	}
}
