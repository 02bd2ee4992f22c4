package ingest

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// lastAssignment reads the last assignment number that was drawn.
const lastAssignment = "SELECT last_assignment()"

// tellFloors tells the agents that ask for it which assignment numbers their
// hosts may still accept. The transaction has locked the hosts, so that no
// operation can be admitted meanwhile: it would have a number below the floor,
// and not be among the open ones.
func tellFloors(ctx context.Context, tx pgx.Tx, reports []agentapi.Report, replies []agentapi.ReportReply) error {
	asking := map[string][]int{} // indexes of the reports, by host
	var hosts []string
	for i, r := range reports {
		if r.AskFloor && replies[i].Accepted {
			if asking[r.Host] == nil {
				hosts = append(hosts, r.Host)
			}
			asking[r.Host] = append(asking[r.Host], i)
		}
	}

	if len(hosts) == 0 {
		return nil
	}

	rows, err := tx.Query(ctx, `
		SELECT name, next_assignment(),
		       (SELECT coalesce(array_agg(assignment ORDER BY assignment), '{}') FROM operations WHERE host = name AND open)
		FROM unnest($1::text[]) AS name`, hosts)
	if err != nil {
		return err
	}

	var (
		host  string
		floor agentapi.Floor
	)
	_, err = pgx.ForEachRow(rows, []any{&host, &floor.Number, &floor.Open}, func() error {
		told := floor
		for _, i := range asking[host] {
			replies[i].Floor = &told
		}
		floor.Open = nil // told has the slice now
		return nil
	})
	return err
}

// assignmentReach is how far ahead of the database's clock a number may be that a
// host has seen. Numbers begin at that clock, which may have been set back since.
const assignmentReach = 366 * 24 * time.Hour

// exceedAssignments makes all further assignment numbers greater than those
// that hosts have seen. Hosts are ahead of the records only where the database
// has lost transactions: it was restored from a backup, or failed over to a
// standby that was behind. Without this, the hosts would refuse every new step
// as too late. A failure is only logged: the next heartbeat comes soon.
//
// A host may say what it likes. Numbers that nobody can have drawn are not
// believed: all hosts would see numbers above them, and after a restore from
// before they would be out of reach.
func (s *Store) exceedAssignments(ctx context.Context, seen map[string]int64, last int64) {
	for _, number := range seen {
		if number > last {
			s.exceedAssignmentsAhead(ctx, seen, last)
			return
		}
	}
}

// exceedAssignmentsAhead is exceedAssignments where a host is ahead.
func (s *Store) exceedAssignmentsAhead(ctx context.Context, seen map[string]int64, last int64) {
	const failed = "a host has seen later assignment numbers than the records, which could not go on behind them"

	var furthest int64
	err := s.db.Pool.QueryRow(ctx, "SELECT (extract(epoch FROM clock_timestamp() + $1::interval) * 1000)::bigint << 10", assignmentReach).Scan(&furthest)
	if err != nil {
		s.db.Log.ErrorContext(ctx, failed, slog.String("error", err.Error()))
		return
	}

	highest, ahead := last, ""
	for host, number := range seen {
		switch {
		case number > max(furthest, last):
			s.logAbsurdAssignment(ctx, host, number, furthest)
		case number > highest:
			highest, ahead = number, host
		}
	}

	if ahead == "" {
		return
	}

	var exceeded bool
	err = s.db.Pool.QueryRow(ctx, "SELECT exceed_assignment($1)", highest).Scan(&exceeded)
	attrs := []any{slog.String("host", ahead), slog.Int64("number", highest), slog.Int64("known", last)}

	switch {
	case err != nil:
		s.db.Log.ErrorContext(ctx, failed, append(attrs, slog.String("error", err.Error()))...)
	case exceeded:
		s.db.Log.WarnContext(ctx, "a host has seen later assignment numbers than the records; the database has lost transactions, in a restore or a failover",
			attrs...)
	}
}

// logAbsurdAssignment warns about a number that is not believed. The host says it
// with each heartbeat.
func (s *Store) logAbsurdAssignment(ctx context.Context, host string, number, furthest int64) {
	if repeated, line := s.assignments.count(host, time.Now()); line {
		s.db.Log.WarnContext(ctx, "a host says that it has seen an assignment number which nobody can have drawn; it is not believed. "+
			"Check the clock of PostgreSQL, and who speaks for that host",
			slog.String("host", host), slog.Int64("number", number), slog.Int64("furthest", furthest), slog.Int("repeated", repeated))
	}
}
