package operation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/merge"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/redact"
)

// configure is the operation that installs, uninstalls or reconfigures a
// backend. It claims every deployable of the backend.
type configure struct{ request cyborg.ConfigureRequest }

func newConfigure(r cyborg.ConfigureRequest, _ records.Options) operationHandler { return configure{r} }

// choose locks the host, and checks that the backend is free and that the
// action makes sense for it.
func (c configure) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	r := c.request
	if r.Backend == "" {
		return choice{}, cyborg.Errorf(cyborg.ErrInvalid, "the backend has no name")
	}

	// The options are kept in the records and in Temporal's histories, and each of
	// them is read by more people than a secret is for.
	if secrets := redact.Secrets(r.Options); len(secrets) > 0 {
		return choice{}, cyborg.Errorf(cyborg.ErrInvalid, "options that look secret cannot be set through the API: %s", strings.Join(secrets, ", ")).
			WithHint("Leave them out, and set them in the configuration of the host's agent: agent.backends.")
	}

	if err := records.LockHosts(ctx, tx, r.Host); err != nil {
		return choice{}, err
	}

	var (
		host   string
		driver *string // nil, like the next two, where the host has no such backend
		state  *cyborg.BackendState
		same   *bool // the backend has the options of the request
	)

	options, err := merge.DocumentOf(r.Options, "{}")
	if err != nil {
		return choice{}, err
	}

	err = tx.QueryRow(ctx, `
		SELECT h.name, b.driver, b.state, b.options = $3::jsonb FROM hosts h LEFT JOIN backends b ON b.host = h.name AND b.name = $2
		WHERE h.name = $1`, r.Host, r.Backend, string(options)).Scan(&host, &driver, &state, &same)
	if errors.Is(err, pgx.ErrNoRows) {
		return choice{}, records.NoHost(r.Host)
	}
	if err != nil {
		return choice{}, err
	}

	if err := c.checkIdle(ctx, tx); err != nil {
		return choice{}, err
	}
	if err := inventory.CheckEnrolled(ctx, tx, host); err != nil {
		return choice{}, err
	}
	if err := c.checkAction(driver, state, r.Options == nil || same != nil && *same); err != nil {
		return choice{}, c.withCause(ctx, tx, err)
	}

	// The new state of the backend concerns everything that it serves.
	targets, err := inventory.LockAccelerators(ctx, tx, "v.host = $1 AND v.backend = $2", r.Host, r.Backend)
	if err != nil {
		return choice{}, err
	}

	return choice{host: host, backend: r.Backend, targets: targets}, c.guard(targets, uuid.Nil)
}

// subject is the id of the backend as a subject of operations.
func (c configure) subject() string { return c.request.Host + "/" + c.request.Backend }

// checkIdle refuses a backend that another operation works on, or one of whose devices is
// being divided. Claims do not suffice for that, because a backend, or such a device, may
// have no deployable. The host is locked, so no other operation is admitted between this
// check and the commit.
func (c configure) checkIdle(ctx context.Context, tx pgx.Tx) error {
	var (
		other uuid.UUID
		kind  cyborg.OperationKind
	)
	err := tx.QueryRow(ctx, `
		SELECT o.id, o.kind FROM operation_subjects s JOIN operations o ON o.id = s.operation_id
		WHERE s.kind = $1 AND s.subject_id = $2 AND o.open
		UNION ALL
		SELECT o.id, o.kind FROM devices v JOIN operations o ON o.id = v.partition_operation WHERE v.host = $3 AND v.backend = $4
		LIMIT 1`, string(cyborg.SubjectBackend), c.subject(), c.request.Host, c.request.Backend).Scan(&other, (*string)(&kind))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}

	return cyborg.Errorf(cyborg.ErrClaimed, "operation %s (%s) works on backend %q of host %s", other, kind, c.request.Backend, c.request.Host).
		WithOperation(other).WithHint("Wait until it has ended, or cancel it.")
}

// withCause adds to a refusal the operation that put the backend into its
// present state, if there was one. Only refusals of kind ErrChanged are about
// that state.
func (c configure) withCause(ctx context.Context, tx pgx.Tx, refusal error) error {
	if cyborg.ErrorKindOf(refusal) != cyborg.ErrChanged {
		return refusal
	}

	var by uuid.UUID
	err := tx.QueryRow(ctx, `
		SELECT o.id FROM operation_subjects s JOIN operations o ON o.id = s.operation_id
		WHERE s.kind = $1 AND s.subject_id = $2 AND o.state = $3 ORDER BY o.ended_at DESC LIMIT 1`,
		string(cyborg.SubjectBackend), c.subject(), string(cyborg.OperationSucceeded)).Scan(&by)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}

	return cyborg.AsError(refusal).WithOperation(by)
}

