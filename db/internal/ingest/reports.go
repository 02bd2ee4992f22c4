package ingest

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/merge"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// MergeReports records what hosts report. It uses one transaction, and as many
// statements for a thousand hosts as for one.
//
// A reply is Accepted unless something newer is recorded of its host. A report
// that cannot be recorded leaves its host as it was and does not keep the other
// reports from being recorded: the error is then of kind ErrInvalid, or ErrTooLarge
// where it shows too much, and names each such host, and the replies to the other
// reports hold. A report of a
// duplicate agent is refused in the same way, with kind ErrClaimed.
func (s *Store) MergeReports(ctx context.Context, reports []agentapi.Report) ([]agentapi.ReportReply, error) {
	replies, _, errs := s.mergeEach(ctx, reports)
	return replies, errors.Join(errs...)
}

// mergeEach is MergeReports with one error for each report, and the hosts whose
// journals have other attachments than before.
func (s *Store) mergeEach(ctx context.Context, reports []agentapi.Report) (_ []agentapi.ReportReply, journals []string, _ []error) {
	replies, errs := make([]agentapi.ReportReply, len(reports)), make([]error, len(reports))

	var valid []int // indexes of reports
	for i := range reports {
		errs[i] = checkReport(&reports[i])
		if errs[i] == nil {
			valid = append(valid, i)
		}
	}

	// One bad report makes the whole transaction fail. Then each half is merged in a
	// transaction of its own, and so on, until only the bad ones fail.
	var merge func(which []int)
	merge = func(which []int) {
		if len(which) == 0 {
			return
		}

		part := make([]agentapi.Report, len(which))
		for n, i := range which {
			part[n] = reports[i]
		}

		merged, refusals, changed, err := s.merge(ctx, part)
		journals = append(journals, changed...)
		for n, i := range which {
			errs[i] = err
			if err == nil {
				replies[i], errs[i] = merged[n], refusals[n]
			}
		}

		if err != nil && len(which) > 1 && !cyborg.ErrorKindOf(err).Retryable() {
			half := len(which) / 2
			merge(which[:half])
			merge(which[half:])
		}
	}

	merge(valid)
	return replies, journals, errs
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
	// JournalOpening and JournalWrites are how far the agent's journal had got; see
	// journal.
	JournalOpening *uuid.UUID `json:"journal_opening"`
	JournalWrites  int64      `json:"journal_writes"`
	UptimeMS       int64      `json:"uptime_ms"` // written only; 0 where the agent does not say

	// Attachments and Whitelist are written only.
	Attachments []agentapi.Attachment `json:"attachments"`
	Whitelist   *cyborg.WhitelistFile `json:"whitelist"`
	// exceed is the highest sequence number of an operation's observation that is
	// newer than the report that is merged; 0 for none.
	exceed int64

	facts    *factsRow // to be recorded; nil where nothing is known to have changed
	hasFacts bool      // some are recorded
}

// factsRow is what a whole report tells of the machine.
type factsRow struct {
	Name  string            `json:"name"`
	Facts *cyborg.HostFacts `json:"facts"`
}

// factsIn returns the facts in a report; nil for a difference, which tells none, and where
// none are told of a host of which none are recorded.
func factsIn(r *agentapi.Report, recorded bool) *factsRow {
	if r.Base != "" || r.Content.Facts == nil && !recorded {
		return nil
	}
	return &factsRow{r.Host, r.Content.Facts}
}

// journal returns how far the agent's journal had got in the last report.
func (h *hostRow) journal() cyborg.JournalPosition {
	if h.JournalOpening == nil {
		return cyborg.JournalPosition{}
	}
	return cyborg.JournalPosition{Opening: *h.JournalOpening, Writes: h.JournalWrites}
}

