package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
)

// MergeReports records what hosts report, all in one transaction and with as many statements for a thousand hosts as for
// one. A reply is Accepted unless something newer was recorded of its host. A report that cannot be recorded leaves its
// host as it was and does not keep the others from being recorded: the error then is of kind Invalid and names each such
// host, and the replies to the others hold.
func (s *Store) MergeReports(ctx context.Context, reports []cyborg.Report) ([]cyborg.ReportReply, error) {
	replies, errs := s.mergeEach(ctx, reports)
	return replies, errors.Join(errs...)
}

// mergeEach is MergeReports with an error for each report.
func (s *Store) mergeEach(ctx context.Context, reports []cyborg.Report) ([]cyborg.ReportReply, []error) {
	replies, errs := make([]cyborg.ReportReply, len(reports)), make([]error, len(reports))
	var valid []int
	for i := range reports {
		if errs[i] = checkReport(&reports[i]); errs[i] == nil {
			valid = append(valid, i)
		}
	}
	merge := func(which []int) error {
		part := make([]cyborg.Report, len(which))
		for n, i := range which {
			part[n] = reports[i]
		}
		merged, err := s.merge(ctx, part)
		for n, i := range which {
			if errs[i] = err; err == nil {
				replies[i] = merged[n]
			}
		}
		return err
	}
	if len(valid) == 0 {
		return replies, errs
	}
	if err := merge(valid); err == nil || len(valid) == 1 || cyborg.KindOf(err).Retryable() {
		return replies, errs
	}
	for _, i := range valid { // one by one, so that only the bad ones fail; merge keeps their errors
		_ = merge([]int{i})
	}
	return replies, errs
}

// checkReport refuses what no record can hold. Single devices that are wrong only lead to a complaint; see inventory.
func checkReport(r *cyborg.Report) error {
	bad := func(format string, args ...any) error {
		return cyborg.Errorf(cyborg.Invalid, "the report of host %q cannot be recorded: %s", r.Host, fmt.Sprintf(format, args...))
	}
	switch {
	case r.Host == "" || len(r.Host) > 255 || !storable(r.Host):
		return bad("that is no name of a host")
	case r.Sequence <= 0:
		return bad("sequence %d is not positive", r.Sequence)
	case r.Digest == "":
		return bad("it has no digest")
	case !storable(r.BootID + r.AgentVersion + r.Digest):
		return bad("its boot id, version or digest is no text")
	}
	names := map[string]bool{}
	for _, b := range r.Content.Backends {
		switch {
		case b.Name == "" || b.Driver == "":
			return bad("backend %q with driver %q is not named", b.Name, b.Driver)
		case names[b.Name]:
			return bad("it has backend %q twice", b.Name)
		case b.State != cyborg.BackendOK && b.State != cyborg.BackendFailed && b.State != cyborg.BackendDisabled:
			return bad("backend %q is in state %q, which does not exist", b.Name, b.State)
		}
		names[b.Name] = true
	}
	text, err := json.Marshal(r.Content)
	if err != nil {
		return bad("%v", err)
	}
	if hasNull(string(text)) {
		return bad("it contains a null character")
	}
	return nil
}

// hasNull says whether JSON text has an escaped null character, which PostgreSQL cannot store.
func hasNull(text string) bool {
	const null = `\u0000`
	for {
		i := strings.Index(text, null)
		if i < 0 {
			return false
		}
		backslashes := 0
		for j := i - 1; j >= 0 && text[j] == '\\'; j-- {
			backslashes++
		}
		if backslashes%2 == 0 {
			return true
		}
		text = text[i+len(null):]
	}
}

// hostRow is a host as a merge reads and writes it.
type hostRow struct {
	Name         string              `json:"name"`
	BootID       string              `json:"boot_id"`
	AgentVersion string              `json:"agent_version"`
	ReportSeq    int64               `json:"report_seq"`
	Digest       string              `json:"digest"`
	Generation   int64               `json:"generation"`
	Attachments  []cyborg.Attachment `json:"attachments"` // written only
}

