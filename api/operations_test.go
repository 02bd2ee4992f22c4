package api_test

import (
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
)

// operationPath is the path of an operation.
func operationPath(id uuid.UUID, rest ...string) string {
	return "/v1/operations/" + id.String() + strings.Join(rest, "")
}

// ended waits for the end of the operation as a caller would.
func (h *harness) ended(id uuid.UUID) cyborg.Operation {
	h.t.Helper()
	op := as[cyborg.Operation](h.do("GET", operationPath(id), nil, "Prefer", "wait=60").expect(http.StatusOK))
	require.True(h.t, op.State.Ended(), op.State)
	return op
}

func TestRespondAsync(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	release := h.engine.block()
	defer release()

	answer := h.do("PUT", path(accelerator), nil, "Prefer", "respond-async, wait=10").expect(http.StatusAccepted)
	op := as[cyborg.Operation](answer)
	require.Equal(t, operationPath(op.ID), answer.header.Get("Location"))
	require.Equal(t, op.ID.String(), answer.header.Get("Cyborg-Operation"))
	require.Equal(t, "respond-async", answer.header.Get("Preference-Applied"))
	require.NotEmpty(t, answer.header.Get("Retry-After"))

	require.Equal(t, cyborg.OperationAttach, op.Kind)
	require.Equal(t, "local", op.Actor.Name)
	require.False(t, op.State.Ended())

	release()
	require.Equal(t, cyborg.OperationSucceeded, h.ended(op.ID).State)
}

// A request that has waited for as long as it may is answered with the
// operation, which goes on.
func TestLongCallAnswersAccepted(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) { c.V1.SyncWait = 50 * time.Millisecond })
	accelerator := h.host("h1", 1)["fpga-0"]
	release := h.engine.block()
	defer release()

	op := as[cyborg.Operation](h.do("POST", path(accelerator), map[string]any{"name": "alpha"}).expect(http.StatusAccepted))
	require.False(t, op.State.Ended()) // on a busy machine it may not even run yet
	release()
	require.Equal(t, cyborg.OperationSucceeded, as[cyborg.Operation](h.eventually(op.ID)).State)
}

// eventually reads the operation until it has ended. It is for harnesses whose
// requests may wait only briefly.
func (h *harness) eventually(id uuid.UUID) *reply {
	h.t.Helper()
	var last *reply
	require.Eventually(h.t, func() bool {
		last = h.do("GET", operationPath(id), nil, "Prefer", "wait=1").expect(http.StatusOK)
		return as[cyborg.Operation](last).State.Ended()
	}, waitLimit, poll)
	return last
}

func TestPreferWait(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	release := h.engine.block()
	defer release()

	op := as[cyborg.Operation](h.do("PUT", path(accelerator), nil, "Prefer", "wait=0").expect(http.StatusAccepted))
	shown := as[cyborg.Operation](h.do("GET", operationPath(op.ID), nil, "Prefer", "wait=0").expect(http.StatusOK))
	require.False(t, shown.State.Ended())

	time.AfterFunc(20*time.Millisecond, release)
	require.Equal(t, cyborg.OperationSucceeded, h.ended(op.ID).State)
}

// An operation that failed is answered with its error and that error's status,
// and the answer names the operation.
func TestFailedOperation(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")

	for kind, status := range map[cyborg.ErrorKind]int{
		cyborg.ErrHostSilent: http.StatusServiceUnavailable, cyborg.ErrHardware: http.StatusBadGateway, cyborg.ErrInUse: http.StatusConflict,
	} {
		h.engine.set(func(e *engine) { e.fail = cyborg.Errorf(kind, "it does not work").WithHint("Look at h1.") })

		answer := h.do("PUT", path(accelerator), nil).expect(status)
		problem := answer.problem(kind)
		require.Equal(t, "it does not work", problem.Detail)
		require.Equal(t, "Look at h1.", problem.Hint)
		require.Equal(t, answer.header.Get("Cyborg-Operation"), problem.Operation.String())

		op := h.ended(problem.Operation)
		require.Equal(t, cyborg.OperationFailed, op.State)
		require.Equal(t, kind, op.Error.Kind)
	}

	h.engine.set(func(e *engine) { e.fail = cyborg.Errorf(cyborg.ErrInternal, "nil pointer at db.go:17") })
	h.defects.wanted.Store(true)
	problem := h.do("PUT", path(accelerator), nil).problem(cyborg.ErrInternal)
	require.NotContains(t, problem.Detail, "db.go")
}

