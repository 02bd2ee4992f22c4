package merge

import (
	"slices"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// backend records what is reported of a backend itself, without its devices.
func (v *Inventory) backend(r agentapi.BackendReport) error {
	options, err := DocumentOf(r.Options, "{}")
	if err != nil {
		return err
	}

	b, ok := v.Backends[r.Name]
	if !ok {
		b = &Tracked[BackendRow]{}
		v.Backends[r.Name] = b
	}

	b.row = BackendRow{
		Host: v.host, Name: r.Name, Driver: r.Driver, Options: options, State: r.State, Error: cyborg.Sanitize(r.Error, LongestError),
		Services: r.Services, Reported: true,
	}
	if b.row.Services == nil { // the column does not allow null
		b.row.Services = []string{}
	}

	switch {
	case r.State == cyborg.BackendDisabled:
		b.row.Error = ""
	case r.State == cyborg.BackendFailed && r.Error == "":
		b.row.Error = "discovery failed; the agent did not say why"
	}

	return nil
}

// disableAbsent disables the backends that the report no longer has.
func (v *Inventory) disableAbsent(r agentapi.Report) {
	for name, b := range v.Backends {
		if !slices.ContainsFunc(r.Content.Backends, func(other agentapi.BackendReport) bool { return other.Name == name }) {
			b.row.State, b.row.Error, b.row.Reported = cyborg.BackendDisabled, "", false
		}
	}
}
