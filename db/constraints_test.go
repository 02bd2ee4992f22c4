package db_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestIllegalStatesAreRefused: the schema itself refuses illegal states. The
// test writes each of them directly, past all guards of the store.
func TestIllegalStatesAreRefused(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	other := r.addHost(t, "h2", 1).accelerator(t, "card0")
	a, b := h.ready(t, "card0"), h.accelerator(t, "card1")
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	open := r.begin(t, toProvision(cyborg.ProvisionRequest{Accelerator: b.UUID}))
	ended := r.do(t, toAttach(a.UUID, instance("vm1")), cyborg.OperationFailed)

	const check, unique, foreign, integrity = "23514", "23505", "23503", "23000"
	held := r.accelerator(t, a.UUID).Handles[0].UUID

	for _, test := range []struct {
		name, code, sql string
		args            []any
	}{
		{"a holder without operation", check, "UPDATE attach_handles SET operation_id = NULL WHERE uuid = $1", []any{held}},
		{"half a holder", check, "UPDATE attach_handles SET holder_id = NULL WHERE uuid = $1", []any{held}},
		{"a holder of no kind", check, "UPDATE attach_handles SET holder_kind = 'cat' WHERE uuid = $1", []any{held}},
		{"attached to nobody", check, "UPDATE attach_handles SET holder_kind = NULL, holder_id = NULL, operation_id = NULL WHERE uuid = $1", []any{held}},
		{"unconfirmed and held", check, "UPDATE attach_handles SET unconfirmed_kind = 'host', unconfirmed_id = 'h1', unconfirmed_operation = gen_random_uuid() WHERE uuid = $1", []any{held}},
		{"unconfirmed with half of somebody", check, "UPDATE attach_handles SET unconfirmed_kind = 'host', unconfirmed_id = 'h1' WHERE holder_kind IS NULL", nil},
		{"a second row for the same function", unique, "INSERT INTO attach_handles (uuid, deployable_uuid, host, kind, info, identity) SELECT gen_random_uuid(), deployable_uuid, host, kind, info, identity FROM attach_handles WHERE uuid = $1", []any{held}},
		{"a handle on another host than its accelerator", foreign, "UPDATE attach_handles SET host = 'h2', identity = 'x' WHERE uuid = $1", []any{held}},
		{"an accelerator on another host than its device", foreign, "UPDATE deployables SET device_uuid = $2 WHERE uuid = $1", []any{b.UUID, other.DeviceUUID}},
		{"two accelerators of one name", unique, "UPDATE deployables SET accelerator = $2 WHERE uuid = $1", []any{b.UUID, a.Name}},
		{"an accelerator without name", check, "UPDATE deployables SET accelerator = '' WHERE uuid = $1", []any{b.UUID}},
		{"two providers of one name", unique, "UPDATE deployables SET name = $2 WHERE uuid = $1", []any{b.UUID, a.ProviderName}},
		{"an unknown lifecycle", check, "UPDATE deployables SET lifecycle = 'lost' WHERE uuid = $1", []any{a.UUID}},
		{"an error without reason", check, "UPDATE deployables SET lifecycle = 'error' WHERE uuid = $1", []any{a.UUID}},
		{"a reason without error", check, "UPDATE deployables SET reason = 'x' WHERE uuid = $1", []any{a.UUID}},
		{"in service and never touched", check, "UPDATE deployables SET untouched = true WHERE uuid = $1", []any{a.UUID}},
		{"maintenance without reason", check, "UPDATE deployables SET administration = 'maintaining' WHERE uuid = $1", []any{a.UUID}},
		{"a reason without maintenance", check, "UPDATE deployables SET maintain_by = 'x' WHERE uuid = $1", []any{a.UUID}},
		{"missing since never", check, "UPDATE deployables SET presence = 'missing' WHERE uuid = $1", []any{a.UUID}},
		{"present and missing since", check, "UPDATE devices SET missing_since = now() WHERE uuid = $1", []any{a.DeviceUUID}},
		{"a fence without reason", check, "UPDATE deployables SET fence_operation = gen_random_uuid() WHERE uuid = $1", []any{a.UUID}},
		{"a backend that failed without error", check, "UPDATE backends SET state = 'failed'", nil},
		{"a second claim", unique, "INSERT INTO claims (deployable_uuid, operation_id) VALUES ($1, $2)", []any{b.UUID, open.Operation}},
		{"a claim of an operation that has ended", foreign, "INSERT INTO claims (deployable_uuid, operation_id) VALUES ($1, $2)", []any{a.UUID, ended.Operation}},
		{"a claim of an operation that does not exist", foreign, "INSERT INTO claims (deployable_uuid, operation_id) VALUES ($1, gen_random_uuid())", []any{a.UUID}},
		{"a claim that is not of an open one", check, "INSERT INTO claims (deployable_uuid, operation_id, operation_open) VALUES ($1, $2, false)", []any{a.UUID, ended.Operation}},
		{"a claim handed over", integrity, "UPDATE claims SET deployable_uuid = $1", []any{a.UUID}},
		{"an operation that ends with a claim left", foreign, "UPDATE operations SET state = 'succeeded', ended_at = now() WHERE id = $1", []any{open.Operation}},
		{"an end without time", check, "UPDATE operations SET state = 'failed', error = '{}' WHERE id = $1", []any{open.Operation}},
		{"a failure without error", check, "UPDATE operations SET error = NULL WHERE id = $1", []any{ended.Operation}},
		{"a success with error", check, "UPDATE operations SET state = 'succeeded' WHERE id = $1", []any{ended.Operation}},
		{"running since never", check, "UPDATE operations SET started_at = NULL WHERE id = $1", []any{open.Operation}},
		{"an operation without subject", foreign, "INSERT INTO operations (id, kind, host, input, actor) VALUES (gen_random_uuid(), 'attach', 'h1', '{}', 'x')", nil},
		{"an operation that lost its subjects", foreign, "DELETE FROM operation_subjects WHERE operation_id = $1", []any{ended.Operation}},
		{"an operation of unknown kind", foreign, "UPDATE operations SET kind = 'explode' WHERE id = $1", []any{open.Operation}},
		{"a key without fingerprint", check, "UPDATE operations SET idempotency_key = 'k' WHERE id = $1", []any{open.Operation}},
		{"a claimed accelerator deleted", foreign, "DELETE FROM deployables WHERE uuid = $1", []any{b.UUID}},
		{"a bound request without handle", check, "WITH p AS (INSERT INTO device_profiles (name, groups) VALUES ('p', '[{}]') RETURNING uuid) INSERT INTO arqs (state, profile_uuid, profile_name, group_index, profile_group) SELECT 'Bound', uuid, 'p', 0, '{}' FROM p", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := r.sql.Exec(t.Context(), test.sql, test.args...)
			var refused *pgconn.PgError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, test.code, refused.Code, refused.Message)
		})
	}
}

