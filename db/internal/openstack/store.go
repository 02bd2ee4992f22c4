// Package openstack keeps what OpenStack's services know of accelerators:
// accelerator requests and device profiles, the instances that hold
// accelerators, and what Placement should have.
//
// Operations change requests through this package, so it must not import
// operation.
package openstack

import "github.com/cyborg-project/cyborg/db/internal/records"

// Store is this room's part of the store. It is safe for concurrent use.
type Store struct{ db *records.DB }

// New returns the part of the store that works on db.
func New(db *records.DB) *Store { return &Store{db: db} }
