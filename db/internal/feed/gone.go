package feed

import (
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// selectPlace finds the last event that is not after a cursor: the cursor's own
// as long as the records have it. A standby may not have it yet. Where the cursor
// is of an epoch that was lost, no event of the present one is before it,
// whatever their numbers are. The index is searched from below that epoch then;
// to ask of each event would read through all that the epoch has.
const selectPlace = `
	SELECT coalesce(place.transaction, '0'), coalesce(place.id, 0), pg_is_in_recovery()
	FROM (SELECT read_before($1) AS first OFFSET 0) epoch LEFT JOIN LATERAL (
		(SELECT transaction, id FROM events WHERE (transaction, id) = ($1, $2))
		UNION ALL
		(SELECT transaction, id FROM events
		WHERE (transaction, id) <= (least($1, epoch.first), CASE WHEN epoch.first <= $1 THEN -1 ELSE $2 END)
		ORDER BY transaction DESC, id DESC LIMIT 1)
		ORDER BY transaction DESC, id DESC LIMIT 1) place ON true`

// checkPlace refuses a cursor whose event is not in the records any more, and
// says where to go on: after the last event that the reader has seen and that
// is still there. The row is that of selectPlace.
func checkPlace(row pgx.Row, after cyborg.Cursor) error {
	var last cyborg.Cursor
	var standby bool
	err := row.Scan(&last.Transaction, &last.Event, &standby)

	switch {
	case err != nil || last == after:
		return err
	case standby:
		return cyborg.Errorf(cyborg.ErrUnavailable, "event %s is not in this database, which is a standby and may be behind its primary", after).
			WithHint("Try again soon; or let the database.url lead to the primary, with target_session_attrs=read-write.")
	case last == (cyborg.Cursor{}):
		return cyborg.Errorf(cyborg.ErrGone, "event %s is no longer kept, and others after it may be gone, too", after).
			WithHint("Read anew what you need to know; then go on from now or, with 0-0, from the oldest event that is kept.")
	}

	return cyborg.Errorf(cyborg.ErrGone, "event %s is not in the records; it was lost, perhaps with others, when the database was restored or failed over", after).
		WithHint("Read anew what you need to know, because some of what you know may not have happened; then go on after %s.", last).
		WithAfter(last)
}
