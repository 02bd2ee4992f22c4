package chaos_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

func TestMain(m *testing.M) { postgrestest.Main(m) }

// TestCheckerFindsInconsistentRequests checks the checker: it finds the
// inconsistencies that defects in binds would leave behind, and none in sound
// records.
func TestCheckerFindsInconsistentRequests(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewFrom(t, "migrated", func(ctx context.Context, url string) error {
		_, err := db.Migrate(ctx, url)
		return err
	})

	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })

	bindOne(t, url)
	require.NoError(t, findInconsistency(t.Context(), conn))

	const freed = `
		UPDATE deployables SET cleaning = '{"methods": ["reset"], "after": "reset"}'; DELETE FROM arqs;
		UPDATE attach_handles SET holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL;`
	for _, wrong := range []struct{ what, sql string }{
		{"its handle is not the instance's", "UPDATE attach_handles SET holder_id = gen_random_uuid() WHERE holder_kind IS NOT NULL"},
		{"is on another provider", "UPDATE arqs SET provider_uuid = gen_random_uuid()"},
		{"was given to an instance by a bind, but no request has it", "DELETE FROM arqs"},
		{"is held by an instance", `
			WITH gone AS (DELETE FROM arqs)
			UPDATE attach_handles SET operation_id = (SELECT id FROM operations WHERE kind <> 'bind') WHERE holder_kind IS NOT NULL`},
		{"of which Nova was not notified", "UPDATE operations SET notification_pending = true WHERE kind = 'bind'"},
		{"is unclean, and nothing keeps its host from cleaning it", freed},
		{"nothing says how it was cleaned", freed + "UPDATE attach_handles SET unclean = '', unclean_since = NULL"},
		{"was lost when its host booted", "UPDATE arqs SET lost_at = now(), lost_boot = 'b'"},
	} {
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)

		_, err = tx.Exec(t.Context(), wrong.sql)
		require.NoError(t, err, wrong.sql)

		require.ErrorContains(t, findInconsistency(t.Context(), tx), wrong.what)
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// bindOne records a host with an accelerator that is bound to an instance. Nova
// was notified of the bind.
func bindOne(t *testing.T, url string) {
	t.Helper()
	store, err := db.Open(t.Context(), url, db.Options{}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer store.Close()

	content := agentapi.Content{
		Backends: []agentapi.BackendReport{{
			Name: "fake", Driver: "fake", State: cyborg.BackendOK, Services: []string{}, Devices: []cyborg.DeviceReport{{
				Identity: "a", Type: cyborg.DeviceTypeFPGA, VendorID: "1234", ProductID: "1", Vendor: "Acme", Model: "F1",
				ControlPath: cyborg.ControlPath{Kind: "PCI", Info: map[string]string{"bus": "a"}},
				Deployables: []cyborg.DeployableReport{{
					Name: "a.0", Specs: cyborg.Specs{Num: 1, DeviceType: cyborg.DeviceTypeFPGA}, ProgramSet: "0",
					Attributes: []cyborg.Attribute{{Key: "rc", Value: "FPGA"}},
					Handles:    []cyborg.HandleReport{{Kind: cyborg.HandleTestPCI, Identity: "a.0/0", Info: map[string]string{"function": "0"}}},
				}},
			}},
		}},
		Attachments: []agentapi.Attachment{},
	}

	_, err = store.MergeReports(t.Context(), []agentapi.Report{{
		Host: "h1", BootID: "b", AgentVersion: "1", Sequence: 1, Digest: content.Digest(), Content: content,
	}})
	require.NoError(t, err)

	alice := cyborg.Actor{Name: "alice"}
	operate := func(a db.Admission) uuid.UUID {
		a.ID, a.Actor = uuid.New(), alice
		_, err := store.Admit(t.Context(), a)
		require.NoError(t, err)
		_, err = store.Begin(t.Context(), db.Run{Operation: a.ID, ID: "run"})
		require.NoError(t, err)
		require.NoError(t, store.End(t.Context(), db.Run{Operation: a.ID, ID: "run"}, cyborg.Outcome{Operation: a.ID, State: cyborg.OperationSucceeded}))
		return a.ID
	}

	found, err := store.Accelerators(t.Context(), db.AcceleratorFilter{}, db.Page{})
	require.NoError(t, err)
	require.Len(t, found, 1)
	operate(db.Admission{Request: cyborg.ProvisionRequest{Accelerator: found[0].UUID}})

	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `INSERT INTO device_profiles (name, groups) VALUES ('one', '[{"resources:FPGA": "1"}]')`)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))

	arqs, err := store.CreateARQs(t.Context(), "one", alice)
	require.NoError(t, err)

	bind := operate(db.Admission{Request: cyborg.BindRequest{
		Host: "h1", Holder: cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}, Within: time.Minute,
		ARQs: []cyborg.BindARQ{{UUID: arqs[0].UUID, Provider: found[0].ProviderUUID}},
	}})

	require.NoError(t, store.MarkNovaNotified(t.Context(), bind))
}

// TestCheckerFindsUnwantedReboots checks that the checker finds an instance
// that was rebooted too often, and one that was not rebooted although it should
// have been.
func TestCheckerFindsUnwantedReboots(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		binding binding
		reboots int
		wrong   bool
	}{
		{binding{boots: 1, bootedWhileBound: true}, 1, false},
		{binding{boots: 1, bootedWhileBound: true}, 2, true},
		{binding{boots: 1, bootedWhileBound: true}, 0, true},
		{binding{boots: 1}, 0, false}, // it was bound after the boot
		{binding{}, 1, true},
	} {
		l := ledger{bindings: []*binding{&test.binding}}
		err := l.checkReboots(func(uuid.UUID) int { return test.reboots })
		require.Equal(t, test.wrong, err != nil, "binding %+v with %d reboots: %v", test.binding, test.reboots, err)
	}
}
