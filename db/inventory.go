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

// MergeReports records what hosts report. It uses one transaction, and as many
// statements for a thousand hosts as for one.
//
// A reply is Accepted unless something newer is recorded of its host. A report
// that cannot be recorded leaves its host as it was and does not keep the other
// reports from being recorded: the error is then of kind ErrInvalid and names
// each such host, and the replies to the other reports hold. A report of a
// duplicate agent is refused in the same way, with kind ErrClaimed.
func (s *Store) MergeReports(ctx context.Context, reports []cyborg.Report) ([]cyborg.ReportReply, error) {
	replies, errs := s.mergeEach(ctx, reports)
	return replies, errors.Join(errs...)
}

// mergeEach is MergeReports with one error for each report.
func (s *Store) mergeEach(ctx context.Context, reports []cyborg.Report) ([]cyborg.ReportReply, []error) {
	replies, errs := make([]cyborg.ReportReply, len(reports)), make([]error, len(reports))

	var valid []int // indexes of reports
	for i := range reports {
		errs[i] = checkReport(&reports[i])
		if errs[i] == nil {
			valid = append(valid, i)
		}
	}

	merge := func(which []int) error {
		part := make([]cyborg.Report, len(which))
		for n, i := range which {
			part[n] = reports[i]
		}

		merged, refusals, err := s.merge(ctx, part)
		for n, i := range which {
			errs[i] = err
			if err == nil {
				replies[i], errs[i] = merged[n], refusals[n]
			}
		}
		return err
	}

	if len(valid) == 0 {
		return replies, errs
	}

	if err := merge(valid); err == nil || len(valid) == 1 || cyborg.ErrorKindOf(err).Retryable() {
		return replies, errs
	}
	// One bad report makes the whole transaction fail. Each is now merged in a
	// transaction of its own, so that only the bad ones fail; merge keeps the error
	// of each.
	for _, i := range valid {
		_ = merge([]int{i})
	}

	return replies, errs
}

