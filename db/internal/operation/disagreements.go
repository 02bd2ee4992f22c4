package operation

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/ingest"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// Disagreement is an attachment about which the journal of a host and the
// records disagree, with the decision of the records.
type Disagreement struct {
	Host        string
	Backend     string
	Deployable  string
	Handle      cyborg.WorkHandle
	Operation   uuid.UUID
	Accelerator uuid.UUID
	Fingerprint cyborg.Fingerprint // of the recorded device

	Journal  cyborg.AttachmentState // "" where the journal has no such entry
	Recorded string                 // attached, in_doubt, left (unconfirmed), given (to an instance or a service), or "" for free

	// Unconfirmed is the operation that attached an unconfirmed handle; zero for
	// other handles.
	Unconfirmed uuid.UUID
	// Attach is the decision: whether the handle is to be attached.
	Attach bool
	// Agent is the one that the host has now.
	Agent cyborg.Agent
	// Report is the number of the host's report that has this journal.
	Report int64
	// Assignment is the number of the decision, for the host; 0 for a disagreement
	// that was only found.
	Assignment int64
	// Changed says, of one that is settled, whether the host had to change anything;
	// nil where its agent is too old to say. Observations are what it saw of the device
	// afterwards.
	Changed      *bool
	Observations []cyborg.Observation
}

// Given says that the records give the handle to an instance or a service.
func (d *Disagreement) Given() bool { return d.Recorded == given }

// AttachmentPlace is a place in the order in which Disagreements lists: after a
// handle of a host or, with no handle, after all handles of the host. The zero
// value comes before all hosts.
type AttachmentPlace struct{ Host, Deployable, Handle string }

// These are values of Disagreement.Recorded. A handle is in doubt where it has
// a holder and is not known to be attached.
const (
	inDoubt     = "in_doubt"
	unconfirmed = "left"  // it was taken back without its host
	given       = "given" // an instance or a service has it as it is, and the host's journal says that the host does
)

