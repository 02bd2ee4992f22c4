package journal

import (
	"slices"

	"github.com/cyborg-project/cyborg"
)

// Assignment numbers
//
// Every operation, and every decision of Reconcile about an attachment, has a
// number that is greater than those before it. What concerns a deployable, a
// backend or the whitelist is refused where something later has been seen for
// it: a detach leaves nothing else behind, and an attach that was decided before
// it would otherwise bring back what it took away.

// Raise makes a number the highest of these subjects. The error is of kind
// ErrLate, and nothing is raised, where one of them has a higher number. The
// same number again is a repeat. 0 is the number of a release that had none, and
// is never refused.
//
// The caller holds the lock under which the subjects are changed, such as that
// of the device, so that nothing later can pass between Raise and what follows
// it. The numbers reach the disk with the next
// Write: whatever changes the hardware writes before it does so. A caller that
// has written nothing calls KeepRaised.
func (j *Journal) Raise(number int64, subjects ...Subject) error {
	if number == 0 {
		return nil
	}

	j.mu.Lock()
	defer j.mu.Unlock()
	for _, subject := range subjects {
		highest, _ := j.highest(subject)
		switch {
		case number < highest:
			return cyborg.Errorf(cyborg.ErrLate, "number %d comes too late for %s: this host has seen %d", number, subject, highest).
				WithHint("Something later was decided about it. Look at its history; repeat the request where it is still wanted.")
		case j.state.floor != nil && number <= j.state.floor.Number && !slices.Contains(j.state.floor.Open, number):
			return cyborg.Errorf(cyborg.ErrLate, "number %d comes too late for %s: it is from before this host lost its journal", number, subject).
				WithHint("Repeat the request where it is still wanted.")
		}
	}

	for _, subject := range subjects {
		if highest, known := j.highest(subject); !known || number > highest {
			j.raised[subject] = number
		}
	}

	return nil
}

// highest returns the highest number of a subject. The caller holds mu.
func (j *Journal) highest(subject Subject) (number int64, known bool) {
	number, known = j.state.assigned[subject]
	if raised, ok := j.raised[subject]; ok {
		return raised, true
	}
	return number, known
}

// KeepRaised writes the numbers that are not on the disk yet.
func (j *Journal) KeepRaised() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.raised) == 0 {
		return nil
	}
	return j.write(Change{})
}

// Assignment returns the highest number that is known of any subject; 0 for
// none.
func (j *Journal) Assignment() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()

	var highest int64
	if j.state.floor != nil {
		highest = j.state.floor.Number
	}
	for _, numbers := range []map[Subject]int64{j.state.assigned, j.raised} {
		for _, number := range numbers {
			highest = max(highest, number)
		}
	}
	return highest
}

// HasFloor reports whether the conductor has told this journal which numbers
// count. A journal that was lost, and one of a release that had no numbers, has
// to ask.
func (j *Journal) HasFloor() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state.floor != nil
}

// SetFloor writes what the conductor has told.
func (j *Journal) SetFloor(floor Floor) error { return j.Write(Change{Floor: &floor}) }
