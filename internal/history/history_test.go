package history_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/history"
)

var update = flag.Bool("update", false, "write the golden files anew")

// feed is what a standalone server answered after a day with one host and two
// cards: its events, operations and accelerators.
type feed struct {
	Event       []cyborg.Event     `json:"event"`
	Operation   []cyborg.Operation `json:"operation"`
	Accelerator []struct {
		UUID uuid.UUID `json:"uuid"`
		Name string    `json:"name"`
	} `json:"accelerator"`
}

// recorded reads the feed.
func recorded(t *testing.T) feed {
	t.Helper()

	var all feed
	for _, name := range []string{"history", "operations", "accelerators"} {
		content, err := os.ReadFile("testdata/feed/" + name + ".json")
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(content, &all))
	}
	return all
}

// told is the history of the host, with one sentence a line.
func (f feed) told() string {
	n := history.Narrator{
		Subject: cyborg.Subject{Kind: cyborg.SubjectHost, ID: "south"},
		Names:   map[string]string{}, Operations: map[uuid.UUID]cyborg.Operation{},
	}

	for _, a := range f.Accelerator {
		n.Names[a.UUID.String()] = a.Name
	}

	for _, o := range f.Operation {
		n.Operations[o.ID] = o
	}

	var out strings.Builder
	for _, sentence := range n.Sentences(f.Event) {
		fmt.Fprintf(&out, "%s  %s\n", sentence.At.UTC().Format(time.DateTime), sentence.Text)
	}

	return out.String()
}

// TestImageChangeInAReportBelongsToItsOperation: a report may show the new
// image before the operation ends. The change belongs to the operation and must
// not be told a second time.
func TestImageChangeInAReportBelongsToItsOperation(t *testing.T) {
	t.Parallel()
	told := func(seen func(e *cyborg.Event)) string {
		all := recorded(t)
		for i := range all.Event {
			if e := &all.Event[i]; e.Axis == cyborg.AxisBitstream && e.From != "" {
				seen(e)
			}
		}
		return all.told()
	}

	loaded := 0
	want := told(func(*cyborg.Event) { loaded++ })
	require.NotZero(t, loaded)
	require.NotContains(t, want, "showed image")

	brought := func(e *cyborg.Event) {
		e.Operation, e.Actor, e.Cursor.Transaction = uuid.Nil, "agent", e.Cursor.Transaction+1_000_000
		e.Time = e.Time.Add(-50 * time.Millisecond)
	}

	require.Equal(t, want, told(brought))
	require.Contains(t, told(func(e *cyborg.Event) { brought(e); e.Time = e.Time.Add(-1000 * time.Hour) }), "showed image", "a change long before the operation is not its own")
}

// TestForgottenOperationsAreStillTold: events may be kept for longer than the
// operations that they belong to.
func TestForgottenOperationsAreStillTold(t *testing.T) {
	t.Parallel()
	const golden = "testdata/forgotten.txt"
	all := recorded(t)
	all.Operation = nil

	got := all.told()
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o600))
	}

	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// TestKindsAreToldApart: each kind of operation has words of its own, and a
// kind that only a newer server knows is told by its name.
func TestKindsAreToldApart(t *testing.T) {
	t.Parallel()

	accelerator := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: uuid.NewString()}
	said := map[string]cyborg.OperationKind{}
	for _, kind := range append(cyborg.OperationKinds(), "polish") {
		id := uuid.New()
		n := history.Narrator{Subject: accelerator, Operations: map[uuid.UUID]cyborg.Operation{id: {
			ID: id, Kind: kind, State: cyborg.OperationSucceeded, Host: "south", Subjects: []cyborg.Subject{accelerator},
			Actor: cyborg.Actor{Name: "alice"}, Input: cyborg.JSONObject{"action": "install"},
		}}}

		all := n.Sentences([]cyborg.Event{{Axis: cyborg.AxisState, Operation: id}})
		require.Len(t, all, 1, kind)

		text, _, _ := strings.Cut(all[0].Text, " (operation ")
		require.Equal(t, kind == "polish", strings.HasPrefix(text, "alice ran "), text)
		require.Empty(t, said[text], "%s is told as %s is", kind, said[text])

		said[text] = kind
	}

	require.Contains(t, said, "alice ran polish on it")
}