// selectDisagreements compares the journals of hosts with the records. Its
// parameters are: $1, $6, $7 the place (host, deployable, handle) after which
// it begins; $2 how long a host may be unheard; $3 the kinds of operations
// whose error a settled doubt cures; $4 the limit; $5 the last host, empty for
// no bound; $8 the only handle of interest, empty for all; $9 whether it begins with
// the first handle of the host in $1, and not after its last.
//
// It leaves out accelerators that an operation works on, prepared handles that a bind
// works on, which claims no accelerator where it loads no image, and journals that are
// older than what an operation has observed of the device, or than the end of the
// operation that was at work: such a journal may not have yet what the operation
// did. Where a handle is in doubt, or its accelerator in error, the host has to
// settle it whatever its journal says, and a host that took no step has nothing
// new to report; so there the age does not matter. A handle that the records give
// to an instance or a service, and that its host has not prepared for it, is listed where
// the journal says that the host has it: two would use it. An unconfirmed handle is always listed, unless an
// operation works on its accelerator: its host has to settle it, whatever its
// journal says.
//
// Journal and records agree nearly everywhere, and compared leaves out the rows
// in which they do, unless the accelerator is in error. For an entry of the
// journal without a handle that is attached on its host, f looks the handle up.
func selectDisagreements() string {
	return `
	WITH live AS (
		SELECT name, attachments, report_seq FROM hosts
		WHERE (name > $1 OR name = $1 AND ($6 <> '' OR $7 <> '' OR $9)) AND ($5 = '' OR name <= $5) AND ` + records.Within("last_seen", "$2::interval") + `),
	journal AS MATERIALIZED (
		SELECT l.name AS host, l.report_seq, j.backend, j.deployable, j.handle, j.operation_id, j.state, ` + inventory.EndedSince + ` AS of_before
		FROM live l CROSS JOIN LATERAL jsonb_to_recordset(l.attachments)
		    AS j (backend text, deployable text, handle text, operation_id uuid, state text, working uuid)
		WHERE l.attachments <> '[]'),
	handles AS NOT MATERIALIZED (
		SELECT h.host, h.uuid, h.identity AS handle, h.unconfirmed_kind, h.unconfirmed_id, h.unconfirmed_operation, h.holder_kind, h.holder_id, h.operation_id, h.attached_at, h.presence,
		       h.prepared, h.parameters, coalesce(h.cleaned ? 'declared', false) AS declared, d.local_name AS deployable, d.uuid AS accelerator, d.lifecycle, d.error_kind, v.backend, v.fingerprint, v.observed_seq,
		       c.operation_id IS NOT NULL OR h.prepared AND EXISTS (SELECT FROM operations o WHERE o.id = h.operation_id AND o.open) AS claimed
		FROM attach_handles h JOIN deployables d ON d.uuid = h.deployable_uuid JOIN devices v ON v.uuid = d.device_uuid
		LEFT JOIN claims c ON c.deployable_uuid = d.uuid),
	held AS MATERIALIZED (
		SELECT h.*, l.report_seq FROM handles h JOIN live l ON l.name = h.host
		WHERE ` + inventory.OnHost + ` AND h.host >= $1 AND ($5 = '' OR h.host <= $5)),
	compared AS MATERIALIZED (
		SELECT coalesce(j.host, r.host) AS host, coalesce(j.report_seq, r.report_seq) AS report_seq,
		       coalesce(j.backend, r.backend) AS backend, coalesce(j.deployable, r.deployable) AS deployable,
		       coalesce(j.handle, r.handle) AS handle, coalesce(j.state, '') AS journal, j.operation_id AS journal_operation,
		       coalesce(j.of_before, false) AS of_before,
		       r.uuid, r.accelerator, r.holder_kind, r.holder_id, r.operation_id, r.attached_at, r.presence, r.lifecycle,
		       r.error_kind, r.fingerprint, r.observed_seq, r.claimed, r.prepared, r.parameters, r.declared
		FROM journal j FULL JOIN held r ON r.host = j.host AND r.deployable = j.deployable AND r.handle = j.handle
		WHERE r.uuid IS NULL OR j.state IS DISTINCT FROM 'attached' OR r.attached_at IS NULL OR r.lifecycle = 'error')
	SELECT d.*, s.report_seq, ` + inventory.AgentColumns("s") + ` FROM (
	SELECT p.host, p.backend, p.deployable, p.handle, coalesce(p.uuid, f.uuid) AS handle_uuid, coalesce(p.holder_kind, 'host'),
	       coalesce(p.holder_id, p.host), coalesce(p.operation_id, p.journal_operation), coalesce(p.accelerator, f.accelerator),
	       p.journal, CASE WHEN f.holder_kind IS NOT NULL THEN 'given' WHEN p.uuid IS NULL THEN '' WHEN p.attached_at IS NULL THEN 'in_doubt' ELSE 'attached' END,
	       p.attached_at IS NOT NULL, NULL::uuid, coalesce(p.fingerprint, f.fingerprint, '{}'), coalesce(p.prepared, false), nullif(p.parameters, '{}'),
	       coalesce(p.declared, f.declared, false)
	FROM compared p LEFT JOIN LATERAL (
		SELECT *, ` + inventory.OnHost + ` IS TRUE AS on_host FROM handles h
		WHERE p.uuid IS NULL AND h.host = p.host AND h.deployable = p.deployable AND h.handle = p.handle) f ON true
	WHERE NOT coalesce(p.claimed, f.claimed, false)
	  AND (p.uuid IS NOT NULL AND (p.attached_at IS NULL OR p.lifecycle = 'error') OR coalesce(p.observed_seq, f.observed_seq, 0) <= p.report_seq AND NOT p.of_before)
	  AND f.on_host IS NOT TRUE AND f.unconfirmed_kind IS NULL
	  AND (p.attached_at IS NULL OR p.presence = 'present' AND (
	       p.lifecycle = 'ready' OR p.lifecycle = 'error' AND p.error_kind = ANY($3)))
	UNION ALL
	SELECT h.host, coalesce(j.backend, h.backend), h.deployable, h.handle, h.uuid, h.unconfirmed_kind, h.unconfirmed_id, coalesce(j.operation_id, h.unconfirmed_operation),
	       h.accelerator, coalesce(j.state, ''), 'left', false, h.unconfirmed_operation, h.fingerprint, h.prepared, nullif(h.parameters, '{}'), h.declared
	FROM handles h JOIN live l ON l.name = h.host
	LEFT JOIN journal j ON j.host = h.host AND j.deployable = h.deployable AND j.handle = h.handle
	WHERE h.unconfirmed_kind IS NOT NULL AND NOT h.claimed) AS d JOIN hosts s ON s.name = d.host
	WHERE (host, deployable, handle) > ($1, $6, $7) AND ($8 = '' OR handle = $8)
	ORDER BY host, deployable, handle, handle_uuid LIMIT $4`
}

// Disagreements lists the attachments about which the journals of live hosts
// and the records disagree, by host, each with what the records decide. It also
// lists attachments about which they agree, where the accelerator is in error
// only because the attachment was in doubt. It begins after a place and ends
// with the host upTo; their zero values are no bounds.
func (s *Store) Disagreements(ctx context.Context, after AttachmentPlace, upTo string, limit int) ([]Disagreement, error) {
	found, err := s.findDisagreements(ctx, s.db.Pool, wantedDisagreements{after: after, upTo: upTo, limit: limit})
	return found, s.db.Failure(ctx, err)
}

