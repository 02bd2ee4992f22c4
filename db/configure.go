package db

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// configure enables, disables or reconfigures a backend. It claims every deployable of the backend.
type configure struct{ request cyborg.ConfigureRequest }

func (configure) kind() cyborg.OperationKind { return cyborg.KindConfigure }

func (c configure) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	r := c.request
	if r.Backend == "" {
		return choice{}, cyborg.Errorf(cyborg.Invalid, "the backend has no name")
	}
	if err := lockHosts(ctx, tx, r.Host); err != nil {
		return choice{}, err
	}
	var (
		host   string
		driver *string
		state  *cyborg.BackendState
	)
	err := tx.QueryRow(ctx, `
		SELECT h.name, b.driver, b.state FROM hosts h LEFT JOIN backends b ON b.host = h.name AND b.name = $2
		WHERE h.name = $1`, r.Host, r.Backend).Scan(&host, &driver, &state)
	if errors.Is(err, pgx.ErrNoRows) {
		return choice{}, noHost(r.Host)
	}
	if err != nil {
		return choice{}, err
	}
	if err := c.possible(driver, state); err != nil {
		return choice{}, err
	}
	targets, err := lockAccelerators(ctx, tx, "v.host = $1 AND v.backend = $2", r.Host, r.Backend)
	if err != nil {
		return choice{}, err
	}
	return choice{host: host, backend: r.Backend, targets: targets}, c.guard(targets, uuid.Nil)
}

// possible says whether the action makes sense for the backend as it is; driver and state are nil where there is none.
func (c configure) possible(driver *string, state *cyborg.BackendState) error {
	r := c.request
	switch r.Action {
	case cyborg.InstallDriver:
		switch {
		case driver == nil && r.Driver == "":
			return cyborg.Errorf(cyborg.Invalid, "host %s has no backend %q yet; say which driver it is to run", r.Host, r.Backend)
		case driver != nil && *state != cyborg.BackendDisabled && r.Driver != "" && r.Driver != *driver:
			return cyborg.Errorf(cyborg.Changed, "backend %q of host %s runs driver %q already", r.Backend, r.Host, *driver).
				WithHint("Uninstall it first, or install %q under another name.", r.Driver)
		}
	case cyborg.UninstallDriver, cyborg.UpdateDriver:
		switch {
		case driver == nil:
			return cyborg.Errorf(cyborg.NotFound, "host %s has no backend %q", r.Host, r.Backend)
		case *state == cyborg.BackendDisabled && r.Action == cyborg.UninstallDriver:
			return cyborg.Errorf(cyborg.Changed, "backend %q of host %s is uninstalled already", r.Backend, r.Host)
		}
	default:
		return cyborg.Errorf(cyborg.Invalid, "%q is no action; they are install, uninstall and update", r.Action)
	}
	return nil
}

func (configure) admit(context.Context, pgx.Tx, choice) error { return nil }

func (c configure) guard(targets []accelerator, operation uuid.UUID) error {
	for i := range targets {
		if err := targets[i].unclaimed(operation); err != nil {
			return err
		}
	}
	for i := range targets {
		if err := targets[i].unheld(); c.request.Action == cyborg.UninstallDriver && err != nil {
			return err
		}
	}
	return nil
}

func (configure) begin(context.Context, pgx.Tx, *running) error { return nil }

func (c configure) describe(_ *running, work *cyborg.Work) { work.Configure = &c.request }

// end records the backend as the agent says that it is now; its devices come with the next report.
func (c configure) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	if outcome.State == cyborg.NeedsOperator {
		return leaveInError(ctx, tx, o, outcome)
	}
	if outcome.State != cyborg.Succeeded {
		return nil
	}
	var result struct {
		State    cyborg.BackendState `json:"state"`
		Error    string              `json:"error"`
		Services []string            `json:"services"`
	}
	text, err := json.Marshal(outcome.Result)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &result); err != nil {
		return cyborg.Errorf(cyborg.Invalid, "the result of configuring backend %q is not one: %w", c.request.Backend, err)
	}
	switch result.State {
	case cyborg.BackendOK:
	case cyborg.BackendFailed:
		result.Error = cmp.Or(result.Error, "no reason given")
	case cyborg.BackendDisabled:
		result.Error = ""
	default: // the agent's next report tells
		return nil
	}
	if result.Services == nil {
		result.Services = []string{}
	}
	var options any
	if c.request.Options != nil {
		options = c.request.Options
	}
	tag, err := tx.Exec(ctx, `
		UPDATE backends SET driver = coalesce(nullif($3, ''), driver), options = coalesce($4::jsonb, options), state = $5, error = $6,
		    services = $7, reported = true
		WHERE host = $1 AND name = $2`,
		o.host, c.request.Backend, c.request.Driver, options, string(result.State), result.Error, result.Services)
	if err != nil || tag.RowsAffected() > 0 || c.request.Driver == "" {
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO backends (host, name, driver, options, state, error, services)
		VALUES ($1, $2, $3, coalesce($4::jsonb, '{}'), $5, $6, $7)`,
		o.host, c.request.Backend, c.request.Driver, options, string(result.State), result.Error, result.Services)
	return err
}
