package ingest

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// A report shows so much of everything, and no more.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	report := func(change func(*agentapi.Report)) *agentapi.Report {
		r := &agentapi.Report{Host: "h1", Sequence: 1, Digest: "d", Content: agentapi.Content{
			Backends: []agentapi.BackendReport{{Name: "a", Driver: "a", State: cyborg.BackendOK}},
		}}
		change(r)
		return r
	}
	devices := func(many int) []cyborg.DeviceReport { return make([]cyborg.DeviceReport, many) }

	for what, change := range map[string]func(r *agentapi.Report, more int){
		"2049 devices": func(r *agentapi.Report, more int) {
			r.Content.Backends = append(r.Content.Backends, agentapi.BackendReport{Name: "b", Driver: "b", State: cyborg.BackendOK, Devices: devices(1000)})
			r.Content.Backends[0].Devices = devices(1048 + more)
		},
		"4097 deployables": func(r *agentapi.Report, more int) {
			r.Content.Backends[0].Devices = devices(2)
			r.Content.Backends[0].Devices[0].Deployables = make([]cyborg.DeployableReport, 96+more)
			r.Content.Backends[0].Devices[1].Deployables = make([]cyborg.DeployableReport, 4000)
		},
		"8193 attach handles": func(r *agentapi.Report, more int) {
			r.Content.Backends[0].Devices = devices(1)
			r.Content.Backends[0].Devices[0].Deployables = []cyborg.DeployableReport{
				{Handles: make([]cyborg.HandleReport, 192+more)}, {Handles: make([]cyborg.HandleReport, 8000)},
			}
		},
		"8193 attachments": func(r *agentapi.Report, more int) {
			one := agentapi.Attachment{Backend: "a", Deployable: "d", Handle: "h", State: cyborg.AttachmentDone}
			r.Content.Attachments = slices.Repeat([]agentapi.Attachment{one}, 8192+more)
		},
		"2049 devices that are gone": func(r *agentapi.Report, more int) {
			r.Base, r.Gone = "b", make([]string, 2048+more)
		},
		"257 backends": func(r *agentapi.Report, more int) {
			r.Content.Backends = make([]agentapi.BackendReport, 256+more)
			for i := range r.Content.Backends {
				r.Content.Backends[i] = agentapi.BackendReport{Name: string(rune('一' + i)), Driver: "a", State: cyborg.BackendOK}
			}
		},
	} {
		require.NoError(t, checkReport(report(func(r *agentapi.Report) { change(r, 0) })), what)
		err := checkReport(report(func(r *agentapi.Report) { change(r, 1) }))
		require.Equal(t, cyborg.ErrTooLarge, cyborg.ErrorKindOf(err), "%s: %v", what, err)
		require.ErrorContains(t, err, "it has "+what)
	}
}

// Reconcile reads attachments together with those of other hosts: each has names, and
// a state that exists.
func TestAttachmentsAreNamed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	for what, change := range map[string]func(a *agentapi.Attachment){
		"no backend":                func(a *agentapi.Attachment) { a.Backend = "" },
		"a long backend":            func(a *agentapi.Attachment) { a.Backend = long },
		"a long deployable":         func(a *agentapi.Attachment) { a.Deployable = long },
		"a long handle":             func(a *agentapi.Attachment) { a.Handle = long },
		"a handle of two lines":     func(a *agentapi.Attachment) { a.Handle = "a\nb" },
		"no state":                  func(a *agentapi.Attachment) { a.State = "" },
		"a state that nobody knows": func(a *agentapi.Attachment) { a.State = cyborg.AttachmentState(long) },
	} {
		a := agentapi.Attachment{Backend: "b", Deployable: "d", Handle: long[1:], State: cyborg.AttachmentLost}
		report := func() *agentapi.Report {
			return &agentapi.Report{Host: "h1", Sequence: 1, Digest: "d", Content: agentapi.Content{Attachments: []agentapi.Attachment{a}}}
		}
		require.NoError(t, checkReport(report()))

		change(&a)
		err := checkReport(report())
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), what)
		require.Less(t, len(err.Error()), 1000, what)
	}
}

// What a host writes into its report is bounded in all, and so is what describes a
// backend.
func TestTextsOfAReportAreBounded(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 1<<20)
	for what, test := range map[string]struct {
		change func(b *agentapi.BackendReport)
		kind   cyborg.ErrorKind
	}{
		"nothing":       {change: func(*agentapi.BackendReport) {}},
		"options":       {change: func(b *agentapi.BackendReport) { b.Options = map[string]any{"k": text} }, kind: cyborg.ErrInvalid},
		"a service":     {change: func(b *agentapi.BackendReport) { b.Services = []string{text} }, kind: cyborg.ErrInvalid},
		"many services": {change: func(b *agentapi.BackendReport) { b.Services = slices.Repeat([]string{"s"}, 65) }, kind: cyborg.ErrInvalid},
		"all together": {change: func(b *agentapi.BackendReport) {
			b.Devices = slices.Repeat([]cyborg.DeviceReport{{Identity: "d", Vendor: text}}, 16)
		}, kind: cyborg.ErrTooLarge},
	} {
		b := agentapi.BackendReport{Name: "a", Driver: "a", State: cyborg.BackendOK, Services: []string{"attach"}}
		test.change(&b)
		err := checkReport(&agentapi.Report{Host: "h1", Sequence: 1, Digest: "d", Content: agentapi.Content{Backends: []agentapi.BackendReport{b}}})
		require.Equal(t, test.kind, cyborg.ErrorKindOf(err), what)
		if err != nil {
			require.Less(t, len(err.Error()), 1000, what)
		}
	}
}

// The texts of a heartbeat are no longer than those of a report, because they are in
// the list of hosts as well.
func TestTextsOfAHeartbeatAreBounded(t *testing.T) {
	t.Parallel()
	require.True(t, recordable(&agentapi.Heartbeat{Host: "h1"}))
	for what, change := range map[string]func(b *agentapi.Heartbeat, text string){
		"host":     func(b *agentapi.Heartbeat, text string) { b.Host = text },
		"boot id":  func(b *agentapi.Heartbeat, text string) { b.BootID = text },
		"instance": func(b *agentapi.Heartbeat, text string) { b.Instance = text },
		"version":  func(b *agentapi.Heartbeat, text string) { b.AgentVersion = text },
		"present":  func(b *agentapi.Heartbeat, text string) { b.Present = text },
	} {
		for text, recorded := range map[string]bool{
			strings.Repeat("x", 255): true, strings.Repeat("x", 256): false, "a\x00": false, "\xff": false,
		} {
			b := agentapi.Heartbeat{Host: "h1"}
			change(&b, text)
			require.Equal(t, recorded, recordable(&b), "%s %q", what, text)
		}
	}
}

// A batch counts all rows of a report, however few devices they belong to.
func TestRowsWeigh(t *testing.T) {
	t.Parallel()
	card := cyborg.DeviceReport{Deployables: []cyborg.DeployableReport{{Handles: make([]cyborg.HandleReport, 2)}}}
	of := func(devices ...cyborg.DeviceReport) agentapi.Report {
		return agentapi.Report{Content: agentapi.Content{Backends: []agentapi.BackendReport{{Devices: devices}}}}
	}
	require.Equal(t, 0, devicesIn(of()))
	require.Equal(t, 1, devicesIn(of(cyborg.DeviceReport{})))
	require.Equal(t, 3, devicesIn(of(card, card, card)))
	card.Deployables[0].Handles = make([]cyborg.HandleReport, 8000)
	require.Equal(t, 2001, devicesIn(of(card)))
}
