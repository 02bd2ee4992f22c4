package races_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// atOnce sends the requests at the same time, in turn to all API processes, and
// returns the answers in the order of the requests. A request that is refused
// because Temporal does not answer in time is sent again, since nothing of it
// was recorded.
func (s *system) atOnce(t *testing.T, requests []httpRequest) []answer {
	t.Helper()
	var (
		all     sync.WaitGroup
		began   = time.Now()
		answers = make([]answer, len(requests))
		gate    = make(chan struct{})
	)

	for i, r := range requests {
		all.Go(func() {
			<-gate
			for {
				answers[i] = s.endpoints[i%len(s.endpoints)].send(t, began, r)
				if answers[i].status != http.StatusServiceUnavailable || answers[i].operation != uuid.Nil || t.Failed() {
					return
				}
			}
		})
	}

	close(gate)
	all.Wait()

	return answers
}

// requireLost asserts that a request was refused because of an operation that
// was faster, and that the answer names one of the winners.
func requireLost(t *testing.T, r httpRequest, a answer, kinds []cyborg.ErrorKind, winners ...uuid.UUID) {
	t.Helper()
	require.Equal(t, http.StatusConflict, a.status, "%s: %s", r, a.text)
	require.Contains(t, kinds, a.problem.Kind, "%s: %s", r, a.text)
	require.Contains(t, winners, a.problem.Operation, "%s: %s", r, a.text)
}

// raceForName lets many clients provision under one name: one of them gets it.
func (s *system) raceForName(t *testing.T) {
	t.Helper()

	requests := make([]httpRequest, 60)
	for i := range requests {
		requests[i] = httpRequest{method: http.MethodPost, path: "/v1/accelerators", body: map[string]any{
			"name": "wanted", "acc_specs": map[string]any{"device_type": "NIC"},
		}}
	}

	answers := s.atOnce(t, requests)

	winner := uuid.Nil
	for _, a := range answers {
		if a.status == http.StatusCreated {
			require.Equal(t, uuid.Nil, winner, "two requests got the name")
			winner = a.operation
		}
	}

	require.NotEqual(t, uuid.Nil, winner, "no request got the name")

	for i, a := range answers {
		if a.status != http.StatusCreated {
			requireLost(t, requests[i], a, []cyborg.ErrorKind{cyborg.ErrClaimed, cyborg.ErrNameTaken}, winner)
		}
	}
}

// raceForFit lets fifty clients provision one of ten GPUs: ten get one each,
// and the refusals of the others name an operation that was faster.
func (s *system) raceForFit(t *testing.T) {
	t.Helper()
	const fitting = 10

	requests := make([]httpRequest, 50)
	for i := range requests {
		requests[i] = httpRequest{method: http.MethodPost, path: "/v1/accelerators", body: map[string]any{
			"name": fmt.Sprint("fits-", i), "acc_specs": map[string]any{"device_type": "GPU"},
		}}
	}

	answers := s.atOnce(t, requests)
	var winners []uuid.UUID
	got := map[string]bool{}

	for i, a := range answers {
		if a.status == http.StatusCreated {
			winners = append(winners, a.operation)
			got[a.location] = true
			continue
		}
		require.Equal(t, http.StatusConflict, a.status, "%s: %s", requests[i], a.text)
	}

	require.Len(t, winners, fitting)
	require.Len(t, got, fitting, "two requests got the same accelerator")

	for i, a := range answers {
		if a.status != http.StatusCreated {
			requireLost(t, requests[i], a, []cyborg.ErrorKind{cyborg.ErrNoFit}, winners...)
		}
	}
}

