// Package ingest records what comes from outside: the reports and heartbeats of
// agents, in batches, what agents observe at the end of operations, and the
// records of an OpenStack Cyborg that are adopted.
//
// What a report makes of the records is decided in merge. The package reads the
// rows for that and writes the result. It imports no room that works on behalf
// of users: neither operation nor openstack.
package ingest

import "github.com/cyborg-project/cyborg/db/internal/records"

// Store is this room's part of the store. It is safe for concurrent use.
type Store struct {
	db          *records.DB
	duplicates  lines // about duplicate agents
	badReports  lines // about reports that the database refuses
	assignments lines // about assignment numbers that are not believed
}

// New returns the part of the store that works on db.
func New(db *records.DB) *Store { return &Store{db: db} }
