package journal_test

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/fuzztest"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// line is a record of this text with a correct checksum.
func line(text string) string {
	return fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)), text)
}

// FuzzOpen opens arbitrary files as journals, and files whose only record is
// arbitrary text with a correct checksum. Open must either refuse the file and
// leave it as it is, or return a journal that can be written to and reads the
// same when it is opened again.
func FuzzOpen(f *testing.F) {
	full := journal.Change{
		Sequence: 7,
		Steps:    []journal.Step{{StepKey: journal.StepKey{Operation: uuid.Max, Name: "attach"}, State: journal.Started, Note: json.RawMessage(`{"a":1}`)}},
		Attachments: []journal.Attachment{{
			Backend: "fake", Handle: "h", Device: "d", Deployable: "p", Operation: uuid.Max, HolderKind: "host", HolderID: "h1", State: journal.Attached,
			Fingerprint: journal.Fingerprint{Model: "abcd:fa01", Serial: "1"},
		}},
		Cleanings: []journal.Cleaning{{
			Backend: "fake", Handle: "h", Device: "d", Deployable: "p", Operation: uuid.Max, Method: "scrub", Note: json.RawMessage(`{"at":7}`),
			Fingerprint: journal.Fingerprint{Model: "abcd:fa01", Serial: "1"},
		}},
		Layouts: []journal.Layout{{
			DeviceKey: journal.DeviceKey{Backend: "fake", Device: "d"}, Operation: uuid.Max, Wanted: map[string]int{"vf": 4},
			Fingerprint: journal.Fingerprint{Model: "abcd:fa01", Serial: "1"}, Note: json.RawMessage(`{"at":7}`), NoteBootID: "boot",
		}},
		Loaded: []journal.Loaded{{RegionKey: journal.RegionKey{Backend: "fake", Device: "d", Region: "r"}, SHA256: "aa"}},
		Staged: []journal.Staged{{Operation: uuid.Max, SHA256: "aa"}},
	}

	plain, err := json.Marshal(full)
	require.NoError(f, err)

	const header = "cyborg-journal 1\n"
	f.Add(true, []byte(header+line(string(plain))))
	f.Add(false, plain)

	for _, text := range append(fuzztest.Texts(), header, "cyborg-journal 2\n", "cyborg-journal -1\n", header+"\n", header+"00000000 {}\n", header+line("{}")[:6],
		header+"broken\n"+line("{}"), header+line("{}")+"broken\n", header+line("null")) {
		f.Add(true, []byte(text))
		f.Add(false, []byte(text))
	}

	for leaf := range 73 {
		for i, value := range fuzztest.Values() {
			if i%8 == leaf%8 {
				f.Add(false, []byte(fuzztest.ReplaceLeaf(f, full, leaf, value)))
			}
		}
	}

	f.Fuzz(func(t *testing.T, whole bool, text []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "journal")
		if !whole {
			text = []byte(header + line(string(text)))
		}
		require.NoError(t, os.WriteFile(path, text, 0o600))

		j, err := journal.Open(dir, journal.Options{BootID: "boot"})
		if err != nil {
			require.LessOrEqual(t, len(err.Error()), fuzztest.LongestMessage+len(path))
			kept, readErr := os.ReadFile(path)
			require.NoError(t, readErr)
			require.Equal(t, string(text), string(kept), "the file is left for an operator to look at")
			return
		}

		number, err := j.NextSequence()
		require.NoError(t, err)
		require.NoError(t, j.Write(journal.Change{
			Attachments: []journal.Attachment{{Backend: "b", Handle: "x", State: journal.InDoubt}},
			Cleanings:   []journal.Cleaning{{Backend: "b", Handle: "y"}},
			Layouts:     []journal.Layout{layout("z")},
		}))

		before, unfinished, layouts := j.Attachments(), j.Cleanings(), j.Layouts()
		require.NoError(t, j.Close())

		j, err = journal.Open(dir, journal.Options{BootID: "boot"})
		require.NoError(t, err)
		defer j.Close()
		require.Equal(t, before, j.Attachments())
		require.Equal(t, unfinished, j.Cleanings())
		require.Equal(t, layouts, j.Layouts())

		next, err := j.NextSequence()
		require.NoError(t, err)
		require.Greater(t, next, number)
	})
}
