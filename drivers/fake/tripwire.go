package fake

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// Trip is a change that the driver made to a card while somebody held or used
// what it changed. A test that looks only at the end would not see it: what was
// detached by mistake may be attached again by then.
type Trip struct {
	Card string `json:"card"`
	// What was changed: "attached", "detached", "programmed", "cleaned" or "uninstalled",
	// or "partitioned" where its card was divided. With the others the driver did too little before somebody was given the handle: what
	// it had to prepare for a guest is "unprepared", what still has something of another
	// holder, although the driver demands that it is removed, is "unclean", and what a
	// scrub has not ended on is "half-scrubbed". A handle of a part that cannot be there
	// beside one that somebody else was given is "divided".
	What string `json:"what"`
	// Handle is the handle that was held or used, or given.
	Handle  string `json:"handle"`
	HeldBy  string `json:"held_by,omitempty"`
	InUseBy string `json:"in_use_by,omitempty"`
	// LeftBy is who has left something on it, where it is unclean.
	LeftBy string `json:"left_by,omitempty"`
}

// tripwireFile is the file in the park's directory that has the trips, one JSON
// object a line.
const tripwireFile = "trips.jsonl"

// Hold says on the card who holds a handle, as somebody who was told so knows
// it; an empty name ends that. A guest has the handle through a hypervisor, so
// nobody may attach it on the host. While somebody holds a
// handle, the tripwire notes each change that takes it away, and at once that the
// card's driver has not prepared or cleaned it for a guest, if it must. A boot ends it,
// like a use. The error is of kind ErrNotFound where the card has no such
// handle.
func (b Bench) Hold(ctx context.Context, identity, handle, by string, guest bool) error {
	guest = guest && by != ""
	var trips []Trip
	err := b.editHandle(ctx, identity, handle, func(card *Card, h *Handle) {
		h.HeldBy, h.Guest = by, guest
		if by != "" {
			trips = append(trips, card.dividedTrips(identity, handle, by)...)
		}
		if guest && card.Prepares && !h.prepared() {
			trips = append(trips, Trip{Card: identity, What: "unprepared", Handle: handle, HeldBy: by, InUseBy: h.InUseBy})
		}
		if guest {
			trips = append(trips, card.uncleanTrips(identity, handle, *h, by)...)
		}
	})
	return errors.Join(err, b.note(trips))
}

// Trips returns what the tripwire has noted so far, oldest first.
func (b Bench) Trips() ([]Trip, error) {
	root, err := os.OpenRoot(b.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the trips of the fake park cannot be read: %w", err)
	}
	defer root.Close()

	text, err := root.ReadFile(tripwireFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the trips of the fake park cannot be read: %w", err)
	}

	var trips []Trip
	for line := range strings.Lines(string(text)) {
		var one Trip
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s has the line %q, which is no trip: %w", tripwireFile, line, err)
		}
		trips = append(trips, one)
	}
	return trips, nil
}

// note appends trips and syncs them, before the card itself is changed: a
// driver that dies in between has noted a trip that did not happen, and never
// the other way round.
func (b Bench) note(trips []Trip) (err error) {
	if len(trips) == 0 {
		return nil
	}
	defer func() {
		if err != nil {
			err = cyborg.Errorf(cyborg.ErrUnavailable, "a trip of fake card %s cannot be noted: %w", trips[0].Card, err)
		}
	}()

	root, err := os.OpenRoot(b.dir)
	if err != nil {
		return err
	}
	defer root.Close()

	var text []byte
	for _, one := range trips {
		line, err := json.Marshal(one)
		if err != nil {
			return err
		}
		text = append(append(text, line...), '\n')
	}

	file, err := root.OpenFile(tripwireFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}

	_, err = file.Write(text) // one write, so that those of two cards do not mix
	return errors.Join(err, file.Sync(), file.Close())
}

// trips compares a card before and after a change of the driver, and returns
// what the change did to handles that somebody holds or uses. An attach takes a
// handle from a guest that holds it, unless it prepares it for one, and from whoever uses
// it before it is attached, or while it is attached for somebody else. It also gives the
// handle to its holder. It knows nothing of the checks that the steps make before, on
// purpose.
func (c *Card) trips(identity string, after *Card) []Trip {
	var trips []Trip
	for key, was := range c.Deployables {
		is := after.Deployables[key]
		for address, handle := range was.Handles {
			var what string
			switch held := handle.HeldBy != ""; {
			case !held && handle.InUseBy == "":
			case c.has(key) && !after.has(key):
				what = "partitioned"
			case was.Installed && !is.Installed:
				what = "uninstalled"
			case was.BitstreamID != is.BitstreamID || was.SHA256 != is.SHA256:
				what = "programmed"
			case handle.Attached && !is.Handles[address].Attached:
				what = "detached"
			case handle.takenBy(is.Handles[address]):
				what = "attached"
			case handle.Cleaned < is.Handles[address].Cleaned:
				what = "cleaned"
			}

			if what != "" {
				trips = append(trips, Trip{Card: identity, What: what, Handle: address, HeldBy: handle.HeldBy, InUseBy: handle.InUseBy})
			}
			if now := is.Handles[address]; now.Attached && (!handle.Attached || now.Residue != handle.Residue) {
				trips = append(trips, after.uncleanTrips(identity, address, *handle, now.Residue.Stored)...)
			}
		}
	}
	return trips
}

// dividedTrips returns what is wrong with giving a handle to somebody, who holds it
// already, while others hold what the card has only where it is divided otherwise.
func (c *Card) dividedTrips(identity, address, by string) []Trip {
	whole, parts := false, cyborg.Layout{}
	for key, state := range c.Deployables {
		for _, handle := range state.Handles {
			kind, _ := partOfKey(key)
			switch {
			case handle.HeldBy == "":
			case kind == "":
				whole = true
			default:
				parts[kind]++
			}
		}
	}

	if checkLayout(parts) == nil && (!whole || len(parts) == 0) {
		return nil
	}
	return []Trip{{Card: identity, What: "divided", Handle: address, HeldBy: by}}
}

// uncleanTrips returns what is wrong with giving a handle, as it was before, to somebody.
func (c *Card) uncleanTrips(identity, address string, was Handle, to string) []Trip {
	one := Trip{Card: identity, Handle: address, HeldBy: to, InUseBy: was.InUseBy, LeftBy: was.Residue.of(to, c.Clean)}
	switch {
	case was.Scrubbed > 0:
		one.What = "half-scrubbed"
	case one.LeftBy != "":
		one.What = "unclean"
	default:
		return nil
	}
	return []Trip{one}
}

// takenBy says whether an attach, after which the handle is as given, has taken it from
// who holds or uses it.
func (h *Handle) takenBy(after *Handle) bool {
	switch {
	case !after.Attached:
		return false
	case h.Attached:
		return h.prepared() != after.prepared() || h.UUID != after.UUID
	default:
		return h.Guest && !after.prepared() || h.InUseBy != ""
	}
}

// clone returns a copy of the state that the tripwire compares.
func (c *Card) clone() *Card {
	out := &Card{Layout: maps.Clone(c.Layout), Deployables: map[string]*Region{}}
	for key, state := range c.Deployables {
		region := *state
		region.Handles = map[string]*Handle{}
		for address, handle := range state.Handles {
			one := *handle
			region.Handles[address] = &one
		}
		out.Deployables[key] = &region
	}
	return out
}
