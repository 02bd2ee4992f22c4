package db_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// requireEventsLead fails unless every change of an axis begins where the one
// before it ended, and the last one ends where the records are. What a thing
// belongs to at first is in the data of its first event and has no event of its
// own.
func (r *records) requireEventsLead(t *rapid.T, hosts ...string) {
	rows, err := r.sql.Query(t.Context(), `
		WITH story AS (
			SELECT subject_kind, subject_id, axis, from_value, to_value, data ->> 'handle' AS handle,
			       lag(to_value) OVER w AS before, lead(id) OVER w IS NULL AS last
			FROM events WHERE host = ANY($1) AND subject_kind <> 'arq' AND axis NOT IN ('steps', 'reported', 'options', 'cancel')
			WINDOW w AS (PARTITION BY subject_kind, subject_id, axis, CASE WHEN axis IN ('holder', 'unclean') THEN data ->> 'handle' END ORDER BY transaction, id))
		SELECT format('%s of %s %s changes from %s, which was %s', axis, subject_kind, subject_id, from_value, before) FROM story
		WHERE from_value <> coalesce(before, CASE WHEN axis IN ('specs', 'backend', 'device', 'accelerator') THEN from_value ELSE '' END)
		UNION ALL
		SELECT format('%s of %s ends in %s, and is recorded as %s', s.axis, d.name, s.to_value, e.value)
		FROM story s JOIN deployables d ON d.uuid::text = s.subject_id CROSS JOIN LATERAL (VALUES
			('presence', d.presence), ('lifecycle', d.lifecycle), ('administration', d.administration), ('name', d.accelerator),
			('bitstream', d.bitstream_id), ('pending_image', coalesce(d.pending_image ->> 'bitstream_id', '')), ('device', d.device_uuid::text), ('fence', coalesce(d.fence_reason, ''))) AS e (axis, value)
		WHERE s.last AND s.subject_kind = 'accelerator' AND s.axis = e.axis AND s.to_value <> e.value
		UNION ALL
		SELECT format('%s of handle %s ends in %s, and is recorded as %s', s.axis, h.identity, s.to_value, h.unclean)
		FROM story s JOIN attach_handles h ON h.uuid::text = s.handle WHERE s.last AND s.axis = 'unclean' AND s.to_value <> h.unclean`, hosts)
	require.NoError(t, err)
	defer rows.Close()

	for rows.Next() {
		var wrong string
		require.NoError(t, rows.Scan(&wrong))
		t.Fatal(wrong)
	}
	require.NoError(t, rows.Err())
}

// shown draws what a host reports at one moment: cards on two backends, parts
// on cards, handles on parts. From one moment to the next any of them may
// vanish, come back, change, or move, and another card may be in a card's place.
func shown(last bool) *rapid.Generator[agentapi.Content] {
	return rapid.Custom(func(t *rapid.T) agentapi.Content {
		states := []cyborg.BackendState{cyborg.BackendOK, cyborg.BackendOK, cyborg.BackendOK, cyborg.BackendDisabled, cyborg.BackendFailed}
		if last { // what a failed backend leaves as it was depends on earlier reports
			states = states[:4]
		}

		place := func(what string, places int) int { return rapid.IntRange(0, places).Draw(t, what) - 1 } // -1: nowhere
		c := agentapi.Content{Attachments: []agentapi.Attachment{}}

		for _, name := range []string{"x", "y"} {
			c.Backends = append(c.Backends, agentapi.BackendReport{
				Name: name, Driver: "fake", Services: []string{"attach"}, State: rapid.SampledFrom(states).Draw(t, "state"),
			})
		}

		cards := [3]*cyborg.DeviceReport{}
		for i := range cards {
			cards[i] = &cyborg.DeviceReport{
				Identity: fmt.Sprint("card", i), Type: cyborg.DeviceTypeFPGA, Model: rapid.SampledFrom([]string{"m1", "m2"}).Draw(t, "model"),
				ControlPath: cyborg.ControlPath{Kind: "PCI", Info: map[string]string{}},
				Fingerprint: cyborg.Fingerprint{Serial: rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "serial")},
			}
		}

		parts := map[int][]cyborg.DeployableReport{}
		var held [3][]cyborg.HandleReport
		for i := range 4 {
			if on := place("handle", 3); on >= 0 {
				held[on] = append(held[on], cyborg.HandleReport{Kind: cyborg.HandlePCI, Identity: fmt.Sprint("f", i), Info: map[string]string{}})
			}
		}

		for i := range held {
			if on := place("part", 3); on >= 0 {
				part := cyborg.DeployableReport{
					Name: fmt.Sprint("p", i), Handles: held[i], BitstreamID: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "image"),
					Specs: cyborg.Specs{Num: rapid.IntRange(1, 2).Draw(t, "num"), DeviceType: cyborg.DeviceTypeFPGA},
				}
				if id := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "pending image"); id != "" {
					part.PendingImage = &cyborg.PendingImage{BitstreamID: id, Until: rapid.SampledFrom(cyborg.Activations()).Draw(t, "until")}
				}
				parts[on] = append(parts[on], part)
			}
		}

		for i, card := range cards {
			card.Deployables = parts[i]
			if on := place("card", 2); on >= 0 && c.Backends[on].State == cyborg.BackendOK {
				c.Backends[on].Devices = append(c.Backends[on].Devices, *card)
			}
		}
		return c
	})
}

