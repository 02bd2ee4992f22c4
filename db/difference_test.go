package db_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// since turns a report into one that contains only what differs from an earlier
// one, and the devices to be reported always.
func since(base, now agentapi.Report, always ...string) agentapi.Report {
	digests := func(r agentapi.Report) map[string]string {
		out := map[string]string{}
		for _, d := range r.Content.Backends[0].Devices {
			out[d.Identity] = agentapi.DeviceDigest(&d)
		}
		return out
	}

	before, after := digests(base), digests(now)
	out := now
	out.Base = base.Digest

	backend := now.Content.Backends[0]
	backend.Devices = slices.DeleteFunc(slices.Clone(backend.Devices), func(d cyborg.DeviceReport) bool {
		return before[d.Identity] == after[d.Identity] && !slices.Contains(always, d.Identity)
	})
	out.Content.Backends = []agentapi.BackendReport{backend}

	for _, identity := range slices.Sorted(maps.Keys(before)) {
		if _, there := after[identity]; !there {
			out.Gone = append(out.Gone, identity)
		}
	}
	return out
}

// tell sends a report and keeps its reply.
func (h *host) tell(t *testing.T, report agentapi.Report) agentapi.ReportReply {
	t.Helper()
	replies, err := h.records.MergeReports(t.Context(), []agentapi.Report{report})
	require.NoError(t, err)
	h.reply = replies[0]
	return h.reply
}

// inventory is all that is recorded of a host's hardware, as text.
func (h *host) inventory(t *testing.T) string {
	t.Helper()
	return scalar[string](t, h.records, `
		SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
			SELECT format('device %s %s %s %s', identity, backend, presence, board_info) AS line FROM devices WHERE host = '`+h.name+`'
			UNION ALL
			SELECT format('deployable %s of %s: %s %s %s %s %s %s %s', local_name, v.identity, d.presence, bitstream_id, attributes, specs, protected, same_holder, excludes)
			FROM deployables d JOIN devices v ON v.uuid = d.device_uuid WHERE d.host = '`+h.name+`'
			UNION ALL
			SELECT format('handle %s of %s: %s %s', a.identity, d.local_name, a.presence, info)
			FROM attach_handles a JOIN deployables d ON d.uuid = a.deployable_uuid WHERE a.host = '`+h.name+`'
			UNION ALL
			SELECT format('backend %s %s %s', name, state, error) FROM backends WHERE host = '`+h.name+`') AS lines`)
}

// TestDifferencesFillNoHost: a host that shows another device each time, also by
// differences, has so many recorded, and its agent is asked for the whole
// inventory, where it sees why.
func TestDifferencesFillNoHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := &host{records: r, name: "h1", boot: "b", content: content(1)}
	first := h.next()
	require.True(t, h.tell(t, first).Accepted)
	r.exec(t, `
		INSERT INTO devices (uuid, host, backend, driver, identity, type, vendor_id, product_id, vendor, model, control_path_kind, control_path_info)
		SELECT gen_random_uuid(), host, backend, driver, 'earlier' || n, type, vendor_id, product_id, vendor, model, control_path_kind, control_path_info
		FROM devices, generate_series(1, 4094) AS n`)
	devices := func() int { return scalar[int](t, r, "SELECT count(*) FROM devices") }
	require.Equal(t, 4095, devices())

	h.content.Backends = slices.Clone(h.content.Backends) // those before are in the report
	h.content.Backends[0].Devices = append(h.devices(), device("next"))
	second := h.next()
	require.True(t, h.tell(t, since(first, second)).Accepted)
	require.Equal(t, 4096, devices())

	h.content.Backends = slices.Clone(h.content.Backends)
	h.content.Backends[0].Devices = append(slices.Clone(h.devices()), device("beyond"))
	h.devices()[0].Model = "F2"
	third := h.next()
	require.True(t, h.tell(t, since(second, third)).Whole)
	require.True(t, h.tell(t, third).Accepted)
	require.Equal(t, 4096, devices())
	require.Equal(t, "F2", scalar[string](t, r, "SELECT model FROM devices WHERE identity = 'card0'"))
	require.Contains(t, h.record(t).Backends[0].Error, "device beyond is left out: 4096 are recorded of this host")
}

// TestDifferentialReportsMatchFullReports changes two equal hosts at random,
// step by step. One reports everything each time, the other only what differs,
// unless it is asked for everything. After each step the records say the same
// of both.
func TestDifferentialReportsMatchFullReports(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	taken, asked := 0, 0
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 1))
		whole := r.addHost(t, fmt.Sprintf("whole%d", seed), 5)
		parts := &host{records: r, name: fmt.Sprintf("parts%d", seed), boot: "boot-1", content: content(5)}
		base := parts.next()
		require.True(t, parts.tell(t, base).Accepted)

		for step := range 25 {
			next := change(random, whole.content)
			whole.content, parts.content = next, next
			whole.report(t)

			now := parts.next()
			if parts.tell(t, since(base, now)); parts.reply.Whole {
				asked++
				taken--
				require.False(t, parts.reply.Accepted)
				now = parts.next()
				parts.tell(t, now)
			}

			require.True(t, parts.reply.Accepted)
			require.Equal(t, whole.inventory(t), parts.inventory(t), "seed %d, step %d", seed, step)
			require.Equal(t, whole.reply.Generation, parts.reply.Generation, "seed %d, step %d", seed, step)
			replies, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{whole.beat(), parts.beat()})
			require.NoError(t, err)
			require.Equal(t, replies[0].Report, replies[1].Report, "seed %d, step %d", seed, step)

			base = now
			taken++
		}
	}

	require.Positive(t, taken)
	require.Positive(t, asked)
}

