package bench_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/harness"
)

// boundEach is the number of bound requests on each host that recordBound
// records.
const (
	boundCards   = 4
	boundHandles = 25
	boundEach    = boundCards * boundHandles
)

// recordBound writes bound requests on other hosts into the records, with the
// hosts, devices and operations, as if all binds had happened. The hosts do not
// count as silent, and Placement counts as up to date.
func recordBound(b *testing.B, s *harness.Standalone, requests int) {
	b.Helper()
	address, err := s.DatabaseURL()
	require.NoError(b, err)

	conn, err := pgx.Connect(b.Context(), address)
	require.NoError(b, err)
	defer conn.Close(b.Context())

	err = pgx.BeginFunc(b.Context(), conn, func(tx pgx.Tx) error {
		for _, statement := range []struct {
			sql    string
			values []any
		}{
			{
				`INSERT INTO hosts (name, boot_id, agent_version, report_seq, digest, last_seen)
				SELECT 'other-' || n, 'b', '1', 1, 'd', now() + interval '1 day' FROM generate_series(1, $1::int) AS n`,
				[]any{(requests + boundEach - 1) / boundEach},
			},
			{`INSERT INTO backends (host, name, driver, state) SELECT name, 'fake', 'fake', 'ok' FROM hosts WHERE name LIKE 'other-%'`, nil},
			{`INSERT INTO devices (uuid, host, backend, driver, identity, type, vendor_id, product_id, vendor, model, control_path_kind, control_path_info)
				SELECT gen_random_uuid(), name, 'fake', 'fake', 'card' || n, 'FPGA', '1234', '0001', 'Acme', 'F1', 'PCI', '{}'
				FROM hosts, generate_series(1, $1::int) AS n WHERE name LIKE 'other-%'`, []any{boundCards}},
			{`INSERT INTO deployables (uuid, device_uuid, host, name, local_name, provider_uuid, accelerator, specs, attributes, program_set, lifecycle, untouched)
				SELECT gen_random_uuid(), v.uuid, v.host, v.host || '_' || v.identity, v.identity, gen_random_uuid(), v.host || '_' || v.identity,
				       d.specs, d.attributes, v.identity, 'ready', false
				FROM devices v, (SELECT specs, attributes FROM deployables LIMIT 1) AS d WHERE v.host LIKE 'other-%'`, nil},
			{`INSERT INTO attach_handles (uuid, deployable_uuid, host, kind, info, identity)
				SELECT gen_random_uuid(), uuid, host, 'TEST_PCI', '{"function": "0"}', local_name || '.' || n
				FROM deployables, generate_series(1, $1::int) AS n WHERE host LIKE 'other-%'`, []any{boundHandles}},
			{`CREATE TEMPORARY TABLE bound ON COMMIT DROP AS
				SELECT gen_random_uuid() AS operation, gen_random_uuid() AS arq, gen_random_uuid() AS instance, h.uuid AS handle,
				       d.uuid AS accelerator, d.device_uuid AS device, d.provider_uuid AS provider, d.host
				FROM attach_handles h JOIN deployables d ON d.uuid = h.deployable_uuid WHERE d.host LIKE 'other-%' LIMIT $1`, []any{requests}},
			{`INSERT INTO operations (id, kind, host, input, actor) SELECT operation, 'bind', host,
				jsonb_build_object('host', host, 'holder', jsonb_build_object('kind', 'instance', 'id', instance)), 'nova' FROM bound`, nil},
			{`INSERT INTO operation_subjects (operation_id, position, kind, subject_id) SELECT operation, s.position, s.kind, s.id
				FROM bound CROSS JOIN LATERAL (VALUES (0, 'arq', arq::text), (1, 'accelerator', accelerator::text), (2, 'device', device::text),
				    (3, 'host', host)) AS s (position, kind, id)`, nil},
			{`UPDATE attach_handles h SET holder_kind = 'instance', holder_id = instance, operation_id = operation, attached_at = now()
				FROM bound WHERE uuid = handle`, nil},
			{`INSERT INTO arqs (uuid, state, project, profile_uuid, profile_name, group_index, profile_group, host, provider_uuid, instance_uuid,
				    handle_uuid, operation_id)
				SELECT arq, 'Bound', 'p', p.uuid, p.name, 0, p.groups -> 0, host, provider, instance, handle, operation FROM bound, device_profiles p`, nil},
			{`UPDATE operations SET state = 'succeeded', started_at = now(), ended_at = now() WHERE id IN (SELECT operation FROM bound)`, nil},
			{"UPDATE placement_sync SET asked = wanted, done = wanted, since = NULL, compared_at = now() WHERE host LIKE 'other-%'", nil},
		} {
			if _, err := tx.Exec(b.Context(), statement.sql, statement.values...); err != nil {
				return err
			}
		}

		return nil
	})
	require.NoError(b, err)

	_, err = conn.Exec(b.Context(), "VACUUM ANALYZE")
	require.NoError(b, err)
}
