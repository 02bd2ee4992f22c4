package ingest

import (
	"cmp"
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// refuse refuses the reports whose numbers or whose hosts' names cannot be
// recorded.
func refuse(ctx context.Context, tx pgx.Tx, reports []agentapi.Report, strangers []int, refusals []error) error {
	if err := refuseJumps(ctx, tx, reports, refusals); err != nil {
		return err
	}
	return refuseTwins(ctx, tx, reports, strangers, refusals)
}

// refuseJumps refuses the reports whose numbers are so far above the recorded
// ones that they would leave too few for the reports that follow.
func refuseJumps(ctx context.Context, tx pgx.Tx, reports []agentapi.Report, refusals []error) error {
	for i, r := range reports {
		if refusals[i] != nil || r.Sequence <= agentapi.MaxClock {
			continue // nearly always, so nothing is read
		}

		furthest, err := furthestSequence(ctx, tx, r.Host)
		if err != nil {
			return err
		}

		if r.Sequence > furthest {
			refusals[i] = cyborg.Errorf(cyborg.ErrInvalid, "the report of host %q cannot be recorded: sequence %d is above %d", r.Host, r.Sequence, furthest).
				WithHint("Stop its cyborg-agent, check the clock of that machine, remove the file journal from agent.state_dir, and start the agent again: " +
					"it then counts from its clock.")
		}
	}

	return nil
}

// furthestSequence returns the highest number that the host's next report or
// observation may have. An agent follows what was observed of its host, too.
func furthestSequence(ctx context.Context, tx pgx.Tx, host string) (int64, error) {
	var known int64
	err := tx.QueryRow(ctx, `
		SELECT greatest((SELECT max(report_seq) FROM hosts WHERE name = $1), (SELECT max(observed_seq) FROM devices WHERE host = $1), 0)`,
		host).Scan(&known)
	return max(known, agentapi.MaxClock) + agentapi.MaxJump, err
}

// refuseTwins refuses the reports of new hosts whose names differ from that of
// another host in upper and lower case only. They would be two hosts, with two
// identities, which people would take for one.
func refuseTwins(ctx context.Context, tx pgx.Tx, reports []agentapi.Report, strangers []int, refusals []error) error {
	if len(strangers) == 0 {
		return nil // nearly always, so nothing is read
	}

	twins, err := twinsOf(ctx, tx, reports, strangers)
	if err != nil {
		return err
	}

	first := map[string]string{} // the first spelling of each new name in this batch
	for _, i := range strangers {
		name := reports[i].Host
		if refusals[i] != nil {
			continue
		}

		twin := twins[name]
		if other := first[strings.ToLower(name)]; other != name {
			twin = cmp.Or(twin, other)
		}
		if twin != "" {
			refusals[i] = cyborg.Errorf(cyborg.ErrInvalid, "the host %q cannot be recorded: there is the host %q, whose name differs in upper and lower case only", name, twin).
				WithHint("Set agent.host to exactly the recorded name, with a certificate for that name, or forget that host first.")
			continue
		}
		first[strings.ToLower(name)] = name
	}

	return nil
}

// twinsOf returns, by the names of the new hosts, a recorded host whose name
// differs in case only.
func twinsOf(ctx context.Context, tx pgx.Tx, reports []agentapi.Report, strangers []int) (map[string]string, error) {
	names := make([]string, len(strangers))
	for n, i := range strangers {
		names[n] = reports[i].Host
	}

	rows, err := tx.Query(ctx, `
		SELECT b.name, min(h.name) FROM unnest($1::text[]) AS b (name)
		JOIN hosts h ON lower(h.name) = lower(b.name) AND h.name <> b.name GROUP BY b.name`, names)
	if err != nil {
		return nil, err
	}

	twins := map[string]string{}
	var name, twin string
	_, err = pgx.ForEachRow(rows, []any{&name, &twin}, func() error {
		twins[name] = twin
		return nil
	})
	return twins, err
}

// exceedObserved raises Exceed in the replies to the refused reports to what
// operations have observed of their hosts: the agent has to number its next
// report above both.
func exceedObserved(ctx context.Context, tx pgx.Tx, reports []agentapi.Report, replies []agentapi.ReportReply, refused []int) error {
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