// DisagreementsOf is Disagreements for one host, from its first handle on.
func (s *Store) DisagreementsOf(ctx context.Context, host string, limit int) ([]Disagreement, error) {
	found, err := s.findDisagreements(ctx, s.db.Pool, wantedDisagreements{after: AttachmentPlace{Host: host}, whole: true, upTo: host, limit: limit})
	return found, s.db.Failure(ctx, err)
}

// wantedDisagreements are the parameters of selectDisagreements that vary.
type wantedDisagreements struct {
	after AttachmentPlace
	whole bool // the host in after from its first handle on
	upTo  string
	limit int
	only  string
}

// findDisagreements runs selectDisagreements.
func (s *Store) findDisagreements(ctx context.Context, q records.Querier, w wantedDisagreements) ([]Disagreement, error) {
	rows, err := q.Query(ctx, selectDisagreements(), w.after.Host, s.db.Options.SilentAfter, inventory.Doubtful(), records.Limit(w.limit), w.upTo,
		w.after.Deployable, w.after.Handle, w.only, w.whole)
	if err != nil {
		return nil, err
	}

	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Disagreement, err error) {
		err = row.Scan(append([]any{
			&d.Host, &d.Backend, &d.Deployable, &d.Handle.Identity, (*zeronull.UUID)(&d.Handle.UUID),
			&d.Handle.Holder.Kind, &d.Handle.Holder.ID, (*zeronull.UUID)(&d.Operation), (*zeronull.UUID)(&d.Accelerator),
			&d.Journal, &d.Recorded, &d.Attach, (*zeronull.UUID)(&d.Unconfirmed), &d.Fingerprint, &d.Handle.Prepared, &d.Handle.Parameters,
			&d.Handle.DeclaredClean, &d.Report,
		}, inventory.ScanAgent(&d.Agent)...)...)
		return d, err
	})
}

