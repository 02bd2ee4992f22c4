package apiclient_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// script serves one operation that goes one stage further with each read, and
// streams an event after each read.
type script struct {
	t      *testing.T
	id     uuid.UUID
	mu     sync.Mutex
	stages []func(w http.ResponseWriter) // the last one stays
	read   chan struct{}
}

// newScript is a script of these stages; the last one stays.
func newScript(t *testing.T, stages ...func(http.ResponseWriter)) *script {
	t.Helper()
	return &script{t: t, id: uuid.New(), stages: stages, read: make(chan struct{}, 100)}
}

// ServeHTTP answers reads of the operation and of its event stream.
func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/events") {
		send := stream(w)
		for {
			select {
			case <-s.read:
				send("id: 1-1\ndata: {}\n\n")
			case <-r.Context().Done():
				return
			}
		}
	}

	s.mu.Lock()
	stage := s.stages[0]
	if len(s.stages) > 1 {
		s.stages = s.stages[1:]
	}
	s.mu.Unlock()

	s.read <- struct{}{}
	stage(w)
}

// at is a stage in which the operation is in this state, with these steps.
func at(state cyborg.OperationState, steps ...cyborg.Step) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		body, err := json.Marshal(apiclient.Operation{Operation: cyborg.Operation{Kind: cyborg.OperationAttach, State: state, Steps: steps}})
		if err != nil {
			panic(err)
		}

		answer(w, http.StatusOK, string(body))
	}
}

// away is a stage in which the API is unavailable.
func away(w http.ResponseWriter) {
	answerProblem(w, http.StatusServiceUnavailable, `{"kind":"unavailable","detail":"the API stops"}`)
}

// dead is a stage in which the connection breaks.
func dead(http.ResponseWriter) { breakConnection() }

// TestWatchYieldsEachChangeAndEndsWithTheOperation: a state that was read twice
// is yielded once, and a failing API only delays the watch.
func TestWatchYieldsEachChangeAndEndsWithTheOperation(t *testing.T) {
	t.Parallel()
	s := newScript(t,
		at(cyborg.OperationAdmitted), at(cyborg.OperationAdmitted),
		at(cyborg.OperationRunning), away, dead, dead, dead, dead,
		at(cyborg.OperationRunning, cyborg.Step{Name: "take a handle", State: cyborg.StepDone}),
		at(cyborg.OperationSucceeded))
	client := serve(t, s.ServeHTTP)

	var states []cyborg.OperationState
	var troubles []error

	for operation, err := range client.Watch(t.Context(), s.id, func(err error) { troubles = append(troubles, err) }) {
		require.NoError(t, err)
		states = append(states, operation.State)
	}

	require.Equal(t, []cyborg.OperationState{cyborg.OperationAdmitted, cyborg.OperationRunning, cyborg.OperationRunning, cyborg.OperationSucceeded}, states)
	require.GreaterOrEqual(t, len(troubles), 2)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(troubles[0]))
	require.NoError(t, troubles[len(troubles)-1])
}

// TestWatchReportsWhatIsMissing: where the records have lost events of the
// operation, a watch says so, and follows the stream from where that goes on.
func TestWatchReportsWhatIsMissing(t *testing.T) {
	t.Parallel()
	var followed atomic.Bool
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch after := r.Header.Get("Last-Event-ID"); {
		case !strings.HasSuffix(r.URL.Path, "/events") && followed.Load():
			at(cyborg.OperationSucceeded)(w)
		case !strings.HasSuffix(r.URL.Path, "/events"):
			at(cyborg.OperationRunning)(w)
		case after == "":
			stream(w)("id: 1-1\ndata: {}\n\n")
		case after == "1-1":
			answerProblem(w, http.StatusGone, `{"kind":"gone","detail":"event 1-1 was lost","after":"1-0"}`)
		default:
			followed.Store(after == "1-0")
			stream(w)
			<-r.Context().Done()
		}
	})

	var troubles []error
	for _, err := range client.Watch(t.Context(), uuid.New(), func(err error) { troubles = append(troubles, err) }) {
		require.NoError(t, err)
	}

	missing := slices.DeleteFunc(troubles, func(err error) bool { return cyborg.ErrorKindOf(err) != cyborg.ErrGone }) // a stream that ends is trouble, too
	require.Len(t, missing, 1)
	require.ErrorContains(t, missing[0], "event 1-1 was lost")
}

// TestWatchWithoutAStreamPolls: a proxy may refuse event streams; the watch
// then reads the operation from time to time.
func TestWatchWithoutAStreamPolls(t *testing.T) {
	t.Parallel()
	s := newScript(t, at(cyborg.OperationRunning), at(cyborg.OperationFailed))
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/events") {
			answerProblem(w, http.StatusNotFound, `{"kind":"not_found","detail":"no streams here"}`)
			return
		}
		s.ServeHTTP(w, r)
	})

	last := cyborg.OperationAdmitted
	for operation, err := range client.Watch(t.Context(), s.id, nil) {
		require.NoError(t, err)
		last = operation.State
	}

	require.Equal(t, cyborg.OperationFailed, last)
}

func TestWatchOfAnUnknownOperation(t *testing.T) {
	t.Parallel()
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		answerProblem(w, http.StatusNotFound, `{"kind":"not_found","detail":"there is no operation"}`)
	})

	var got []error
	for _, err := range client.Watch(t.Context(), uuid.New(), nil) {
		got = append(got, err)
	}

	require.Len(t, got, 1)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(got[0]))
}

// TestWatchEndsWithContextOrBreak: however a caller leaves a watch, nothing of
// it keeps running.
func TestWatchEndsWithContextOrBreak(t *testing.T) {
	t.Parallel()
	s := newScript(t, at(cyborg.OperationRunning))
	client := serve(t, s.ServeHTTP)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range client.Watch(ctx, s.id, nil) {
		last = err
		cancel()
	}
	require.ErrorIs(t, last, context.Canceled)

	for _, err := range client.Watch(t.Context(), s.id, nil) {
		require.NoError(t, err)
		break // leaktest checks that nothing is left running
	}
}