// checkReport refuses a report that no record can hold. A single device that is
// wrong only leads to a complaint; see inventory.complain.
func checkReport(r *cyborg.Report) error {
	bad := func(format string, args ...any) error {
		return cyborg.Errorf(cyborg.ErrInvalid, "the report of host %.300q cannot be recorded: %s", r.Host, fmt.Sprintf(format, args...))
	}

	switch {
	case cyborg.CheckHostName(r.Host) != nil:
		return bad("that is no name of a host")
	case r.Sequence <= 0:
		return bad("sequence %d is not positive", r.Sequence)
	case r.Sequence > cyborg.MaxSequence:
		return bad("sequence %d is above %d", r.Sequence, int64(cyborg.MaxSequence))
	case r.Digest == "":
		return bad("it has no digest")
	case !optionalName(r.BootID) || !optionalName(r.Instance) || !optionalName(r.AgentVersion) || !optionalName(r.Digest):
		return bad("its boot id, instance, version or digest has a control character, or more than 255 characters")
	}

	names := map[string]bool{}
	for _, b := range r.Content.Backends {
		switch {
		case !cyborg.IsName(b.Name) || !cyborg.IsName(b.Driver):
			return bad("backend %.80q with driver %.80q is not named", b.Name, b.Driver)
		case names[b.Name]:
			return bad("it has backend %.80q twice", b.Name)
		case b.State != cyborg.BackendOK && b.State != cyborg.BackendFailed && b.State != cyborg.BackendDisabled:
			return bad("backend %.80q is in state %.80q, which does not exist", b.Name, b.State)
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

// optionalName reports whether the text is empty or a valid name.
func optionalName(text string) bool { return text == "" || cyborg.IsName(text) }

// hasNull reports whether JSON text contains an escaped null character, which
// PostgreSQL cannot store. An escaped backslash followed by "u0000" is none:
// the backslashes before it are counted.
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
	Name   string `json:"name"`
	BootID string `json:"boot_id"`
	// Instance and Address are written only.
	Instance string `json:"instance"`
	Address  string `json:"agent_address"`

	AgentVersion string `json:"agent_version"`
	ReportSeq    int64  `json:"report_seq"`
	Digest       string `json:"digest"`
	Base         string `json:"base"`
	Generation   int64  `json:"generation"`

	// Attachments and Whitelist are written only.
	Attachments []cyborg.Attachment   `json:"attachments"`
	Whitelist   *cyborg.WhitelistFile `json:"whitelist"`

	// exceed is the highest sequence number of an operation's observation that is
	// newer than the report that is merged; 0 for none.
	exceed int64
}

// merge records reports that have passed checkReport, in one transaction. It
// does not record those of duplicate agents; their refusals say why.
func (s *Store) merge(ctx context.Context, reports []cyborg.Report) (replies []cyborg.ReportReply, refusals []error, err error) {
	var fresh, successors []duplicateAgent
	err = s.change(ctx, cyborg.Actor{Name: agentRole}, uuid.Nil, func(tx pgx.Tx) error {
		var (
			duplicates []duplicateAgent
			err        error
		)
		// The transaction may be tried several times: each try starts afresh.
		replies, refusals = make([]cyborg.ReportReply, len(reports)), make([]error, len(reports))

		duplicates, err = s.lockReported(ctx, tx, reports)
		if err != nil {
			return err
		}

		fresh, err = s.recordDuplicateAgents(ctx, tx, duplicates)
		if err != nil {
			return err
		}

		for i := range duplicates {
			if r := &duplicates[i]; r.refused {
				refusals[r.by] = s.refusal(r)
			}
		}

		var (
			part  []cyborg.Report
			which []int
		)
		for i := range reports {
			if refusals[i] == nil {
				part, which = append(part, reports[i]), append(which, i)
			}
		}

		if len(part) == 0 {
			return nil
		}

		merged, err := s.mergeLocked(ctx, tx, part)
		if violates(err, nameTaken) || violates(err, "deployables_name_key") {
			return errCollision // another transaction has just recorded a host with the same name; the retry sees it
		}
		// Classes 22 (data exception) and 23 (constraint violation): the data is bad,
		// and repeating the transaction would not help.
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23")) {
			s.log.ErrorContext(ctx, "reports cannot be recorded", slog.String("error", err.Error()), slog.String("detail", pg.Detail))
			return cyborg.Errorf(cyborg.ErrInvalid, "the report of host %q cannot be recorded: %s", part[0].Host, pg.Message)
		}
		if err != nil {
			return err
		}

		for n, i := range which {
			replies[i] = merged[n]
		}

		successors, err = s.replaceSilentAgents(ctx, tx, duplicates, replies)
		return err
	})

	if err == nil {
		s.logDuplicateAgents(ctx, fresh)
		s.logSuccessors(ctx, successors)
	}

	return replies, refusals, err
}

// lockReported locks the hosts of the reports, and finds the duplicate agents
// among the agents that sent them.
func (s *Store) lockReported(ctx context.Context, tx pgx.Tx, reports []cyborg.Report) (duplicates []duplicateAgent, err error) {
	names, agents := make([]string, len(reports)), make([]agentIdentity, len(reports))
	for i := range reports {
		r := &reports[i]
		names[i] = r.Host
		agents[i] = agentIdentity{host: r.Host, boot: r.BootID, instance: r.Instance, version: r.AgentVersion, address: r.Address}
	}

	batch := &pgx.Batch{}
	batch.Queue(lockAll, names)
	s.queueDuplicateAgents(batch, &duplicates, agents)
	return duplicates, tx.SendBatch(ctx, batch).Close()
}

// mergeLocked records reports of hosts that the transaction has locked. Of each
// host only the newest report counts.
func (s *Store) mergeLocked(ctx context.Context, tx pgx.Tx, reports []cyborg.Report) ([]cyborg.ReportReply, error) {
	names, newest := newestOf(reports)

	known, err := readHostRows(ctx, tx, names)
	if err != nil {
		return nil, err
	}

	var touched, changed []int // indexes of the reports that say nothing new, and of those that do
	whole := map[string]bool{} // hosts that are asked for a whole report
	for _, name := range names {
		i := newest[name]
		r := reports[i]
		host, ok := known[name]

		switch {
		case r.Base != "" && (!ok || r.Sequence > host.ReportSeq && (r.BootID != host.BootID || r.Base != host.Base)):
			// The difference is based on a report that is not the recorded one.
			whole[name] = true
		case !ok || r.Sequence > host.ReportSeq && (r.Digest != host.Digest || r.BootID != host.BootID):
			changed = append(changed, i)
		case r.Sequence > host.ReportSeq:
			touched = append(touched, i)
		}
	}

	// A host that is asked for its whole report keeps its records until it comes.
	if err := touch(ctx, tx, reports, touched); err != nil {
		return nil, err
	}

	written, err := s.writeReports(ctx, tx, known, reports, changed)
	if err != nil {
		return nil, err
	}

	// What was not written is a difference that does not fit the records.
	for _, i := range changed {
		if _, ok := written[reports[i].Host]; !ok {
			whole[reports[i].Host] = true
		}
	}

	replies := make([]cyborg.ReportReply, len(reports))
	var refused []int // indexes of the reports that were not accepted

	for i, r := range reports {
		if r.Base != "" && i == newest[r.Host] && whole[r.Host] {
			replies[i] = cyborg.ReportReply{Generation: known[r.Host].Generation, Whole: true}
			continue
		}

		host, ok := written[r.Host]
		if !ok {
			host = known[r.Host]
		}

		counts, before := &reports[newest[r.Host]], known[r.Host]
		// A report that is repeated, because its acknowledgement was lost, is accepted
		// again. An empty digest does not tell which report was recorded; it is taken
		// for the same one, and the reply to the next heartbeat asks for a report.
		repeated := counts.Sequence == before.ReportSeq && (counts.Digest == before.Digest || before.Digest == "")
		accepted := r.Sequence == counts.Sequence && r.Digest == counts.Digest && (counts.Sequence > before.ReportSeq || repeated)

		replies[i] = cyborg.ReportReply{Generation: host.Generation, Accepted: accepted, Exceed: host.exceed}
		if !accepted {
			replies[i].Exceed = max(before.ReportSeq, counts.Sequence)
			refused = append(refused, i)
		}
	}

	return replies, exceedObserved(ctx, tx, reports, replies, refused)
}

// exceedObserved raises Exceed in the replies to the refused reports to what
// operations have observed of their hosts: the agent has to number its next
// report above both.
func exceedObserved(ctx context.Context, tx pgx.Tx, reports []cyborg.Report, replies []cyborg.ReportReply, refused []int) error {
	if len(refused) == 0 {
		return nil
	}

	var names []string
	for _, i := range refused {
		names = append(names, reports[i].Host)
	}

	rows, err := tx.Query(ctx, "SELECT host, max(observed_seq) FROM devices WHERE host = ANY($1) GROUP BY host", names)
	if err != nil {
		return err
	}

	var (
		host     string
		sequence int64
		observed = map[string]int64{}
	)
	if _, err = pgx.ForEachRow(rows, []any{&host, &sequence}, func() error { observed[host] = sequence; return nil }); err != nil {
		return err
	}

	for _, i := range refused {
		replies[i].Exceed = max(replies[i].Exceed, observed[reports[i].Host])
	}

	return nil
}

// newestOf returns the hosts of the reports, in the order of their first
// report, and for each the index of its report with the highest sequence
// number.
func newestOf(reports []cyborg.Report) (names []string, newest map[string]int) {
	newest = map[string]int{}
	for i, r := range reports {
		if j, ok := newest[r.Host]; !ok {
			names = append(names, r.Host)
			newest[r.Host] = i
		} else if reports[j].Sequence < r.Sequence {
			newest[r.Host] = i
		}
	}

	return names, newest
}

// touch records reports that have the same content as the recorded ones: only
// the number, the agent and the time are new.
func touch(ctx context.Context, tx pgx.Tx, reports []cyborg.Report, which []int) error {
	if len(which) == 0 {
		return nil
	}

	var (
		names, versions, instances, addresses []string
		sequences                             []int64
	)

	for _, i := range which {
		names, versions = append(names, reports[i].Host), append(versions, reports[i].AgentVersion)
		instances, addresses = append(instances, reports[i].Instance), append(addresses, reports[i].Address)
		sequences = append(sequences, reports[i].Sequence)
	}

	_, err := tx.Exec(ctx, `
		UPDATE hosts SET report_seq = r.sequence, agent_version = r.version, instance = r.instance, agent_address = r.address,
		    last_seen = clock_timestamp()
		FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[]) AS r (name, version, sequence, instance, address)
		WHERE hosts.name = r.name`,
		names, versions, sequences, instances, addresses)

	return err
}

// writeReports merges the contents of reports that say something new, and
// returns the hosts as they are recorded then. A host whose report has only a
// difference that does not fit the records is left out, and nothing of it is
// written.
func (s *Store) writeReports(ctx context.Context, tx pgx.Tx, known map[string]hostRow, reports []cyborg.Report, which []int) (map[string]hostRow, error) {
	written := map[string]hostRow{}
	if len(which) == 0 {
		return written, nil
	}

	wanted := make([]cyborg.Report, len(which))
	for n, i := range which {
		wanted[n] = reports[i]
	}

	inventories, err := loadInventories(ctx, tx, s.opts.DeployableName, wanted)
	if err != nil {
		return nil, err
	}

	var (
		diff  changes
		rows  []hostRow
		boots []boot
	)

	for _, i := range which {
		r := reports[i]
		v := inventories[r.Host]

		merged, err := v.merge(r)
		if err != nil {
			return nil, err
		}
		if !merged {
			continue
		}

		host, ok := known[r.Host]
		differences := diff.collect(v)
		// The generation stays only where this report changes nothing and the recorded
		// digest is empty: what emptied the digest has raised the generation already.
		if !ok || differences > 0 || host.Digest != "" {
			host.Generation++
		}

		// A host that was adopted has no boot id before its first report: that report
		// is no reboot.
		if host.BootID != "" && host.BootID != r.BootID {
			boots = append(boots, boot{r.Host, r.BootID, r.Uptime})
		}

		host.Name, host.BootID, host.AgentVersion, host.ReportSeq = r.Host, r.BootID, r.AgentVersion, r.Sequence
		host.Instance, host.Address = r.Instance, r.Address

		// The digest is left empty where the same report has to come again, and the
		// base where a report was not recorded completely: no difference may build on
		// it.
		host.Digest = r.Digest
		if v.unsettled {
			host.Digest = ""
		}

		host.Base = host.Digest
		if len(v.complaints) > 0 {
			host.Base = ""
		}

		host.exceed = v.exceed
		host.Attachments = r.Content.Attachments
		if host.Attachments == nil { // the column does not allow null
			host.Attachments = []cyborg.Attachment{}
		}

		host.Whitelist = nil
		if w := r.Content.Whitelist; w != nil {
			host.Whitelist = &cyborg.WhitelistFile{SHA256: cyborg.Sanitize(w.SHA256, longestError), Foreign: cyborg.Sanitize(w.Foreign, longestError)}
		}

		written[r.Host] = host
		rows = append(rows, host)
	}

	if err := write(ctx, tx, rows, &diff); err != nil {
		return nil, err
	}

	if err := markLostAtBoot(ctx, tx, boots); err != nil {
		return nil, err
	}

	return written, markNewUnconfirmed(ctx, tx, rows, diff.handles.inserts)
}

// observed is the Base of the reports that observe makes of observations. It
// makes loadInventories load only what the observation shows.
const observed = "observed"

// observe merges what an agent observed of devices after an operation had
// changed them, in the order of the sequence numbers. An observation that is
// not newer than the recorded report is left out; superseded tells whether the
// last one was.
func observe(ctx context.Context, d *database, tx pgx.Tx, host string, observations []cyborg.Observation) (superseded bool, err error) {
	if len(observations) == 0 {
		return false, nil
	}

	known, err := readHostRows(ctx, tx, []string{host})
	if err != nil {
		return false, err
	}

	// A later observation of a device replaces an earlier one.
	slices.SortStableFunc(observations, func(a, b cyborg.Observation) int { return int(a.Sequence - b.Sequence) })
	for _, o := range observations {
		superseded = o.Sequence <= known[host].ReportSeq
		if superseded {
			continue
		}

		inventories, err := loadInventories(ctx, tx, d.opts.DeployableName, []cyborg.Report{{Host: host, BootID: known[host].BootID, Base: observed, Content: cyborg.Content{
			Backends: []cyborg.BackendReport{{Name: o.Backend, Devices: []cyborg.DeviceReport{o.Device}}},
		}}})
		if err != nil {
			return false, err
		}

		v := inventories[host]
		if err := v.observation(o); err != nil {
			return false, err
		}

		for backend, complaints := range v.complaints {
			d.log.WarnContext(ctx, "part of an observation was left out", slog.String("host", host),
				slog.String("backend", backend), slog.String("reason", abridge(complaints)))
		}

		var diff changes
		if diff.collect(v) == 0 {
			continue
		}

		if err := write(ctx, tx, nil, &diff); err != nil {
			return false, err
		}

		if err := markObservedUnconfirmed(ctx, tx, host, diff.handles.inserts); err != nil {
			return false, err
		}
		// The records now differ from the last report: the same report would change
		// something. An empty digest makes the host send it again.
		if _, err := tx.Exec(ctx, "UPDATE hosts SET digest = '', generation = generation + 1 WHERE name = $1", host); err != nil {
			return false, err
		}
	}

	return superseded, nil
}

// Unprovisioned lists the accelerators that were found and never taken into
// service, on hosts that are not silent, the oldest first. Where
// inventory.admission is auto, a Provision is admitted for each.
func (s *Store) Unprovisioned(ctx context.Context, limit int) ([]uuid.UUID, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT d.uuid FROM deployables d JOIN hosts h ON h.name = d.host
		WHERE d.untouched AND d.lifecycle = 'inactive' AND d.presence = 'present' AND NOT `+maintained+`
		  AND d.fence_reason IS NULL AND d.protected = '' AND h.last_seen >= clock_timestamp() - $2::interval
		  AND NOT EXISTS (SELECT FROM claims WHERE deployable_uuid = d.uuid)
		ORDER BY d.id LIMIT $1`, clamp(limit), s.opts.SilentAfter)
	if err != nil {
		return nil, s.failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return found, s.failure(ctx, err)
}
