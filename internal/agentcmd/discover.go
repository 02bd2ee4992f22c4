package agentcmd

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/config"
)

// discovery is the output of discover: the part of an agent's report that
// drivers know.
type discovery struct {
	Host     string                   `json:"host"`
	Backends []agentapi.BackendReport `json:"backends"`
}

// discover looks once with each configured backend and prints what it sees as
// JSON, also where some backends fail. It does not disturb an agent that runs
// on this host: the drivers get empty state directories for the time of the
// look.
func (p program) discover(cmd *cobra.Command, _ []string) (err error) {
	c, err := load(cmd)
	if err != nil {
		return err
	}
	if len(c.Agent.Backends) == 0 {
		return cyborg.Errorf(cyborg.ErrInvalid, "no backend is configured").
			WithHint("Set agent.backends, or try one with --backends '[{driver: generic, options: {device_spec: [{vendor_id: \"10de\"}]}}]'.")
	}

	// What was seen is printed even where a backend fails: the others' results are
	// of use.
	seen := discovery{Host: c.Agent.Host}
	failure := p.eachBackend(cmd, c, func(backend config.Backend, newDriver func() (drivers.Driver, error)) error {
		report, err := look(cmd.Context(), c, backend, newDriver)
		seen.Backends = append(seen.Backends, report)
		return err
	})

	encoder := json.NewEncoder(cmd.OutOrStdout())
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(seen); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "what was found cannot be written: %w", err)
	}

	return failure
}

// checkBackends returns what is wrong with the backends of a configuration:
// drivers that there are not or that this host does not allow, and options that
// a driver refuses.
func (p program) checkBackends(cmd *cobra.Command, c *config.Config) error {
	return p.eachBackend(cmd, c, func(backend config.Backend, newDriver func() (drivers.Driver, error)) error {
		if _, err := newDriver(); err != nil {
			return cyborg.Errorf(cyborg.ErrorKindOf(err), "backend %s: %w", backend.Name, err)
		}
		return nil
	})
}

// eachBackend calls do for each configured backend, with a function that makes
// the backend's driver, and joins the errors. The drivers' state is in a
// temporary directory that is removed afterwards.
func (p program) eachBackend(
	cmd *cobra.Command, c *config.Config, do func(backend config.Backend, newDriver func() (drivers.Driver, error)) error,
) (err error) {
	registry, err := p.allowed(c.Agent)
	if err != nil {
		return err
	}

	state, err := os.MkdirTemp("", "cyborg-agent-")
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "there is no room for the drivers' state: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()

	var failures []error
	for _, backend := range c.Agent.Backends {
		failures = append(failures, do(backend, func() (drivers.Driver, error) {
			own := filepath.Join(state, backend.Name)
			if err := os.Mkdir(own, 0o700); err != nil {
				return nil, cyborg.Errorf(cyborg.ErrUnavailable, "there is no room for its state: %w", err)
			}

			return registry.New(backend.Driver, drivers.Environment{
				Host: c.Agent.Host, Backend: backend.Name, Root: c.Agent.Root, StateDir: own, Log: c.Log.Logger(cmd.ErrOrStderr()),
			}, backend.Options)
		}))
	}

	return errors.Join(failures...)
}

// look makes the driver of one backend and has it discover. The report is also
// filled where that fails.
func look(
	ctx context.Context, c *config.Config, backend config.Backend, newDriver func() (drivers.Driver, error),
) (agentapi.BackendReport, error) {
	report := agentapi.BackendReport{
		Name: backend.Name, Driver: backend.Driver, Options: backend.Options, State: cyborg.BackendDisabled,
		Services: []string{}, Devices: []cyborg.DeviceReport{},
	}
	if !backend.Enabled {
		return report, nil
	}
	// A failed backend is a part of the output as well, so the report says what
	// went wrong.
	fail := func(err error) (agentapi.BackendReport, error) {
		report.State, report.Error = cyborg.BackendFailed, err.Error()
		return report, cyborg.Errorf(cyborg.ErrorKindOf(err), "backend %s: %w", backend.Name, err)
	}

	driver, err := newDriver()
	if err != nil {
		return fail(err)
	}

	report.Services = drivers.Services(driver)

	ctx, cancel := context.WithTimeout(ctx, c.Agent.ScanTimeout)
	defer cancel()
	devices, err := driver.Discover(ctx)
	if err != nil {
		return fail(err)
	}

	report.State, report.Devices = cyborg.BackendOK, append(report.Devices, devices...)
	return report, nil
}
