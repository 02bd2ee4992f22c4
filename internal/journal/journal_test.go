package journal_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// childEnv names the environment variable that makes the test binary play
// another process: see TestMain.
const childEnv = "JOURNAL_TEST_CHILD"

// TestMain runs the tests, or plays the child process that a test starts.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		childWrites(os.Args[1])
	}
	os.Exit(m.Run())
}

// open opens the journal in dir and closes it when the test ends.
func open(t *testing.T, dir string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(dir, journal.Options{BootID: "boot-1", Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })
	return j
}

// number returns the UUID of the test's operation n.
func number(n int) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceOID, []byte(strconv.Itoa(n))) }

// stepKey is the key of the only step of the test's operation n.
func stepKey(n int) journal.StepKey { return journal.StepKey{Operation: number(n), Name: "Install"} }

// started is a change that records the step of operation n as started.
func started(n int) journal.Change {
	return journal.Change{Steps: []journal.Step{{StepKey: stepKey(n), State: journal.Started, Note: json.RawMessage(`{"n":1}`)}}}
}

// attached is an attachment of this handle, with a note.
func attached(handle string) journal.Attachment {
	return journal.Attachment{
		Backend: "fake", Handle: handle, Device: "d", Deployable: "r0", Operation: number(1), HolderKind: "host", HolderID: "h",
		State: journal.Attached, Note: json.RawMessage(`{"driver":"nvme"}`),
	}
}

// cleaning is an unfinished clean of this handle, with a note.
func cleaning(handle string) journal.Cleaning {
	return journal.Cleaning{
		Backend: "fake", Handle: handle, Device: "d", Deployable: "r0", Operation: number(3), Method: "scrub", Note: json.RawMessage(`{"at":7}`),
	}
}

// layout is how this device is divided, with a note.
func layout(device string) journal.Layout {
	return journal.Layout{
		DeviceKey: journal.DeviceKey{Backend: "fake", Device: device}, Wanted: map[string]int{"vf": 4}, Operation: number(4),
		Note: json.RawMessage(`{"at":7}`), NoteBootID: "boot-0",
	}
}

func TestWrittenEntriesSurviveReopening(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir)
	require.NoError(t, j.Write(started(1)))

	region := journal.RegionKey{Backend: "fake", Device: "d", Region: "r0"}
	whole, unwanted := layout("c"), layout("d")
	whole.Wanted, unwanted.Wanted = map[string]int{}, nil
	require.NoError(t, j.Write(journal.Change{
		Attachments: []journal.Attachment{attached("a"), attached("b")},
		Cleanings:   []journal.Cleaning{cleaning("a"), cleaning("b"), cleaning("c")},
		Layouts:     []journal.Layout{layout("a"), layout("b"), whole, unwanted},
		Loaded:      []journal.Loaded{{RegionKey: region, Deployable: "r0", SHA256: "11", BitstreamID: "id"}},
		Staged:      []journal.Staged{{Operation: number(2), SHA256: "22"}},
	}))
	require.NoError(t, j.Write(journal.Change{DropAttachments: []journal.AttachmentKey{{Backend: "fake", Handle: "b"}}}))
	require.NoError(t, j.Write(journal.Change{DropCleanings: []journal.AttachmentKey{{Backend: "fake", Handle: "a"}}}))
	require.NoError(t, j.Write(journal.Change{DropLayouts: []journal.DeviceKey{{Backend: "fake", Device: "a"}}}))
	require.NoError(t, j.Close())

	again := open(t, dir)
	step, ok := again.Step(stepKey(1))
	require.True(t, ok)
	require.Equal(t, journal.Started, step.State)
	require.Equal(t, "boot-1", step.BootID)
	require.JSONEq(t, `{"n":1}`, string(step.Note))
	require.False(t, step.At.IsZero())

	require.Len(t, again.Attachments(), 1)
	entry, ok := again.Attachment(journal.AttachmentKey{Backend: "fake", Handle: "a"})
	require.True(t, ok)
	require.JSONEq(t, `{"driver":"nvme"}`, string(entry.Note))

	require.Len(t, again.Cleanings(), 2)
	_, ok = again.Cleaning(journal.AttachmentKey{Backend: "fake", Handle: "a"})
	require.False(t, ok)
	unfinished, ok := again.Cleaning(journal.AttachmentKey{Backend: "fake", Handle: "b"})
	require.True(t, ok)
	require.Equal(t, "boot-1", unfinished.BootID)
	require.False(t, unfinished.At.IsZero())
	unfinished.BootID, unfinished.At = "", time.Time{}
	require.Equal(t, cleaning("b"), unfinished)

	require.Len(t, again.Layouts(), 3)
	_, ok = again.Layout(journal.DeviceKey{Backend: "fake", Device: "a"})
	require.False(t, ok)
	divided, ok := again.Layout(journal.DeviceKey{Backend: "fake", Device: "b"})
	require.True(t, ok)
	require.Equal(t, "boot-1", divided.BootID)
	require.False(t, divided.At.IsZero())
	divided.BootID, divided.At = "", time.Time{}
	require.Equal(t, layout("b"), divided)
	divided, ok = again.Layout(whole.DeviceKey)
	require.True(t, ok && divided.Wanted != nil && len(divided.Wanted) == 0, "a whole device is wanted whole")
	divided, ok = again.Layout(unwanted.DeviceKey)
	require.True(t, ok && divided.Wanted == nil)

	loaded, ok := again.Loaded(region)
	require.True(t, ok)
	require.Equal(t, "id", loaded.BitstreamID)

	require.Equal(t, map[string]bool{"11": true, "22": true}, again.Images(time.Now().Add(-time.Hour)))
	require.Equal(t, map[string]bool{"11": true}, again.Images(time.Now().Add(time.Hour)), "an old staged image may go")
}

