package feed

import (
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// selectPlace finds the last event that is not after a cursor: the cursor's own
// as long as the records have it.
const selectPlace = `
	SELECT transaction, id FROM events WHERE (transaction, id) <= ($1, $2) ORDER BY transaction DESC, id DESC LIMIT 1`

// checkPlace refuses a cursor whose event is not in the records any more, and
// says where to go on: after the last event that the reader has seen and that
// is still there. The row is that of selectPlace.
func checkPlace(row pgx.Row, after cyborg.Cursor) error {
	var last cyborg.Cursor
	err := row.Scan(&last.Transaction, &last.Event)

	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return cyborg.Errorf(cyborg.ErrGone, "event %s is no longer kept, and others after it may be gone, too", after).
			WithHint("Read anew what you need to know; then go on from now or, with 0-0, from the oldest event that is kept.")
	case err != nil || last == after:
		return err
	}

	return cyborg.Errorf(cyborg.ErrGone, "event %s is not in the records; it was lost, perhaps with others, when the database was restored or failed over", after).
		WithHint("Read anew what you need to know, because some of what you know may not have happened; then go on after %s.", last).
		WithAfter(last)
}
