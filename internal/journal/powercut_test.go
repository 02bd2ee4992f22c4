package journal_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile/disktest"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// process is a process that has a journal on a disk.
type process struct {
	disk    *disktest.Disk
	journal *journal.Journal
	// given is the greatest sequence number that the journal has given out.
	given int64
}

// open opens the journal, as the process does when it starts.
func (p *process) open() (err error) {
	p.journal, err = journal.Open("state", journal.Options{
		BootID: "boot-1", Now: func() time.Time { return time.UnixMilli(1) }, OpenDir: p.disk.OpenDir,
	})
	return err
}

// reopen is a clean stop and a start.
func (p *process) reopen() error { return errors.Join(p.journal.Close(), p.open()) }

// reserve takes a sequence number beyond those that are reserved.
func (p *process) reserve() error {
	p.journal.Exceed(p.given + 5000)
	number, err := p.journal.NextSequence()
	if err == nil {
		p.given = number
	}
	return err
}

// deed is something that a process does with its journal.
type deed func(p *process) error

// writes is the deed of one change.
func writes(change journal.Change) deed {
	return func(p *process) error { return p.journal.Write(change) }
}

// story is what an agent may do, with each kind of record in each of its
// states. The big results make the journal rewrite its file, both in a write
// and at a start.
func story() []deed {
	region := journal.RegionKey{Backend: "fake", Device: "d", Region: "r0"}
	doubt := attached("a")
	doubt.State = journal.InDoubt

	step := func(n int, state journal.StepState, size int) deed {
		result := json.RawMessage(`"` + strings.Repeat("x", size) + `"`)
		return writes(journal.Change{Steps: []journal.Step{{StepKey: stepKey(n), State: state, Result: result}}})
	}

	return []deed{
		(*process).open,
		writes(journal.Change{Steps: started(0).Steps, Attachments: []journal.Attachment{doubt}}),
		writes(journal.Change{Attachments: []journal.Attachment{attached("a"), attached("b")}}),
		writes(journal.Change{Steps: started(5).Steps, Cleanings: []journal.Cleaning{cleaning("d"), cleaning("e")}}),
		writes(journal.Change{Steps: started(6).Steps, Layouts: []journal.Layout{layout("d"), layout("e")}}),
		step(0, journal.Done, 700),
		writes(journal.Change{DropAttachments: []journal.AttachmentKey{{Backend: "fake", Handle: "b"}}}),
		(*process).reserve,
		(*process).reopen,
		writes(journal.Change{Loaded: []journal.Loaded{{RegionKey: region, SHA256: "11", BitstreamID: "id"}}}),
		writes(journal.Change{Staged: []journal.Staged{{Operation: number(1), SHA256: "22"}, {Operation: number(2), SHA256: "33"}}}),
		step(1, journal.Done, 150<<10),
		step(1, journal.Done, 150<<10),
		step(2, journal.Started, 0),
		step(2, journal.Undone, 0),
		(*process).reserve,
		writes(journal.Change{DropCleanings: []journal.AttachmentKey{{Backend: "fake", Handle: "d"}}}),
		writes(journal.Change{DropLayouts: []journal.DeviceKey{{Backend: "fake", Device: "d"}}}),
		step(3, journal.Done, 200<<10),
		writes(journal.Change{
			DropStaged: []uuid.UUID{number(1)}, DropLoaded: []journal.RegionKey{region}, DropSteps: []journal.StepKey{stepKey(0)},
		}),
		(*process).reopen,
		writes(started(4)),
		(*process).reopen,
		writes(journal.Change{Attachments: []journal.Attachment{attached("c")}}),
	}
}

// content is what a journal says.
type content struct {
	steps       map[int]journal.Step
	attachments []journal.Attachment
	cleanings   []journal.Cleaning
	layouts     []journal.Layout
	loaded      journal.Loaded
	staged      map[string]bool
}

func contentOf(j *journal.Journal) content {
	c := content{steps: map[int]journal.Step{}, attachments: j.Attachments(), cleanings: j.Cleanings(), layouts: j.Layouts()}
	for n := range 10 {
		if step, ok := j.Step(stepKey(n)); ok {
			step.Result = fmt.Appendf(nil, "%d bytes", len(step.Result)) // which a failing test can print
			c.steps[n] = step
		}
	}

	c.loaded, _ = j.Loaded(journal.RegionKey{Backend: "fake", Device: "d", Region: "r0"})
	c.staged = j.Images(time.Time{})
	return c
}

// contentsOf plays deeds without a fault, and returns what the journal says
// after each of them, and how many operations of the disk there were.
func contentsOf(t *testing.T, deeds []deed) (contents []content, operations int) {
	t.Helper()
	p := &process{disk: disktest.New()}

	for _, deed := range deeds {
		require.NoError(t, deed(p))
		contents = append(contents, contentOf(p.journal))
	}

	require.NoError(t, p.journal.Close())
	require.Zero(t, p.disk.Opened())
	return contents, p.disk.Operations()
}