// TestRetireIsASentence: retiring is told as taking the accelerator out of
// service.
func TestRetireIsASentence(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	for i := range all.Operation {
		if all.Operation[i].Kind == cyborg.OperationProvision {
			all.Operation[i].Kind = cyborg.OperationRetire
		}
	}
	require.Contains(t, all.told(), "alice took accelerator story out of service (operation ")

	// What could not be uninstalled is told with it; that it is uninstalled at last is
	// what the next retire says.
	for _, value := range []string{"uninstall_pending", ""} {
		all := recorded(t)
		for i := range all.Operation {
			if all.Operation[i].Kind == cyborg.OperationProvision {
				all.Operation[i].Kind = cyborg.OperationRetire
			}
		}
		for i := range all.Event {
			if e := &all.Event[i]; e.Axis == cyborg.AxisLifecycle && e.To == string(cyborg.LifecycleReady) {
				e.Axis, e.To = cyborg.AxisInstallation, value
			}
		}
		told := "out of service; accelerator story could not be uninstalled, because the host did not show it (operation "
		require.Equal(t, value != "", strings.Contains(all.told(), told), all.told())
	}
}

// TestDriftIsASentence: drift in Placement is told about the accelerator that
// has the resource provider, or about the provider if there is none. Drift in
// Nova is told about the accelerators of the instance.
func TestDriftIsASentence(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	about := func(subject cyborg.Subject, transaction uint64, class cyborg.DriftClass, from, to string, data map[string]any) cyborg.Event {
		return cyborg.Event{
			Subject: subject, Cursor: cyborg.Cursor{Transaction: transaction}, Host: "south", Axis: class.Axis(), From: from, To: to,
			Actor: "cyborg", Data: data,
		}
	}

	accelerator := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: all.Accelerator[0].UUID.String()}
	provider := cyborg.Subject{Kind: cyborg.SubjectProvider, ID: uuid.NewString()}

	drifted := feed{Accelerator: all.Accelerator, Event: []cyborg.Event{
		about(accelerator, 1, cyborg.DriftReserved, "", "0 of 2 FPGA are reserved, not 2", nil),
		about(accelerator, 1, cyborg.DriftReserved, "0 of 2 FPGA are reserved, not 2", "", map[string]any{"repaired": true}),
		about(provider, 2, cyborg.DriftOrphanProvider, "", "vm has an allocation", map[string]any{"name": "south_x"}),
		about(provider, 3, cyborg.DriftOrphanProvider, "vm has an allocation", "", map[string]any{"name": "south_x", "repaired": false}),
		about(accelerator, 4, cyborg.DriftInstanceElsewhere, "", "it is on h9", map[string]any{"instance": "vm"}),
		about(accelerator, 5, cyborg.DriftInstanceElsewhere, "it is on h9", "", map[string]any{"instance": "vm", "repaired": false}),
		about(cyborg.Subject{Kind: cyborg.SubjectHost, ID: "south"}, 6, cyborg.DriftNovaWhitelist, "", "its file is gone", nil),
		about(cyborg.Subject{Kind: cyborg.SubjectHost, ID: "south"}, 7, cyborg.DriftNovaWhitelist, "its file is gone", "", map[string]any{"repaired": false}),
	}}

	got := drifted.told()
	for _, sentence := range []string{
		"Accelerator " + all.Accelerator[0].Name + " differed in Placement (reserved): 0 of 2 FPGA are reserved, not 2 and was put right in Placement (reserved).",
		"Resource provider south_x differed in Placement (orphan provider): vm has an allocation.",
		"Resource provider south_x differed in Placement no longer (orphan provider).",
		"Accelerator " + all.Accelerator[0].Name + " differed from its instance vm (instance elsewhere): it is on h9.",
		"It differed from the whitelist that was written for Nova: its file is gone.",
		"It no longer differed from the whitelist that was written for Nova.",
		"Accelerator " + all.Accelerator[0].Name + " differed from its instance vm no longer (instance elsewhere).",
	} {
		require.Contains(t, got, "  "+sentence+"\n")
	}
}

// TestUndoneAttachmentIsASentence: what a host has undone is told with the fence, which
// has the reason, or alone. Its end needs no words besides those of the fence.
func TestUndoneAttachmentIsASentence(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	name, id := all.Accelerator[0].Name, all.Accelerator[0].UUID.String()
	of := func(transaction uint64, kind cyborg.SubjectKind, axis cyborg.EventAxis, from, to string) cyborg.Event {
		subject := cyborg.Subject{Kind: kind, ID: id}
		if kind == cyborg.SubjectHandle {
			subject.ID = uuid.NewString()
		}
		return cyborg.Event{
			Subject: subject, Cursor: cyborg.Cursor{Transaction: transaction}, Host: "south", Axis: axis, From: from, To: to, Actor: "agent",
			Data: map[string]any{"accelerator": id, "identity": "0000:3b:00.0"},
		}
	}
	undone := feed{Accelerator: all.Accelerator, Event: []cyborg.Event{
		of(1, cyborg.SubjectHandle, cyborg.AxisUndone, "", "a boot"), of(1, cyborg.SubjectAccelerator, cyborg.AxisFence, "", "a boot"),
		of(2, cyborg.SubjectHandle, cyborg.AxisUndone, "", "a boot"),
		of(3, cyborg.SubjectHandle, cyborg.AxisUndone, "a boot", ""), of(3, cyborg.SubjectAccelerator, cyborg.AxisFence, "a boot", ""),
	}}

	got := undone.told()
	for _, sentence := range []string{
		"Handle 0000:3b:00.0 of accelerator " + name + " lost its attachment on the host; accelerator " + name + " was fenced: a boot.",
		"Handle 0000:3b:00.0 of accelerator " + name + " lost its attachment on the host: a boot.",
		"Accelerator " + name + " is no longer fenced.",
	} {
		require.Contains(t, got, "  "+sentence+"\n")
	}
}

