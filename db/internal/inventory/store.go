// Package inventory reads and changes what is recorded of hosts, their devices
// and accelerators: lists, guards and locks, maintenance, specs and attributes,
// and what is forgotten.
//
// It knows operations and accelerator requests only as columns of its rows, so
// it imports neither of their rooms, nor ingest.
package inventory

import "github.com/cyborg-project/cyborg/db/internal/records"

// Store is this room's part of the store. It is safe for concurrent use.
type Store struct{ db *records.DB }

// New returns the part of the store that works on db.
func New(db *records.DB) *Store { return &Store{db: db} }
