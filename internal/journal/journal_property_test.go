package journal_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cyborg-project/cyborg/internal/journal"
)

// TestJournalMatchesAPlainMap compares the journal with plain maps through any
// order of writes, restarts and cut-off last records.
func TestJournalMatchesAPlainMap(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		dir := filepath.Join(base, fmt.Sprint(runs))
		require.NoError(t, os.Mkdir(dir, 0o700))
		path := filepath.Join(dir, "journal")

		clock := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
		options := journal.Options{BootID: "b", Now: func() time.Time { return clock }}

		j, err := journal.Open(dir, options)
		require.NoError(t, err)

		steps := map[journal.StepKey]journal.StepState{}
		attachments := map[journal.AttachmentKey]journal.AttachmentState{}
		cleanings := map[journal.AttachmentKey]string{} // with their methods
		layouts := map[journal.DeviceKey]int{}          // with their number of parts; -1 where none is wanted

		reopen := func() {
			require.NoError(t, j.Close())
			j, err = journal.Open(dir, options)
			require.NoError(t, err)
		}

		handle := rapid.SampledFrom([]string{"a", "b", "c"})

		t.Repeat(map[string]func(*rapid.T){
			"step": func(t *rapid.T) {
				key := stepKey(rapid.IntRange(0, 5).Draw(t, "step"))

				state := rapid.SampledFrom([]journal.StepState{journal.Started, journal.Done, journal.Undone}).Draw(t, "state")
				size := rapid.SampledFrom([]int{0, 10, 10, 10, 90 << 10}).Draw(t, "size") // the big ones make the journal rewrite its file
				result := json.RawMessage(`"` + strings.Repeat("x", size) + `"`)

				require.NoError(t, j.Write(journal.Change{Steps: []journal.Step{{StepKey: key, State: state, Result: result}}}))
				steps[key] = state
			},
			"attach": func(t *rapid.T) {
				a := attached(handle.Draw(t, "handle"))
				a.State = rapid.SampledFrom([]journal.AttachmentState{journal.Attached, journal.InDoubt}).Draw(t, "state")

				require.NoError(t, j.Write(journal.Change{Attachments: []journal.Attachment{a}}))
				attachments[a.Key()] = a.State
			},
			"detach": func(t *rapid.T) {
				key := journal.AttachmentKey{Backend: "fake", Handle: handle.Draw(t, "handle")}

				require.NoError(t, j.Write(journal.Change{DropAttachments: []journal.AttachmentKey{key}}))
				delete(attachments, key)
			},
			"begin to clean": func(t *rapid.T) {
				c := cleaning(handle.Draw(t, "handle"))
				c.Method = rapid.SampledFrom([]string{"reset", "scrub"}).Draw(t, "method")

				require.NoError(t, j.Write(journal.Change{Cleanings: []journal.Cleaning{c}}))
				cleanings[c.Key()] = c.Method
			},
			"clean": func(t *rapid.T) {
				key := journal.AttachmentKey{Backend: "fake", Handle: handle.Draw(t, "handle")}

				require.NoError(t, j.Write(journal.Change{DropCleanings: []journal.AttachmentKey{key}}))
				delete(cleanings, key)
			},
			"divide": func(t *rapid.T) {
				l := layout(handle.Draw(t, "device"))
				n := rapid.IntRange(-1, 3).Draw(t, "parts")
				switch n {
				case -1:
					l.Wanted = nil
				case 0:
					l.Wanted = map[string]int{}
				default:
					l.Wanted = map[string]int{"vf": n}
				}

				require.NoError(t, j.Write(journal.Change{Layouts: []journal.Layout{l}}))
				layouts[l.DeviceKey] = n
			},
			"forget a layout": func(t *rapid.T) {
				key := journal.DeviceKey{Backend: "fake", Device: handle.Draw(t, "device")}

				require.NoError(t, j.Write(journal.Change{DropLayouts: []journal.DeviceKey{key}}))
				delete(layouts, key)
			},
			"restart": func(*rapid.T) { reopen() },
			"crash in a write": func(t *rapid.T) {
				good, err := os.ReadFile(path)
				require.NoError(t, err)

				require.NoError(t, j.Write(started(99)))
				more, err := os.ReadFile(path)
				require.NoError(t, err)

				if len(more) <= len(good) || string(more[:len(good)]) != string(good) {
					steps[stepKey(99)] = journal.Started // it replaced the whole file, which a crash cannot leave half done
					return
				}

				keep := rapid.IntRange(len(good), len(more)-1).Draw(t, "keep")
				require.NoError(t, os.WriteFile(path, more[:keep], 0o600))
				reopen()
			},
			"": func(t *rapid.T) {
				for n := range 6 {
					step, ok := j.Step(stepKey(n))
					want, wanted := steps[stepKey(n)]
					require.Equal(t, wanted, ok)
					require.Equal(t, want, step.State)
				}

				got := map[journal.AttachmentKey]journal.AttachmentState{}
				for _, a := range j.Attachments() {
					got[a.Key()] = a.State
				}
				require.Equal(t, attachments, got)

				methods := map[journal.AttachmentKey]string{}
				for _, c := range j.Cleanings() {
					methods[c.Key()] = c.Method
				}
				require.Equal(t, cleanings, methods)

				parts := map[journal.DeviceKey]int{}
				for _, l := range j.Layouts() {
					parts[l.DeviceKey] = l.Wanted["vf"]
					if l.Wanted == nil {
						parts[l.DeviceKey] = -1
					}
				}
				require.Equal(t, layouts, parts)
			},
		})

		require.NoError(t, j.Close())
	})
}
