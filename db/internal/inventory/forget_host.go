package inventory

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// ForgetHost deletes a host that will not come back, with its backends, devices
// and accelerators. Its events and operations stay. If it reports again, it is
// a new host; operation/unconfirmed.go describes what happens to handles that it
// then still has attached.
//
// The error is of kind ErrNotFound where there is no such host; ErrChanged
// where it is not silent; ErrClaimed, with the operation, where an operation is
// open; and ErrInUse, with the accelerators and their holders, where somebody
// holds a handle.
func (s *Store) ForgetHost(ctx context.Context, name string, actor cyborg.Actor) error {
	return s.db.Change(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		if err := records.LockHosts(ctx, tx, name); err != nil {
			return err
		}
		if err := s.checkForgettable(ctx, tx, name); err != nil {
			return err
		}

		// Children are deleted before the rows that they refer to. What the host may still
		// have attached is unconfirmed again when it comes back.
		batch := &pgx.Batch{}
		for _, sql := range []string{
			`INSERT INTO forgotten_handles (host, kind, identity, unconfirmed_kind, unconfirmed_id, unconfirmed_operation, prepared)
			SELECT host, kind, identity, unconfirmed_kind, unconfirmed_id, unconfirmed_operation, prepared FROM attach_handles
			WHERE host = $1 AND unconfirmed_kind IS NOT NULL
			ON CONFLICT (host, kind, identity) DO UPDATE SET unconfirmed_kind = EXCLUDED.unconfirmed_kind,
			    unconfirmed_id = EXCLUDED.unconfirmed_id, unconfirmed_operation = EXCLUDED.unconfirmed_operation, prepared = EXCLUDED.prepared`,
			rememberInstalls("true"),
			uncleanAfterNova("host = $1 AND deployable_uuid IN (SELECT uuid FROM deployables WHERE host = $1 AND nova_spec IS NOT NULL)"),
			"DELETE FROM attach_handles WHERE host = $1",
			"DELETE FROM deployables WHERE host = $1",
			"DELETE FROM devices WHERE host = $1",
			"DELETE FROM backends WHERE host = $1",
			"DELETE FROM hosts WHERE name = $1",
		} {
			batch.Queue(sql, name)
		}

		return tx.SendBatch(ctx, batch).Close()
	})
}

// checkForgettable refuses a host that is heard, that has an open operation, or
// where somebody holds a handle.
func (s *Store) checkForgettable(ctx context.Context, tx pgx.Tx, name string) error {
	var (
		seen   time.Time
		silent bool
	)

	// Heartbeats do not take the host's advisory lock, so the row is locked as
	// well. A heartbeat that arrives meanwhile skips the row; the next one finds
	// the host unknown, and asks its agent for a report.
	err := tx.QueryRow(ctx, `
		SELECT last_seen, NOT `+records.Within("last_seen", "$2::interval")+` FROM hosts WHERE name = $1 FOR UPDATE`,
		name, s.db.Options.SilentAfter).Scan(&seen, &silent)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return records.NoHost(name)
	case err != nil:
		return err
	case !silent:
		return cyborg.Errorf(cyborg.ErrChanged, "host %q was heard at %s", name, seen.Format(time.RFC3339)).
			WithHint("Stop its cyborg-agent for good first: a host that reports is recorded again.")
	}

	// Open operations would write to records that are gone.
	var (
		operation uuid.UUID
		kind      cyborg.OperationKind
	)

	err = tx.QueryRow(ctx, "SELECT id, kind FROM operations WHERE host = $1 AND open ORDER BY admitted_at LIMIT 1", name).
		Scan(&operation, &kind)
	if err == nil {
		return cyborg.Errorf(cyborg.ErrClaimed, "operation %s (%s) works on host %q", operation, kind, name).
			WithOperation(operation).WithHint("Wait until it has ended, or cancel it.")
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}

	const most = 10 // accelerators that the message names
	rows, err := tx.Query(ctx, `
		SELECT d.accelerator || ' (' || string_agg(DISTINCT h.holder_kind || ' ' || h.holder_id, ', ') || ')'
		FROM attach_handles h JOIN deployables d ON d.uuid = h.deployable_uuid
		WHERE h.host = $1 AND h.holder_kind IS NOT NULL GROUP BY d.id, d.accelerator ORDER BY d.id`, name)
	if err != nil {
		return err
	}
	held, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(held) == 0 {
		return err
	}

	return cyborg.Errorf(cyborg.ErrInUse, "%d accelerators of host %q are attached: %s", len(held), name,
		strings.Join(held[:min(len(held), most)], "; ")).
		WithHint("Detach them by force first: the host is silent, and cannot take them back.")
}