// view is what the records say is present on a host, without ids, so that two
// hosts can be compared.
func (r *records) view(t *rapid.T, host string) string {
	found, err := r.Host(t.Context(), host)
	require.NoError(t, err)

	var lines []string
	for _, b := range found.Backends {
		lines = append(lines, fmt.Sprintf("backend %s %s %s", b.Name, b.State, b.Error))
	}

	devices, err := r.Devices(t.Context(), db.DeviceFilter{Hosts: []string{host}}, db.Page{})
	require.NoError(t, err)

	identities := map[uuid.UUID]string{}
	for _, d := range devices {
		identities[d.UUID] = d.Identity
		if d.Presence == cyborg.PresencePresent {
			lines = append(lines, fmt.Sprintf("device %s %s of %s", d.Identity, d.Model, d.Backend))
		}
	}

	accelerators, err := r.Accelerators(t.Context(), db.AcceleratorFilter{Hosts: []string{host}}, db.Page{})
	require.NoError(t, err)
	for _, a := range accelerators {
		if a.Presence != cyborg.PresencePresent {
			continue
		}
		lines = append(lines, fmt.Sprintf("accelerator %s %q %v %d of %s, %s, %v", a.LocalName, a.BitstreamID, a.PendingImage, a.Specs.Num, identities[a.DeviceUUID], a.Lifecycle, a.Fence))

		for _, h := range a.Handles {
			if h.Presence == cyborg.PresencePresent {
				lines = append(lines, fmt.Sprintf("handle %s of %s", h.Identity, a.LocalName))
			}
		}
	}

	slices.Sort(lines)
	return fmt.Sprintln(lines)
}

// settleAsAgent sends the newest report again, as an agent does, until
// heartbeats no longer ask for one.
func (r *records) settleAsAgent(t *rapid.T, report agentapi.Report, generation int64) {
	for try := 0; ; try++ {
		replies, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{{
			Host: report.Host, BootID: report.BootID, AgentVersion: "1", StartedAt: time.Unix(1, 0), Digest: report.Digest, Generation: generation,
		}})
		require.NoError(t, err)
		if !replies[0].Report {
			return
		}

		require.Less(t, try, 3, "the agent is asked for a report again and again")
		report.Sequence++
		merged, err := r.MergeReports(t.Context(), []agentapi.Report{report})
		require.NoError(t, err)
		require.True(t, merged[0].Accepted)
		generation = merged[0].Generation
	}
}