// TestCleaningIsASentence: what has to be cleaned is told with the operation that took it
// back, and how it became clean with the clean, or alone where the operation is no longer
// kept.
func TestCleaningIsASentence(t *testing.T) {
	t.Parallel()
	accelerator := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: uuid.NewString()}
	wiped := map[string]any{
		"method": "scrub", "tool": "nvme format, crypto erase", "read_back": "64 places are zero", "at": "2026-01-31T12:00:00Z", "took_ms": 1500,
	}

	for _, test := range []struct {
		kind     cyborg.OperationKind
		state    cyborg.OperationState
		input    cyborg.JSONObject
		from, to string
		cleaned  any
		known    string
		alone    string
	}{
		{
			cyborg.OperationDetach, cyborg.OperationSucceeded, nil, "", "scrub", nil,
			"alice took it back from whoever had it; it has handle 81:00.1 to be cleaned (scrub) before somebody gets it (operation ",
			"It has handle 81:00.1 to be cleaned (scrub) before somebody gets it",
		},
		{
			cyborg.OperationClean, cyborg.OperationSucceeded, nil, "scrub", "", wiped,
			"alice cleaned it; it has handle 81:00.1 clean (scrub by nvme format, crypto erase; read back: 64 places are zero) (operation ",
			"It has handle 81:00.1 clean (scrub by nvme format, crypto erase; read back: 64 places are zero)",
		},
		{
			cyborg.OperationClean, cyborg.OperationSucceeded, nil, "reset", "",
			map[string]any{"method": "reset", "at": "2026-01-31T12:00:00Z"},
			"alice cleaned it; it has handle 81:00.1 clean (reset) (operation ",
			"It has handle 81:00.1 clean (reset)",
		},
		{
			cyborg.OperationClean, cyborg.OperationSucceeded,
			cyborg.JSONObject{"declared": "ticket 12"},
			"scrub", "",
			map[string]any{"declared": "ticket 12", "at": "2026-01-31T12:00:00Z"},
			"alice declared it clean; it has handle 81:00.1 declared clean: ticket 12 (operation ",
			"It has handle 81:00.1 declared clean: ticket 12",
		},
		{
			cyborg.OperationClean, cyborg.OperationFailed, nil, "scrub", "", wiped, // of one handle, and failed at another
			"alice tried to clean it, which failed after 0s. There was nothing to undo; it has handle 81:00.1 clean (scrub by nvme format",
			"It has handle 81:00.1 clean (scrub by nvme format",
		},
		{
			cyborg.OperationClean, cyborg.OperationSucceeded, nil, "scrub", "", "a form that only a newer server has",
			"alice cleaned it; it no longer has handle 81:00.1 to be cleaned (operation ",
			"It no longer has handle 81:00.1 to be cleaned",
		},
	} {
		id := uuid.New()
		n := history.Narrator{Subject: accelerator, Operations: map[uuid.UUID]cyborg.Operation{id: {
			ID: id, Kind: test.kind, State: test.state, Host: "south", Subjects: []cyborg.Subject{accelerator},
			Actor: cyborg.Actor{Name: "alice"}, Input: test.input,
		}}}
		events := []cyborg.Event{{
			Subject: accelerator, Host: "south", Axis: cyborg.AxisUnclean, From: test.from, To: test.to, Operation: id, Actor: "alice",
			Data: map[string]any{"handle": uuid.NewString(), "identity": "81:00.1", "cleaned": test.cleaned},
		}}

		all := n.Sentences(events)
		require.Len(t, all, 1)
		require.Contains(t, all[0].Text, test.known)

		n.Operations = nil
		require.Contains(t, n.Sentences(events)[0].Text, test.alone)
	}
}

