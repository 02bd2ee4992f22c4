// Package feed reads the events that the triggers of the database have written,
// in the order of their commits, and tells readers when there may be new ones.
//
// It imports no room but records, because events are about the subjects of all
// rooms.
package feed

import (
	"context"

	"github.com/cyborg-project/cyborg/db/internal/records"
)

// Store is this room's part of the store. It is safe for concurrent use.
type Store struct {
	db       *records.DB
	notifier *notifier
	waker    *waker
}

// New returns the part of the store that works on db. It must be closed; the end
// of ctx does not matter.
func New(ctx context.Context, db *records.DB) *Store {
	return &Store{
		db: db, notifier: newNotifier(db.Listener, db.Log), waker: newWaker(ctx, db.Listener, db.Committed, db.Log),
	}
}

// Close ends the notifications of Notify, and wakes the readers after what was
// committed last.
func (s *Store) Close() {
	s.notifier.close()
	s.waker.close()
}