// TestReportsInAnyOrder splits the reports of two hosts into batches for two
// processes, in any order and with repeats. An older report never overwrites a
// newer one, the events have no gaps, and the records end up as if the last
// report were the only one.
func TestReportsInAnyOrder(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	stores := []*db.Store{r.Store, openStore(t, r.url, defaults())}
	run := 0

	rapid.Check(t, func(t *rapid.T) {
		run++
		var (
			deliveries []agentapi.Report
			newest     = map[string]agentapi.Report{}
			hosts      []string
		)

		for n := range 2 {
			host := fmt.Sprintf("h%d-%d", run, n)
			hosts = append(hosts, host)
			looks := rapid.IntRange(1, 5).Draw(t, "looks")
			for sequence := range looks {
				content := shown(sequence == looks-1).Draw(t, "shown")
				newest[host] = agentapi.Report{
					Host: host, BootID: "b", AgentVersion: "1", Sequence: int64(sequence + 1), Digest: content.Digest(), Content: content,
				}

				for range rapid.IntRange(1, 2).Draw(t, "times") {
					deliveries = append(deliveries, newest[host])
				}
			}
		}

		deliveries = rapid.Permutation(deliveries).Draw(t, "order")
		recorded, generation := map[string]int64{}, map[string]int64{}

		for len(deliveries) > 0 {
			size := rapid.IntRange(1, len(deliveries)).Draw(t, "batch")
			batch := deliveries[:size]
			deliveries = deliveries[size:]
			replies, err := stores[rapid.IntRange(0, 1).Draw(t, "process")].MergeReports(t.Context(), batch)
			require.NoError(t, err)

			for _, report := range batch {
				recorded[report.Host] = max(recorded[report.Host], report.Sequence)
			}

			for i, reply := range replies {
				require.Equal(t, batch[i].Sequence == recorded[batch[i].Host], reply.Accepted, "%s %d", batch[i].Host, batch[i].Sequence)
				generation[batch[i].Host] = max(generation[batch[i].Host], reply.Generation)
			}
		}

		for _, host := range hosts {
			r.settleAsAgent(t, newest[host], generation[host])

			alone := newest[host]
			alone.Host += "-alone"
			replies, err := r.MergeReports(t.Context(), []agentapi.Report{alone})
			require.NoError(t, err)
			r.settleAsAgent(t, alone, replies[0].Generation)
			require.Equal(t, r.view(t, alone.Host), r.view(t, host))
		}

		r.requireEventsLead(t, hosts...)
	})
}

