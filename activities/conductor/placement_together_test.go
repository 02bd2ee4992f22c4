package conductor_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// While somebody has an accelerator, Placement gives nobody else another one that
// goes to one holder with it. What an instance itself has through Nova is not
// reserved, so that Nova may move its allocation, and none of that is drift.
func TestPlacementReservesWhatGoesToOneHolder(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	card := aCard("a", 3, 1)
	card.Deployables[0].SameHolder, card.Deployables[1].SameHolder = "iommu/17", "iommu/17"
	c.report("h1", card)
	c.ready("h1")

	requireStep := func(first, second int) {
		t.Helper()
		due, err := c.TakeDuePlacement(t.Context(), 10, time.Hour)
		require.NoError(t, err)
		require.Equal(t, []string{"h1"}, due, "the change decides what Placement may give away")
		c.sync("h1")
		c.requireReserved(map[string]int{"h1_a.0": first, "h1_a.1": second, "h1_a.2": 0})
		require.Empty(t, c.compare().Drift)
		require.Empty(t, c.compare().Drift)
	}
	requireStep(0, 0)

	// Nova has both before it binds them.
	of, vm := c.of("h1"), uuid.NewString()
	c.exec(`INSERT INTO device_profiles (name, groups) VALUES ('two', '[{"resources:FPGA": "2"}]')`)
	arqs, err := c.CreateARQs(t.Context(), "two", cyborg.Actor{Name: "alice"})
	require.NoError(t, err)
	request := cyborg.BindRequest{Host: "h1", Holder: cyborg.Holder{Kind: cyborg.HolderInstance, ID: vm}, Within: time.Minute}
	for i, arq := range arqs {
		request.ARQs = append(request.ARQs, cyborg.BindARQ{UUID: arq.UUID, Provider: of[i].ProviderUUID})
		c.model.Allocate(vm, of[i].ProviderName, "FPGA", 1)
	}
	c.operate(db.Admission{Request: request})
	requireStep(0, 0)

	for i := range arqs {
		c.model.Allocate(vm, of[1-i].ProviderName, "FPGA", -1)
		_, err := c.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{arqs[1-i].UUID}, AllowBound: true}, cyborg.Actor{Name: "alice"})
		require.NoError(t, err)
		requireStep(0, []int{1, 0}[i])
	}

	// What is attached without Nova, and what the host may still have.
	c.operate(db.Admission{Request: cyborg.AttachRequest{Accelerator: of[0].UUID, Holder: cyborg.Holder{Kind: cyborg.HolderHost, ID: "h1"}}})
	requireStep(1, 1)
	c.exec(`UPDATE attach_handles SET unconfirmed_kind = holder_kind, unconfirmed_id = holder_id, unconfirmed_operation = operation_id,
		holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL WHERE holder_kind IS NOT NULL`)
	requireStep(0, 1)
	c.exec("UPDATE attach_handles SET unconfirmed_kind = NULL, unconfirmed_id = NULL, unconfirmed_operation = NULL")
	requireStep(0, 0)
}

// Where nothing goes to one holder with an accelerator, as with a function that is
// alone in its IOMMU group, a bind changes nothing in Placement.
func TestPlacementOfWhatIsAloneInItsGroup(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	card := aCard("a", 2, 1)
	card.Deployables[0].SameHolder, card.Deployables[1].SameHolder = "iommu/17", "iommu/18"
	c.report("h1", card)
	c.ready("h1")
	_, err := c.TakeDuePlacement(t.Context(), 10, time.Hour)
	require.NoError(t, err)
	c.sync("h1")

	of, vm := c.of("h1"), uuid.NewString()
	c.exec(`INSERT INTO device_profiles (name, groups) VALUES ('one', '[{"resources:FPGA": "1"}]')`)
	arqs, err := c.CreateARQs(t.Context(), "one", cyborg.Actor{Name: "alice"})
	require.NoError(t, err)
	c.model.Allocate(vm, of[0].ProviderName, "FPGA", 1)
	c.operate(db.Admission{Request: cyborg.BindRequest{
		Host: "h1", Holder: cyborg.Holder{Kind: cyborg.HolderInstance, ID: vm}, Within: time.Minute,
		ARQs: []cyborg.BindARQ{{UUID: arqs[0].UUID, Provider: of[0].ProviderUUID}},
	}})

	due, err := c.TakeDuePlacement(t.Context(), 10, time.Hour)
	require.NoError(t, err)
	require.Empty(t, due)
	require.Empty(t, c.compare().Drift)
	require.Empty(t, c.compare().Drift)
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 0, "h1_a.1": 0})
}
