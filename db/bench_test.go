package db_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// cloud records hosts of eight devices each, as their reports would, and makes
// half of their accelerators ready.
func cloud(t testing.TB, accelerators int) *records {
	t.Helper()
	const each = 8
	r := newRecordsWith(t, db.Options{SilentAfter: 24 * time.Hour}) // no host falls silent meanwhile
	h := r.addHost(t, "h00000", 1)

	r.exec(t, `
		INSERT INTO hosts (name, boot_id, agent_version, report_seq, digest, heard_epoch)
		SELECT format('h%s', lpad(n::text, 5, '0')), 'b', '1', 1, 'd', epoch_in_force() FROM generate_series(1, $1::int - 1) AS n`, accelerators/each)
	r.exec(t, `
		INSERT INTO backends (host, name, driver, state) SELECT name, 'fake', 'fake', 'ok' FROM hosts WHERE name <> 'h00000'`)
	r.exec(t, `
		INSERT INTO devices (uuid, host, backend, driver, identity, type, vendor_id, product_id, vendor, model, control_path_kind, control_path_info)
		SELECT gen_random_uuid(), name, 'fake', 'fake', 'card' || n, 'FPGA', '1234', '0001', 'Acme', 'F1', 'PCI', '{}'
		FROM hosts, generate_series(0, $1::int - 1) AS n WHERE (name, n) <> ('h00000', 0) ORDER BY name, n`, each)
	r.exec(t, `
		INSERT INTO deployables (uuid, device_uuid, host, name, local_name, provider_uuid, accelerator, specs, attributes, program_set)
		SELECT gen_random_uuid(), v.uuid, v.host, v.host || '_' || v.identity, v.identity, gen_random_uuid(), v.host || '_' || v.identity,
		       d.specs, d.attributes, v.identity
		FROM devices v, deployables d WHERE v.uuid <> d.device_uuid ORDER BY v.id`)
	r.exec(t, `
		INSERT INTO attach_handles (uuid, deployable_uuid, host, kind, info, identity)
		SELECT gen_random_uuid(), uuid, host, 'TEST_PCI', '{"function": "0"}', local_name || '.' || n
		FROM deployables, generate_series(0, 1) AS n
		WHERE uuid NOT IN (SELECT deployable_uuid FROM attach_handles) ORDER BY id, n`)

	r.exec(t, `UPDATE deployables SET lifecycle = 'ready', untouched = false WHERE id % 2 = 0`)

	require.Equal(t, accelerators, scalar[int](t, r, "SELECT count(*) FROM deployables"))
	require.Equal(t, 2*accelerators, scalar[int](t, r, "SELECT count(*) FROM attach_handles"))
	require.Len(t, h.accelerators(t), each)

	r.exec(t, "VACUUM ANALYZE")
	return r
}

// sizes runs a benchmark on a small and on a large cloud.
func sizes(b *testing.B, body func(b *testing.B, r *records)) {
	b.Helper()
	for _, size := range []int{1_000, 80_000} { // accelerators
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			r := cloud(b, size)
			b.ReportAllocs()
			b.ResetTimer()
			body(b, r)
		})
	}
}

// BenchmarkAccelerators lists accelerators with the usual filters.
func BenchmarkAccelerators(b *testing.B) {
	sizes(b, func(b *testing.B, r *records) {
		b.Helper()
		middle := scalar[uuid.UUID](b, r, "SELECT uuid FROM deployables ORDER BY id OFFSET (SELECT count(*) / 2 FROM deployables) LIMIT 1")

		for name, test := range map[string]struct {
			filter db.AcceleratorFilter
			page   db.Page
		}{
			"page of 100":      {page: db.Page{Limit: 100}},
			"page amid":        {page: db.Page{Limit: 100, Marker: middle.String()}},
			"one host":         {filter: db.AcceleratorFilter{Hosts: []string{"h00077"}}},
			"status inactive":  {filter: db.AcceleratorFilter{Statuses: []cyborg.Status{cyborg.StatusInactive}}, page: db.Page{Limit: 100}},
			"status attaching": {filter: db.AcceleratorFilter{Statuses: []cyborg.Status{cyborg.StatusAttaching}}, page: db.Page{Limit: 100}},
			"status error":     {filter: db.AcceleratorFilter{Statuses: []cyborg.Status{cyborg.StatusError}}, page: db.Page{Limit: 100}},
			"status attached":  {filter: db.AcceleratorFilter{Statuses: []cyborg.Status{cyborg.StatusAttached}}, page: db.Page{Limit: 100}},
		} {
			b.Run(name, func(b *testing.B) {
				for b.Loop() {
					_, err := r.Accelerators(b.Context(), test.filter, test.page)
					require.NoError(b, err)
				}
			})
		}
	})
}

// BenchmarkAccelerator reads one accelerator.
func BenchmarkAccelerator(b *testing.B) {
	sizes(b, func(b *testing.B, r *records) {
		b.Helper()
		id := scalar[uuid.UUID](b, r, "SELECT uuid FROM deployables ORDER BY id DESC LIMIT 1")
		b.Run("show", func(b *testing.B) {
			for b.Loop() {
				_, err := r.Accelerator(b.Context(), id)
				require.NoError(b, err)
			}
		})
	})
}