// TestPartitionIsASentence: what a device was divided into is told about the device, about
// each of its accelerators and about its host, also where the operation failed, and where a
// newer server has recorded it in another form.
func TestPartitionIsASentence(t *testing.T) {
	t.Parallel()
	device := cyborg.Subject{Kind: cyborg.SubjectDevice, ID: "dddddddd-0000-4000-8000-000000000001"}
	accelerator := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: uuid.NewString()}
	host := cyborg.Subject{Kind: cyborg.SubjectHost, ID: "south"}
	four := cyborg.JSONObject{"device": device.ID, "layout": map[string]any{"vf": 4}}
	whole := cyborg.JSONObject{"device": device.ID, "layout": map[string]any{}}
	undone := []cyborg.Step{{Name: "partition", State: cyborg.StepFailed}, {Name: "undo partition", State: cyborg.StepDone}}
	jammed := cyborg.Errorf(cyborg.ErrHardware, "the card has 3 functions, not 4.")

	for _, test := range []struct {
		about cyborg.Subject
		input cyborg.JSONObject
		state cyborg.OperationState
		err   *cyborg.Error
		steps []cyborg.Step
		told  string
	}{
		{device, four, cyborg.OperationSucceeded, nil, nil, "alice divided it into 4 × vf (operation "},
		{device, whole, cyborg.OperationSucceeded, nil, nil, "alice made it whole (operation "},
		{accelerator, four, cyborg.OperationSucceeded, nil, nil, "alice divided its device into 4 × vf (operation "},
		{accelerator, whole, cyborg.OperationRunning, nil, nil, "alice began to make its device whole, which goes on (operation "},
		{
			host,
			cyborg.JSONObject{"device": device.ID, "layout": map[string]any{"3g.40gb": 1, "1g.10gb": 4, "vf": 0}},
			cyborg.OperationSucceeded, nil, nil,
			"alice divided device dddddddd into 4 × 1g.10gb and 1 × 3g.40gb (operation ",
		},
		{
			device, four, cyborg.OperationFailed, jammed, undone,
			"alice tried to divide it into 4 × vf, which failed after 0s: the card has 3 functions, not 4. Undone: partition (operation ",
		},
		{device, whole, cyborg.OperationCancelled, nil, nil, "alice began to make it whole, which was cancelled after 0s. There was nothing to undo (operation "},
		{
			device, four, cyborg.OperationNeedsOperator, jammed, nil,
			"alice tried to divide it into 4 × vf, which failed after 0s: the card has 3 functions, not 4. It could not be undone and needs an operator (operation ",
		},
		{device, cyborg.JSONObject{"device": device.ID, "layout": []any{"vf"}}, cyborg.OperationSucceeded, nil, nil, "alice divided it anew (operation "},
		{device, cyborg.JSONObject{"device": device.ID}, cyborg.OperationSucceeded, nil, nil, "alice divided it anew (operation "},
		{host, cyborg.JSONObject{"devices": []any{device.ID}}, cyborg.OperationFailed, nil, nil, "alice tried to divide a device of south anew, which failed after 0s. There was"},
	} {
		id := uuid.New()
		n := history.Narrator{Subject: test.about, Operations: map[uuid.UUID]cyborg.Operation{id: {
			ID: id, Kind: cyborg.OperationPartition, State: test.state, Host: "south", Subjects: []cyborg.Subject{accelerator, device},
			Actor: cyborg.Actor{Name: "alice"}, Input: test.input, Error: test.err, Steps: test.steps,
		}}}
		all := n.Sentences([]cyborg.Event{{Subject: accelerator, Axis: cyborg.AxisClaim, Operation: id}})
		require.Len(t, all, 1)
		require.True(t, strings.HasPrefix(all[0].Text, test.told), all[0].Text)
	}
}

// TestPartsComeAndGoWithTheirPartition: the accelerators that appear and leave with a
// partition are told in its sentence.
func TestPartsComeAndGoWithTheirPartition(t *testing.T) {
	t.Parallel()
	id, device := uuid.New(), cyborg.Subject{Kind: cyborg.SubjectDevice, ID: uuid.NewString()}
	events := []cyborg.Event{{
		Subject: device, Host: "south", Axis: cyborg.AxisReported, Operation: id, Actor: "alice", Data: map[string]any{"identity": "0000:3b:00.0"},
	}}
	names := map[string]string{}
	presence := func(name, from, to string) {
		subject := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: uuid.NewString()}
		names[subject.ID] = name
		events = append(events, cyborg.Event{Subject: subject, Host: "south", Axis: cyborg.AxisPresence, From: from, To: to, Operation: id, Actor: "alice"})
	}
	presence("vf-0", "", "present")
	presence("vf-1", "", "present")
	presence("fast", "present", "")

	n := history.Narrator{
		Subject: cyborg.Subject{Kind: cyborg.SubjectHost, ID: "south"}, Names: names,
		Operations: map[uuid.UUID]cyborg.Operation{id: {
			ID: id, Kind: cyborg.OperationPartition, State: cyborg.OperationSucceeded, Host: "south", Actor: cyborg.Actor{Name: "alice"},
			Input: cyborg.JSONObject{"device": device.ID, "layout": map[string]any{"vf": 2}},
		}},
	}
	require.Contains(t, n.Sentences(events)[0].Text,
		"alice divided device 0000:3b:00.0 into 2 × vf; accelerators vf-0 and vf-1 appeared on south; accelerator fast left the records (operation ")
}

