package db

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
)

// Orphans lists the open operations in the given state that were admitted or
// started at least olderThan ago. Each should have a workflow that runs; one
// whose workflow was lost is an orphan. They are listed in the order of their
// admission, beginning after the given place.
func (s *Store) Orphans(ctx context.Context, state cyborg.OperationState, olderThan time.Duration, after OperationPlace, limit int) ([]Orphan, error) {
	return s.orphans(ctx, `
		SELECT id, kind, state, coalesce(started_at, admitted_at), admitted_at FROM operations
		WHERE open AND state = $1 AND coalesce(started_at, admitted_at) <= clock_timestamp() - $2::interval
		  AND (admitted_at, id) > ($3, $4)
		ORDER BY admitted_at, id LIMIT $5`, string(state), olderThan, after.Admitted, after.ID, clamp(limit))
}

// orphans runs a query that returns the fields of an Orphan.
func (s *Store) orphans(ctx context.Context, sql string, values ...any) ([]Orphan, error) {
	rows, err := s.pool.Query(ctx, sql, values...)
	if err != nil {
		return nil, s.failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Orphan, err error) {
		err = row.Scan(&o.Operation, &o.Kind, &o.State, &o.Since, &o.Place.Admitted)
		o.Place.ID = o.Operation
		return o, err
	})

	return found, s.failure(ctx, err)
}

// LastOfHosts counts off hosts by name, beginning after the given name, and
// returns the name of the last one; "" where there are fewer hosts.
func (s *Store) LastOfHosts(ctx context.Context, after string, hosts int) (string, error) {
	var name string
	err := s.pool.QueryRow(ctx, "SELECT name FROM hosts WHERE name > $1 ORDER BY name LIMIT 1 OFFSET $2", after, hosts-1).Scan(&name)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return name, s.failure(ctx, err)
}

// These are values of Disagreement.Recorded. A handle is in doubt where it has
// a holder and is not known to be attached.
const (
	inDoubt     = "in_doubt"
	unconfirmed = "left" // it was taken back without its host
)

// selectDisagreements compares the journals of hosts with the records. Its
// parameters are: $1, $6, $7 the place (host, deployable, handle) after which
// it begins; $2 how long a host may be unheard; $3 the kinds of operations
// whose error a settled doubt cures; $4 the limit; $5 the last host, empty for
// no bound.
//
// It leaves out accelerators that an operation works on, journals that are
// older than what an operation has observed of the device, and handles that the
// records give to an instance or a service. An unconfirmed handle is always
// listed, unless an operation works on its accelerator: its host has to settle
// it, whatever its journal says.
//
// Journal and records agree nearly everywhere, and compared leaves out the rows
// in which they do, unless the accelerator is in error. Only for an entry of
// the journal that matches no handle held by its host is the handle looked up
// (f).
const selectDisagreements = `
	WITH live AS (
		SELECT name, attachments, report_seq FROM hosts
		WHERE (name > $1 OR name = $1 AND $7 <> '') AND ($5 = '' OR name <= $5) AND last_seen >= clock_timestamp() - $2::interval),
	journal AS MATERIALIZED (
		SELECT l.name AS host, l.report_seq, j.backend, j.deployable, j.handle, j.operation_id, j.state
		FROM live l CROSS JOIN LATERAL jsonb_to_recordset(l.attachments)
		    AS j (backend text, deployable text, handle text, operation_id uuid, state text)
		WHERE l.attachments <> '[]'),
	handles AS NOT MATERIALIZED (
		SELECT h.host, h.uuid, h.identity AS handle, h.unconfirmed_kind, h.unconfirmed_id, h.unconfirmed_operation, h.holder_kind, h.holder_id, h.operation_id, h.attached_at, h.presence,
		       d.local_name AS deployable, d.uuid AS accelerator, d.lifecycle, d.error_kind, v.backend, v.observed_seq,
		       c.operation_id IS NOT NULL AS claimed
		FROM attach_handles h JOIN deployables d ON d.uuid = h.deployable_uuid JOIN devices v ON v.uuid = d.device_uuid
		LEFT JOIN claims c ON c.deployable_uuid = d.uuid),
	held AS MATERIALIZED (
		SELECT h.*, l.report_seq FROM handles h JOIN live l ON l.name = h.host
		WHERE h.holder_kind = 'host' AND h.host >= $1 AND ($5 = '' OR h.host <= $5)),
	compared AS MATERIALIZED (
		SELECT coalesce(j.host, r.host) AS host, coalesce(j.report_seq, r.report_seq) AS report_seq,
		       coalesce(j.backend, r.backend) AS backend, coalesce(j.deployable, r.deployable) AS deployable,
		       coalesce(j.handle, r.handle) AS handle, coalesce(j.state, '') AS journal, j.operation_id AS journal_operation,
		       r.uuid, r.accelerator, r.holder_kind, r.holder_id, r.operation_id, r.attached_at, r.presence, r.lifecycle,
		       r.error_kind, r.observed_seq, r.claimed
		FROM journal j FULL JOIN held r ON r.host = j.host AND r.deployable = j.deployable AND r.handle = j.handle
		WHERE r.uuid IS NULL OR j.state IS DISTINCT FROM 'attached' OR r.attached_at IS NULL OR r.lifecycle = 'error')
	SELECT * FROM (
	SELECT p.host, p.backend, p.deployable, p.handle, coalesce(p.uuid, f.uuid) AS handle_uuid, coalesce(p.holder_kind, 'host'),
	       coalesce(p.holder_id, p.host), coalesce(p.operation_id, p.journal_operation), coalesce(p.accelerator, f.accelerator),
	       p.journal, CASE WHEN p.uuid IS NULL THEN '' WHEN p.attached_at IS NULL THEN 'in_doubt' ELSE 'attached' END,
	       p.attached_at IS NOT NULL, NULL::uuid
	FROM compared p LEFT JOIN LATERAL (
		SELECT * FROM handles h
		WHERE p.uuid IS NULL AND h.host = p.host AND h.deployable = p.deployable AND h.handle = p.handle) f ON true
	WHERE NOT coalesce(p.claimed, f.claimed, false) AND coalesce(p.observed_seq, f.observed_seq, 0) <= p.report_seq
	  AND f.holder_kind IS NULL AND f.unconfirmed_kind IS NULL
	  AND (p.attached_at IS NULL OR p.presence = 'present' AND (
	       p.lifecycle = 'ready' OR p.lifecycle = 'error' AND p.error_kind = ANY($3)))
	UNION ALL
	SELECT h.host, h.backend, h.deployable, h.handle, h.uuid, h.unconfirmed_kind, h.unconfirmed_id, coalesce(j.operation_id, h.unconfirmed_operation),
	       h.accelerator, coalesce(j.state, ''), 'left', false, h.unconfirmed_operation
	FROM handles h JOIN live l ON l.name = h.host
	LEFT JOIN journal j ON j.host = h.host AND j.backend = h.backend AND j.handle = h.handle
	WHERE h.unconfirmed_kind IS NOT NULL AND NOT h.claimed) AS all_disagreements
	WHERE (host, deployable, handle) > ($1, $6, $7)
	ORDER BY host, deployable, handle, handle_uuid LIMIT $4`

