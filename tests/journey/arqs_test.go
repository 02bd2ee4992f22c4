package journey_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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

const requestsPath = "/v2/accelerator_requests"

// profile makes a device profile of one group.
func profile(t *testing.T, s *harness.Standalone, name string, group map[string]string) {
	t.Helper()
	status, _, body := request(t, s, "POST", "/v2/device_profiles", []any{map[string]any{"name": name, "groups": []any{group}}})
	require.Equal(t, http.StatusCreated, status, "%v", body)
}

// makeRequest creates the accelerator request of a profile that asks for one
// accelerator, and returns its UUID.
func makeRequest(t *testing.T, s *harness.Standalone, profile string) string {
	t.Helper()
	status, _, body := request(t, s, "POST", requestsPath, map[string]any{"device_profile_name": profile})

	require.Equal(t, http.StatusCreated, status, "%v", body)
	return body["arqs"].([]any)[0].(map[string]any)["uuid"].(string)
}

// patchRequest binds a request to an instance as Nova does, or unbinds it where
// instance is empty. It returns the operation and the status of the answer.
func patchRequest(t *testing.T, s *harness.Standalone, arq string, a apiclient.Accelerator, instance string) (uuid.UUID, int) {
	t.Helper()

	var changes []map[string]string
	for path, value := range map[string]string{
		"/hostname": a.Host, "/device_rp_uuid": a.ProviderUUID.String(), "/instance_uuid": instance,
	} {
		if instance == "" {
			changes = append(changes, map[string]string{"path": path, "op": "remove"})
		} else {
			changes = append(changes, map[string]string{"path": path, "op": "add", "value": value})
		}
	}

	status, header, _ := request(t, s, "PATCH", requestsPath, map[string]any{arq: changes})
	id, err := uuid.Parse(header.Get("Cyborg-Operation"))
	require.NoError(t, err, "%d %v", status, header)

	return id, status
}

// stateOf returns the state of a request, "" where the request does not exist.
func stateOf(t *testing.T, s *harness.Standalone, arq string) cyborg.ARQState {
	t.Helper()
	status, _, body := request(t, s, "GET", requestsPath+"/"+arq, nil)
	if status == http.StatusNotFound {
		return ""
	}

	require.Equal(t, http.StatusOK, status)
	return cyborg.ARQState(body["state"].(string))
}

// requests records the operations of accelerator requests: binds and unbinds
// with their different outcomes, and a deletion.
func (h *historian) requests(a apiclient.Accelerator) {
	t, s := h.t, h.s
	profile(t, s, "one", map[string]string{"resources:FPGA": "1"})

	patch := func(name, arq, instance string, state cyborg.OperationState, status int, becomes cyborg.ARQState) {
		id, got := patchRequest(t, s, arq, a, instance)
		// A bind that has not failed within two seconds is answered 202. An unbind is
		// waited for.
		if instance == "" || got != http.StatusAccepted {
			require.Equal(t, status, got, name)
		}
		h.end(name, state, id)
		require.Equal(t, becomes, stateOf(t, s, arq), name)
	}

	profile(t, s, "image", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": uuid.NewString()})
	patch("no-glance", makeRequest(t, s, "image"), uuid.NewString(), cyborg.OperationFailed, http.StatusUnprocessableEntity, cyborg.ARQBindFailed)

	instance := uuid.NewString()

	arq := makeRequest(t, s, "one")
	patch("succeeded", arq, instance, cyborg.OperationSucceeded, http.StatusAccepted, cyborg.ARQBound)

	_, err := s.API.Detach(t.Context(), a.UUID, cyborg.Holder{})
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "%v", err)

	h.fail(a, fake.Failure{Times: 1, Kind: cyborg.ErrInUse, When: fake.Before}, fake.StepInUse)
	patch("in-use", arq, "", cyborg.OperationFailed, http.StatusConflict, cyborg.ARQBound)

	h.fail(a, fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.Before}, fake.StepInUse)
	patch("failed", arq, "", cyborg.OperationFailed, http.StatusBadGateway, cyborg.ARQUnbindFailed)

	patch("succeeded", arq, "", cyborg.OperationSucceeded, http.StatusAccepted, cyborg.ARQUnbound)
	patch("succeeded", arq, instance, cyborg.OperationSucceeded, http.StatusAccepted, cyborg.ARQBound)

	status, _, _ := request(t, s, "DELETE", requestsPath+"?instance="+instance, nil)
	require.Equal(t, http.StatusNoContent, status)
	require.Empty(t, stateOf(t, s, arq))

	after, _, err := s.API.Accelerator(t.Context(), a.UUID)
	require.NoError(t, err)
	require.Empty(t, after.Holders)
}