func TestProgress(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	release := h.engine.block()
	defer release()

	op := as[cyborg.Operation](h.do("PUT", path(accelerator), nil, "Prefer", "respond-async").expect(http.StatusAccepted))
	h.engine.set(func(e *engine) { e.progress = &cyborg.Progress{Step: "attach", Percent: 40, Note: "binding"} })

	require.Eventually(t, func() bool {
		shown := as[cyborg.Operation](h.do("GET", operationPath(op.ID), nil).expect(http.StatusOK))
		return shown.Progress != nil && shown.Progress.Percent == 40
	}, waitLimit, poll)

	release()
	require.Nil(t, h.ended(op.ID).Progress)
}

func TestListOperations(t *testing.T) {
	t.Parallel()
	type body struct{ Operation []cyborg.Operation }
	h := setup(t)
	accelerator := h.ready("alpha")

	h.do("PUT", path(accelerator), nil).expect(http.StatusOK)
	h.engine.set(func(e *engine) { e.fail = cyborg.Errorf(cyborg.ErrHardware, "no") })
	h.do("DELETE", path(accelerator), nil).expect(http.StatusBadGateway)

	for query, want := range map[string]int{
		"":                         3,
		"?kind=attach":             1,
		"?kind=attach&kind=detach": 2,
		"?state=failed":            1,
		"?state=succeeded":         2,
		"?host=h1":                 3,
		"?host=h2":                 0,
		"?accelerator=" + accelerator.UUID.String(): 3,
		"?accelerator=" + uuid.NewString():          0,
		"?open=true":                                0,
		"?open=false":                               3,
		"?limit=2":                                  2,
	} {
		require.Len(t, as[body](h.do("GET", "/v1/operations"+query, nil).expect(http.StatusOK)).Operation, want, query)
	}

	newest := as[body](h.do("GET", "/v1/operations", nil)).Operation
	require.Equal(t, cyborg.OperationDetach, newest[0].Kind)
	require.Equal(t, cyborg.OperationProvision, newest[2].Kind)
	rest := as[body](h.do("GET", "/v1/operations?marker="+newest[0].ID.String(), nil).expect(http.StatusOK)).Operation
	require.Equal(t, newest[1].ID, rest[0].ID)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	release := h.engine.block()
	defer release()

	op := as[cyborg.Operation](h.do("PUT", path(accelerator), nil, "Prefer", "respond-async").expect(http.StatusAccepted))
	answer := h.do("POST", operationPath(op.ID, "/cancel"), nil).expect(http.StatusAccepted)
	require.Equal(t, operationPath(op.ID), answer.header.Get("Location"))
	require.False(t, as[cyborg.Operation](answer).CancelAt.IsZero())

	ended := h.ended(op.ID)
	require.Equal(t, cyborg.OperationCancelled, ended.State)
	require.Equal(t, cyborg.ErrCancelled, ended.Error.Kind)
	require.Empty(t, as[acceleratorBody](h.do("GET", path(accelerator), nil)).Holders)

	h.do("POST", operationPath(op.ID, "/cancel"), nil).problem(cyborg.ErrChanged)
}

// A cancel while Temporal is away is recorded, and the answer asks for it to be
// sent again.
func TestCancelWhileTemporalIsAway(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	release := h.engine.block()
	defer release()

	op := as[cyborg.Operation](h.do("PUT", path(accelerator), nil, "Prefer", "respond-async").expect(http.StatusAccepted))
	require.Eventually(t, func() bool { // a cancel would at once end one that has not begun
		return as[cyborg.Operation](h.do("GET", operationPath(op.ID), nil)).State == cyborg.OperationRunning
	}, waitLimit, poll)

	h.engine.set(func(e *engine) { e.away = true })
	answer := h.do("POST", operationPath(op.ID, "/cancel"), nil)
	problem := answer.problem(cyborg.ErrUnavailable)
	require.NotContains(t, problem.Detail, "10.0.0.7")
	require.NotEmpty(t, answer.header.Get("Retry-After"))
	require.False(t, as[cyborg.Operation](h.do("GET", operationPath(op.ID), nil)).CancelAt.IsZero())

	h.engine.set(func(e *engine) { e.away = false })
	h.do("POST", operationPath(op.ID, "/cancel"), nil).expect(http.StatusAccepted)
	require.Equal(t, cyborg.OperationCancelled, h.ended(op.ID).State)
}

