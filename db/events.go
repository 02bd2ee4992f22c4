package db

import (
	"context"
	"errors"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
)

// readable bounds a query on events to what no running transaction can still add to: a transaction below the oldest
// running one is over, and a later one gets a higher number.
const readable = "transaction < pg_snapshot_xmin(pg_current_snapshot())"

// Events lists what follows after in the feed, in its order, at most limit (1–1000; 0 means 1000). The feed is complete:
// reading on from the last event's cursor misses nothing and repeats nothing. Two changes of the same host stand in it
// in the order in which they happened.
func (s *Store) Events(ctx context.Context, filter EventFilter, after cyborg.Cursor, limit int) ([]cyborg.Event, error) {
	c := filter.clause()
	c.and("(transaction, id) > (?, ?)", after.Transaction, after.Event)
	c.and(readable)
	rows, err := s.pool.Query(ctx, `
		SELECT transaction, id, subject_kind, subject_id, host, axis, from_value, to_value, operation_id, actor, request_id,
		       data, at FROM events`+c.String()+" ORDER BY transaction, id LIMIT "+strconv.Itoa(clamp(limit)), c.values...)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e cyborg.Event, err error) {
		err = row.Scan(&e.Cursor.Transaction, &e.Cursor.Event, &e.Subject.Kind, &e.Subject.ID, &e.Host, &e.Axis, &e.From, &e.To,
			(*zeronull.UUID)(&e.Operation), &e.Actor, &e.RequestID, &e.Data, &e.Time)
		return e, err
	})
	return found, s.failure(ctx, err)
}

func (f *EventFilter) clause() *clause {
	c := &clause{}
	andAny(c, "host", f.Hosts)
	switch byOperation := f.Operation != uuid.Nil; {
	case byOperation && len(f.Subjects) == 0:
		c.and("operation_id = ?", f.Operation)
	case !byOperation && len(f.Subjects) == 1: // the plain form, which an index answers in the feed's order
		c.and("subject_kind = ? AND subject_id = ?", string(f.Subjects[0].Kind), f.Subjects[0].ID)
	case len(f.Subjects) > 0:
		kinds, ids := make([]string, len(f.Subjects)), make([]string, len(f.Subjects))
		for i, subject := range f.Subjects {
			kinds[i], ids[i] = string(subject.Kind), subject.ID
		}
		about := "(subject_kind, subject_id) IN (SELECT * FROM unnest(?::text[], ?::text[]))"
		if byOperation {
			c.and("("+about+" OR operation_id = ?)", kinds, ids, f.Operation)
		} else {
			c.and(about, kinds, ids)
		}
	}
	return c
}

// LastCursor is the place of the newest event that can be read; a reader that wants only new events starts there.
func (s *Store) LastCursor(ctx context.Context) (cyborg.Cursor, error) {
	cursor, err := lastCursor(ctx, s.pool)
	return cursor, s.failure(ctx, err)
}

func lastCursor(ctx context.Context, q querier) (cyborg.Cursor, error) {
	var cursor cyborg.Cursor
	err := q.QueryRow(ctx, "SELECT transaction, id FROM events WHERE "+readable+" ORDER BY transaction DESC, id DESC LIMIT 1").
		Scan(&cursor.Transaction, &cursor.Event)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return cursor, err
}
