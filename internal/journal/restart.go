package journal

import (
	"maps"
	"slices"

	"github.com/google/uuid"
)

// Old copies
//
// A state directory that is restored from a backup, or a machine that goes back
// to a snapshot, has a journal that is whole and no longer true: it lists what
// was undone since, and does not know the numbers that were seen since. The
// journal cannot tell. So each process that opens it gives itself an identifier
// and counts its writes, and the records remember the last position that a
// report has told. A true journal holds that position, whatever it has written
// since; an old copy does not, because an identifier is never drawn again.

// keepOpenings is how many processes the journal remembers. The position of one
// that was forgotten counts as not held. Those that have told theirs are kept
// longest: an agent may be started again and again while no conductor answers.
const keepOpenings = 256

// Position returns how far this process has got. It is on disk.
func (j *Journal) Position() Position {
	j.mu.Lock()
	defer j.mu.Unlock()
	return Position{Opening: j.opening, Writes: j.state.writesOf(j.opening)}
}

// Holds reports whether this journal has got to a position that was told
// earlier. The zero position is held by every journal.
func (j *Journal) Holds(position Position) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return position.Opening == uuid.Nil || position.Writes <= j.state.writesOf(position.Opening)
}

// Told notes that a conductor has recorded a position of this process.
func (j *Journal) Told() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.told {
		return nil
	}

	err := j.write(Change{Told: true})
	j.told = err == nil
	return err
}

// Ready reports whether steps may go by this journal: it holds the position, and
// if it was emptied, the conductor has told since which numbers count.
func (j *Journal) Ready(position Position) bool {
	return j.Holds(position) && (j.Forgot() == Position{} || j.HasFloor())
}

// Restart forgets, in one write, all that a journal says which does not hold the
// given position: steps, attachments, cleans, layouts, images and the floor, as if it
// had been lost. What is still to be cleaned, and how devices are to be divided, the
// records know. From then on it holds the position. The numbers that it has seen stay.
// The process gets another name: the conductor would not notice one that it knows.
func (j *Journal) Restart(position Position) error {
	j.mu.Lock()
	defer j.mu.Unlock()

	before := j.opening
	j.opening = uuid.New()
	err := j.write(Change{
		DropSteps:       slices.Collect(maps.Keys(j.state.steps)),
		DropAttachments: slices.Collect(maps.Keys(j.state.attachments)),
		DropCleanings:   slices.Collect(maps.Keys(j.state.cleanings)),
		DropLayouts:     slices.Collect(maps.Keys(j.state.layouts)),
		DropLoaded:      slices.Collect(maps.Keys(j.state.loaded)),
		DropStaged:      slices.Collect(maps.Keys(j.state.staged)),
		DropFloor:       true,
		Forgot:          position,
	})
	if err != nil {
		j.opening = before
		return err
	}

	j.told = false
	return nil
}

// Forgot returns the position of the last Restart; zero where there was none.
func (j *Journal) Forgot() Position {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state.forgot
}

// writesOf returns how many writes a process has made, or 0 for one that is not
// known. The last ones are asked for most, so they are looked at first.
func (s *state) writesOf(opening uuid.UUID) int64 {
	for _, position := range slices.Backward(s.positions) {
		if position.Opening == opening {
			return position.Writes
		}
	}
	return 0
}

// reach notes that the journal has got to a position.
func (s *state) reach(position Position) {
	if position.Opening == uuid.Nil {
		return
	}

	for i := range slices.Backward(s.positions) {
		if s.positions[i].Opening == position.Opening {
			s.positions[i].Writes, s.positions[i].Told = max(s.positions[i].Writes, position.Writes), s.positions[i].Told || position.Told
			return
		}
	}

	s.positions = append(s.positions, position)
	if len(s.positions) > keepOpenings {
		oldest := max(0, slices.IndexFunc(s.positions, func(p Position) bool { return !p.Told }))
		s.positions = slices.Delete(s.positions, oldest, oldest+1)
	}
}