// merge records reports that were checked.
func (s *Store) merge(ctx context.Context, reports []cyborg.Report) ([]cyborg.ReportReply, error) {
	var replies []cyborg.ReportReply
	err := s.change(ctx, cyborg.Actor{Name: agentRole}, uuid.Nil, func(tx pgx.Tx) error {
		var err error
		replies, err = s.mergeLocked(ctx, tx, reports)
		if violates(err, nameTaken) || violates(err, "deployables_name_key") {
			return errCollision // a host merged at the same moment by others has the name; look again
		}
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23")) {
			s.log.ErrorContext(ctx, "reports cannot be recorded", slog.String("error", err.Error()), slog.String("detail", pg.Detail))
			return cyborg.Errorf(cyborg.Invalid, "the report of host %q cannot be recorded: %s", reports[0].Host, pg.Message)
		}
		return err
	})
	return replies, err
}

func (s *Store) mergeLocked(ctx context.Context, tx pgx.Tx, reports []cyborg.Report) ([]cyborg.ReportReply, error) {
	newest := map[string]int{} // index of the report that counts, by host
	var names []string
	for i, r := range reports {
		if j, ok := newest[r.Host]; !ok {
			names = append(names, r.Host)
			newest[r.Host] = i
		} else if reports[j].Sequence < r.Sequence {
			newest[r.Host] = i
		}
	}
	if err := lockHosts(ctx, tx, names...); err != nil {
		return nil, err
	}
	known, err := readHostRows(ctx, tx, names)
	if err != nil {
		return nil, err
	}
	var touched, changed []int
	for _, name := range names {
		i := newest[name]
		r := reports[i]
		host, ok := known[name]
		switch {
		case !ok || r.Sequence > host.ReportSeq && (r.Digest != host.Digest || r.BootID != host.BootID):
			changed = append(changed, i)
		case r.Sequence > host.ReportSeq:
			touched = append(touched, i)
		}
	}
	if err := touch(ctx, tx, reports, touched); err != nil {
		return nil, err
	}
	written, err := s.writeReports(ctx, tx, known, reports, changed)
	if err != nil {
		return nil, err
	}
	replies := make([]cyborg.ReportReply, len(reports))
	for i, r := range reports {
		host, ok := written[r.Host]
		if !ok {
			host = known[r.Host]
		}
		// One that was recorded before and is repeated, because its acknowledgement was lost, is accepted again.
		accepted := i == newest[r.Host] && (r.Sequence > known[r.Host].ReportSeq ||
			r.Sequence == host.ReportSeq && r.Digest == host.Digest)
		replies[i] = cyborg.ReportReply{Generation: host.Generation, Accepted: accepted}
	}
	return replies, nil
}

// touch records reports that say nothing new.
func touch(ctx context.Context, tx pgx.Tx, reports []cyborg.Report, which []int) error {
	if len(which) == 0 {
		return nil
	}
	var (
		names, versions []string
		sequences       []int64
	)
	for _, i := range which {
		names, versions = append(names, reports[i].Host), append(versions, reports[i].AgentVersion)
		sequences = append(sequences, reports[i].Sequence)
	}
	_, err := tx.Exec(ctx, `
		UPDATE hosts SET report_seq = r.sequence, agent_version = r.version, last_seen = clock_timestamp()
		FROM unnest($1::text[], $2::text[], $3::bigint[]) AS r (name, version, sequence) WHERE hosts.name = r.name`,
		names, versions, sequences)
	return err
}