// TestWriteIsAtomic: a change that cannot be recorded must leave the step as it
// was.
func TestWriteIsAtomic(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir)

	change := started(1)
	change.Attachments = []journal.Attachment{attached("a")}
	require.NoError(t, j.Write(change))

	change = journal.Change{Steps: []journal.Step{{StepKey: stepKey(1), State: journal.Done, Note: json.RawMessage(`{broken`)}}}
	require.Equal(t, cyborg.ErrInternal, cyborg.ErrorKindOf(j.Write(change)), "a record that is not JSON")
	step, _ := j.Step(stepKey(1))
	require.Equal(t, journal.Started, step.State)
}

// TestTruncatedAtEveryByte cuts the file at every byte, as a crash may. Records
// that are complete before the cut must be there and no others, and the journal
// must accept further writes.
func TestTruncatedAtEveryByte(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	j := open(t, dir)

	const count = 4
	var ends []int64 // of the file after each change
	size := func() int64 {
		info, err := os.Stat(path)
		require.NoError(t, err)
		return info.Size()
	}

	begin := size()
	for n := range count {
		require.NoError(t, j.Write(started(n)))
		ends = append(ends, size())
	}

	require.NoError(t, j.Close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)

	for cut := begin; cut <= int64(len(whole)); cut++ {
		tail := []string{"", "\x00\x00\x00", "\n", "deadbeef {\"steps\":[]}\n"}[cut%4]
		torn := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(torn, "journal"), append(bytes.Clone(whole[:cut]), tail...), 0o600))
		after, err := journal.Open(torn, journal.Options{BootID: "boot-1"})
		require.NoError(t, err, "cut at byte %d", cut)
		for n, end := range ends {
			_, ok := after.Step(stepKey(n))
			complete := end <= cut || (end == cut+1 && tail == "\n") // the line feed was all that was missing
			require.Equal(t, complete, ok, "cut at byte %d, tail %q, step %d", cut, tail, n)
		}

		require.NoError(t, after.Write(started(100)))
		require.NoError(t, after.Close())

		after, err = journal.Open(torn, journal.Options{BootID: "boot-1"})
		require.NoError(t, err)
		_, ok := after.Step(stepKey(100))
		require.True(t, ok)
		require.NoError(t, after.Close())
	}
}

// TestDamagedJournalIsRefused flips a bit in each byte before the last two
// records. No crash does that, so the journal must be refused and left as it
// is: nobody may guess what it said.
func TestDamagedJournalIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	j := open(t, dir)
	for n := range 3 {
		require.NoError(t, j.Write(started(n)))
	}
	require.NoError(t, j.Close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)

	lines := bytes.SplitAfter(whole, []byte("\n"))
	end := len(whole) - len(lines[4]) - len(lines[3]) // damage to the last two could be mistaken for a cut
	for at := range end {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x04
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		_, err := journal.Open(dir, journal.Options{BootID: "boot-1"})
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "byte %d: %v", at, err)
		require.Contains(t, err.Error(), path)
		require.Contains(t, cyborg.AsError(err).Hint, "Run cyborg-agent forget-journal")

		after, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, damaged, after, "a damaged journal is left as it is")
	}
}

// TestANewerFormatIsRefused: after a downgrade, a journal that this release
// cannot read must not be overwritten.
func TestANewerFormatIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "journal"), []byte("cyborg-journal 2\n"), 0o600))

	_, err := journal.Open(dir, journal.Options{})
	require.ErrorContains(t, err, "it has format 2 and this release knows formats up to 1")
}