func TestRetry(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")

	h.engine.set(func(e *engine) { e.fail = cyborg.Errorf(cyborg.ErrHardware, "no") })
	failed := h.do("PUT", path(accelerator), map[string]any{"service": "ovs"}).problem(cyborg.ErrHardware).Operation
	h.engine.set(func(e *engine) { e.fail = nil })

	answer := h.do("POST", operationPath(failed, "/retry"), nil).expect(http.StatusAccepted)
	op := as[cyborg.Operation](answer)
	require.NotEqual(t, failed, op.ID)
	require.Equal(t, failed, op.RetryOf)
	require.Equal(t, operationPath(op.ID), answer.header.Get("Location"))

	require.Equal(t, cyborg.OperationSucceeded, h.ended(op.ID).State)
	require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderService, ID: "ovs"}}, as[acceleratorBody](h.do("GET", path(accelerator), nil)).Holders)

	h.do("POST", operationPath(op.ID, "/retry"), nil).problem(cyborg.ErrChanged)
}

// The query of an image's URL is deleted with the end of its operation, so there
// is nothing to retry it with.
func TestRetryOfASignedImageIsRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	h.engine.set(func(e *engine) { e.fail = cyborg.Errorf(cyborg.ErrHardware, "no") })

	program := func(source string) string {
		image := map[string]string{"source": source, "sha256": strings.Repeat("ab", 32)}
		return operationPath(h.do("PATCH", path(accelerator, "/program"), map[string]any{"image": image}).problem(cyborg.ErrHardware).Operation, "/retry")
	}

	require.Contains(t, h.do("POST", program("https://images.example/a?signature=1"), nil).problem(cyborg.ErrInvalid).Hint, "whole URL")
	h.do("POST", program("https://images.example/a"), nil).expect(http.StatusAccepted)
}

