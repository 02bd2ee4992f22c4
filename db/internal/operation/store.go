// Package operation admits, begins and ends operations, each kind in a file of
// its own, and finds those that Reconcile has to settle.
//
// It is the highest room: it may import all others but feed, and none of them
// may import it.
package operation

import "github.com/cyborg-project/cyborg/db/internal/records"

// Store is this room's part of the store. It is safe for concurrent use.
type Store struct{ db *records.DB }

// New returns the part of the store that works on db.
func New(db *records.DB) *Store { return &Store{db: db} }
