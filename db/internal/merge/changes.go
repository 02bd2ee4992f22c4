package merge

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Changes collects what a merge of one or several hosts has to write.
type Changes struct {
	Backends    pending[BackendRow]
	Devices     pending[DeviceRow]
	Deployables pending[DeployableRow]
	Handles     pending[HandleRow]
}

// Collect adds what differs from the records in the inventory of one host, and
// returns how many rows that is. The order is fixed, so that two transactions
// write the same rows in the same order.
func (c *Changes) Collect(v *Inventory) int {
	before := c.size()

	for _, key := range slices.Sorted(maps.Keys(v.Backends)) {
		c.Backends.add(v.Backends[key])
	}

	for _, key := range slices.Sorted(maps.Keys(v.Devices)) {
		c.Devices.add(v.Devices[key])
	}

	for _, key := range slices.Sorted(maps.Keys(v.Deployables)) {
		c.Deployables.add(v.Deployables[key])
	}

	order := func(a, b HandleKey) int {
		return strings.Compare(string(a.Kind)+" "+a.Identity, string(b.Kind)+" "+b.Identity)
	}
	for _, key := range slices.SortedFunc(maps.Keys(v.Handles), order) {
		c.Handles.add(v.Handles[key])
	}

	return c.size() - before
}

// size returns how many rows are to be written.
func (c *Changes) size() int {
	return c.Backends.size() + c.Devices.size() + c.Deployables.size() + c.Handles.size()
}

// pending are the rows of one table that a merge writes.
type pending[T any] struct{ Inserts, Updates []T }

// add adds the row where it is new or has changed.
func (p *pending[T]) add(t *Tracked[T]) {
	switch {
	case t.was == nil:
		p.Inserts = append(p.Inserts, t.row)
	case !reflect.DeepEqual(t.row, *t.was):
		p.Updates = append(p.Updates, t.row)
	}
}

// size returns how many rows are to be written.
func (p *pending[T]) size() int { return len(p.Inserts) + len(p.Updates) }