// Disagreements lists the attachments about which the journals of live hosts
// and the records disagree, by host, each with what the records decide. It also
// lists attachments about which they agree, where the accelerator is in error
// only because the attachment was in doubt. It begins after a place and ends
// with the host upTo; their zero values are no bounds.
func (s *Store) Disagreements(ctx context.Context, after AttachmentPlace, upTo string, limit int) ([]Disagreement, error) {
	rows, err := s.pool.Query(ctx, selectDisagreements, after.Host, s.opts.SilentAfter, doubtful(), clamp(limit), upTo,
		after.Deployable, after.Handle)
	if err != nil {
		return nil, s.failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Disagreement, err error) {
		err = row.Scan(&d.Host, &d.Backend, &d.Deployable, &d.Handle.Identity, (*zeronull.UUID)(&d.Handle.UUID),
			&d.Handle.Holder.Kind, &d.Handle.Holder.ID, (*zeronull.UUID)(&d.Operation), (*zeronull.UUID)(&d.Accelerator),
			&d.Journal, &d.Recorded, &d.Attach, (*zeronull.UUID)(&d.Unconfirmed))
		return d, err
	})

	return found, s.failure(ctx, err)
}

// RecordSettled records that hosts have brought attachments into the state that
// the records had decided: handles in doubt become free, and accelerators that
// were in error because of the doubt become ready again. Whatever has changed
// since Disagreements listed it stays as it is.
func (s *Store) RecordSettled(ctx context.Context, settled []Disagreement) error {
	byHost := map[string][]Disagreement{}
	var hosts []string // in the order of settled
	for _, d := range settled {
		if _, ok := byHost[d.Host]; !ok {
			hosts = append(hosts, d.Host)
		}

		byHost[d.Host] = append(byHost[d.Host], d)
	}

	for _, host := range hosts {
		if err := s.recordSettled(ctx, host, byHost[host]); err != nil {
			return err
		}
	}

	return nil
}

