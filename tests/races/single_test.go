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

// atOnce sends requests through all doors at the same moment.
func (s *system) atOnce(t *testing.T, requests []ask) []answer {
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
			answers[i] = s.doors[i%len(s.doors)].send(t, began, r)
		})
	}
	close(gate)
	all.Wait()
	return answers
}

// requireLost says that a request was refused because an operation was faster, and names that one.
func requireLost(t *testing.T, r ask, a answer, kinds []cyborg.ErrorKind, winners ...uuid.UUID) {
	t.Helper()
	require.Equal(t, http.StatusConflict, a.status, "%s: %s", r, a.text)
	require.Contains(t, kinds, a.problem.Kind, "%s: %s", r, a.text)
	require.Contains(t, winners, a.problem.Operation, "%s: %s", r, a.text)
}

// raceForName: of many who create an accelerator of one name, one does.
func (s *system) raceForName(t *testing.T) {
	t.Helper()
	requests := make([]ask, 60)
	for i := range requests {
		requests[i] = ask{method: http.MethodPost, path: "/v1/accelerators", body: map[string]any{
			"name": "wanted", "acc_specs": map[string]any{"device_type": "NIC"},
		}}
	}
	answers := s.atOnce(t, requests)
	winner := uuid.Nil
	for _, a := range answers {
		if a.status == http.StatusCreated {
			require.Equal(t, uuid.Nil, winner, "two have created it")
			winner = a.operation
		}
	}
	require.NotEqual(t, uuid.Nil, winner, "nobody has created it")
	for i, a := range answers {
		if a.status != http.StatusCreated {
			requireLost(t, requests[i], a, []cyborg.ErrorKind{cyborg.ErrClaimed, cyborg.ErrNameTaken}, winner)
		}
	}
}

// raceForFit: of fifty who want one of ten that fit, ten get one each, and the others learn who was faster.
func (s *system) raceForFit(t *testing.T) {
	t.Helper()
	const fitting = 10
	requests := make([]ask, 50)
	for i := range requests {
		requests[i] = ask{method: http.MethodPost, path: "/v1/accelerators", body: map[string]any{
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
	require.Len(t, got, fitting, "one was given to two")
	for i, a := range answers {
		if a.status != http.StatusCreated {
			requireLost(t, requests[i], a, []cyborg.ErrorKind{cyborg.ErrNoFit}, winners...)
		}
	}
}

// raceWithOneKey: one key with one body is one operation, however often and wherever it is sent; with another body it is
// a mistake, and is told of that operation.
func (s *system) raceWithOneKey(t *testing.T) {
	t.Helper()
	target := s.park(t, "keys", "1xqat", 2)[0].UUID
	_, err := s.API.MakeReady(t.Context(), target)
	require.NoError(t, err)
	for round := range 4 {
		key := uuid.NewString()
		requests := make([]ask, 24)
		for i := range requests {
			requests[i] = ask{method: http.MethodPut, path: path(target), key: key, async: i%5 == 0, body: map[string]any{
				"service": fmt.Sprintf("service-%d-%d", round, i%4/3), // every fourth is another
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

// raceToRetry: what failed is retried once, whoever asks for it at the same time.
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
		requests := make([]ask, 20)
		key := uuid.NewString()
		for i := range requests {
			if !oneKey {
				key = uuid.NewString()
			}
			requests[i] = ask{method: http.MethodPost, path: "/v1/operations/" + failed.String() + "/retry", key: key}
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

// raceWithDriver: a driver is not uninstalled under who uses one of its devices, and nobody gets a device of a driver
// that is being changed. Whoever loses is told of an operation, unless its device had gone already.
func (s *system) raceWithDriver(t *testing.T) {
	t.Helper()
	found := s.park(t, "driver", "2xssd", 2)
	for i := range found {
		_, err := s.API.MakeReady(t.Context(), found[i].UUID)
		require.NoError(t, err)
	}
	drivers := "/v1/hosts/driver/drivers"
	options := optionsOf("2xssd", 2) // with others, one that is there already is not installed
	for round := range 4 {
		var requests []ask
		for i := range 12 {
			target := found[i%2].UUID
			requests = append(requests,
				ask{method: http.MethodPut, path: path(target), body: map[string]any{"service": fmt.Sprintf("s-%d-%d", round, i)}},
				ask{method: http.MethodDelete, path: path(target)})
			if i%3 == 0 {
				requests = append(requests, ask{method: http.MethodDelete, path: drivers + "/fake"},
					ask{method: http.MethodPut, path: drivers + "/fake", body: map[string]any{"options": options}},
					ask{method: http.MethodPut, path: path(target), body: map[string]any{}})
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
		s.atRest(t, "driver") // on a busy machine the answer came before the end
		for i := range found {
			_, err := s.API.Detach(t.Context(), found[i].UUID, cyborg.Holder{})
			require.NoError(t, err)
		}
	}
}

// raceToForce: of many who take back by force what a card that is gone had, one does; the others lose to it, or find nothing
// left to do. What was taken is fenced by that one.
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
			a, _, err := s.API.Accelerator(ctx, target)
			if err == nil && !until(a) {
				err = fmt.Errorf("it is %s, fenced %v", a.Status, a.Fence)
			}
			return err
		})
	}
	look(func(a apiclient.Accelerator) bool { return a.Presence == cyborg.PresenceMissing })

	requests := make([]ask, 30)
	for i := range requests {
		requests[i] = ask{method: http.MethodDelete, path: path(target) + "?force=true", key: uuid.NewString()}
	}
	answers := s.atOnce(t, requests)
	ops, err := apiclient.Collect(s.API.Operations(ctx, apiclient.OperationFilter{Hosts: []string{"force"}, Kinds: []cyborg.OperationKind{cyborg.OperationDetach}}, apiclient.Page{}))
	require.NoError(t, err)
	require.Len(t, ops, 1)
	winner := ops[0].ID
	for i, a := range answers {
		switch {
		case a.status == http.StatusNoContent: // the winner's, or there was nothing left to do
		case a.operation == winner:
		default:
			requireLost(t, requests[i], a, []cyborg.ErrorKind{cyborg.ErrClaimed}, winner)
		}
	}
	s.atRest(t, "force")
	a, _, err := s.API.Accelerator(ctx, target)
	require.NoError(t, err)
	require.Empty(t, a.Holders)
	require.Equal(t, winner, a.Fence.Operation)
	require.NoError(t, s.Bench("force").Return(ctx, device.Identity))
	look(func(a apiclient.Accelerator) bool { return a.Status == cyborg.StatusReady })
}