// merge records reports that have passed checkReport, in one transaction. It
// does not record those of duplicate agents; their refusals say why. The hosts of
// journals have reported a journal with other attachments than before.
func (s *Store) merge(
	ctx context.Context, reports []agentapi.Report,
) (replies []agentapi.ReportReply, refusals []error, journals []string, err error) {
	var (
		fresh, successors []duplicateAgent
		full              []string             // hosts without room for another duplicate
		last              int64                // the last assignment number that was drawn
		seen              = map[string]int64{} // those that the hosts have seen
	)
	err = s.db.Change(ctx, cyborg.Actor{Name: inventory.AgentRole}, uuid.Nil, func(tx pgx.Tx) error {
		var (
			duplicates []duplicateAgent
			strangers  []int // indexes of the reports of hosts that are not recorded yet
			err        error
		)
		// The transaction may be tried several times: each try starts afresh.
		replies, refusals = make([]agentapi.ReportReply, len(reports)), make([]error, len(reports))

		duplicates, strangers, err = s.lockReported(ctx, tx, reports, &last)
		if err != nil {
			return err
		}

		fresh, full, err = s.recordDuplicateAgents(ctx, tx, duplicates)
		if err != nil {
			return err
		}

		for i := range duplicates {
			if r := &duplicates[i]; r.refused {
				refusals[r.by] = s.refusal(r)
			}
		}

		if err := refuse(ctx, tx, reports, strangers, refusals); err != nil {
			return err
		}

		var (
			part  []agentapi.Report
			which []int
		)
		for i := range reports {
			if refusals[i] == nil {
				part, which = append(part, reports[i]), append(which, i)
				seen[reports[i].Host] = reports[i].Assignment
			}
		}

		if len(part) == 0 {
			return nil
		}

		var merged []agentapi.ReportReply
		merged, journals, err = s.mergeLocked(ctx, tx, part)
		if records.Violates(err, inventory.UniqueName) || records.Violates(err, "deployables_name_key") {
			return records.ErrCollision // another transaction has just given that name to an accelerator; the retry sees it
		}
		// Classes 22 (data exception) and 23 (constraint violation): the data is bad,
		// and repeating the transaction would not help.
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23")) {
			s.logBadReport(ctx, part, pg)
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
	if err != nil {
		return replies, refusals, nil, err
	}

	s.logDuplicateAgents(ctx, fresh)
	s.logSuccessors(ctx, successors)
	s.exceedAssignments(ctx, seen, last)
	s.makeRoom(ctx, full)
	return replies, refusals, journals, nil
}

// logBadReport says which report the database refuses, once that is known: it may
// come again every few seconds.
func (s *Store) logBadReport(ctx context.Context, reports []agentapi.Report, why *pgconn.PgError) {
	if len(reports) > 1 {
		return // each part of them comes alone now
	}

	host := reports[0].Host
	if repeated, line := s.badReports.count(host, time.Now()); line {
		s.db.Log.ErrorContext(ctx, "a report cannot be recorded", slog.String("host", host), slog.String("error", why.Error()),
			slog.String("detail", cyborg.Sanitize(why.Detail, merge.LongestError)), slog.Int("repeated", repeated))
	}
}

// lockReported locks the hosts of the reports, finds the duplicate agents among
// the agents that sent them and the reports of hosts that are not recorded yet,
// and reads the last assignment number. It also locks the names in lower case, so
// that of two new hosts whose names differ in case one sees the other.
func (s *Store) lockReported(
	ctx context.Context, tx pgx.Tx, reports []agentapi.Report, last *int64,
) (duplicates []duplicateAgent, strangers []int, err error) {
	names, agents := make([]string, len(reports)), make([]agentIdentity, len(reports))
	for i := range reports {
		r := &reports[i]
		names[i] = r.Host
		agents[i] = agentIdentity{host: r.Host, boot: r.BootID, instance: r.Instance, version: r.AgentVersion, address: r.Address}
	}

	batch := &pgx.Batch{}
	locks := slices.Clone(names)
	for _, name := range names {
		locks = append(locks, strings.ToLower(name))
	}
	batch.Queue(records.LockHostsSQL, locks)
	s.queueDuplicateAgents(batch, &duplicates, agents)
	batch.Queue(`
		SELECT (`+lastAssignment+`), ARRAY(
			SELECT n - 1 FROM unnest($1::text[]) WITH ORDINALITY AS b (name, n)
			WHERE NOT EXISTS (SELECT FROM hosts h WHERE h.name = b.name) ORDER BY n)`, names).
		QueryRow(func(row pgx.Row) error { return row.Scan(last, &strangers) })
	err = tx.SendBatch(ctx, batch).Close()
	return duplicates, strangers, err
}

// mergeLocked records reports of hosts that the transaction has locked. Of each
// host only the newest report counts. The hosts of journals have other attachments in
// their journals than before.
func (s *Store) mergeLocked(ctx context.Context, tx pgx.Tx, reports []agentapi.Report) (_ []agentapi.ReportReply, journals []string, _ error) {
	names, newest := newestOf(reports)

	known := map[string]hostRow{}
	queueHostRows(tx, known, names)
	if err := records.Send(ctx, tx); err != nil {
		return nil, nil, err
	}

	sorted := sortReports(reports, names, newest, known)
	whole := sorted.whole

	// A host that is asked for its whole report keeps its records until it comes.
	if err := touch(ctx, tx, reports, sorted.touched); err != nil {
		return nil, nil, err
	}

	before := map[string][]agentapi.Attachment{}
	queueJournals(tx, before, reports, sorted.changed)
	written, err := s.writeReports(ctx, tx, known, reports, sorted.changed)
	if err != nil {
		return nil, nil, err
	}

	// What was not written is a difference that does not fit the records.
	recorded := sorted.touched
	for _, i := range sorted.changed {
		if now, ok := written[reports[i].Host]; ok {
			recorded = append(recorded, i)
			if !slices.Equal(now.Attachments, before[now.Name]) {
				journals = append(journals, now.Name)
			}
		} else {
			whole[reports[i].Host] = true
		}
	}
	queueLostJournals(tx, reports, recorded, known)
	queueCorrected(tx, reports, recorded, known, written)

	replies := make([]agentapi.ReportReply, len(reports))
	var refused []int // indexes of the reports that were not accepted

	for i, r := range reports {
		before := known[r.Host]
		if i == newest[r.Host] && sorted.unproven[r.Host] {
			replies[i] = agentapi.ReportReply{Generation: before.Generation, Known: before.journal()}
			continue
		}

		if r.Base != "" && i == newest[r.Host] && whole[r.Host] {
			replies[i] = agentapi.ReportReply{Generation: before.Generation, Whole: true}
			continue
		}

		host, ok := written[r.Host]
		if !ok {
			host = before
		}

		counts := &reports[newest[r.Host]]
		// A report that is repeated, because its acknowledgement was lost, is accepted
		// again. An empty digest does not tell which report was recorded; it is taken
		// for the same one, and the reply to the next heartbeat asks for a report.
		repeated := counts.Sequence == before.ReportSeq && (counts.Digest == before.Digest || before.Digest == "")
		accepted := r.Sequence == counts.Sequence && r.Digest == counts.Digest && (counts.Sequence > before.ReportSeq || repeated)

		replies[i] = agentapi.ReportReply{Generation: host.Generation, Accepted: accepted, Exceed: host.exceed}
		if !accepted {
			replies[i].Exceed = max(before.ReportSeq, counts.Sequence)
			refused = append(refused, i)
		}
	}

	if err := exceedObserved(ctx, tx, reports, replies, refused); err != nil {
		return nil, nil, err
	}
	return replies, journals, tellFloors(ctx, tx, reports, replies)
}

// sortedReports says what is to be done with the newest report of each host.
type sortedReports struct {
	touched, changed []int           // indexes of the reports that say nothing new, and of those that do
	whole            map[string]bool // hosts that are asked for a whole report
	unproven         map[string]bool // hosts whose agents must say first that their journals are no old copies
}

// sortReports compares the newest report of each host with what is recorded of it.
func sortReports(reports []agentapi.Report, names []string, newest map[string]int, known map[string]hostRow) sortedReports {
	out := sortedReports{whole: map[string]bool{}, unproven: map[string]bool{}}
	for _, name := range names {
		i := newest[name]
		r := reports[i]
		host, ok := known[name]

		switch {
		case ok && r.Sequence > host.ReportSeq && mustProve(&r, host.journal()):
			out.unproven[name] = true
		case r.Base != "" && (!ok || r.Sequence > host.ReportSeq && (r.BootID != host.BootID || r.Base != host.Base)):
			// The difference is based on a report that is not the recorded one.
			out.whole[name] = true
		case !ok || r.Sequence > host.ReportSeq && (r.Digest != host.Digest || r.BootID != host.BootID):
			out.changed = append(out.changed, i)
		case r.Sequence > host.ReportSeq:
			out.touched = append(out.touched, i)
		}
	}
	return out
}

// newestOf returns the hosts of the reports, in the order of their first
// report, and for each the index of its report with the highest sequence
// number.
func newestOf(reports []agentapi.Report) (names []string, newest map[string]int) {
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
func touch(ctx context.Context, tx pgx.Tx, reports []agentapi.Report, which []int) error {
	if len(which) == 0 {
		return nil
	}

	var (
		names, versions, instances, addresses []string
		sequences, writes, uptimes            []int64
		openings                              []*uuid.UUID
	)

	for _, i := range which {
		names, versions = append(names, reports[i].Host), append(versions, reports[i].AgentVersion)
		instances, addresses = append(instances, reports[i].Instance), append(addresses, reports[i].Address)
		sequences, uptimes = append(sequences, reports[i].Sequence), append(uptimes, reports[i].Uptime.Milliseconds())
		openings, writes = append(openings, openingOf(&reports[i])), append(writes, reports[i].Journal.Writes)
	}

	_, err := tx.Exec(ctx, `
		UPDATE hosts SET report_seq = r.sequence, agent_version = r.version, instance = r.instance, agent_address = r.address,
		    journal_opening = r.opening, journal_writes = r.writes, uptime = `+uptime("r")+`, heard_epoch = (SELECT epoch_in_force()),
		    last_seen = clock_timestamp()
		FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::uuid[], $7::bigint[], $8::bigint[])
		    AS r (name, version, sequence, instance, address, opening, writes, uptime_ms)
		WHERE hosts.name = r.name`,
		names, versions, sequences, instances, addresses, openings, writes, uptimes)

	return err
}

// uptime is the column of hosts from the milliseconds that the alias has; null
// where the agent does not say.
func uptime(alias string) string { return "nullif(" + alias + ".uptime_ms, 0) * interval '1 ms'" }

// writeReports merges the contents of reports that say something new, and
// returns the hosts as they are recorded then. A host whose report has only a
// difference that does not fit the records is left out, and nothing of it is
// written.
func (s *Store) writeReports(ctx context.Context, tx pgx.Tx, known map[string]hostRow, reports []agentapi.Report, which []int) (map[string]hostRow, error) {
	written := map[string]hostRow{}
	if len(which) == 0 {
		return written, nil
	}

	wanted := make([]agentapi.Report, len(which))
	for n, i := range which {
		wanted[n] = reports[i]
	}

	inventories, err := loadInventories(ctx, tx, s.db.Options.DeployableName, wanted)
	if err != nil {
		return nil, err
	}

	var (
		diff     merge.Changes
		rows     []hostRow
		boots    []boot
		replaced []string // hosts where another card is in the place of a recorded one
	)

	for _, i := range which {
		r := reports[i]
		v, host := inventories[r.Host], known[r.Host]

		// A host that was adopted has no boot id before its first report: that report
		// is no reboot.
		v.Booted = host.BootID != "" && host.BootID != r.BootID
		merged, err := v.Merge(r)
		if err != nil {
			return nil, err
		}
		if !merged {
			continue
		}

		_, ok := known[r.Host]
		differences := diff.Collect(v)
		// The generation stays only where this report changes nothing and the recorded
		// digest is empty: what emptied the digest has raised the generation already.
		if !ok || differences > 0 || host.Digest != "" {
			host.Generation++
		}

		if v.Booted {
			boots = append(boots, boot{r.Host, r.BootID, r.Uptime})
		}

		host.Name, host.BootID, host.AgentVersion, host.ReportSeq = r.Host, r.BootID, r.AgentVersion, r.Sequence
		host.Instance, host.Address = r.Instance, r.Address
		host.JournalOpening, host.JournalWrites, host.UptimeMS = openingOf(&r), r.Journal.Writes, r.Uptime.Milliseconds()

		// The digest is left empty where the same report has to come again, and the
		// base where a report was not recorded completely: no difference may build on
		// it.
		host.Digest, host.Base = r.Digest, r.Digest
		if v.Unsettled || v.Overtaken {
			host.Digest = ""
		}
		if v.Unsettled || len(v.Complaints) > 0 {
			host.Base = ""
		}

		if v.Replaced {
			replaced = append(replaced, r.Host)
		}

		host.exceed = v.Exceed
		host.Attachments = r.Content.Attachments
		if host.Attachments == nil { // the column does not allow null
			host.Attachments = []agentapi.Attachment{}
		}

		host.Whitelist = nil
		if w := r.Content.Whitelist; w != nil {
			host.Whitelist = &cyborg.WhitelistFile{SHA256: cyborg.Sanitize(w.SHA256, merge.LongestError), Foreign: cyborg.Sanitize(w.Foreign, merge.LongestError)}
		}

		host.facts = factsIn(&r, host.hasFacts)

		written[r.Host] = host
		rows = append(rows, host)
	}

	if err := markLostAtBoot(ctx, tx, boots); err != nil {
		return nil, err
	}

	queueWrites(tx, rows, &diff)
	if len(replaced) > 0 {
		inventory.QueueForgetReplaced(tx, replaced)
	}
	return written, records.Send(ctx, tx)
}