// recordSettled is RecordSettled for one host. The operations that
// Disagreements saw are compared again under the lock of the host, so that a
// handle that somebody has got since is not taken from them.
func (s *Store) recordSettled(ctx context.Context, host string, settled []Disagreement) error {
	var (
		handles, operations            []uuid.UUID // in doubt, with the operation that left them so
		unconfirmedHandles, attachedBy []uuid.UUID // unconfirmed, with the operation that attached them
		targets                        []uuid.UUID
	)
	for _, d := range settled {
		if d.Accelerator != uuid.Nil {
			targets = append(targets, d.Accelerator)
		}

		switch {
		case d.Recorded == unconfirmed:
			unconfirmedHandles, attachedBy = append(unconfirmedHandles, d.Handle.UUID), append(attachedBy, d.Unconfirmed)
		case !d.Attach && d.Recorded == inDoubt:
			handles, operations = append(handles, d.Handle.UUID), append(operations, d.Operation)
		}
	}

	return s.change(ctx, repairer(), uuid.Nil, func(tx pgx.Tx) error {
		if err := lockHosts(ctx, tx, host); err != nil {
			return err
		}

		// This settles only doubts that the listed operations left.
		err := release(ctx, tx, `
			host = $1 AND holder_kind = 'host' AND attached_at IS NULL
			AND (uuid, operation_id) IN (SELECT * FROM unnest($2::uuid[], $3::uuid[]))
			AND NOT EXISTS (SELECT FROM claims c WHERE c.deployable_uuid = h.deployable_uuid)`, host, handles, operations)
		if err != nil {
			return err
		}

		_, err = clearUnconfirmed(ctx, tx, `
			host = $1 AND (uuid, unconfirmed_operation) IN (SELECT * FROM unnest($2::uuid[], $3::uuid[]))`, host, unconfirmedHandles, attachedBy)
		if err != nil {
			return err
		}

		free, err := unclaimedOf(ctx, tx, host, targets)
		if err != nil {
			return err
		}
		return settle(ctx, tx, free)
	})
}

// unclaimedOf returns those of the targets that are on the host and that no
// operation works on.
func unclaimedOf(ctx context.Context, tx pgx.Tx, host string, targets []uuid.UUID) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		SELECT uuid FROM deployables d WHERE host = $1 AND uuid = ANY($2)
		AND NOT EXISTS (SELECT FROM claims WHERE deployable_uuid = d.uuid)`, host, targets)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// Forget deletes what has been missing for that long, unless somebody holds it
// or an operation works on it, and returns how many handles, deployables and
// devices it deleted. It also deletes backends without devices that their host
// no longer reports. The events of what was deleted stay.
func (s *Store) Forget(ctx context.Context, missingFor time.Duration) (int, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT host FROM attach_handles WHERE presence = 'missing' AND missing_since <= now() - $1::interval AND holder_kind IS NULL
		UNION
		SELECT host FROM devices WHERE presence = 'missing' AND missing_since <= now() - $1::interval
		UNION
		SELECT host FROM deployables WHERE presence = 'missing' AND missing_since <= now() - $1::interval
		UNION
		SELECT host FROM backends WHERE NOT reported
		ORDER BY host`, missingFor)
	if err != nil {
		return 0, s.failure(ctx, err)
	}

	hosts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, s.failure(ctx, err)
	}

	forgotten := 0
	for _, host := range hosts {
		n, err := s.forgetOn(ctx, host, missingFor)
		forgotten += n
		if err != nil {
			return forgotten, err
		}
	}

	return forgotten, nil
}

// forgetOn is Forget for one host. It deletes handles first, then deployables,
// then devices: what cannot be deleted keeps everything that it belongs to.
func (s *Store) forgetOn(ctx context.Context, host string, missingFor time.Duration) (int, error) {
	const missing = "host = $1 AND presence = 'missing' AND missing_since <= now() - $2::interval AND "
	// An accelerator in Nova's whitelist is not forgotten: when it comes back,
	// Cyborg must not give it out.
	const novas = "SELECT FROM deployables WHERE nova_spec IS NOT NULL AND uuid = "

	forgotten := 0
	err := s.change(ctx, repairer(), uuid.Nil, func(tx pgx.Tx) error {
		forgotten = 0 // the transaction may be tried several times
		if err := lockHosts(ctx, tx, host); err != nil {
			return err
		}

		// Hardware that has been missing for so long has nothing attached any more.
		targets, err := clearUnconfirmed(ctx, tx, missing+"true", host, missingFor)
		if err != nil {
			return err
		}

		free, err := unclaimedOf(ctx, tx, host, targets)
		if err != nil {
			return err
		}

		if err := settle(ctx, tx, free); err != nil {
			return err
		}

		for _, sql := range []string{
			`DELETE FROM attach_handles h WHERE ` + missing + `holder_kind IS NULL
				AND NOT EXISTS (SELECT FROM arqs WHERE handle_uuid = h.uuid)
				AND NOT EXISTS (SELECT FROM claims c WHERE c.deployable_uuid = h.deployable_uuid)
				AND NOT EXISTS (` + novas + `h.deployable_uuid)`,
			`DELETE FROM deployables d WHERE ` + missing + `NOT EXISTS (SELECT FROM attach_handles WHERE deployable_uuid = d.uuid)
				AND NOT EXISTS (SELECT FROM claims WHERE deployable_uuid = d.uuid) AND nova_spec IS NULL`,
			`DELETE FROM devices v WHERE ` + missing + `NOT EXISTS (SELECT FROM deployables WHERE device_uuid = v.uuid)`,
		} {
			tag, err := tx.Exec(ctx, sql, host, missingFor)
			if err != nil {
				return err
			}

			forgotten += int(tag.RowsAffected())
		}

		_, err = tx.Exec(ctx, `
			DELETE FROM backends b WHERE host = $1 AND NOT reported
			AND NOT EXISTS (SELECT FROM devices WHERE host = b.host AND backend = b.name)`, host)

		return err
	})

	return forgotten, err
}