// raceWithOneKey sends requests with one idempotency key, to all API processes.
// Those with the same body get one operation. Those with another body are
// refused, and the refusal names that operation.
func (s *system) raceWithOneKey(t *testing.T) {
	t.Helper()
	target := s.park(t, "keys", "1xqat", 2)[0].UUID
	_, err := s.API.MakeReady(t.Context(), target)
	require.NoError(t, err)

	for round := range 4 {
		key := uuid.NewString()
		requests := make([]httpRequest, 24)
		for i := range requests {
			requests[i] = httpRequest{method: http.MethodPut, path: path(target), key: key, async: i%5 == 0, body: map[string]any{
				"service": fmt.Sprintf("service-%d-%d", round, i%4/3), // every fourth request has another body
			}}
		}

		answers := s.atOnce(t, requests)
		operation := uuid.Nil
		for _, a := range answers {
			if a.operation != uuid.Nil {
				operation = a.operation
			}
		}

		require.NotEqual(t, uuid.Nil, operation)
		op, err := s.API.Operation(t.Context(), operation)
		require.NoError(t, err)

		holder := op.Input["holder"].(map[string]any)["id"]
		for i, a := range answers {
			if requests[i].body.(map[string]any)["service"] == holder {
				require.Equal(t, operation, a.operation, "%s: %d %s", requests[i], a.status, a.text)
				require.Less(t, a.status, 300)
				continue
			}
			require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", requests[i], a.text)
			require.Equal(t, operation, a.problem.Operation, "%s: %s", requests[i], a.text)
		}

		s.atRest(t, "keys")
		_, err = s.API.Detach(t.Context(), target, cyborg.Holder{})
		require.NoError(t, err)
	}
}

// raceToRetry retries a failed operation many times at once, with one key and
// with different keys: it is retried once.
func (s *system) raceToRetry(t *testing.T) {
	t.Helper()
	found, err := apiclient.Collect(s.API.Accelerators(t.Context(), apiclient.AcceleratorFilter{Hosts: []string{"retry"}}, apiclient.Page{}))
	require.NoError(t, err)
	target := found[0]

	_, err = s.API.MakeReady(t.Context(), target.UUID)
	require.NoError(t, err)

	device, err := s.API.Device(t.Context(), target.DeviceUUID)
	require.NoError(t, err)
	for _, oneKey := range []bool{true, false} {
		require.NoError(t, s.Bench("retry").Edit(t.Context(), device.Identity, func(card *fake.Card) {
			card.Fail = map[fake.Step]fake.Failure{fake.StepAttach: {Times: 1, Kind: cyborg.ErrHardware, When: fake.Before}}
		}))

		_, err = s.API.Attach(t.Context(), target.UUID, cyborg.Holder{})
		require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err), "%v", err)
		failed := cyborg.AsError(err).Operation

		requests := make([]httpRequest, 20)
		key := uuid.NewString()
		for i := range requests {
			if !oneKey {
				key = uuid.NewString()
			}
			requests[i] = httpRequest{method: http.MethodPost, path: "/v1/operations/" + failed.String() + "/retry", key: key}
		}

		answers := s.atOnce(t, requests)
		winners := map[uuid.UUID]bool{}
		for _, a := range answers {
			if a.status == http.StatusAccepted {
				winners[a.operation] = true
			}
		}

		require.Len(t, winners, 1)

		for i, a := range answers {
			if a.status == http.StatusAccepted {
				retried, err := s.API.Operation(t.Context(), a.operation)
				require.NoError(t, err)
				require.Equal(t, failed, retried.RetryOf)
				continue
			}
			require.False(t, oneKey, "%s: %d %s", requests[i], a.status, a.text)
			requireLost(t, requests[i], a, []cyborg.ErrorKind{cyborg.ErrClaimed, cyborg.ErrInUse}, slices.Collect(maps.Keys(winners))...)
		}

		s.atRest(t, "retry")
		_, err = s.API.Detach(t.Context(), target.UUID, cyborg.Holder{})
		require.NoError(t, err)
	}
}