// Decide looks at a disagreement again, right before its host is asked to
// settle it, and returns it as it is now, with a number. Every operation that is
// admitted from then on has a greater number, so a host that has heard of one
// refuses what was decided here. A free handle that the host is to detach becomes
// unconfirmed, so that nobody gets it meanwhile. The error is of kind ErrChanged
// where nothing is to be settled any more, or not now.
func (s *Store) Decide(ctx context.Context, d Disagreement) (Disagreement, error) {
	var decided Disagreement
	err := s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		// An admission holds this lock while it draws its number. So no operation that
		// has a lower number than this decision can be missing among the claims below.
		if err := records.LockHosts(ctx, tx, d.Host); err != nil {
			return err
		}

		found, err := s.findDisagreements(ctx, tx, wantedDisagreements{
			after: AttachmentPlace{Host: d.Host, Deployable: d.Deployable}, upTo: d.Host, only: d.Handle.Identity,
		})
		if err != nil {
			return err
		}

		at := slices.IndexFunc(found, func(now Disagreement) bool { return now.Backend == d.Backend && now.Deployable == d.Deployable })
		if at < 0 {
			return cyborg.Errorf(cyborg.ErrChanged, "nothing about handle %s of host %s is to be settled any more", d.Handle.Identity, d.Host)
		}

		// The records may not know the handle, and still have its accelerator, on which
		// an operation works: its steps have a lower number than this decision would.
		var claimed bool
		decided = found[at]
		err = tx.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM claims c JOIN deployables d ON d.uuid = c.deployable_uuid WHERE d.host = $1 AND d.local_name = $2),
			       next_assignment()`, d.Host, d.Deployable).Scan(&claimed, &decided.Assignment)
		if err == nil && claimed {
			err = cyborg.Errorf(cyborg.ErrChanged, "an operation works on %s of host %s", d.Deployable, d.Host)
		}
		if err != nil {
			return err
		}

		if decided.Recorded == "" && decided.Handle.UUID != uuid.Nil {
			if err := keepFree(ctx, tx, &decided); err != nil {
				return err
			}
		}
		queuePending(tx, &decided)

		// The report may have come while an operation worked on the accelerator.
		batch := &pgx.Batch{}
		inventory.QueueMarkUndone(batch, []string{d.Host})
		records.QueueBatch(tx, batch)
		return nil
	})
	if err != nil {
		return Disagreement{}, err
	}

	return decided, nil
}

// RecordSettled records that hosts have brought attachments into the state that
// the records had decided: handles in doubt become free, and accelerators that
// were in error because of the doubt become ready again. The history of each
// accelerator says what was settled. Whatever has changed since Disagreements
// listed it stays as it is.
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

// recordSettled is RecordSettled for one host. What Disagreements saw is compared
// again under the lock of the host, so that a handle that somebody has got since is
// not taken from them.
func (s *Store) recordSettled(ctx context.Context, host string, settled []Disagreement) error {
	return s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		if err := records.LockHosts(ctx, tx, host); err != nil {
			return err
		}

		// Reports that were made before this have a journal of before, whenever they come.
		var (
			observations []cyborg.Observation
			handles      []uuid.UUID
		)
		for _, d := range settled {
			observations, handles = append(observations, d.Observations...), append(handles, d.Handle.UUID)
		}
		if _, err := ingest.Observe(ctx, s.db, tx, host, observations, handles); err != nil {
			return err
		}

		current, err := withoutLaterOperation(ctx, tx, settled)
		if err != nil {
			return err
		}
		if err := settleHandles(ctx, tx, host, current); err != nil {
			return err
		}
		batch := &pgx.Batch{}
		inventory.QueueWantReportOfReplaced(batch, host)
		records.QueueBatch(tx, batch)
		return tellSettled(ctx, tx, host, settled)
	})
}

// withoutLaterOperation returns those of the settled disagreements about whose
// accelerator no operation was admitted after the decision. Such an operation may have
// ended since, and have left a doubt of its own, which the settlement has not ended.
// Decisions without a number, of an earlier release, are all returned, and so are those
// about what a host had prepared and nobody has any more: while others get the handles
// beside it, no operation can have got that one.
func withoutLaterOperation(ctx context.Context, tx pgx.Tx, settled []Disagreement) ([]Disagreement, error) {
	accelerators, assignments, left := make([]uuid.UUID, len(settled)), make([]int64, len(settled)), make([]bool, len(settled))
	for i := range settled {
		accelerators[i], assignments[i] = settled[i].Accelerator, settled[i].Assignment
		left[i] = settled[i].Recorded == unconfirmed && settled[i].Handle.Prepared
	}

	rows, err := tx.Query(ctx, `
		SELECT d.n FROM unnest($1::uuid[], $2::bigint[], $4::boolean[]) WITH ORDINALITY AS d (accelerator, assignment, stays, n)
		WHERE d.assignment = 0 OR d.stays OR NOT EXISTS (
			SELECT FROM operation_subjects s JOIN operations o ON o.id = s.operation_id
			WHERE s.kind = $3 AND s.subject_id = d.accelerator::text AND o.assignment > d.assignment)
		ORDER BY d.n`, accelerators, assignments, string(cyborg.SubjectAccelerator), left)
	if err != nil {
		return nil, err
	}

	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Disagreement, error) {
		var n int
		err := row.Scan(&n)
		return settled[n-1], err
	})
}

// settleHandles makes handles in doubt and unconfirmed ones free that a host has
// settled, and their accelerators ready again.
func settleHandles(ctx context.Context, tx pgx.Tx, host string, settled []Disagreement) error {
	var (
		handles, operations            []uuid.UUID // in doubt, with the operation that left them so
		unconfirmedHandles, attachedBy []uuid.UUID // unconfirmed, with the operation that attached them
		attached                       []uuid.UUID
		targets                        []uuid.UUID
	)
	for _, d := range settled {
		if d.Accelerator != uuid.Nil {
			targets = append(targets, d.Accelerator)
		}

		switch {
		case d.Recorded == unconfirmed:
			unconfirmedHandles, attachedBy = append(unconfirmedHandles, d.Handle.UUID), append(attachedBy, d.Unconfirmed)
		case d.Attach:
			attached = append(attached, d.Handle.UUID)
		case d.Recorded == inDoubt:
			handles, operations = append(handles, d.Handle.UUID), append(operations, d.Operation)
		}
	}

	// This settles only doubts that the listed operations left.
	err := inventory.ReleaseSettledHandles(ctx, tx, `
		host = $1 AND `+inventory.OnHost+` AND attached_at IS NULL
		AND (uuid, operation_id) IN (SELECT * FROM unnest($2::uuid[], $3::uuid[]))
		AND NOT EXISTS (SELECT FROM claims c WHERE c.deployable_uuid = h.deployable_uuid)`, host, handles, operations)
	if err != nil {
		return err
	}

	_, err = inventory.ClearUnconfirmed(ctx, tx, `
		host = $1 AND (uuid, unconfirmed_operation) IN (SELECT * FROM unnest($2::uuid[], $3::uuid[]))`, host, unconfirmedHandles, attachedBy)
	if err != nil {
		return err
	}

	free, err := inventory.UnclaimedOf(ctx, tx, host, targets)
	if err != nil {
		return err
	}

	inventory.QueueClearUndone(tx, free, attached)
	inventory.QueueSettle(tx, free)
	return nil
}