// TestSequencesGrowOverRestartsAndClocks: the agent's reports are ordered by
// these numbers, so they must grow over restarts and over clocks that jump
// back.
func TestSequencesGrowOverRestartsAndClocks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	clock := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

	var last int64

	for _, step := range []time.Duration{0, time.Hour, -48 * time.Hour, time.Millisecond, 0} {
		clock = clock.Add(step)
		j, err := journal.Open(dir, journal.Options{Now: func() time.Time { return clock }})
		require.NoError(t, err)

		for range 5000 { // more than the journal reserves at once
			n, err := j.NextSequence()
			require.NoError(t, err)
			require.Greater(t, n, last)
			last = n
		}

		require.GreaterOrEqual(t, last, clock.UnixMilli(), "a host that lost its journal still gets greater numbers than before")
		require.NoError(t, j.Close())
	}
}

// TestTheFileStaysSmall: results older than a week go when the file is
// rewritten; attachments, unfinished cleans, layouts and unfinished steps stay.
func TestTheFileStaysSmall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	clock := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	j, err := journal.Open(dir, journal.Options{BootID: "b", Now: func() time.Time { return clock }})
	require.NoError(t, err)

	require.NoError(t, j.Write(journal.Change{
		Attachments: []journal.Attachment{attached("a")}, Cleanings: []journal.Cleaning{cleaning("b")}, Layouts: []journal.Layout{layout("c")},
	}))
	require.NoError(t, j.Write(started(0)))

	big := json.RawMessage(`"` + strings.Repeat("x", 20<<10) + `"`)
	for n := 1; n < 600; n++ { // 12 MB of results, written over 600 hours
		clock = clock.Add(time.Hour)
		require.NoError(t, j.Write(journal.Change{Steps: []journal.Step{{StepKey: stepKey(n), State: journal.Done, Result: big}}}))
	}

	info, err := os.Stat(filepath.Join(dir, "journal"))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(13<<20))
	require.NoError(t, j.Close())

	j, err = journal.Open(dir, journal.Options{BootID: "b", Now: func() time.Time { return clock }})
	require.NoError(t, err)
	info, err = os.Stat(filepath.Join(dir, "journal"))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(5<<20), "only a week of results is kept")

	require.Len(t, j.Attachments(), 1)
	require.Len(t, j.Cleanings(), 1)
	require.Len(t, j.Layouts(), 1)
	_, ok := j.Step(stepKey(0))
	require.True(t, ok, "what began and did not end is kept")

	_, ok = j.Step(stepKey(599))
	require.True(t, ok)
	_, ok = j.Step(stepKey(1))
	require.False(t, ok)
	require.NoError(t, j.Close())
}

// TestAttachmentsLostAtBoot: a reboot loses a plain attachment, but neither one
// that was handed out nor one that is in doubt.
func TestAttachmentsLostAtBoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir)

	handedOut, doubt := attached("b"), attached("c")
	handedOut.HandedOut = true
	doubt.State = journal.InDoubt
	require.NoError(t, j.Write(journal.Change{Attachments: []journal.Attachment{attached("a"), handedOut, doubt}}))

	for _, a := range j.Attachments() {
		require.False(t, j.Lost(a))
	}
	require.NoError(t, j.Close())

	j, err := journal.Open(dir, journal.Options{BootID: "boot-2"})
	require.NoError(t, err)

	lost := map[string]bool{}
	for _, a := range j.Attachments() {
		lost[a.Handle] = j.Lost(a)
	}
	require.Equal(t, map[string]bool{"a": true, "b": false, "c": false}, lost)
	require.NoError(t, j.Close())
}

// TestKill kills a writing process again and again. Every change for which
// Write returned must be in the journal afterwards.
func TestKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	next := 0
	for round := range 8 {
		child := exec.Command(os.Args[0], dir)
		child.Env = append(os.Environ(), childEnv+"=yes", "FROM="+strconv.Itoa(next))

		output, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())

		lines := bufio.NewScanner(output)
		for told := 0; told < 20+7*round && lines.Scan(); told++ {
			next, err = strconv.Atoi(lines.Text())
			require.NoError(t, err)
		}

		require.NoError(t, child.Process.Kill())
		for lines.Scan() { // what it printed before it died
			next, err = strconv.Atoi(lines.Text())
			require.NoError(t, err)
		}
		require.Error(t, child.Wait())

		j, err := journal.Open(dir, journal.Options{})
		require.NoError(t, err)
		for n := range next + 1 {
			_, ok := j.Step(stepKey(n))
			require.True(t, ok, "round %d: step %d of %d", round, n, next)
		}
		require.NoError(t, j.Close())
		next++
	}
	require.Greater(t, next, 100)
}

