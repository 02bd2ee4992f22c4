package inventory

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// AgentColumns are the columns of cyborg.Agent, of the table hosts under an
// alias. Each is null or zero where there is no such host. A host has been up as
// long as it was when it was last seen, and since then: both are times of the
// database, so no other clock is asked.
func AgentColumns(alias string) string {
	return alias + ".instance, " + alias + ".journal_opening, coalesce(" + alias + ".journal_writes, 0), " + alias + ".boot_id, " +
		"coalesce(" + alias + ".uptime + (clock_timestamp() - " + alias + ".last_seen), '0')"
}

// ScanAgent returns where to scan AgentColumns to.
func ScanAgent(agent *cyborg.Agent) []any {
	return []any{
		(*zeronull.Text)(&agent.Instance), (*zeronull.UUID)(&agent.Journal.Opening), &agent.Journal.Writes, (*zeronull.Text)(&agent.BootID), &agent.Uptime,
	}
}

// QueueAgentOf reads into the work of an operation the agent that a host has, and
// since when the host is silent: the zero time where it is not. See
// records.Queue.
func QueueAgentOf(tx pgx.Tx, silentAfter time.Duration, host string, work *cyborg.Work) {
	records.Queue(tx, `
		SELECT CASE WHEN NOT `+records.Within("h.last_seen", "$2::interval")+` THEN h.last_seen END, `+AgentColumns("h")+`
		FROM hosts h WHERE h.name = $1`, host, silentAfter).QueryRow(func(row pgx.Row) error {
		err := row.Scan(append([]any{(*zeronull.Timestamptz)(&work.HostSilentSince)}, ScanAgent(&work.Agent)...)...)
		if errors.Is(err, pgx.ErrNoRows) {
			return records.NoHost(host)
		}
		return err
	})
}
