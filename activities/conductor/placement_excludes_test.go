package conductor_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// While somebody has a part of what is offered whole as well, Placement gives nobody the
// whole, and the other way round; afterwards it gives out all of it again, and none of
// that is drift. A handle of what excludes nothing changes nothing.
func TestPlacementReservesWhatIsExcluded(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	card := aCard("a", 4, 1) // a whole, two parts and something else
	card.Deployables[0].Excludes = []string{card.Deployables[1].Name, card.Deployables[2].Name}
	c.report("h1", card)
	c.ready("h1")
	of := c.of("h1")

	requireStep := func(whole, first, second, other int) {
		t.Helper()
		due, err := c.TakeDuePlacement(t.Context(), 10, time.Hour)
		require.NoError(t, err)
		require.Equal(t, []string{"h1"}, due, "the change decides what Placement may give away")
		c.sync("h1")
		c.requireReserved(map[string]int{"h1_a.0": whole, "h1_a.1": first, "h1_a.2": second, "h1_a.3": other})
		require.Empty(t, c.compare().Drift)
		require.Empty(t, c.compare().Drift)
	}
	requireStep(0, 0, 0, 0)

	vm := uuid.NewString()
	c.exec(`INSERT INTO device_profiles (name, groups) VALUES ('one', '[{"resources:FPGA": "1"}]')`)
	bind := func(i int) uuid.UUID {
		t.Helper()
		arqs, err := c.CreateARQs(t.Context(), "one", cyborg.Actor{Name: "alice"})
		require.NoError(t, err)
		c.model.Allocate(vm, of[i].ProviderName, "FPGA", 1)
		c.operate(db.Admission{Request: cyborg.BindRequest{
			Host: "h1", Holder: cyborg.Holder{Kind: cyborg.HolderInstance, ID: vm}, Within: time.Minute,
			ARQs: []cyborg.BindARQ{{UUID: arqs[0].UUID, Provider: of[i].ProviderUUID}},
		}})
		return arqs[0].UUID
	}
	remove := func(i int, arq uuid.UUID) {
		t.Helper()
		c.model.Allocate(vm, of[i].ProviderName, "FPGA", -1)
		_, err := c.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{arq}, AllowBound: true}, cyborg.Actor{Name: "alice"})
		require.NoError(t, err)
	}

	part := bind(1)
	requireStep(1, 0, 0, 0)
	remove(1, part)
	requireStep(0, 0, 0, 0)
	whole := bind(0)
	requireStep(0, 1, 1, 0)
	remove(0, whole)
	requireStep(0, 0, 0, 0)

	other := bind(3)
	due, err := c.TakeDuePlacement(t.Context(), 10, time.Hour)
	require.NoError(t, err)
	require.Empty(t, due, "it excludes nothing")
	remove(3, other)

	// What is attached without Nova, and what the host may still have.
	c.operate(db.Admission{Request: cyborg.AttachRequest{Accelerator: of[2].UUID, Holder: cyborg.Holder{Kind: cyborg.HolderHost, ID: "h1"}}})
	requireStep(1, 0, 1, 0)
	c.exec(`UPDATE attach_handles SET unconfirmed_kind = holder_kind, unconfirmed_id = holder_id, unconfirmed_operation = operation_id,
		holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL WHERE holder_kind IS NOT NULL`)
	requireStep(1, 0, 0, 0)
	c.exec("UPDATE attach_handles SET unconfirmed_kind = NULL, unconfirmed_id = NULL, unconfirmed_operation = NULL")
	requireStep(0, 0, 0, 0)

	// A driver says later that they exclude each other.
	bind(3)
	card.Deployables[3].Excludes = []string{card.Deployables[2].Name}
	c.report("h1", card)
	requireStep(0, 0, 1, 0)
}
