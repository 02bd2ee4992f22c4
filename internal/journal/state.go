package journal

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// These limits say what a rewrite keeps of steps. Ended steps are kept long
// enough for the latest retry of any of them. Steps that began and neither
// ended nor were undone are kept longer, because their operation may wait for
// an operator.
const (
	keepEnded      = 7 * 24 * time.Hour
	keepStarted    = 90 * 24 * time.Hour
	keepEndedSteps = 2000
	keepEndedBytes = 8 << 20 // of notes and results
)

// state is the content of the journal: what all its changes lead to.
type state struct {
	sequence    int64
	steps       map[StepKey]Step
	attachments map[AttachmentKey]Attachment
	cleanings   map[AttachmentKey]Cleaning
	layouts     map[DeviceKey]Layout
	loaded      map[RegionKey]Loaded
	staged      map[uuid.UUID]Staged
	// assigned has the highest assignment number of each subject. No entry is ever
	// dropped: a step may come late by any time.
	assigned map[Subject]int64
	floor    *Floor // nil before the conductor has told
	// positions are those of the last processes, the latest last.
	positions []Position
	forgot    Position // see Journal.Forgot
}

// newState returns the empty state.
func newState() state {
	return state{
		steps: map[StepKey]Step{}, attachments: map[AttachmentKey]Attachment{}, cleanings: map[AttachmentKey]Cleaning{},
		layouts: map[DeviceKey]Layout{},
		loaded:  map[RegionKey]Loaded{}, staged: map[uuid.UUID]Staged{}, assigned: map[Subject]int64{},
	}
}

// apply makes a change. Drops come before puts, so that a change can replace
// what it drops.
func (s *state) apply(c Change) {
	s.sequence = max(s.sequence, c.Sequence)
	s.reach(c.Forgot)
	s.reach(c.Position)

	for _, key := range c.DropSteps {
		delete(s.steps, key)
	}
	for _, step := range c.Steps {
		s.steps[step.StepKey] = step
	}

	for _, key := range c.DropAttachments {
		delete(s.attachments, key)
	}
	for _, attachment := range c.Attachments {
		s.attachments[attachment.Key()] = attachment
	}

	for _, key := range c.DropCleanings {
		delete(s.cleanings, key)
	}
	for _, cleaning := range c.Cleanings {
		s.cleanings[cleaning.Key()] = cleaning
	}

	for _, key := range c.DropLayouts {
		delete(s.layouts, key)
	}
	for _, layout := range c.Layouts {
		s.layouts[layout.DeviceKey] = layout
	}

	for _, key := range c.DropLoaded {
		delete(s.loaded, key)
	}
	for _, loaded := range c.Loaded {
		s.loaded[loaded.RegionKey] = loaded
	}

	for _, operation := range c.DropStaged {
		delete(s.staged, operation)
	}
	for _, staged := range c.Staged {
		s.staged[staged.Operation] = staged
	}

	for _, assigned := range c.Assigned {
		s.assigned[assigned.Subject] = max(s.assigned[assigned.Subject], assigned.Number)
	}
	if c.Forgot.Opening != uuid.Nil {
		s.forgot = c.Forgot
	}
	if c.DropFloor {
		s.floor = nil
	}
	if c.Floor != nil {
		s.floor = c.Floor
	}
}

// changes returns the changes that lead from nothing to this state. The last
// one is the sequence, which is always there: a bad record before it has a good
// one after it, so replay tells damage from a write that was cut off.
func (s *state) changes() iter.Seq[Change] {
	attachments := slices.SortedFunc(maps.Values(s.attachments), func(a, b Attachment) int { return a.Key().compare(b.Key()) })
	cleanings := slices.SortedFunc(maps.Values(s.cleanings), byHandle)
	layouts := slices.SortedFunc(maps.Values(s.layouts), byDevice)
	loaded := slices.SortedFunc(maps.Values(s.loaded), byRegion)
	staged := slices.SortedFunc(maps.Values(s.staged), func(a, b Staged) int { return a.At.Compare(b.At) })

	var numbers []Change
	if s.forgot != (Position{}) {
		numbers = append(numbers, Change{Forgot: s.forgot})
	}
	if s.floor != nil {
		numbers = append(numbers, Change{Floor: s.floor})
	}
	if len(s.assigned) > 0 {
		numbers = append(numbers, Change{Assigned: listAssigned(s.assigned)})
	}

	lists := []iter.Seq[Change]{
		each(attachments, func(a Attachment) Change { return Change{Attachments: []Attachment{a}} }),
		each(cleanings, func(c Cleaning) Change { return Change{Cleanings: []Cleaning{c}} }),
		each(layouts, func(l Layout) Change { return Change{Layouts: []Layout{l}} }),
		each(loaded, func(l Loaded) Change { return Change{Loaded: []Loaded{l}} }),
		each(staged, func(g Staged) Change { return Change{Staged: []Staged{g}} }),
		slices.Values(numbers),
		each(s.stepsByTime(), func(step Step) Change { return Change{Steps: []Step{step}} }),
		each(s.positions, func(p Position) Change { return Change{Position: p} }),
		slices.Values([]Change{{Sequence: max(s.sequence, 1)}}),
	}

	return func(yield func(Change) bool) {
		for _, list := range lists {
			for change := range list {
				if !yield(change) {
					return
				}
			}
		}
	}
}

// each returns the change that makes each of these.
func each[T any](list []T, change func(T) Change) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for _, one := range list {
			if !yield(change(one)) {
				return
			}
		}
	}
}

// listAssigned returns the numbers, sorted by their subjects.
func listAssigned(numbers map[Subject]int64) []Assigned {
	var out []Assigned
	for _, subject := range slices.SortedFunc(maps.Keys(numbers), Subject.compare) {
		out = append(out, Assigned{subject, numbers[subject]})
	}
	return out
}

// stepsByTime returns the steps, the oldest first.
func (s *state) stepsByTime() []Step {
	return slices.SortedFunc(maps.Values(s.steps), func(a, b Step) int { return a.At.Compare(b.At) })
}

// prune forgets steps that no retry can come back to any more, the oldest ended
// ones first.
func (s *state) prune(now time.Time) {
	ended, size := 0, 0
	for _, step := range slices.Backward(s.stepsByTime()) {
		age := now.Sub(step.At)
		if step.State == Started {
			if age > keepStarted {
				delete(s.steps, step.StepKey)
			}
			continue
		}

		ended++
		size += len(step.Note) + len(step.Result)
		if age > keepEnded || ended > keepEndedSteps || size > keepEndedBytes {
			delete(s.steps, step.StepKey)
		}
	}

	for operation, staged := range s.staged {
		if now.Sub(staged.At) > keepEnded {
			delete(s.staged, operation)
		}
	}
}

// images returns the checksums of images that must be kept; see Journal.Images.
func (s *state) images(stagedSince time.Time) map[string]bool {
	needed := map[string]bool{}
	for _, loaded := range s.loaded {
		needed[loaded.SHA256] = true
	}

	for _, staged := range s.staged {
		if staged.At.After(stagedSince) {
			needed[staged.SHA256] = true
		}
	}

	for _, step := range s.steps {
		if step.State == Undone || step.At.Before(stagedSince) {
			continue
		}
		for _, sum := range step.Images {
			needed[sum] = true
		}
	}

	return needed
}