// tell plays deeds until one fails, and returns how many did not.
func (p *process) tell(deeds []deed) int {
	for n, deed := range deeds {
		if deed(p) != nil {
			return n
		}
	}
	return len(deeds)
}

// requireSaid opens the journal and requires that it says what it said after
// the deeds that were done or, where another was under way, after that one. It
// returns what the journal says.
func (p *process) requireSaid(t *testing.T, contents []content, done int, when string, args ...any) content {
	t.Helper()
	require.NoErrorf(t, p.open(), when, args...)

	said := contentOf(p.journal)
	if done < len(contents) && reflect.DeepEqual(contents[done], said) {
		return said
	}

	before := content{steps: map[int]journal.Step{}, staged: map[string]bool{}}
	if done > 0 {
		before = contents[done-1]
	}
	require.Equalf(t, before, said, when, args...)
	return said
}

// nine is a deed of no story.
func nine(p *process) error { return p.journal.Write(started(9)) }

// TestPowerCutAtEveryOperation cuts the power at each operation of the disk in
// turn. Whatever the disk has kept of what was not synced, the journal opens,
// has all that was written, and of the change under way all or nothing. The
// power may be cut again while the journal is opened and written to: that takes
// nothing away either.
func TestPowerCutAtEveryOperation(t *testing.T) {
	t.Parallel()
	const seeds = 5 // of what a disk has kept; 0 keeps only what was synced
	random := func(seed int) *rand.Rand {
		if seed == 0 {
			return nil
		}
		return rand.New(rand.NewPCG(uint64(seed), 0))
	}

	deeds := story()
	contents, operations := contentsOf(t, deeds)
	for cut := 1; cut <= operations; cut++ {
		p := &process{disk: disktest.New()}
		p.disk.CutAt(cut)
		done := p.tell(deeds)
		require.True(t, p.disk.Off())

		for seed := range seeds {
			kept := p.disk.Cut(random(seed))
			next := &process{disk: kept.Killed()}
			said := next.requireSaid(t, contents, done, "cut at operation %d, seed %d", cut, seed)

			number, err := next.journal.NextSequence()
			require.NoError(t, err)
			require.Greater(t, number, p.given, "cut at operation %d, seed %d", cut, seed)
			require.NoError(t, nine(next))

			if seed != cut%2 { // cutting twice is slow
				continue
			}

			for second := 1; second <= next.disk.Operations(); second++ {
				again := &process{disk: kept.Killed()}
				again.disk.CutAt(second)
				written := again.tell([]deed{(*process).open, nine}) == 2

				last := &process{disk: again.disk.Cut(random(seed))}
				require.NoError(t, last.open(), "cut at operations %d and %d, seed %d", cut, second, seed)
				got := contentOf(last.journal)
				_, ok := got.steps[9]
				require.True(t, ok || !written, "cut at operations %d and %d, seed %d", cut, second, seed)
				delete(got.steps, 9)
				require.Equal(t, said, got, "cut at operations %d and %d, seed %d", cut, second, seed)
			}
		}
	}
}

// TestPowerCutAfterAKill kills the process at each operation, so that something
// may be written and not synced. Another process opens the journal and acts on
// what it reads there, and then the power is cut: the journal still says what
// that process read.
func TestPowerCutAfterAKill(t *testing.T) {
	t.Parallel()
	deeds := story()
	contents, operations := contentsOf(t, deeds)
	for killed := 1; killed <= operations; killed++ {
		p := &process{disk: disktest.New()}
		p.disk.CutAt(killed)
		done := p.tell(deeds)

		for _, more := range [][]deed{nil, {nine}} {
			next := &process{disk: p.disk.Killed()}
			said := next.requireSaid(t, contents, done, "killed at operation %d", killed)
			require.Equal(t, len(more), next.tell(more))

			last := &process{disk: next.disk.Cut(nil)}
			require.NoError(t, last.open(), "killed at operation %d", killed)
			got := contentOf(last.journal)
			_, ok := got.steps[9]
			require.Equal(t, more != nil, ok, "killed at operation %d", killed)
			delete(got.steps, 9)
			require.Equal(t, said, got, "killed at operation %d", killed)
		}
	}
}

// fault lets a number of the disk's operations fail, from one on.
type fault func(d *disktest.Disk, operation, failures int, err error)

// faults are those of a full or a failing disk, and those of one that answers
// with an error for what it has done, such as over a network.
func faults() map[string]fault {
	return map[string]fault{
		"without effect": (*disktest.Disk).FailAt, "with effect": (*disktest.Disk).FailWithEffectAt,
	}
}

// TestEachOperationMayFail lets each operation of the disk fail, and the one
// after it, too. What could not be written was not written; everything else is
// there, also after a power cut; and no file stays open.
func TestEachOperationMayFail(t *testing.T) {
	t.Parallel()
	for name, fail := range faults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireEachMayFail(t, fail)
		})
	}
}