// childWrites writes one step after another, and prints the number of each that
// was written, until it is killed.
func childWrites(dir string) {
	j, err := journal.Open(dir, journal.Options{})
	if err != nil {
		panic(err)
	}
	from, err := strconv.Atoi(os.Getenv("FROM"))
	if err != nil {
		panic(err)
	}

	for n := from; ; n++ {
		change := started(n)
		change.Steps[0].Note = json.RawMessage(`"` + strings.Repeat("x", n*37%9000) + `"`) // some records span several pages
		if err := j.Write(change); err != nil {
			panic(err)
		}
		fmt.Println(n)
	}
}

// TestFingerprints: what an earlier release has written may be about any card. What
// this one writes is about one, also when the file was rewritten.
// TestHandleUUIDs: the UUID of a handle is kept. An earlier release has written none.
func TestHandleUUIDs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "journal"), []byte("cyborg-journal 1\n"+
		line(`{"attachments": [{"backend": "fake", "handle": "old", "device": "d", "deployable": "r0", "holder_kind": "host", "holder_id": "h", "state": "attached"}]}`)), 0o600))

	j := open(t, dir)
	old, ok := j.Attachment(journal.AttachmentKey{Backend: "fake", Handle: "old"})
	require.True(t, ok)
	require.Equal(t, journal.Attached, old.State)
	require.Equal(t, uuid.Nil, old.HandleUUID)

	entry := attached("new")
	entry.HandleUUID = number(5)
	require.NoError(t, j.Write(journal.Change{Attachments: []journal.Attachment{entry}}))
	require.NoError(t, j.Close())
	again := open(t, dir)
	entry, ok = again.Attachment(entry.Key())
	require.True(t, ok)
	require.Equal(t, number(5), entry.HandleUUID)
	old, ok = again.Attachment(old.Key())
	require.True(t, ok)
	require.Equal(t, uuid.Nil, old.HandleUUID)
}

func TestFingerprints(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "journal"), []byte("cyborg-journal 1\n"+line(`{"attachments": [{"backend": "fake", "handle": "old", "state": "attached"}], `+
		`"loaded": [{"backend": "fake", "device": "d", "region": "r"}]}`)), 0o600))
	card, other := cyborg.Fingerprint{Model: "10de:20b5", Serial: "1"}, cyborg.Fingerprint{Model: "10de:20b5", Serial: "2"}

	j := open(t, dir)
	require.Empty(t, j.Cleanings(), "an earlier release knows of none")
	require.Empty(t, j.Layouts(), "an earlier release knows of none")
	old, ok := j.Attachment(journal.AttachmentKey{Backend: "fake", Handle: "old"})
	require.True(t, ok)
	require.True(t, old.Of(card) && old.Of(other))
	image, ok := j.Loaded(journal.RegionKey{Backend: "fake", Device: "d", Region: "r"})
	require.True(t, ok)
	require.True(t, image.Of(card) && image.Of(other))

	entry := attached("new")
	unfinished, divided := cleaning("new"), layout("new")
	divided.Fingerprint = journal.Fingerprint(card)
	entry.Fingerprint, image.Fingerprint, unfinished.Fingerprint = journal.Fingerprint(card), journal.Fingerprint(card), journal.Fingerprint(card)
	require.NoError(t, j.Write(journal.Change{
		Attachments: []journal.Attachment{entry}, Loaded: []journal.Loaded{image}, Cleanings: []journal.Cleaning{unfinished},
		Layouts: []journal.Layout{divided},
	}))
	require.NoError(t, j.Close())
	again := open(t, dir)
	entry, ok = again.Attachment(entry.Key())
	require.True(t, ok)
	image, ok = again.Loaded(image.RegionKey)
	require.True(t, ok)
	unfinished, ok = again.Cleaning(unfinished.Key())
	require.True(t, ok)
	divided, ok = again.Layout(divided.DeviceKey)
	require.True(t, ok)
	require.True(t, entry.Of(card) && image.Of(card) && unfinished.Of(card) && divided.Of(card))
	require.True(t, entry.Of(cyborg.Fingerprint{Model: "10de:20b5"}), "a number that cannot be read is no other one")
	require.True(t, unfinished.Of(cyborg.Fingerprint{}) && divided.Of(cyborg.Fingerprint{}))
	require.False(t, entry.Of(other) || image.Of(other) || unfinished.Of(other) || divided.Of(other))
}