// BenchmarkOperation takes operations from admission to end.
func BenchmarkOperation(b *testing.B) {
	sizes(b, func(b *testing.B, r *records) {
		b.Helper()
		ids := scalar[[]uuid.UUID](b, r, "SELECT array_agg(uuid) FROM (SELECT uuid FROM deployables WHERE lifecycle = 'ready' LIMIT 400) AS part")

		b.Run("attach and detach", func(b *testing.B) {
			i := 0
			for b.Loop() {
				id := ids[i%len(ids)]
				i++
				r.do(b, toAttach(id, instance("vm")), cyborg.OperationSucceeded)
				r.do(b, toDetach(id, nil), cyborg.OperationSucceeded)
			}
		})

		b.Run("attach and detach, 16 at once", func(b *testing.B) {
			var (
				wg   sync.WaitGroup
				next = make(chan uuid.UUID)
			)

			for range 16 {
				wg.Go(func() {
					for id := range next {
						r.do(b, toAttach(id, instance("vm")), cyborg.OperationSucceeded)
						r.do(b, toDetach(id, nil), cyborg.OperationSucceeded)
					}
				})
			}

			for i := 0; b.Loop(); i++ {
				next <- ids[i%len(ids)]
			}
			close(next)
			wg.Wait()
		})

		b.Run("provision what fits", func(b *testing.B) {
			for b.Loop() {
				out, err := r.Admit(b.Context(), toProvision(cyborg.ProvisionRequest{Specs: cyborg.SpecsPatch{Num: new(2)}}))
				require.NoError(b, err)
				require.NoError(b, r.End(b.Context(), runOf(out.Operation.ID), cyborg.Outcome{Operation: out.Operation.ID, State: cyborg.OperationFailed}))
			}
		})

		b.Run("nothing fits", func(b *testing.B) {
			for b.Loop() {
				_, err := r.Admit(b.Context(), toProvision(cyborg.ProvisionRequest{Specs: cyborg.SpecsPatch{Num: new(200)}}))
				requireKind(b, cyborg.ErrNoFit, err)
			}
		})
	})
}

// BenchmarkHeartbeat records the heartbeats of all hosts in one flush.
func BenchmarkHeartbeat(b *testing.B) {
	sizes(b, func(b *testing.B, r *records) {
		b.Helper()
		hosts, err := r.Hosts(b.Context(), db.Page{})
		require.NoError(b, err)

		beats := make([]agentapi.Heartbeat, len(hosts))
		for i, h := range hosts {
			beats[i] = agentapi.Heartbeat{Host: h.Name, BootID: h.BootID, Generation: h.Generation}
		}

		b.Run(fmt.Sprint(len(beats)), func(b *testing.B) {
			for b.Loop() {
				_, err := r.RecordHeartbeats(b.Context(), beats)
				require.NoError(b, err)
			}
		})
	})
}

// BenchmarkReconcile is what each round of Reconcile reads, on a cloud where
// the records agree with the hosts and half of the accelerators are attached to
// theirs.
func BenchmarkReconcile(b *testing.B) {
	sizes(b, func(b *testing.B, r *records) {
		b.Helper()
		r.exec(b, `
			UPDATE attach_handles h SET holder_kind = 'host', holder_id = h.host, operation_id = gen_random_uuid(), attached_at = now()
			FROM deployables d WHERE d.uuid = h.deployable_uuid AND d.lifecycle = 'ready' AND h.identity LIKE '%.0'`)
		r.exec(b, `
			UPDATE hosts h SET attachments = (
				SELECT jsonb_agg(jsonb_build_object('backend', 'fake', 'deployable', d.local_name, 'handle', a.identity,
				    'operation_id', a.operation_id, 'state', 'attached'))
				FROM attach_handles a JOIN deployables d ON d.uuid = a.deployable_uuid
				WHERE a.host = h.name AND a.holder_kind IS NOT NULL), last_seen = now()`)
		r.exec(b, "ANALYZE")

		b.Run("disagreements", func(b *testing.B) {
			for b.Loop() {
				found, err := r.Disagreements(b.Context(), db.AttachmentPlace{}, "", 100)
				require.NoError(b, err)
				require.Empty(b, found)
			}
		})

		b.Run("disagreements of a round", func(b *testing.B) {
			for b.Loop() {
				upTo, err := r.NthHostAfter(b.Context(), "h00010", 2500)
				require.NoError(b, err)
				found, err := r.Disagreements(b.Context(), db.AttachmentPlace{Host: "h00010"}, upTo, 100)
				require.NoError(b, err)
				require.Empty(b, found)
			}
		})

		b.Run("forget", func(b *testing.B) {
			for b.Loop() {
				_, err := r.Forget(b.Context(), 0)
				require.NoError(b, err)
			}
		})
	})
}

// BenchmarkMerge records new hosts, then reports of known hosts with one change
// each.
func BenchmarkMerge(b *testing.B) {
	for _, hosts := range []int{1, 500} {
		b.Run(fmt.Sprint(hosts), func(b *testing.B) {
			r := newRecords(b)
			round := 0

			b.Run("new hosts", func(b *testing.B) {
				for b.Loop() {
					round++
					reports := make([]agentapi.Report, hosts)
					for i := range reports {
						name := fmt.Sprintf("h%d-%d", round, i)
						h := &host{name: name, boot: "b", content: content(8)}
						reports[i] = h.next()
					}
					_, err := r.MergeReports(b.Context(), reports)
					require.NoError(b, err)
				}
			})

			agents := make([]*host, hosts)
			for i := range agents {
				name := fmt.Sprintf("c%d", i)
				agents[i] = &host{name: name, boot: "b", content: content(8)}
			}
			r.exec(b, "ANALYZE")

			b.Run("one change each", func(b *testing.B) {
				for b.Loop() {
					round++
					reports := make([]agentapi.Report, hosts)
					for i, h := range agents {
						h.content.Backends[0].Devices[3].Deployables[0].BitstreamID = fmt.Sprint(round)
						reports[i] = h.next()
					}
					_, err := r.MergeReports(b.Context(), reports)
					require.NoError(b, err)
				}
			})
		})
	}
}