// TestL1KillDuringBinds kills the whole standalone while the requests of
// instances are bound and deleted. Afterwards every request is resolved, and no
// handle is lost or has two holders.
func TestL1KillDuringBinds(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:6xfpga"}, Env: shortWaits()})
	profile(t, s, "one", map[string]string{"resources:FPGA": "1"})

	cards := s.Accelerators(t)
	for _, a := range cards {
		_, err := s.API.MakeReady(t.Context(), a.UUID)
		require.NoError(t, err)
	}

	for range 2 {
		// One instance after the other uses each card, until the standalone dies.
		ctx, stop := context.WithCancel(t.Context())
		var (
			lives sync.WaitGroup
			bound = make(chan struct{}, len(cards)*100)
		)

		for _, a := range cards {
			lives.Go(func() {
				for ctx.Err() == nil && live(ctx, s, a) {
					bound <- struct{}{}
				}
			})
		}

		for range 20 {
			<-bound
		}

		s.Kill(t)
		stop()
		lives.Wait()

		s.Restart(t)
		requireResolved(t, s)

		// What is left can be deleted, and nobody has a handle then.
		status, _, body := request(t, s, "GET", requestsPath, nil)
		require.Equal(t, http.StatusOK, status)
		for _, item := range body["arqs"].([]any) {
			arq := item.(map[string]any)
			status, _, _ = request(t, s, "DELETE", requestsPath+"?arqs="+arq["uuid"].(string), nil)
			require.Equal(t, http.StatusNoContent, status)
		}

		harness.RequireSound(t, s)
		for _, a := range s.Accelerators(t) {
			require.Empty(t, a.Holders)
		}
	}
}

// live creates, binds and deletes the request of a new instance. It returns
// false where one of the answers did not come or was a failure.
func live(ctx context.Context, s *harness.Standalone, a apiclient.Accelerator) bool {
	instance := uuid.NewString()

	send := func(method, path string, body any) (int, []byte) {
		text, _ := json.Marshal(body)
		r, err := http.NewRequestWithContext(ctx, method, s.URL+path, bytes.NewReader(text))
		if err != nil {
			return 0, nil
		}

		r.Header.Set("Content-Type", "application/json")

		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, nil
		}

		defer answer.Body.Close()

		text, err = io.ReadAll(answer.Body)
		if err != nil {
			return 0, nil
		}
		return answer.StatusCode, text
	}

	var made struct {
		ARQs []struct{ UUID string } `json:"arqs"`
	}

	status, text := send("POST", requestsPath, map[string]string{"device_profile_name": "one"})
	if status != http.StatusCreated || json.Unmarshal(text, &made) != nil || len(made.ARQs) != 1 {
		return false
	}

	status, _ = send("PATCH", requestsPath, map[string]any{made.ARQs[0].UUID: []map[string]string{
		{"path": "/hostname", "op": "add", "value": a.Host},
		{"path": "/device_rp_uuid", "op": "add", "value": a.ProviderUUID.String()},
		{"path": "/instance_uuid", "op": "add", "value": instance},
	}})

	if status != http.StatusAccepted {
		return false
	}

	status, _ = send("DELETE", requestsPath+"?instance="+instance, nil)
	return status == http.StatusNoContent
}

// requireResolved waits until no request is being bound or deleted, and asserts
// that exactly the bound ones have a handle.
func requireResolved(t *testing.T, s *harness.Standalone) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	harness.Until(t, ctx, "resolved", func() error {
		_, _, body := request(t, s, "GET", requestsPath, nil)
		for _, item := range body["arqs"].([]any) {
			arq := item.(map[string]any)
			switch state := cyborg.ARQState(arq["state"].(string)); state {
			case cyborg.ARQBindStarted, cyborg.ARQDeleting:
				return fmt.Errorf("request %s is still %s", arq["uuid"], state)
			case cyborg.ARQBound:
				require.NotNil(t, arq["attach_handle_uuid"])
			default:
				require.Nil(t, arq["attach_handle_uuid"])
			}
		}
		return nil
	})
}