// raceWithDriver attaches and detaches devices while their driver is
// uninstalled and installed. A driver with a device in use is not uninstalled,
// and nobody gets a device while its driver changes. A refusal names an
// operation, unless the device is already missing.
func (s *system) raceWithDriver(t *testing.T) {
	t.Helper()
	found := s.park(t, "driver", "2xssd", 2)
	for i := range found {
		_, err := s.API.MakeReady(t.Context(), found[i].UUID)
		require.NoError(t, err)
	}

	drivers := "/v1/hosts/driver/drivers"
	options := optionsOf("2xssd", 2) // those that it has: an install with other options would be refused

	for round := range 4 {
		var requests []httpRequest
		for i := range 12 {
			target := found[i%2].UUID
			requests = append(requests,
				httpRequest{method: http.MethodPut, path: path(target), body: map[string]any{"service": fmt.Sprintf("s-%d-%d", round, i)}},
				httpRequest{method: http.MethodDelete, path: path(target)})
			if i%3 == 0 {
				requests = append(requests, httpRequest{method: http.MethodDelete, path: drivers + "/fake"},
					httpRequest{method: http.MethodPut, path: drivers + "/fake", body: map[string]any{"options": options}},
					httpRequest{method: http.MethodPut, path: path(target), body: map[string]any{}})
			}
		}

		for i, a := range s.atOnce(t, requests) {
			if a.status < 300 {
				continue
			}

			require.Equal(t, http.StatusConflict, a.status, "%s: %s", requests[i], a.text)
			if a.problem.Operation == uuid.Nil {
				require.Contains(t, a.problem.Detail, "is missing", "%s: %s", requests[i], a.text)
			}
		}

		s.atRest(t, "driver")
		_, err := s.API.InstallDriver(t.Context(), "driver", "fake", "fake", options)
		require.NoError(t, err)

		require.Eventually(t, func() bool {
			now, err := apiclient.Collect(s.API.Accelerators(t.Context(), apiclient.AcceleratorFilter{Hosts: []string{"driver"}}, apiclient.Page{}))
			return err == nil && len(now) == 2 && now[0].Presence == cyborg.PresencePresent && now[1].Presence == cyborg.PresencePresent
		}, 3*time.Minute, 20*time.Millisecond)

		s.atRest(t, "driver") // on a busy machine the answer comes before the operation's end

		for i := range found {
			_, err := s.API.Detach(t.Context(), found[i].UUID, cyborg.Holder{})
			require.NoError(t, err)
		}
	}
}

// raceToForce detaches a vanished card many times at once by force. One
// operation does it and fences the accelerator. The other requests are refused
// because of it, or have nothing left to do.
func (s *system) raceToForce(t *testing.T) {
	t.Helper()

	ctx := t.Context()
	found, err := apiclient.Collect(s.API.Accelerators(ctx, apiclient.AcceleratorFilter{Hosts: []string{"force"}}, apiclient.Page{}))
	require.NoError(t, err)

	target := found[0].UUID
	_, err = s.API.MakeReady(ctx, target)
	require.NoError(t, err)
	_, err = s.API.Attach(ctx, target, cyborg.Holder{Kind: cyborg.HolderHost, ID: "force"})
	require.NoError(t, err)

	device, err := s.API.Device(ctx, found[0].DeviceUUID)
	require.NoError(t, err)
	require.NoError(t, s.Bench("force").Vanish(ctx, device.Identity))

	look := func(until func(a apiclient.Accelerator) bool) {
		t.Helper()
		harness.Until(t, ctx, "seen", func() error {
			_, err := s.API.Discover(ctx, "force")
			if err != nil {
				return err
			}
			s.round(t)

			a, _, err := s.API.Accelerator(ctx, target)
			if err == nil && !until(a) {
				err = fmt.Errorf("the accelerator is still %s with the fence %v", a.Status, a.Fence)
			}
			return err
		})
	}
	look(func(a apiclient.Accelerator) bool { return a.Presence == cyborg.PresenceMissing })

	requests := make([]httpRequest, 30)
	for i := range requests {
		requests[i] = httpRequest{method: http.MethodDelete, path: path(target) + "?force=true", key: uuid.NewString()}
	}

	answers := s.atOnce(t, requests)
	ops, err := apiclient.Collect(s.API.Operations(ctx, apiclient.OperationFilter{Hosts: []string{"force"}, Kinds: []cyborg.OperationKind{cyborg.OperationDetach}}, apiclient.Page{}))
	require.NoError(t, err)
	require.Len(t, ops, 1)

	winner := ops[0].ID
	for i, a := range answers {
		switch {
		case a.status == http.StatusNoContent: // the answer of the winner, or there was nothing left to do
		case a.operation == winner:
		default:
			requireLost(t, requests[i], a, []cyborg.ErrorKind{cyborg.ErrClaimed}, winner)
		}
	}

	s.atRest(t, "force")
	a, _, err := s.API.Accelerator(ctx, target)
	require.NoError(t, err)
	require.Empty(t, a.Holders)

	// The fence itself may have been lifted already: its host knows that the card is gone.
	events, err := apiclient.Collect(s.API.History(ctx, target, apiclient.Page{}))
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(events, func(e cyborg.Event) bool {
		return e.Axis == cyborg.AxisFence && e.To != "" && e.Operation == winner
	}), "the winner has fenced it")

	require.NoError(t, s.Bench("force").Return(ctx, device.Identity))
	look(func(a apiclient.Accelerator) bool { return a.Status == cyborg.StatusReady })
}