// TestGuardsAgreeWithTheTransitionTables admits, begins, ends, cancels,
// maintains, enables, deletes and reports at random. What the transition tables do not
// allow is refused and changes nothing, and no event shows a change that is not
// in them. One of the two cards is cleaned after every holder: what he had is unclean until
// the end of an operation has evidence that it is clean, and nobody has it before. The other
// one is divided: while an operation has it, nobody gets anything of it, and never do some have
// the card, and others its parts.
func TestGuardsAgreeWithTheTransitionTables(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.profile(t, "one", one())
	run := 0
	states := []cyborg.OperationState{
		cyborg.OperationAdmitted, cyborg.OperationRunning, cyborg.OperationSucceeded, cyborg.OperationFailed, cyborg.OperationNeedsOperator, cyborg.OperationCancelled,
	}

	rapid.Check(t, func(rt *rapid.T) {
		run++
		h := r.addHost(t, fmt.Sprint("h", run), 2)
		devices := h.content.Backends[0].Devices
		devices[0].Deployables[0].Cleaning = &cyborg.Cleaning{Methods: cyborg.CleanMethods(), After: cyborg.CleanScrub}
		devices[1] = divided("card1", nil)
		h.report(t)
		h.ready(t, "card0")
		dividedID := h.accelerator(t, "card1").DeviceUUID
		layout := func() cyborg.Layout { return vfs(rapid.IntRange(0, 2).Draw(rt, "parts")) }
		dividing := func() bool {
			return scalar[bool](t, r, "SELECT count(*) > 0 FROM operations o JOIN devices v ON v.partition_operation = o.id WHERE o.host = $1 AND o.state = 'running'", h.name)
		}

		var ops []uuid.UUID
		now := map[uuid.UUID]cyborg.OperationState{}
		owner := map[uuid.UUID]string{} // the run that has the operation
		begun := map[uuid.UUID]cyborg.Work{}
		evident := map[uuid.UUID]bool{} // handles of which the last end has had evidence
		before := map[uuid.UUID]cyborg.AttachHandle{}
		instances := []string{uuid.NewString(), uuid.NewString()}
		anyRun := func(operation uuid.UUID) db.Run {
			return db.Run{Operation: operation, ID: rapid.SampledFrom([]string{"first", "first", "stray"}).Draw(rt, "run")}
		}

		anyTarget := func() cyborg.Accelerator {
			there := slices.Collect(maps.Values(h.accelerators(t)))
			slices.SortFunc(there, func(a, b cyborg.Accelerator) int { return cmp.Compare(a.LocalName, b.LocalName) })
			return there[rapid.IntRange(0, len(there)-1).Draw(rt, "target")]
		}
		target := func() uuid.UUID { return anyTarget().UUID }
		operation := func() uuid.UUID {
			if len(ops) == 0 {
				rt.Skip("there is none yet")
			}
			return ops[rapid.IntRange(0, len(ops)-1).Draw(rt, "operation")]
		}

		rt.Repeat(map[string]func(*rapid.T){
			"admit": func(rt *rapid.T) {
				holder := instance(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "holder"))
				id, clean := target(), admission()
				clean.Request = cyborg.CleanRequest{Accelerator: id, Method: rapid.SampledFrom(append(cyborg.CleanMethods(), "")).Draw(rt, "method")}
				a := []db.Admission{
					toProvision(cyborg.ProvisionRequest{Accelerator: id}), toAttach(id, holder), toDetach(id, nil), toProgram(id), clean,
					toPartition(dividedID, layout()), toPartition(dividedID, layout()),
				}[rapid.IntRange(0, 6).Draw(rt, "request")]

				out, err := r.Admit(t.Context(), a)
				if err == nil && !out.NothingToDo {
					ops, now[a.ID] = append(ops, a.ID), cyborg.OperationAdmitted
				}
				require.NotEqual(rt, cyborg.ErrInternal, cyborg.ErrorKindOf(err), "%v", err)
			},
			"do": func(rt *rapid.T) { // all of it at once, so that many get something and leave it
				on := anyTarget()
				a := []func() db.Admission{
					func() db.Admission { return toAttach(on.UUID, instance("d")) },
					func() db.Admission { return toDetach(on.UUID, nil) },
					func() db.Admission {
						return toBind(h.name, instance(rapid.SampledFrom(instances).Draw(rt, "instance")), on.ProviderUUID, r.request(t, "one")...)
					},
				}[rapid.IntRange(0, 2).Draw(rt, "request")]()

				out, err := r.Admit(t.Context(), a)
				require.NotEqual(rt, cyborg.ErrInternal, cyborg.ErrorKindOf(err), "%v", err)
				if err != nil || out.NothingToDo {
					return
				}
				run := db.Run{Operation: a.ID, ID: "first"}
				_, err = r.Begin(t.Context(), run)
				require.NoError(rt, err)
				require.NoError(rt, r.End(t.Context(), run, cyborg.Outcome{Operation: a.ID, State: cyborg.OperationSucceeded}))
				ops, now[a.ID], owner[a.ID] = append(ops, a.ID), cyborg.OperationSucceeded, run.ID
			},
			"divide": func(*rapid.T) { // so that it begins often enough, and others come meanwhile
				a := toPartition(dividedID, layout())
				out, err := r.Admit(t.Context(), a)
				require.NotEqual(rt, cyborg.ErrInternal, cyborg.ErrorKindOf(err), "%v", err)
				if err != nil || out.NothingToDo {
					return
				}
				work, err := r.Begin(t.Context(), db.Run{Operation: a.ID, ID: "first"})
				require.NoError(rt, err)
				ops, now[a.ID], owner[a.ID], begun[a.ID] = append(ops, a.ID), cyborg.OperationRunning, "first", work
			},
			"delete": func(rt *rapid.T) {
				_, err := r.DeleteARQs(t.Context(), db.ARQDeletion{
					Instance: uuid.MustParse(rapid.SampledFrom(instances).Draw(rt, "instance")), AllowBound: true,
				}, alice())
				require.NoError(rt, err)
			},
			"begin": func(*rapid.T) {
				id := operation()
				run := anyRun(id)
				work, err := r.Begin(t.Context(), run)
				switch {
				case owner[id] != "" && owner[id] != run.ID:
					require.Equal(rt, cyborg.ErrSuperseded, cyborg.ErrorKindOf(err), "%v", err)
				case err != nil:
					require.NotEqual(rt, cyborg.ErrInternal, cyborg.ErrorKindOf(err), "%v", err)
					require.Equal(rt, cyborg.OperationAdmitted, now[id], "%v", err)
				case now[id].Ended():
					require.Equal(rt, now[id], work.Ended)
				default:
					now[id], owner[id], begun[id] = cyborg.OperationRunning, run.ID, work
				}
			},
			"end": func(rt *rapid.T) {
				id, to := operation(), rapid.SampledFrom(states).Draw(rt, "to")
				run := anyRun(id)
				outcome := cyborg.Outcome{Operation: id, State: to, Error: cyborg.Errorf(cyborg.ErrHardware, "it smoked")}
				for _, one := range begun[id].Clean {
					if rapid.Bool().Draw(rt, "cleaned") {
						outcome.Cleaned, evident[one.UUID] = append(outcome.Cleaned, cleanedBy(one)), true
					}
				}
				seen := devices[1]
				if work := begun[id].Partition; work != nil {
					if seen = divided("card1", work.Layout); to != cyborg.OperationSucceeded {
						seen = divided("card1", layout())
					}
					h.sequence++
					outcome.Observations = []cyborg.Observation{{Sequence: h.sequence, Backend: "fake", Device: seen}}
				}
				err := r.End(t.Context(), run, outcome)
				if err == nil && !now[id].Ended() {
					devices[1] = seen
				}
				switch {
				case !to.Ended():
					require.Equal(rt, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", err)
				case owner[id] != "" && owner[id] != run.ID, now[id].Ended() && now[id] != to:
					require.Equal(rt, cyborg.ErrSuperseded, cyborg.ErrorKindOf(err), "%v", err)
				case now[id].Ended():
					require.NoError(rt, err)
				case cyborg.Allowed(cyborg.OperationTransitions(), now[id], to):
					require.NoError(rt, err)
					now[id], owner[id] = to, run.ID
				default:
					require.Equal(rt, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "%v", err)
				}
			},
			"cancel": func(*rapid.T) {
				id := operation()
				_, err := r.RequestCancel(t.Context(), id, alice())
				require.Equal(rt, now[id].Ended(), cyborg.ErrorKindOf(err) == cyborg.ErrChanged, "%v", err)
			},
			"maintain": func(*rapid.T) {
				_, err := r.Maintain(t.Context(), target(), cyborg.Maintenance{Reason: "x"}, alice())
				require.NoError(rt, err)
			},
			"enable": func(*rapid.T) {
				_, err := r.Enable(t.Context(), target(), alice())
				require.NoError(rt, err)
			},
			"report": func(rt *rapid.T) {
				if dividing() {
					devices[1] = divided("card1", layout()) // half made
				}
				h.content.Backends[0].Devices = devices[:rapid.IntRange(0, 2).Draw(rt, "cards")]
				h.report(t)
			},
			"": func(rt *rapid.T) { // after each of the others
				require.Zero(rt, scalar[int](t, r, `
					SELECT count(*) FROM devices v JOIN deployables d ON d.device_uuid = v.uuid LEFT JOIN claims c ON c.deployable_uuid = d.uuid
					LEFT JOIN attach_handles h ON h.deployable_uuid = d.uuid
					WHERE v.uuid = $1 AND v.partition_operation IS NOT NULL AND (c.operation_id IS DISTINCT FROM v.partition_operation OR h.holder_kind IS NOT NULL)`, dividedID),
					"somebody has something of a card that is being divided")
				whole, parts := 0, 0
				for name, a := range h.accelerators(t) {
					switch {
					case name == "card1":
						whole += len(a.Holders())
					case a.DeviceUUID == dividedID:
						parts += len(a.Holders())
					}
					for _, is := range a.Handles {
						was := before[is.UUID]
						left := was.Holder != nil && !was.AttachedAt.IsZero() && is.Holder == nil
						require.False(rt, left && a.LocalName == "card0" && is.Unclean == nil, "%s was held by %s, and is clean", is.Identity, was.Holder)
						require.False(rt, was.Unclean != nil && is.Unclean == nil && !evident[is.UUID], "%s is clean without evidence", is.Identity)
						require.False(rt, is.Unclean != nil && is.Holder != nil, "%s is unclean, and held by %s", is.Identity, is.Holder)
						before[is.UUID] = is
					}
				}
				require.False(rt, whole > 0 && parts > 0, "some have the card, and others its parts")
				clear(evident)
			},
		})

		for _, id := range ops {
			op, err := r.Operation(t.Context(), id)
			require.NoError(rt, err)
			require.Equal(rt, now[id], op.State)
		}

		r.requireEventsLead(rt, h.name)
		r.requireWithinTables(rt, h.name)
	})
}