// TestLayoutIsASentence: what a host reports of how a device is divided is told where that has
// changed, and not with the partition that did it.
func TestLayoutIsASentence(t *testing.T) {
	t.Parallel()
	device := cyborg.Subject{Kind: cyborg.SubjectDevice, ID: uuid.NewString()}
	told := func(from, to string, operation uuid.UUID, known map[uuid.UUID]cyborg.Operation) string {
		n := history.Narrator{Subject: cyborg.Subject{Kind: cyborg.SubjectHost, ID: "south"}, Operations: known}
		for _, sentence := range n.Sentences([]cyborg.Event{{
			Subject: device, Host: "south", Axis: cyborg.AxisLayout, From: from, To: to, Operation: operation, Data: map[string]any{"identity": "0000:3b:00.0"},
		}}) {
			return sentence.Text
		}
		return ""
	}

	for _, test := range []struct{ from, to, told string }{
		{"", "whole", ""},
		{"", "vf=4", "Device 0000:3b:00.0 was divided into 4 × vf."},
		{"vf=4", "whole", "Device 0000:3b:00.0 was made whole."},
		{"whole", "1g.10gb=2 vf=4", "Device 0000:3b:00.0 was divided into 2 × 1g.10gb and 4 × vf."},
		{"vf=4", "", "Device 0000:3b:00.0 cannot be divided any more."},
		{"vf=4", "half of it", "Device 0000:3b:00.0 was divided into half of it."},
	} {
		require.Equal(t, test.told, told(test.from, test.to, uuid.Nil, nil))
	}

	id := uuid.New()
	require.Contains(t, told("whole", "vf=4", id, nil), "Device 0000:3b:00.0 was divided into 4 × vf (operation ", "it is no longer kept")
	known := cyborg.Operation{
		ID: id, Kind: cyborg.OperationPartition, State: cyborg.OperationSucceeded, Actor: cyborg.Actor{Name: "alice"},
		Input: cyborg.JSONObject{"device": device.ID, "layout": map[string]any{"vf": 4}},
	}
	require.True(t, strings.HasPrefix(told("whole", "vf=4", id, map[uuid.UUID]cyborg.Operation{id: known}), "alice divided device 0000:3b:00.0 into 4 × vf (operation "))
}

// TestSettledIsASentence: what a host has settled is told with the reason. What was taken
// back without it needs none.
func TestSettledIsASentence(t *testing.T) {
	t.Parallel()
	for want, data := range map[string]map[string]any{
		"had handle 00.1 taken back by its host":                                               {"now": "detached", "journal": "attached", "recorded": "left"},
		"had handle 00.1 detached by Reconcile, because its host's journal had it as attached": {"now": "detached", "journal": "attached", "recorded": ""},
		"had handle 00.1 attached by Reconcile, because its host's journal did not have it":    {"now": "attached", "journal": "", "recorded": "attached"},
		"had handle 00.1 detached by Reconcile, because its host's journal had it in doubt":    {"now": "detached", "journal": "in_doubt", "recorded": "in_doubt"},
		"had handle 00.1 attached by Reconcile, because the records had it in doubt":           {"now": "attached", "journal": "attached", "recorded": "in_doubt"},
	} {
		data["identity"] = "00.1"
		told := feed{Event: []cyborg.Event{{
			Subject: cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: uuid.NewString()}, Host: "south", Axis: cyborg.AxisSettled, Actor: "agent", Data: data,
		}}}.told()
		require.Contains(t, told, want+".\n")
	}
}

// TestSameHolderOfANewAccelerator: what goes to one holder with an accelerator is told
// where it changes, and not where the accelerator appears.
func TestSameHolderOfANewAccelerator(t *testing.T) {
	t.Parallel()
	id := uuid.NewString()
	of := func(transaction uint64, axis cyborg.EventAxis, from, to string) cyborg.Event {
		return cyborg.Event{
			Subject: cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: id}, Cursor: cyborg.Cursor{Transaction: transaction}, Host: "south",
			Axis: axis, From: from, To: to, Actor: "agent",
		}
	}

	got := feed{Event: []cyborg.Event{
		of(1, cyborg.AxisPresence, "", "present"), of(1, cyborg.AxisSameHolder, "", "iommu/17"), of(2, cyborg.AxisSameHolder, "iommu/17", "iommu/18"),
	}}.told()
	require.NotContains(t, got, "iommu/17")
	require.Contains(t, got, "goes to one holder with what else is of iommu/18")
}

