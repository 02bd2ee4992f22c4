package db

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// Maintain takes an accelerator out of use until it is enabled or the maintenance expires: nothing new is attached to
// it, and what is attached stays. Again, it replaces the reason and the time. The error is of kind Invalid where there
// is no reason or the time is over, NotFound where there is no such accelerator.
func (s *Store) Maintain(ctx context.Context, id uuid.UUID, m cyborg.Maintenance, actor cyborg.Actor) (cyborg.Accelerator, error) {
	if m.Reason == "" {
		return cyborg.Accelerator{}, cyborg.Errorf(cyborg.Invalid, "maintenance needs a reason; others will wonder")
	}
	if m.By == "" {
		m.By = actor.Name
	}
	var until *time.Time
	if !m.Until.IsZero() {
		until = &m.Until
	}
	return s.administer(ctx, id, actor, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE deployables SET administration = $2, maintain_reason = $3, maintain_by = $4, maintain_until = $5
			WHERE uuid = $1 AND ($5::timestamptz IS NULL OR $5 > clock_timestamp())`,
			id, string(cyborg.Maintaining), m.Reason, m.By, until)
		if err == nil && tag.RowsAffected() == 0 {
			return cyborg.Errorf(cyborg.Invalid, "maintenance until %s would be over already", m.Until.UTC().Format(time.RFC3339))
		}
		return err
	})
}

// Enable ends the maintenance of an accelerator; of one that is in none it changes nothing. The error is of kind
// NotFound where there is no such accelerator.
func (s *Store) Enable(ctx context.Context, id uuid.UUID, actor cyborg.Actor) (cyborg.Accelerator, error) {
	return s.administer(ctx, id, actor, func(tx pgx.Tx) error {
		_, err := enable(ctx, tx, "uuid = $4", id)
		return err
	})
}

func enable(ctx context.Context, tx pgx.Tx, condition string, values ...any) (int, error) {
	from := texts(cyborg.Sources(cyborg.AdministrationTransitions(), cyborg.Enabled))
	tag, err := tx.Exec(ctx, `
		UPDATE deployables SET administration = $1, maintain_reason = $3, maintain_by = $3, maintain_until = NULL
		WHERE administration = ANY($2) AND `+condition, append([]any{string(cyborg.Enabled), from, ""}, values...)...)
	return int(tag.RowsAffected()), err
}

// administer makes a change to one accelerator and returns it as it is then.
func (s *Store) administer(ctx context.Context, id uuid.UUID, actor cyborg.Actor, body func(tx pgx.Tx) error) (cyborg.Accelerator, error) {
	var out cyborg.Accelerator
	err := s.change(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		if _, err := lockOne(ctx, tx, id); err != nil {
			return err
		}
		if err := body(tx); err != nil {
			return err
		}
		found, err := readAccelerators(ctx, tx, " WHERE d.uuid = $1", id)
		if err == nil {
			out = found[0].Accelerator
		}
		return err
	})
	return out, err
}

// EnableExpired ends all maintenance whose time is over, and returns how many that was.
func (s *Store) EnableExpired(ctx context.Context) (int, error) {
	const expired = "administration = 'maintaining' AND maintain_until <= now()"
	enabled := 0
	err := s.change(ctx, repairer(), uuid.Nil, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT DISTINCT host FROM deployables WHERE "+expired)
		if err != nil {
			return err
		}
		hosts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(hosts) == 0 {
			return err
		}
		if err := lockHosts(ctx, tx, hosts...); err != nil {
			return err
		}
		enabled, err = enable(ctx, tx, expired+" AND host = ANY($4)", hosts)
		return err
	})
	return enabled, err
}

// repairer is the actor of what the system does on its own.
func repairer() cyborg.Actor { return cyborg.Actor{Name: "cyborg"} }