// change returns the content after a random change: cards come, go, change, and
// take each other's handles and names.
func change(random *rand.Rand, before agentapi.Content) agentapi.Content {
	devices := slices.Clone(before.Backends[0].Devices)
	pick := func() int { return random.IntN(len(devices)) }

	switch what := random.IntN(7); {
	case len(devices) == 0 || what == 0:
		name := fmt.Sprintf("card%d", random.IntN(8))
		if !slices.ContainsFunc(devices, func(d cyborg.DeviceReport) bool { return d.Identity == name }) {
			devices = append(devices, device(name))
		}
	case what == 1:
		devices = slices.Delete(devices, 0, 1)
	case what == 2:
		d := &devices[pick()]
		d.BoardInfo = cyborg.JSONObject{"serial": float64(random.IntN(3))}
	case what == 3: // another number of handles
		d := &devices[pick()]
		d.Deployables = []cyborg.DeployableReport{deployable(d.Deployables[0].Name, random.IntN(4))}
	case what == 4: // another image
		d := &devices[pick()]
		d.Deployables = slices.Clone(d.Deployables)
		d.Deployables[0].BitstreamID = fmt.Sprint(random.IntN(3))
		d.Deployables[0].SameHolder = []string{"", "iommu/17"}[random.IntN(2)]
		d.Deployables[0].Excludes = [][]string{nil, {"card0"}, {"card1", "card2"}}[random.IntN(3)]
	case what == 5: // the parts of two cards are exchanged
		a, b := pick(), pick()
		devices[a].Deployables, devices[b].Deployables = devices[b].Deployables, devices[a].Deployables
	case what == 6: // a handle is shown by two
		a, b := &devices[pick()], devices[pick()]
		a.Deployables = slices.Clone(a.Deployables)
		a.Deployables[0].Handles = append(slices.Clone(a.Deployables[0].Handles), b.Deployables[0].Handles...)
	}

	after := before
	after.Backends = slices.Clone(before.Backends)
	after.Backends[0].Devices = devices
	return after
}

// TestDifferentialReportNeedsItsBase: a report of differences is accepted only
// where the records stand on the report from which it differs. Otherwise the
// agent is asked for a whole one.
func TestDifferentialReportNeedsItsBase(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := &host{records: r, name: "h1", boot: "boot-1", content: content(3)}
	first := h.next()
	h.content = content(2)
	require.Equal(t, agentapi.ReportReply{Whole: true}, h.tell(t, since(first, h.next())), "the host is not known")
	require.Empty(t, h.inventory(t))

	h.content = content(3)
	base := h.next()
	require.True(t, h.tell(t, base).Accepted)
	h.content = content(2)
	other := since(base, h.next())
	other.Base = "of another report"
	require.True(t, h.tell(t, other).Whole)

	booted := since(base, h.next())
	booted.BootID = "boot-2"
	require.True(t, h.tell(t, booted).Whole)

	late := since(base, h.next())
	late.Sequence = base.Sequence - 1
	require.Equal(t, agentapi.ReportReply{Generation: h.reply.Generation, Exceed: base.Sequence}, h.tell(t, late), "older than what is recorded")
	require.Equal(t, "boot-1", h.record(t).BootID)
	require.Equal(t, 3, h.record(t).Devices)

	told := since(base, h.next())
	require.True(t, h.tell(t, told).Accepted)
	require.Equal(t, 2, h.record(t).Devices)
	require.Equal(t, h.reply, h.tell(t, told), "its acknowledgement was lost")
	told.Sequence++
	require.True(t, h.tell(t, told).Whole, "its base is no more")
}

// TestDifferentialReportAfterAnOperation: what an operation saw of a device is
// newer than the base, so that a report of differences which omits the device
// does not say how the device is now.
func TestDifferentialReportAfterAnOperation(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := &host{records: r, name: "h1", boot: "boot-1", content: content(2)}
	base := h.next()
	require.True(t, h.tell(t, base).Accepted)

	a := h.ready(t, "card0")
	work := r.begin(t, toProgram(a.UUID))
	h.sequence++
	seen := device("card0")
	seen.Deployables[0].BitstreamID = "new"
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, BitstreamID: "new",
		Observations: []cyborg.Observation{{Sequence: h.sequence, Backend: "fake", Device: seen}},
	}))
	require.Equal(t, "new", h.accelerator(t, "card0").BitstreamID)

	now := h.next() // the card is again as it was at the base
	require.True(t, h.tell(t, since(base, now)).Whole)
	require.Equal(t, "new", h.accelerator(t, "card0").BitstreamID)
	require.True(t, h.tell(t, since(base, h.next(), "card0")).Accepted)
	require.Empty(t, h.accelerator(t, "card0").BitstreamID)
	replies, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
	require.NoError(t, err)
	require.False(t, replies[0].Report)
}