// TestParametersAreInTheSentence: what was chosen for a handle is told with it, by its
// operation, and also when that is no longer kept.
func TestParametersAreInTheSentence(t *testing.T) {
	t.Parallel()
	id, accelerator := uuid.New(), cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: uuid.NewString()}
	given := func(identity string, parameters map[string]any) cyborg.Event {
		return cyborg.Event{
			Subject: cyborg.Subject{Kind: cyborg.SubjectHandle, ID: identity}, Host: "south", Axis: cyborg.AxisHolder, To: "service ovs",
			Operation: id, Actor: "alice", Data: map[string]any{"identity": identity, "accelerator": accelerator.ID, "parameters": parameters},
		}
	}
	taken := given("00.1", nil)
	taken.From, taken.To = taken.To, ""
	events := []cyborg.Event{given("00.1", map[string]any{"vlan": "5", "mac": "52:54:00:12:34:56"}), given("00.2", nil), taken}

	known := history.Narrator{Subject: accelerator, Operations: map[uuid.UUID]cyborg.Operation{id: {
		ID: id, Kind: cyborg.OperationAttach, State: cyborg.OperationSucceeded, Host: "south", Subjects: []cyborg.Subject{accelerator},
		Actor: cyborg.Actor{Name: "alice"}, Input: cyborg.JSONObject{"holder": map[string]any{"kind": "service", "id": "ovs"}},
	}}}
	require.Contains(t, known.Sentences(events[:1])[0].Text, "alice attached it to service ovs (handle 00.1 with mac=52:54:00:12:34:56, vlan=5, operation ")
	require.Contains(t, known.Sentences(events)[0].Text, "(handles 00.1 with mac=52:54:00:12:34:56, vlan=5 and 00.2, operation ")

	forgotten := (&history.Narrator{Subject: accelerator}).Sentences(events)[0].Text
	require.Contains(t, forgotten, "went to service ovs (00.1) with mac=52:54:00:12:34:56, vlan=5")
	require.Contains(t, forgotten, "went to service ovs (00.2)")
	require.Contains(t, forgotten, "came back from service ovs (00.1)")
}

// TestExcludesAreASentence: what an accelerator excludes is told where it changes, and
// not where the accelerator appears.
func TestExcludesAreASentence(t *testing.T) {
	t.Parallel()
	id := uuid.NewString()
	of := func(transaction uint64, axis cyborg.EventAxis, from, to string) cyborg.Event {
		return cyborg.Event{
			Subject: cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: id}, Cursor: cyborg.Cursor{Transaction: transaction}, Host: "south",
			Axis: axis, From: from, To: to, Actor: "agent",
		}
	}

	got := feed{Event: []cyborg.Event{
		of(1, cyborg.AxisPresence, "", "present"), of(1, cyborg.AxisExcludes, "", "gpu0_1"),
		of(2, cyborg.AxisExcludes, "gpu0_1", "gpu0_2, gpu0_3"), of(3, cyborg.AxisExcludes, "gpu0_2, gpu0_3", ""),
	}}.told()
	require.NotContains(t, got, "gpu0_1")
	require.Contains(t, got, "excludes gpu0_2 and gpu0_3 while somebody has it")
	require.Contains(t, got, "no longer excludes gpu0_2 and gpu0_3")
}

// TestConditionsAreASentence: what a driver says of an accelerator is told, and when that
// is over.
func TestConditionsAreASentence(t *testing.T) {
	t.Parallel()
	id := uuid.NewString()
	of := func(transaction uint64, from, to string) cyborg.Event {
		return cyborg.Event{
			Subject: cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: id}, Cursor: cyborg.Cursor{Transaction: transaction}, Host: "south",
			Axis: cyborg.AxisConditions, From: from, To: to, Actor: "agent",
		}
	}

	got := feed{Event: []cyborg.Event{of(1, "", "unready no_link, notice power_cycle"), of(2, "unready no_link, notice power_cycle", "")}}.told()
	require.Contains(t, got, "is reported as unready no_link, notice power_cycle")
	require.Contains(t, got, "is no longer reported as unready no_link, notice power_cycle")
}

