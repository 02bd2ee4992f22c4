package db_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// TestL3FailureIsRecordedBeforeTheUndo: the failure of a bind is recorded
// before the bind is undone (L3). Until then the bind keeps its handle, and
// nobody else works on the request.
func TestL3FailureIsRecordedBeforeTheUndo(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "one", one())

	for name, end := range map[string]func(t *testing.T, work cyborg.Work, arq uuid.UUID){
		"undone": func(t *testing.T, work cyborg.Work, arq uuid.UUID) {
			t.Helper()
			r.end(t, work, cyborg.OperationFailed)
			failed := r.arq(t, arq)
			require.Equal(t, cyborg.ARQBindFailed, failed.State)
			require.Equal(t, uuid.Nil, failed.Claim)
			require.NoError(t, r.FailARQs(t.Context(), runOf(work.Operation), "it is late"), "it has ended")
			require.Equal(t, failed, r.arq(t, arq))
		},
		"deleted meanwhile": func(t *testing.T, work cyborg.Work, arq uuid.UUID) {
			t.Helper()
			gone, err := r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{arq}, AllowBound: true}, alice())
			require.NoError(t, err)
			require.Len(t, gone.Pending, 1)
			require.Equal(t, cyborg.ARQDeleting, r.arq(t, arq).State)

			require.NoError(t, r.FailARQs(t.Context(), runOf(work.Operation), "again"))
			require.Equal(t, cyborg.ARQDeleting, r.arq(t, arq).State)

			r.end(t, work, cyborg.OperationCancelled)
			_, err = r.ARQ(t.Context(), arq)
			requireKind(t, cyborg.ErrNotFound, err)
		},
		"no success any more": func(t *testing.T, work cyborg.Work, arq uuid.UUID) {
			t.Helper()
			require.Error(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{Operation: work.Operation, State: cyborg.OperationSucceeded}))
			require.Equal(t, cyborg.ARQBindFailed, r.arq(t, arq).State)
			r.end(t, work, cyborg.OperationFailed)
		},
	} {
		arq := r.request(t, "one")[0]
		work := r.begin(t, toBind("h1", vm(), a.ProviderUUID, arq))
		require.NoError(t, r.FailARQs(t.Context(), runOf(work.Operation), "it is late"))

		failed := r.arq(t, arq.UUID)
		require.Equal(t, cyborg.ARQBindFailed, failed.State, name)
		require.Equal(t, "it is late", failed.Reason)
		require.Equal(t, work.Operation, failed.Claim)
		require.Nil(t, failed.Handle)
		require.Len(t, r.accelerator(t, a.UUID).Holders(), 1, "it is not undone yet")

		_, err := r.Admit(t.Context(), toUnbind(arq))
		requireKind(t, cyborg.ErrClaimed, err)

		end(t, work, arq.UUID)
		require.Empty(t, r.accelerator(t, a.UUID).Holders(), name)
		r.requireAgreed(t)
	}
}

// TestL13UnnotifiedBinds: ended binds of which Nova has not been notified are
// listed, whatever became of their workflows (L13).
func TestL13UnnotifiedBinds(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a, other := h.ready(t, "card0"), h.ready(t, "card1")
	r.profile(t, "one", one())

	unnotified := func() []uuid.UUID {
		found, err := r.UnnotifiedBinds(t.Context(), 0, db.OperationPlace{}, 10)
		require.NoError(t, err)

		var ids []uuid.UUID
		for _, o := range found {
			ids = append(ids, o.Operation)
			require.Equal(t, cyborg.OperationBind, o.Kind)
			after, err := r.UnnotifiedBinds(t.Context(), 0, o.Place, 10)
			require.NoError(t, err)
			require.NotContains(t, after, o)
		}
		return ids
	}

	bind := func(holder cyborg.Holder, on *cyborg.Accelerator) cyborg.Work {
		return r.begin(t, toBind("h1", holder, on.ProviderUUID, r.request(t, "one")[0]))
	}

	failed, notified, service := bind(vm(), a), bind(vm(), a), bind(cyborg.Holder{Kind: cyborg.HolderService, ID: "dns"}, other)
	require.Empty(t, unnotified(), "they go on")
	require.NoError(t, r.MarkNovaNotified(t.Context(), notified.Operation), "before its end")
	r.end(t, failed, cyborg.OperationFailed)
	r.end(t, notified, cyborg.OperationFailed)
	r.end(t, service, cyborg.OperationSucceeded)
	require.Equal(t, []uuid.UUID{failed.Operation}, unnotified())

	// A run that was started too late to notify Nova of what it knows already.
	ended, err := r.Begin(t.Context(), runOf(notified.Operation))
	require.NoError(t, err)
	require.Empty(t, ended.Notify)
	ended, err = r.Begin(t.Context(), runOf(failed.Operation))
	require.NoError(t, err)
	require.Len(t, ended.Notify, 1)

	bound := bind(vm(), a)
	r.end(t, bound, cyborg.OperationSucceeded)
	require.Equal(t, []uuid.UUID{failed.Operation, bound.Operation}, unnotified())
	require.NoError(t, r.MarkNovaNotified(t.Context(), failed.Operation))
	require.NoError(t, r.MarkNovaNotified(t.Context(), bound.Operation))
	require.Empty(t, unnotified())

	r.profile(t, "both", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": uuid.NewString(), "accel:function_id": "f"})
	refused := toBind("h1", vm(), a.ProviderUUID, r.request(t, "both")[0])
	_, err = r.Admit(t.Context(), refused)
	requireKind(t, cyborg.ErrInvalid, err)
	require.Equal(t, cyborg.ARQBindFailed, r.arq(t, refused.Request.(cyborg.BindRequest).ARQs[0].UUID).State)
	require.Empty(t, unnotified(), "it is in the answer")
}
