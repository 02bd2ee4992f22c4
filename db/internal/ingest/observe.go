package ingest

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/merge"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// Observe merges what an agent observed of devices after an operation had
// changed them, in the order of the sequence numbers. An observation that is
// not newer than the recorded report is left out, and so is one whose number is
// out of reach; superseded tells whether the last one was not newer. Own are the
// handles that the operation has attached or detached. Some of its writes may only be
// queued; see records.Queue.
func Observe(
	ctx context.Context, d *records.DB, tx pgx.Tx, host string, observations []cyborg.Observation, own []uuid.UUID,
) (superseded bool, err error) {
	if len(observations) == 0 {
		return false, nil
	}

	known := map[string]hostRow{}
	queueHostRows(tx, known, []string{host})

	// A later observation of a device replaces an earlier one.
	slices.SortStableFunc(observations, func(a, b cyborg.Observation) int { return cmp.Compare(a.Sequence, b.Sequence) })
	for _, o := range observations {
		// This also reads the host's row, and writes what the observation before has
		// changed.
		inventories, err := loadInventories(ctx, tx, d.Options.DeployableName, []agentapi.Report{{Host: host, Base: observed, Content: agentapi.Content{
			Backends: []agentapi.BackendReport{{Name: o.Backend, Devices: []cyborg.DeviceReport{o.Device}}},
		}}})
		if err != nil {
			return false, err
		}

		superseded = o.Sequence <= known[host].ReportSeq
		if superseded {
			continue
		}

		cannot, err := unrecordable(o)
		if err != nil {
			return false, err
		}
		if cannot {
			d.Log.WarnContext(ctx, "an observation was left out, because it has null characters; mend its driver",
				slog.String("host", host), slog.String("backend", o.Backend))
			queueWantReport(tx, host)
			continue
		}

		beyond, err := leaveOutJump(ctx, d, tx, host, o.Sequence)
		if err != nil {
			return false, err
		}
		if beyond {
			continue
		}

		v := inventories[host]
		v.Boot = known[host].BootID
		changed, err := v.Observation(o)
		if err != nil {
			return false, err
		}

		for backend, complaints := range v.Complaints {
			d.Log.WarnContext(ctx, "part of an observation was left out", slog.String("host", host),
				slog.String("backend", backend), slog.String("reason", complaints.String()))
		}

		var diff merge.Changes
		if diff.Collect(v) == 0 {
			continue
		}

		queueWrites(tx, nil, &diff)
		if changed {
			queueWantReport(tx, host)
		} else { // the last report says how the host is, except perhaps for its journal
			records.Queue(tx, wantReport+" AND digest <> '' AND "+disagreesAbout, host, o.Device.Identity, own)
		}
	}

	return superseded, nil
}

// unrecordable reports whether an observation has what PostgreSQL cannot store. It is
// no reason for its operation not to end; a report with it is refused, and says why.
func unrecordable(o cyborg.Observation) (bool, error) {
	text, err := json.Marshal(o)
	return hasNull(string(text)), err
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
	queueWantReport(tx, host)
	return true, nil
}

// queueWantReport makes the host send its report again, also one that it has
// sent before: the records now differ from the last one, so it would change
// something. See records.Queue.
func queueWantReport(tx pgx.Tx, host string) {
	records.Queue(tx, wantReport, host)
}

// wantReport is the statement of queueWantReport; its parameter is the host.
const wantReport = "UPDATE hosts s SET digest = '', generation = generation + 1 WHERE name = $1"

// disagreesAbout is an SQL condition: the journal of the host s, as last reported,
// disagrees with what is recorded of the device with the identity $2. Once an
// operation has observed the device, Reconcile waits for a report that is newer, and
// a host that has nothing else to tell would not send one. What an operation itself
// has attached or detaches, the handles $3, changes the journal, so its host sends one
// for these.
const disagreesAbout = `EXISTS (
	SELECT FROM devices v JOIN deployables d ON d.device_uuid = v.uuid JOIN attach_handles h ON h.deployable_uuid = d.uuid
	LEFT JOIN jsonb_to_recordset(s.attachments) AS j (deployable text, handle text, state text) ON j.deployable = d.local_name AND j.handle = h.identity
	WHERE v.host = $1 AND v.identity = $2 AND h.unconfirmed_kind IS NULL
	  AND CASE WHEN ` + inventory.OnHost + ` IS NOT TRUE THEN j.state IS NOT NULL
	      ELSE h.attached_at IS NOT NULL AND j.state IS DISTINCT FROM 'attached' AND h.uuid <> ALL(coalesce($3::uuid[], '{}')) END)`

// observed is the Base of the reports that Observe makes of observations. It
// makes loadInventories load only what the observation shows.
const observed = "observed"