// TestPendingImageIsASentence: what takes effect later is told with what has to be done, and
// so is that it has, or that it is gone before it has.
func TestPendingImageIsASentence(t *testing.T) {
	t.Parallel()
	accelerator := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: uuid.NewString()}
	of := func(transaction uint64, axis cyborg.EventAxis, from, to, effective string) cyborg.Event {
		return cyborg.Event{
			Subject: accelerator, Cursor: cyborg.Cursor{Transaction: transaction}, Host: "south", Axis: axis, From: from, To: to, Actor: "agent",
			Data: map[string]any{"until": "power_cycle", "bitstream_id": effective}, Time: time.Unix(int64(transaction), 0),
		}
	}
	events := []cyborg.Event{
		of(1, cyborg.AxisPendingImage, "", "shell", "factory"),
		of(2, cyborg.AxisPendingImage, "shell", "", "shell"), of(2, cyborg.AxisBitstream, "factory", "shell", ""),
		of(3, cyborg.AxisPendingImage, "", "next", "shell"), of(4, cyborg.AxisPendingImage, "next", "", "other"),
		of(4, cyborg.AxisBitstream, "shell", "other", ""),
	}

	told := func(known map[uuid.UUID]cyborg.Operation) (out []string) {
		n := history.Narrator{Subject: accelerator, Operations: known}
		for _, sentence := range n.Sentences(events) {
			out = append(out, sentence.Text)
		}
		return out
	}
	all := told(nil)
	for i, text := range []string{
		"has loaded image shell, which takes effect after a power cycle of south.", "has image shell in effect, instead of factory.",
		"has loaded image next, which takes effect after a power cycle of south.",
		"dropped image next before it took effect and showed image other instead of shell.",
	} {
		require.Contains(t, all[i], text)
	}
	require.NotContains(t, all[1], "showed")

	// A report may show the image before the end of the operation that has loaded it.
	id := uuid.New()
	with := told(map[uuid.UUID]cyborg.Operation{id: {
		ID: id, Kind: cyborg.OperationProgram, State: cyborg.OperationSucceeded, Host: "south", Actor: cyborg.Actor{Name: "alice"},
		Subjects: []cyborg.Subject{accelerator}, StartedAt: time.Unix(1, 0), EndedAt: time.Unix(1, 1),
		Input:  cyborg.JSONObject{"accelerator": accelerator.ID, "image": map[string]any{"source": "shell.img"}},
		Result: cyborg.JSONObject{"bitstream_id": "shell", "pending": "power_cycle"},
	}})
	require.Contains(t, with[0], "alice programmed it with shell.img, which takes effect after a power cycle of south (operation ")
	require.Equal(t, all[1:], with[1:])
}

// TestReplacedDeviceIsASentence: what is in the place of a card is told with its
// disappearing. That it is back says enough.
func TestReplacedDeviceIsASentence(t *testing.T) {
	t.Parallel()
	of := func(transaction uint64, axis cyborg.EventAxis, from, to string) cyborg.Event {
		return cyborg.Event{
			Subject: cyborg.Subject{Kind: cyborg.SubjectDevice, ID: uuid.NewString()}, Cursor: cyborg.Cursor{Transaction: transaction}, Host: "south",
			Axis: axis, From: from, To: to, Actor: "agent", Data: map[string]any{"identity": "0000:3b:00.0"},
		}
	}
	replaced := feed{Event: []cyborg.Event{
		of(1, cyborg.AxisPresence, "present", "missing"), of(1, cyborg.AxisReplacedBy, "", "8086:37c8"),
		of(2, cyborg.AxisReplacedBy, "8086:37c8", ""), of(2, cyborg.AxisPresence, "missing", "present"),
	}}

	got := replaced.told()
	for _, sentence := range []string{
		"Device 0000:3b:00.0 vanished from south and had another card in its place, 8086:37c8.",
		"Device 0000:3b:00.0 came back on south.",
	} {
		require.Contains(t, got, "  "+sentence+"\n")
	}
}

// TestCorrectionsOfRunsAreSentences: what Reconcile has corrected of an operation's
// run is told with the operation, and by itself where the operation is forgotten.
// Whoever wanted it cancelled is named, and not Reconcile, which has repeated it.
func TestCorrectionsOfRunsAreSentences(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	about := func(axis cyborg.EventAxis, actor, from, to string) cyborg.Event {
		return cyborg.Event{
			Subject: cyborg.Subject{Kind: cyborg.SubjectOperation, ID: id.String()}, Host: "south", Axis: axis, Actor: actor, From: from, To: to, Operation: id,
		}
	}
	n := history.Narrator{Subject: cyborg.Subject{Kind: cyborg.SubjectHost, ID: "south"}, Operations: map[uuid.UUID]cyborg.Operation{id: {
		ID: id, Kind: cyborg.OperationConfigure, State: cyborg.OperationCancelled, Host: "south", Actor: cyborg.Actor{Name: "alice"},
	}}}
	events := []cyborg.Event{
		about(cyborg.AxisCancel, "bob", "", "requested"), about(cyborg.AxisCancel, "cyborg", "requested", "repeated"),
		about(cyborg.AxisStrayRun, "cyborg", "", "0f1e2d3c-4b5a"),
	}

	const corrected = " had its cancel repeated by Reconcile, because its run had not heard of it and " +
		"had run 0f1e2d3c terminated by Reconcile, because it belonged to another one"
	operation := "peration " + id.String()[:8]
	all := n.Sentences(events)
	require.Len(t, all, 1)
	require.Contains(t, all[0].Text, "which bob cancelled after")
	require.Contains(t, all[0].Text, "; o"+operation+corrected)
	require.Equal(t, 1, strings.Count(all[0].Text, "Reconcile, because its run"))

	n.Operations = nil
	all = n.Sentences(events)
	require.Len(t, all, 1)
	require.Contains(t, all[0].Text, "O"+operation+corrected)
}

