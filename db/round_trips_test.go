package db_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// messages is a tracer that counts the messages to the database for which a
// store waits, each a round trip: statements alone, and batches. It does not
// count that a connection prepares a statement which it has not used before.
type messages struct{ sent atomic.Int64 }

func (m *messages) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	m.sent.Add(1)
	return ctx
}

func (m *messages) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (m *messages) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	m.sent.Add(1)
	return ctx
}

func (m *messages) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (m *messages) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TestRoundTrips: an operation costs these round trips to the database, and no
// more. docs/data.md says what each of them is for.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	count := &messages{}
	store, err := db.Open(t.Context(), r.url, db.Options{Tracer: count}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(store.Close)

	h := r.addHost(t, "h1", 1)
	card := h.accelerator(t, "card0")
	tripsOf := func(call func() error) int {
		count.sent.Store(0)
		require.NoError(t, call())
		return int(count.sent.Load())
	}

	type trips struct{ admit, begin, end int }
	const failed, succeeded = cyborg.OperationFailed, cyborg.OperationSucceeded
	provision := toProvision(cyborg.ProvisionRequest{Accelerator: card.UUID})
	rename := toProvision(cyborg.ProvisionRequest{Accelerator: card.UUID, Name: "another"})

	for _, test := range []struct {
		name      string
		admission db.Admission
		end       cyborg.OperationState
		want      trips
	}{
		{"failed provision", rename, failed, trips{3, 3, 8}}, // it restores the name within a savepoint
		{"provision under another name", rename, succeeded, trips{3, 3, 4}},
		{"failed program", toProgram(card.UUID), failed, trips{3, 3, 5}},
		{"program", toProgram(card.UUID), succeeded, trips{3, 3, 4}},
		{"failed attach", toAttach(card.UUID, onHost("h1")), failed, trips{3, 3, 7}},
		{"attach", toAttach(card.UUID, onHost("h1")), succeeded, trips{3, 3, 4}},
		{"failed detach", toDetach(card.UUID, nil), failed, trips{3, 3, 4}},
		{"detach", toDetach(card.UUID, nil), succeeded, trips{3, 3, 4}},
		{"failed retire", toRetire(card), failed, trips{3, 3, 4}},
		{"retire", toRetire(card), succeeded, trips{3, 3, 4}},
		{"provision", provision, succeeded, trips{3, 3, 4}},
	} {
		var (
			got trips
			out db.Admitted
		)

		test.admission.ID = uuid.New()
		test.admission.IdempotencyKey, test.admission.Fingerprint = test.name, "f"
		got.admit = tripsOf(func() (err error) { out, err = store.Admit(t.Context(), test.admission); return err })
		run := runOf(out.Operation.ID)
		got.begin = tripsOf(func() error { _, err := store.Begin(t.Context(), run); return err })

		// As from an agent: each operation has changed something that a report shows.
		h.sequence++
		seen := device("card0")
		seen.Deployables[0].BitstreamID = test.name
		outcome := cyborg.Outcome{Operation: out.Operation.ID, State: test.end, Observations: []cyborg.Observation{
			{Sequence: h.sequence, Backend: "fake", Device: seen},
		}}
		if program, ok := test.admission.Request.(cyborg.ProgramRequest); ok {
			outcome.BitstreamID, outcome.Images = test.name, map[uuid.UUID]cyborg.Image{card.UUID: program.Image}
		}
		got.end = tripsOf(func() error { return store.End(t.Context(), run, outcome) })

		require.Equal(t, test.want, got, test.name)
		require.Equal(t, test.name, h.accelerator(t, "card0").BitstreamID)
	}
}
