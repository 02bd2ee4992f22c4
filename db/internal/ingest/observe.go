package ingest

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/merge"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// Observe merges what an agent observed of devices after an operation had
// changed them, in the order of the sequence numbers. An observation that is
// not newer than the recorded report is left out, and so is one whose number is
// out of reach; superseded tells whether the last one was not newer.
func Observe(ctx context.Context, d *records.DB, tx pgx.Tx, host string, observations []cyborg.Observation) (superseded bool, err error) {
	if len(observations) == 0 {
		return false, nil
	}

	known, err := readHostRows(ctx, tx, []string{host})
	if err != nil {
		return false, err
	}

	// A later observation of a device replaces an earlier one.
	slices.SortStableFunc(observations, func(a, b cyborg.Observation) int { return cmp.Compare(a.Sequence, b.Sequence) })
	for _, o := range observations {
		superseded = o.Sequence <= known[host].ReportSeq
		if superseded {
			continue
		}

		beyond, err := leaveOutJump(ctx, d, tx, host, o.Sequence)
		if err != nil {
			return false, err
		}
		if beyond {
			continue
		}

		inventories, err := loadInventories(ctx, tx, d.Options.DeployableName, []agentapi.Report{{Host: host, BootID: known[host].BootID, Base: observed, Content: agentapi.Content{
			Backends: []agentapi.BackendReport{{Name: o.Backend, Devices: []cyborg.DeviceReport{o.Device}}},
		}}})
		if err != nil {
			return false, err
		}

		v := inventories[host]
		changed, err := v.Observation(o)
		if err != nil {
			return false, err
		}

		for backend, complaints := range v.Complaints {
			d.Log.WarnContext(ctx, "part of an observation was left out", slog.String("host", host),
				slog.String("backend", backend), slog.String("reason", merge.Abridge(complaints)))
		}

		var diff merge.Changes
		if diff.Collect(v) == 0 {
			continue
		}

		batch := &pgx.Batch{}
		queueWrite(batch, nil, &diff)
		if changed {
			batch.Queue(wantReportSQL, host)
		} else { // the last report says how the host is, except perhaps for its journal
			batch.Queue(wantReportSQL+" AND digest <> '' AND "+disagreesAbout, host, o.Device.Identity)
		}

		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return false, err
		}
	}

	return superseded, nil
}

// leaveOutJump reports whether an observation's number is so far above the
// recorded ones that it would leave too few for the host's reports; see
// refuseJumps. The next report then says how the device is.
func leaveOutJump(ctx context.Context, d *records.DB, tx pgx.Tx, host string, sequence int64) (bool, error) {
	if sequence <= agentapi.MaxClock {
		return false, nil // nearly always, so nothing is read
	}

	furthest, err := furthestSequence(ctx, tx, host)
	if err != nil || sequence <= furthest {
		return false, err
	}

	d.Log.WarnContext(ctx, "an observation was left out, because its sequence is out of reach; check the clock of that machine",
		slog.String("host", host), slog.Int64("sequence", sequence), slog.Int64("furthest", furthest))
	return true, wantReport(ctx, tx, host)
}

// wantReport makes the host send its report again, also one that it has sent
// before: the records now differ from the last one, so it would change
// something.
func wantReport(ctx context.Context, tx pgx.Tx, host string) error {
	_, err := tx.Exec(ctx, wantReportSQL, host)
	return err
}

// wantReportSQL is the statement of wantReport; its parameter is the host.
const wantReportSQL = "UPDATE hosts s SET digest = '', generation = generation + 1 WHERE name = $1"

// disagreesAbout is an SQL condition: the journal of the host s, as last reported,
// disagrees with what is recorded of the device with the identity $2. Once an
// operation has observed the device, Reconcile waits for a report that is newer, and
// a host that has nothing else to tell would not send one. What an operation has
// attached or detaches changes the journal, so its host sends one by itself.
const disagreesAbout = `EXISTS (
	SELECT FROM devices v JOIN deployables d ON d.device_uuid = v.uuid JOIN attach_handles h ON h.deployable_uuid = d.uuid
	LEFT JOIN jsonb_to_recordset(s.attachments) AS j (deployable text, handle text, state text) ON j.deployable = d.local_name AND j.handle = h.identity
	WHERE v.host = $1 AND v.identity = $2 AND h.unconfirmed_kind IS NULL
	  AND CASE WHEN h.holder_kind IS DISTINCT FROM 'host' THEN j.state IS NOT NULL
	      ELSE h.attached_at IS NOT NULL AND j.state IS DISTINCT FROM 'attached'
	           AND NOT EXISTS (SELECT FROM claims WHERE deployable_uuid = d.uuid) END)`

// observed is the Base of the reports that Observe makes of observations. It
// makes loadInventories load only what the observation shows.
const observed = "observed"
