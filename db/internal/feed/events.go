package feed

import (
	"context"
	"errors"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// EventFilter chooses events that are about one of Subjects or about Operation,
// and on one of Hosts; empty fields choose all.
type EventFilter struct {
	Subjects  []cyborg.Subject
	Operation uuid.UUID
	Hosts     []string
}

// readable is the condition that keeps an event query to complete transactions.
// Every transaction below the oldest running one is over, and later ones get
// higher numbers, so nothing can appear any more among the events that it lets
// through. The subquery is evaluated once for the whole query.
const readable = "transaction < (SELECT unreadable_from())"

// Events lists the events after the given cursor, in the order of the feed, at
// most limit of them (1–1000; 0 means 1000).
//
// The feed is complete: reading on from the last event's cursor misses nothing
// and repeats nothing. Two changes of one host are in it in the order in which
// they happened. If the event of the cursor is not in the records any more, so
// that something may be missing, the error is of kind ErrGone.
func (s *Store) Events(ctx context.Context, filter EventFilter, after cyborg.Cursor, limit int) ([]cyborg.Event, error) {
	c := filter.clause()
	c.And("(transaction, id) > (?, ?)", after.Transaction, after.Event)
	c.And(readable)

	var found []cyborg.Event
	batch := &pgx.Batch{}
	batch.Queue(`
		SELECT transaction, id, subject_kind, subject_id, host, axis, from_value, to_value, operation_id, actor, request_id,
		       data, at FROM events`+c.String()+" ORDER BY transaction, id LIMIT "+strconv.Itoa(records.Limit(limit)), c.Values...).
		Query(func(rows pgx.Rows) (err error) {
			found, err = pgx.CollectRows(rows, scanEvent)
			return err
		})

	// The same connection is asked, so this cannot be about the records of before a
	// failover, and the events from after it.
	if after != (cyborg.Cursor{}) {
		batch.Queue(selectPlace, after.Transaction, after.Event).QueryRow(func(row pgx.Row) error { return checkPlace(row, after) })
	}

	if err := s.db.Pool.Send(ctx, batch); err != nil {
		return nil, s.db.Failure(ctx, err)
	}
	return found, nil
}

// scanEvent reads a row of Events.
func scanEvent(row pgx.CollectableRow) (e cyborg.Event, err error) {
	err = row.Scan(&e.Cursor.Transaction, &e.Cursor.Event, &e.Subject.Kind, &e.Subject.ID, &e.Host, &e.Axis, &e.From, &e.To,
		(*zeronull.UUID)(&e.Operation), &e.Actor, &e.RequestID, &e.Data, &e.Time)
	return e, err
}

// clause returns the conditions of the filter.
func (f *EventFilter) clause() *records.Clause {
	c := &records.Clause{}
	records.AndAny(c, "host", f.Hosts)

	switch byOperation := f.Operation != uuid.Nil; {
	case byOperation && len(f.Subjects) == 0:
		c.And("operation_id = ?", f.Operation)

	case !byOperation && len(f.Subjects) == 1:
		// With plain equality an index gives the rows in the order of the feed.
		c.And("subject_kind = ? AND subject_id = ?", string(f.Subjects[0].Kind), f.Subjects[0].ID)

	case len(f.Subjects) > 0:
		kinds, ids := make([]string, len(f.Subjects)), make([]string, len(f.Subjects))
		for i, subject := range f.Subjects {
			kinds[i], ids[i] = string(subject.Kind), subject.ID
		}

		about := "(subject_kind, subject_id) IN (SELECT * FROM unnest(?::text[], ?::text[]))"
		if byOperation {
			c.And("("+about+" OR operation_id = ?)", kinds, ids, f.Operation)
		} else {
			c.And(about, kinds, ids)
		}
	}

	return c
}

// LastCursor returns the cursor of the newest readable event, or the zero
// cursor where there is none. A reader that wants only new events starts there.
func (s *Store) LastCursor(ctx context.Context) (cyborg.Cursor, error) {
	cursor, err := lastCursor(ctx, s.db.Pool)
	return cursor, s.db.Failure(ctx, err)
}

// lastCursor is LastCursor, perhaps within a transaction.
func lastCursor(ctx context.Context, q records.Querier) (cyborg.Cursor, error) {
	var cursor cyborg.Cursor
	err := q.QueryRow(ctx, "SELECT transaction, id FROM events WHERE "+readable+" ORDER BY transaction DESC, id DESC LIMIT 1").
		Scan(&cursor.Transaction, &cursor.Event)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return cursor, err
}