// An operation of any kind can be retried from its record.
func TestRetryOfEachKind(t *testing.T) {
	t.Parallel()
	h := setup(t)
	ready := h.ready("alpha")
	inactive := h.host("h2", 1)["fpga-0"]

	h.do("PUT", path(ready), nil).expect(http.StatusOK)
	free := as[listBody](h.do("GET", "/v1/accelerators?host=h1&device_type=GPU", nil)).Accelerator[0]
	h.do("POST", path(free.Accelerator, "/ready"), nil).expect(http.StatusOK)

	for _, ask := range []struct {
		method, path string
		body         any
	}{
		{"POST", path(inactive), map[string]any{"name": "beta", "acc_specs": map[string]any{"num": 1, "acc_capability": map[string]any{"crypto": map[string]any{"gbps": 10}}}}},
		{"PUT", path(ready), map[string]any{"instance": uuid.NewString()}},
		{"DELETE", path(ready) + "?host=h1", nil},
		{"PATCH", path(free.Accelerator, "/program"), map[string]any{"image": map[string]any{"source": "a.bin", "whole_device": true}}},
		{"PUT", "/v1/hosts/h2/drivers/fake", map[string]any{"options": map[string]any{"cards": 3}}},
	} {
		h.engine.set(func(e *engine) { e.fail = cyborg.Errorf(cyborg.ErrHardware, "no") })
		failed := h.do(ask.method, ask.path, ask.body).problem(cyborg.ErrHardware).Operation
		h.engine.set(func(e *engine) { e.fail = nil })
		op := as[cyborg.Operation](h.do("POST", operationPath(failed, "/retry"), nil).expect(http.StatusAccepted))

		again := h.ended(op.ID)
		require.Equal(t, cyborg.OperationSucceeded, again.State, "%s %s: %+v", ask.method, ask.path, again.Error)
		before := h.ended(failed)
		require.Equal(t, before.Input, again.Input)
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	body := map[string]any{"service": "ovs"}

	first := h.do("PUT", path(accelerator), body, "Idempotency-Key", "k1").expect(http.StatusOK)

	for _, again := range []*reply{
		h.do("PUT", path(accelerator), body, "Idempotency-Key", "k1"),
		h.do("PUT", strings.Replace(path(accelerator), "/v1/accelerators", "/accelerator", 1)+"/", ` { "service" : "ovs" } `, "Idempotency-Key", "k1"),
	} {
		again.expect(http.StatusOK)
		require.Equal(t, first.header.Get("Cyborg-Operation"), again.header.Get("Cyborg-Operation"))
	}

	require.Len(t, as[acceleratorBody](h.do("GET", path(accelerator), nil)).Holders, 1)

	problem := h.do("PUT", path(accelerator), map[string]any{"service": "other"}, "Idempotency-Key", "k1").problem(cyborg.ErrInvalid)
	require.NotEmpty(t, problem.Detail)
	h.do("DELETE", path(accelerator), nil, "Idempotency-Key", "k1").problem(cyborg.ErrInvalid)

	h.engine.set(func(e *engine) { e.fail = cyborg.Errorf(cyborg.ErrHardware, "no") })
	failed := h.do("DELETE", path(accelerator), nil, "Idempotency-Key", "k2").problem(cyborg.ErrHardware)
	h.engine.set(func(e *engine) { e.fail = nil })
	require.Equal(t, failed.Operation, h.do("DELETE", path(accelerator), nil, "Idempotency-Key", "k2").problem(cyborg.ErrHardware).Operation)
	h.do("DELETE", path(accelerator), nil, "Idempotency-Key", "k3").expect(http.StatusNoContent)
}

// A repeat is answered with the operation of the first request also where what
// they name has another name by now, or is forgotten with its host.
func TestIdempotencyKeyOfWhatHasGone(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")

	type request struct {
		method, path string
		body         any
	}

	attach := request{"PUT", path(accelerator), map[string]any{"name": "alpha", "service": "ovs"}}
	before := map[string]request{
		"attach":    attach,
		"configure": {"PUT", "/v1/hosts/h1/drivers/fake", map[string]any{"options": map[string]any{"cards": 2}}},
		"whitelist": {"POST", "/v1/hosts/h1/nova-whitelist", map[string]any{"devices": []any{}, "apply": true}},
	}

	repeat := func(key string) *reply {
		return h.do(before[key].method, before[key].path, before[key].body, "Idempotency-Key", key)
	}

	first := map[string]string{}
	for key := range before {
		first[key] = repeat(key).header.Get("Cyborg-Operation")
		require.NotEmpty(t, first[key], key)
	}

	h.do("DELETE", path(accelerator), nil).expect(http.StatusNoContent)
	h.do("POST", path(accelerator)+"/retire", nil).expect(http.StatusOK)
	h.do("POST", path(accelerator), map[string]any{"name": "beta"}).expect(http.StatusCreated)
	h.do(attach.method, attach.path, attach.body).problem(cyborg.ErrChanged)
	require.Equal(t, first["attach"], repeat("attach").expect(http.StatusOK).header.Get("Cyborg-Operation"))

	conn, err := pgx.Connect(t.Context(), h.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "UPDATE hosts SET last_seen = now() - interval '1 hour'")
	require.NoError(t, err)
	h.do("DELETE", "/v1/hosts/h1", nil).expect(http.StatusNoContent)

	for key, request := range before {
		h.do(request.method, request.path, request.body).problem(cyborg.ErrNotFound)
		require.Equal(t, first[key], repeat(key).header.Get("Cyborg-Operation"), key)
	}

	gone := as[cyborg.Operation](repeat("attach").expect(http.StatusAccepted))
	require.Equal(t, cyborg.OperationSucceeded, gone.State)

	h.do("PUT", path(accelerator), map[string]any{"service": "other"}, "Idempotency-Key", "attach").problem(cyborg.ErrInvalid)
	h.do("PUT", path(accelerator), map[string]any{"service": "other"}, "Idempotency-Key", "new").problem(cyborg.ErrNotFound)
}

// A repeat that comes while the first request still runs waits for the same
// operation.
func TestIdempotencyKeyWhileItRuns(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	release := h.engine.block()
	defer release()

	accepted := h.do("PUT", path(accelerator), nil, "Idempotency-Key", "k", "Prefer", "respond-async").expect(http.StatusAccepted)
	var repeat *reply
	var waiting sync.WaitGroup
	waiting.Go(func() { repeat = h.do("PUT", path(accelerator), nil, "Idempotency-Key", "k") })

	release()
	waiting.Wait()
	repeat.expect(http.StatusOK)
	require.Equal(t, accepted.header.Get("Cyborg-Operation"), repeat.header.Get("Cyborg-Operation"))
}

func TestOperationsWhileTemporalIsAway(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.host("h1", 1)["fpga-0"]
	h.engine.set(func(e *engine) { e.away = true })

	answer := h.do("POST", path(accelerator), map[string]any{"name": "alpha"})
	problem := answer.problem(cyborg.ErrUnavailable)
	require.NotEmpty(t, answer.header.Get("Retry-After"))
	require.NotContains(t, string(answer.body), "10.0.0.7", "the answer must not tell Temporal's address")
	require.NotEmpty(t, problem.Hint)

	h.do("GET", path(accelerator), nil).expect(http.StatusOK)
	require.Nil(t, h.accelerator(accelerator.UUID).Claim, "nothing was admitted")
	h.do("GET", "/readyz?verbose", nil).expect(http.StatusServiceUnavailable)
}

// If Temporal goes away between admission and start, the operation stays
// admitted, and the answer shows it and says that Temporal is away.
func TestStartFails(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.host("h1", 1)["fpga-0"]
	h.engine.set(func(e *engine) { e.refuse = true })

	answer := h.do("POST", path(accelerator), map[string]any{"name": "alpha"}).expect(http.StatusAccepted)
	op := as[cyborg.Operation](answer)
	require.Equal(t, cyborg.OperationAdmitted, op.State)
	require.Contains(t, op.Progress.Note, "Temporal")
	require.Equal(t, op.ID, h.accelerator(accelerator.UUID).Claim.Operation)

	h.engine.set(func(e *engine) { e.refuse = false })
	_, err := h.engine.Start(t.Context(), op) // as reconcile does
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, h.ended(op.ID).State)
}