// requireWithinTables fails where an event shows a change of state that the
// transition tables do not allow.
func (r *records) requireWithinTables(t *rapid.T, host string) {
	rows, err := r.sql.Query(t.Context(), `
		SELECT DISTINCT axis, from_value, to_value FROM events
		WHERE host = $1 AND from_value <> '' AND to_value <> '' AND from_value <> to_value
		AND (subject_kind, axis) IN (('accelerator', 'lifecycle'), ('accelerator', 'administration'), ('accelerator', 'presence'), ('operation', 'state'))`, host)
	require.NoError(t, err)
	defer rows.Close()

	for rows.Next() {
		var from, to string
		var axis cyborg.EventAxis
		require.NoError(t, rows.Scan(&axis, &from, &to))

		allowed := map[cyborg.EventAxis]func() bool{
			cyborg.AxisLifecycle: func() bool {
				return cyborg.Allowed(cyborg.LifecycleTransitions(), cyborg.Lifecycle(from), cyborg.Lifecycle(to))
			},
			cyborg.AxisAdministration: func() bool {
				return cyborg.Allowed(cyborg.AdministrationTransitions(), cyborg.Administration(from), cyborg.Administration(to))
			},
			cyborg.AxisPresence: func() bool {
				return cyborg.Allowed(cyborg.PresenceTransitions(), cyborg.Presence(from), cyborg.Presence(to))
			},
			cyborg.AxisState: func() bool {
				return cyborg.Allowed(cyborg.OperationTransitions(), cyborg.OperationState(from), cyborg.OperationState(to))
			},
		}[axis]()

		require.True(t, allowed, "%s went from %s to %s", axis, from, to)
	}
	require.NoError(t, rows.Err())
}