// TestStatesOfTheSchema compares the values that the schema allows with those
// of the transition tables.
func TestStatesOfTheSchema(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	requireStates(t, r, "deployables", "lifecycle", cyborg.LifecycleTransitions())
	requireStates(t, r, "deployables", "administration", cyborg.AdministrationTransitions())
	requireStates(t, r, "deployables", "presence", cyborg.PresenceTransitions())
	requireStates(t, r, "devices", "presence", cyborg.PresenceTransitions())
	requireStates(t, r, "attach_handles", "presence", cyborg.PresenceTransitions())
	requireStates(t, r, "operations", "state", cyborg.OperationTransitions())
	requireStates(t, r, "arqs", "state", cyborg.ARQTransitions())

	var kinds []string
	for _, kind := range cyborg.OperationKinds() {
		kinds = append(kinds, string(kind))
	}
	require.ElementsMatch(t, kinds, scalar[[]string](t, r, "SELECT array_agg(kind) FROM operation_kinds"))
}

// requireStates requires that a column allows the states of a transition table
// and no others.
func requireStates[S ~string](t *testing.T, r *records, table, column string, machine []cyborg.Transition[S]) {
	t.Helper()
	var states []string
	for _, transition := range machine {
		for _, state := range []S{transition.From, transition.To} {
			if !slices.Contains(states, string(state)) {
				states = append(states, string(state))
			}
		}
	}

	require.ElementsMatch(t, states, allowedValues(t, r, table, column))
}

// allowedValues reads the list of the CHECK constraint that PostgreSQL names
// after the column.
func allowedValues(t *testing.T, r *records, table, column string) []string {
	t.Helper()
	return scalar[[]string](t, r, `
		SELECT array_agg(m[1]) FROM pg_constraint,
		LATERAL regexp_matches(pg_get_constraintdef(oid), '''([A-Za-z_]+)''::text', 'g') AS m
		WHERE conrelid = $1::regclass AND conname = $2`, table, table+"_"+column+"_check")
}