// checkAction refuses an action that makes no sense for the backend as it is.
// driver and state are nil where the host has no such backend. same is set
// where the request has no options, or the options that the backend has.
func (c configure) checkAction(driver *string, state *cyborg.BackendState, same bool) error {
	r := c.request

	switch r.Action {
	case cyborg.ConfigureInstall:
		switch {
		case driver == nil && r.Driver == "":
			return cyborg.Errorf(cyborg.ErrInvalid, "host %s has no backend %q yet; say which driver it is to run", r.Host, r.Backend)
		case driver != nil && *state != cyborg.BackendDisabled && r.Driver != "" && r.Driver != *driver:
			return cyborg.Errorf(cyborg.ErrChanged, "backend %q of host %s runs driver %q already", r.Backend, r.Host, *driver).
				WithHint("Uninstall it first, or install %q under another name.", r.Driver)
		case driver != nil && *state != cyborg.BackendDisabled && !same:
			return cyborg.Errorf(cyborg.ErrChanged, "backend %q of host %s is installed already, with other options", r.Backend, r.Host).
				WithHint("Change its options with `cyborg driver update`, or install the driver under another name.")
		}

	// A backend may be uninstalled once; its options may be changed at any time.
	case cyborg.ConfigureUninstall, cyborg.ConfigureUpdate:
		switch {
		case driver == nil:
			return cyborg.Errorf(cyborg.ErrNotFound, "host %s has no backend %q", r.Host, r.Backend)
		case *state == cyborg.BackendDisabled && r.Action == cyborg.ConfigureUninstall:
			return cyborg.Errorf(cyborg.ErrChanged, "backend %q of host %s is uninstalled already", r.Backend, r.Host)
		}

	default:
		return cyborg.Errorf(cyborg.ErrInvalid, "%q is no action; they are install, uninstall and update", r.Action)
	}

	return nil
}

// admit changes nothing: the claims and the operation's subject keep others
// away.
func (configure) admit(context.Context, pgx.Tx, choice) error { return nil }

// guard refuses deployables that another operation works on, and, where the
// backend is to be uninstalled, deployables that somebody holds.
func (c configure) guard(targets []inventory.Accelerator, operation uuid.UUID) error {
	for i := range targets {
		if err := targets[i].Unclaimed(operation); err != nil {
			return err
		}
	}

	for i := range targets {
		if err := targets[i].Unheld(); c.request.Action == cyborg.ConfigureUninstall && err != nil {
			return err
		}
	}

	return nil
}

// begin changes nothing: what the backend becomes is known at the end.
// begin changes nothing. It asks once more whether the host can be asked.
func (configure) begin(ctx context.Context, tx pgx.Tx, o *running) error {
	return inventory.CheckEnrolled(ctx, tx, o.host)
}

// describe adds the request itself.
func (c configure) describe(_ *running, work *cyborg.Work) { work.Configure = &c.request }

// end records the backend as the agent has reported it in its result. Its
// devices follow with the next report.
func (c configure) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	if outcome.State == cyborg.OperationNeedsOperator {
		return markInError(ctx, tx, o, outcome)
	}

	if outcome.State != cyborg.OperationSucceeded {
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
		return cyborg.Errorf(cyborg.ErrInvalid, "the result of configuring backend %q cannot be read: %w", c.request.Backend, err)
	}

	switch result.State {
	case cyborg.BackendOK:
	case cyborg.BackendFailed:
		result.Error = cmp.Or(result.Error, "no reason given")
	case cyborg.BackendDisabled:
		result.Error = ""
	default: // the result has no final state, but the agent's next report does
		return nil
	}

	// The column is NOT NULL.
	if result.Services == nil {
		result.Services = []string{}
	}

	var options any
	if c.request.Options != nil {
		options = c.request.Options
	}

	// What the request leaves open stays as it is. The statement changes no row
	// that is so already, which tells whether the host has reported it.
	const want = `coalesce(nullif($3, ''), driver), coalesce($4::jsonb, options), $5, $6, $7::text[], true`
	tag, err := tx.Exec(ctx, `
		UPDATE backends SET (driver, options, state, error, services, reported) = ROW (`+want+`)
		WHERE host = $1 AND name = $2 AND (driver, options, state, error, services, reported) IS DISTINCT FROM (`+want+`)`,
		o.host, c.request.Backend, c.request.Driver, options, string(result.State), result.Error, result.Services)
	if err != nil {
		return err
	}

	// Where no row has changed, either the host has reported the same already, or
	// the backend is new and has no row yet.
	changed := tag.RowsAffected()
	if changed == 0 && c.request.Driver != "" {
		tag, err = tx.Exec(ctx, `
			INSERT INTO backends (host, name, driver, options, state, error, services)
			VALUES ($1, $2, $3, coalesce($4::jsonb, '{}'), $5, $6, $7) ON CONFLICT DO NOTHING`,
			o.host, c.request.Backend, c.request.Driver, options, string(result.State), result.Error, result.Services)
		if err != nil {
			return err
		}
		changed = tag.RowsAffected()
	}

	if changed == 0 { // the host has reported all of it already
		return nil
	}

	// The host may have reported something newer while the operation ran, which the
	// result has just replaced. So the host is asked for a full report: a report of
	// differences contains no backends.
	_, err = tx.Exec(ctx, "UPDATE hosts SET digest = '', base = '', generation = generation + 1 WHERE name = $1", o.host)
	return err
}