// TestFitChoosesLikeAPlainSearch compares the choice of a fitting accelerator
// with a plain search: live hosts come before silent ones, then the accelerator
// that serves the fewest consumers, and of those the oldest.
func TestFitChoosesLikeAPlainSearch(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	types := []cyborg.DeviceType{cyborg.DeviceTypeFPGA, cyborg.DeviceTypeGPU}
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		r.exec(t, "UPDATE deployables SET administration = 'maintaining', maintain_reason = 'of an earlier run'")

		silent := map[string]bool{}
		for n := range rapid.IntRange(1, 3).Draw(rt, "hosts") {
			h := &host{records: r, name: fmt.Sprintf("h%d-%d", run, n), boot: "b", content: content(rapid.IntRange(1, 3).Draw(rt, "cards"))}

			for i := range h.devices() {
				part := &h.devices()[i].Deployables[0]
				part.Specs.Num, part.Specs.DeviceType = rapid.IntRange(1, 3).Draw(rt, "num"), rapid.SampledFrom(types).Draw(rt, "type")
				part.Specs.Capability = cyborg.JSONObject{"gib": float64(rapid.IntRange(1, 3).Draw(rt, "gib"))}
				if rapid.IntRange(0, 5).Draw(rt, "protected") == 0 {
					part.Protected = "the host lives on it"
				}
			}

			h.report(t)
			if silent[h.name] = rapid.IntRange(0, 3).Draw(rt, "silent") == 0; silent[h.name] {
				h.fall(t)
			}
		}

		all, err := r.Accelerators(t.Context(), db.AcceleratorFilter{Hosts: slices.Collect(maps.Keys(silent))}, db.Page{})
		require.NoError(rt, err)
		free := slices.DeleteFunc(all, func(a cyborg.Accelerator) bool { return a.Protected != "" })

		for range 3 {
			request := cyborg.ProvisionRequest{Name: uuid.NewString()}
			if rapid.Bool().Draw(rt, "by type") {
				request.Specs.DeviceType = new(rapid.SampledFrom(types).Draw(rt, "wanted type"))
			}
			if rapid.Bool().Draw(rt, "by num") {
				request.Specs.Num = new(rapid.IntRange(1, 3).Draw(rt, "wanted num"))
			}
			if rapid.Bool().Draw(rt, "by capability") {
				request.Specs.Capability = cyborg.JSONObject{"gib": float64(rapid.IntRange(1, 3).Draw(rt, "wanted gib"))}
			}

			fitting := slices.DeleteFunc(slices.Clone(free), func(a cyborg.Accelerator) bool { return len(a.Specs.Mismatches(request.Specs)) > 0 })
			out, err := r.Admit(t.Context(), toProvision(request))
			if len(fitting) == 0 {
				require.Equal(rt, cyborg.ErrNoFit, cyborg.ErrorKindOf(err), "%v", err)
				continue
			}
			require.NoError(rt, err)

			best := slices.MinFunc(fitting, func(a, b cyborg.Accelerator) int {
				live := map[bool]int{true: 1}
				return cmp.Or(cmp.Compare(live[silent[a.Host]], live[silent[b.Host]]), cmp.Compare(a.Specs.Num, b.Specs.Num), cmp.Compare(a.ID, b.ID))
			})
			require.Equal(rt, best.UUID.String(), out.Operation.Subjects[0].ID, "%v", fitting)
			free = slices.DeleteFunc(free, func(a cyborg.Accelerator) bool { return a.UUID == best.UUID })
		}
	})
}