// requireEachMayFail is TestEachOperationMayFail with one fault.
func requireEachMayFail(t *testing.T, fail fault) {
	t.Helper()
	deeds := story()
	contents, operations := contentsOf(t, deeds)

	for failing := 1; failing <= operations; failing++ {
		for failures := 1; failures <= 2; failures++ {
			p := &process{disk: disktest.New()}
			fail(p.disk, failing, failures, syscall.EIO)

			var done []deed
			for n, deed := range deeds {
				err := deed(p)
				if err == nil {
					done = append(done, deed)
					continue
				}

				require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), "%v", err)
				require.ErrorIs(t, err, syscall.EIO)
				require.ErrorContains(t, err, "state/journal")

				if p.journal != nil {
					if failures == 1 {
						requireNotWritten(t, fail, deeds, contents, n, failing)
					}
					continue
				}

				// It could not be opened, and the agent is started again.
				require.Zero(t, p.disk.Opened(), "operation %d", failing)
				if p.open() != nil {
					require.NoError(t, p.open(), "operation %d", failing)
				}
				done = append(done, deed)
			}

			want := contents[len(contents)-1]
			if len(done) < len(deeds) {
				others, _ := contentsOf(t, done)
				want = others[len(others)-1]
			}

			for _, last := range []*process{{disk: p.disk.Cut(nil)}, {disk: p.disk.Killed()}} {
				require.NoError(t, last.open())
				said := contentOf(last.journal)
				if failures == 2 && reflect.DeepEqual(contents[len(contents)-1], said) {
					continue // what failed could not be cut off either, and the process ended
				}
				require.Equal(t, want, said, "operation %d, %d failures", failing, failures)
			}

			require.NoError(t, p.journal.Close())
			require.Zero(t, p.disk.Opened())
		}
	}
}

// requireNotWritten requires that the deed whose operation fails leaves nothing
// behind in the journal, neither in this process nor in the next one.
func requireNotWritten(t *testing.T, fail fault, deeds []deed, contents []content, n, failing int) {
	t.Helper()
	p := &process{disk: disktest.New()}
	fail(p.disk, failing, 1, syscall.EIO)
	require.Equal(t, n, p.tell(deeds))
	require.Equal(t, contents[n-1], contentOf(p.journal), "operation %d", failing)

	next := &process{disk: p.disk.Killed()}
	require.NoError(t, next.open(), "operation %d", failing)
	require.Equal(t, contents[n-1], contentOf(next.journal), "operation %d", failing)
}

// TestAFullDiskIsNamed: the error says what an operator can do.
func TestAFullDiskIsNamed(t *testing.T) {
	t.Parallel()
	p := &process{disk: disktest.New()}
	require.NoError(t, p.open())

	p.disk.FailAt(p.disk.Operations()+1, 1, syscall.ENOSPC)
	err := nine(p)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "no space is left for the journal state/journal")
	require.Contains(t, cyborg.AsError(err).Hint, "Free some space")
	require.NoError(t, nine(p), "there is space again")
}

// TestAClosedJournalIsNotWritten: another process may have the file by then. A
// journal whose last write has failed is no exception.
func TestAClosedJournalIsNotWritten(t *testing.T) {
	t.Parallel()
	for name, failed := range map[string]bool{"after a good write": false, "after a failed write": true} {
		p := &process{disk: disktest.New()}
		require.NoError(t, p.open())
		if failed {
			p.disk.FailAt(p.disk.Operations()+2, 1, syscall.EIO) // the sync
			require.Error(t, nine(p))
		}

		require.NoError(t, p.journal.Close())
		require.NoError(t, p.journal.Close(), "twice is once")
		operations := p.disk.Operations()

		err := nine(p)
		require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), name)
		require.ErrorContains(t, err, "the journal state/journal is closed", name)
		require.Equal(t, operations, p.disk.Operations(), name)
		require.Zero(t, p.disk.Opened(), name)
	}
}

// TestNumbersAreReservedBeforeTheyAreGiven: a process that is killed at any
// moment has a successor whose numbers are greater, although nothing is written
// for most of them.
func TestNumbersAreReservedBeforeTheyAreGiven(t *testing.T) {
	t.Parallel()
	p := &process{disk: disktest.New()}
	require.NoError(t, p.open())
	written := p.disk.Operations()
	reservations := 0

	for reservations < 3 {
		number, err := p.journal.NextSequence()
		require.NoError(t, err)
		next := &process{disk: p.disk.Cut(nil)}
		require.NoError(t, next.open())
		greater, err := next.journal.NextSequence()
		require.NoError(t, err)
		require.Greater(t, greater, number)

		if p.disk.Operations() > written {
			written = p.disk.Operations()
			reservations++
		}
	}
}