// TestRevocationsAreSentences: what was revoked while the host is enrolled anew is
// not told as an enrollment.
func TestRevocationsAreSentences(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]cyborg.Event{
		"Cyborg revoked the earlier certificates of host h2: lost.": {From: "enrolled", To: "enrolled", Data: cyborg.JSONObject{"reason": "lost"}},
		"Cyborg revoked the certificates of host h2: stolen.":       {From: "enrolled", To: "revoked", Data: cyborg.JSONObject{"reason": "stolen"}},
		"Host h2 enrolled.": {From: "invited", To: "enrolled"},
		"Cyborg invited the agent of host h2 to enroll.": {From: "enrolled", To: "invited"},
	} {
		e.Subject, e.Axis, e.Actor = cyborg.Subject{Kind: cyborg.SubjectHost, ID: "h2"}, cyborg.AxisIdentity, "cyborg"
		all := (&history.Narrator{}).Sentences([]cyborg.Event{e})
		require.Len(t, all, 1)
		require.Equal(t, strings.ToLower(want), strings.ToLower(all[0].Text))
	}
}

// TestNewInMaintenanceIsASentence: a new part of a device in maintenance begins
// in maintenance, and the sentence must not say that somebody put it there.
func TestNewInMaintenanceIsASentence(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	accelerator := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: all.Accelerator[0].UUID.String()}
	appeared := feed{Accelerator: all.Accelerator, Event: []cyborg.Event{
		{Subject: accelerator, Host: "south", Axis: cyborg.AxisPresence, To: "present", Actor: "agent"},
		{Subject: accelerator, Host: "south", Axis: cyborg.AxisAdministration, To: "maintaining", Actor: "agent", Data: map[string]any{"reason": "cleaning"}},
	}}

	got := appeared.told()
	require.Contains(t, got, " appeared on south and began in maintenance, like the rest of the device: cleaning.\n")
}

// TestEventsOfSeveralDevicesShareASentence: what happened to two devices alike
// is told once, in the plural.
func TestEventsOfSeveralDevicesShareASentence(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	appeared := feed{Accelerator: all.Accelerator}
	for _, identity := range []string{"00fa:01:00.0", "00fa:02:00.0"} {
		device := cyborg.Subject{Kind: cyborg.SubjectDevice, ID: uuid.NewString()}
		data := map[string]any{"identity": identity}
		appeared.Event = append(appeared.Event,
			cyborg.Event{Subject: device, Host: "south", Axis: cyborg.AxisPresence, To: "present", Actor: "agent", Data: data},
			cyborg.Event{Subject: device, Host: "south", Axis: cyborg.AxisBackend, To: "fake", Actor: "agent", Data: data})
	}

	got := appeared.told()
	require.Contains(t, got, "  Devices 00fa:01:00.0 and 00fa:02:00.0 appeared on south and came with backend fake.\n")
}

// TestBindAndUnbindAreSentences: a binding of Nova is told with its instance.
func TestBindAndUnbindAreSentences(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	vm := uuid.NewString()

	for i := range all.Operation {
		o := &all.Operation[i]
		switch o.Kind {
		case cyborg.OperationAttach:
			o.Kind = cyborg.OperationBind
			o.Input = cyborg.JSONObject{"host": "south", "holder": map[string]any{"kind": "instance", "id": vm}}
		case cyborg.OperationDetach:
			o.Kind, o.Input = cyborg.OperationUnbind, cyborg.JSONObject{}
		}
	}

	got := all.told()
	require.Contains(t, got, "alice bound accelerator story to instance "+vm+" (handle 00fa:01:00.0, operation ")
	require.Contains(t, got, "alice unbound accelerator story (handle 00fa:01:00.0, operation ")
}

// TestAForgottenHostHasNotRebooted: the last event of a forgotten host takes
// its boot ID away, which must not be told as a reboot.
func TestAForgottenHostHasNotRebooted(t *testing.T) {
	t.Parallel()
	host := cyborg.Subject{Kind: cyborg.SubjectHost, ID: "south"}
	backend := cyborg.Subject{Kind: cyborg.SubjectBackend, ID: "south/fake"}
	forgotten := feed{Accelerator: recorded(t).Accelerator, Event: []cyborg.Event{
		{Subject: backend, Host: "south", Axis: cyborg.AxisState, From: "ok", Actor: "alice"},
		{Subject: backend, Host: "south", Axis: cyborg.AxisDriver, From: "fake", Actor: "alice"},
		{Subject: host, Host: "south", Axis: cyborg.AxisBoot, From: "b1", Actor: "alice"},
	}}
	got := forgotten.told()
	require.Contains(t, got, "  Backend fake was removed; it was forgotten, by alice.\n")
}