// The number of operations in flight is bounded. A further request waits
// briefly and is then told to come back. Reads go on.
func TestInFlightLimit(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) {
		c.Operate.MaxInFlight, c.Limits.QueueWait, c.Operate.InFlightHold = 1, 50*time.Millisecond, time.Hour
	})

	found := h.host("h1", 2)
	release := h.engine.block()
	defer release()

	var first *reply
	var waiting sync.WaitGroup
	waiting.Go(func() { first = h.do("POST", path(found["fpga-0"], "/ready"), nil) })
	require.Eventually(t, func() bool { return h.accelerator(found["fpga-0"].UUID).Claim != nil }, waitLimit, poll)

	answer := h.do("POST", path(found["fpga-1"], "/ready"), nil)
	answer.problem(cyborg.ErrOverloaded)
	require.NotEmpty(t, answer.header.Get("Retry-After"))
	h.do("GET", "/v1/accelerators", nil).expect(http.StatusOK)

	release()
	waiting.Wait()
	first.expect(http.StatusOK)
	h.do("POST", path(found["fpga-1"], "/ready"), nil).expect(http.StatusOK)
}

// Requests that do not wait for their operation are bounded, too, but a slow
// operation gives its place back after a while.
func TestInFlightLimitOfAsyncRequests(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) {
		c.Operate.MaxInFlight, c.Limits.QueueWait, c.Operate.InFlightHold = 1, time.Millisecond, 200*time.Millisecond
	})

	found := h.host("h1", 2)
	release := h.engine.block()
	defer release()

	async := func(name string) *reply {
		return h.do("POST", path(found[name], "/ready"), nil, "Prefer", "respond-async")
	}

	started := time.Now()
	async("fpga-0").expect(http.StatusAccepted)

	if refused := async("fpga-1"); refused.status != http.StatusAccepted {
		refused.problem(cyborg.ErrOverloaded)
	} else {
		require.Greater(t, time.Since(started), 200*time.Millisecond, "taken only because the machine was slow")
		return
	}

	require.Eventually(t, func() bool { return async("fpga-1").status == http.StatusAccepted }, waitLimit, poll)
}

// An operation goes on when its caller leaves.
func TestOperationOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.host("h1", 1)["fpga-0"]
	release := h.engine.block()
	defer release()

	ctx, leave := contextWithCancel(t)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.server.URL+path(accelerator, "/ready"), nil)
	require.NoError(t, err)

	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if response, err := h.server.Client().Do(request); err == nil {
			_ = response.Body.Close()
		}
	}()

	require.Eventually(t, func() bool { return h.accelerator(accelerator.UUID).Claim != nil }, waitLimit, poll)
	op := h.accelerator(accelerator.UUID).Claim.Operation

	leave()
	<-gone
	release()
	require.Equal(t, cyborg.OperationSucceeded, h.ended(op).State)
}

// Without a setting, five operations per CPU may be in flight.
func TestDefaultLimitsDependOnTheCPUs(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) { c.Limits.QueueWait, c.Operate.InFlightHold = 50*time.Millisecond, time.Hour })
	count := 5*runtime.NumCPU() + 1
	h.host("h1", count)
	release := h.engine.block()
	defer release()

	refused := 0
	for _, accelerator := range as[listBody](h.do("GET", "/v1/accelerators?device_type=FPGA&limit=1000", nil)).Accelerator {
		if h.do("POST", path(accelerator.Accelerator, "/ready"), nil, "Prefer", "respond-async").status == http.StatusTooManyRequests {
			refused++
		}
	}

	require.Equal(t, 1, refused)
}