// writeReports merges the contents of reports that say something new, and returns the hosts as they are then.
func (s *Store) writeReports(ctx context.Context, tx pgx.Tx, known map[string]hostRow, reports []cyborg.Report, which []int) (map[string]hostRow, error) {
	written := map[string]hostRow{}
	if len(which) == 0 {
		return written, nil
	}
	var hosts, deployables []string
	for _, i := range which {
		hosts = append(hosts, reports[i].Host)
		for _, b := range reports[i].Content.Backends {
			for _, d := range b.Devices {
				for _, p := range d.Deployables {
					deployables = append(deployables, s.opts.DeployableName(reports[i].Host, p.Name))
				}
			}
		}
	}
	inventories, err := s.loadInventories(ctx, tx, hosts, deployables)
	if err != nil {
		return nil, err
	}
	var (
		diff changes
		rows []hostRow
	)
	for _, i := range which {
		r := reports[i]
		v := inventories[r.Host]
		if err := v.report(r); err != nil {
			return nil, err
		}
		host, ok := known[r.Host]
		differences := diff.collect(v)
		// The records differ from the last content where an operation changed them since; the digest is then empty.
		if !ok || differences > 0 || host.Digest != "" {
			host.Generation++
		}
		host.Name, host.BootID, host.AgentVersion, host.ReportSeq = r.Host, r.BootID, r.AgentVersion, r.Sequence
		if host.Digest = r.Digest; v.unsettled {
			host.Digest = "" // so that the agent is asked again
		}
		if host.Attachments = r.Content.Attachments; host.Attachments == nil {
			host.Attachments = []cyborg.Attachment{}
		}
		written[r.Host] = host
		rows = append(rows, host)
	}
	return written, write(ctx, tx, rows, &diff)
}

// observe merges what an agent saw of devices after it changed them. Superseded says that a report which is newer has
// been recorded, and that the observation therefore was not.
func (s *Store) observe(ctx context.Context, tx pgx.Tx, host string, observations []cyborg.Observation) (superseded bool, err error) {
	if len(observations) == 0 {
		return false, nil
	}
	known, err := readHostRows(ctx, tx, []string{host})
	if err != nil {
		return false, err
	}
	slices.SortStableFunc(observations, func(a, b cyborg.Observation) int { return int(a.Sequence - b.Sequence) })
	for _, o := range observations {
		if superseded = o.Sequence <= known[host].ReportSeq; superseded {
			continue
		}
		var names []string
		for _, p := range o.Device.Deployables {
			names = append(names, s.opts.DeployableName(host, p.Name))
		}
		inventories, err := s.loadInventories(ctx, tx, []string{host}, names)
		if err != nil {
			return false, err
		}
		v := inventories[host]
		if err := v.observation(o); err != nil {
			return false, err
		}
		for backend, complaints := range v.complaints {
			s.log.WarnContext(ctx, "part of an observation was left out", slog.String("host", host),
				slog.String("backend", backend), slog.String("reason", abridge(complaints)))
		}
		var diff changes
		if diff.collect(v) == 0 {
			continue
		}
		if err := write(ctx, tx, nil, &diff); err != nil {
			return false, err
		}
		// The records are no longer what the host reported last: even the same report would now change something.
		if _, err := tx.Exec(ctx, "UPDATE hosts SET digest = '', generation = generation + 1 WHERE name = $1", host); err != nil {
			return false, err
		}
	}
	return superseded, nil
}

// Unprovisioned lists hardware that was found and never taken into service, on live hosts, the oldest first. Where
// inventory.admission is auto, a Provision is admitted for each.
func (s *Store) Unprovisioned(ctx context.Context, limit int) ([]uuid.UUID, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT d.uuid FROM deployables d JOIN hosts h ON h.name = d.host
		WHERE d.untouched AND d.lifecycle = 'inactive' AND d.presence = 'present' AND d.administration = 'enabled'
		  AND d.fence_reason IS NULL AND d.protected = '' AND h.last_seen >= clock_timestamp() - $2::interval
		  AND NOT EXISTS (SELECT FROM claims WHERE deployable_uuid = d.uuid)
		ORDER BY d.id LIMIT $1`, clamp(limit), s.opts.SilentAfter)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return found, s.failure(ctx, err)
}
