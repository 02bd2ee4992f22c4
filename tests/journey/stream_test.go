package journey_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
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

// answer is the answer to one of several concurrent requests.
type answer struct {
	status  int
	headers http.Header
	body    map[string]any
}

// atOnce sends the requests at the same moment, and returns the answers in the
// order of the requests.
func atOnce(requests ...func() answer) []answer {
	answers := make([]answer, len(requests))

	start := make(chan struct{})
	var all sync.WaitGroup

	for i, send := range requests {
		all.Go(func() {
			<-start
			answers[i] = send()
		})
	}

	close(start)
	all.Wait()

	return answers
}

// TestConcurrentRequests sends concurrent requests for the same and for
// different things. Each gets one clear answer, nothing is handed out twice,
// and a repeated request gets the first one's operation, even after a restart.
func TestConcurrentRequests(t *testing.T) { //nolint:tparallel // each subtest continues where the one before ended
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:6xfpga,1xgpu"}, Env: shortWaits()})
	send := func(method, path string, body any, headers ...string) func() answer {
		return func() answer {
			status, got, decoded := request(t, s, method, path, body, headers...)
			return answer{status, got, decoded}
		}
	}

	for _, chapter := range []struct {
		name string
		play func(*testing.T, *harness.Standalone, sender)
	}{
		{"provisions by spec", provisionsBySpec},
		{"attaches", attachesAtOnce},
		{"specs", specsAtOnce},
		{"asynchronous", asynchronous},
		{"repeated over a restart", repeatedOverARestart},
	} {
		if !t.Run(chapter.name, func(t *testing.T) {
			chapter.play(t, s, send)
			harness.RequireSound(t, s)
		}) {
			return
		}
	}
}

// sender returns a function that sends a request.
type sender func(method, path string, body any, headers ...string) func() answer

// provisionsBySpec provisions six FPGAs by type, under names that partly clash.
func provisionsBySpec(t *testing.T, _ *harness.Standalone, send sender) {
	t.Helper()
	provision := func(name string) func() answer {
		return send(http.MethodPost, "/accelerators", map[string]any{"name": name, "acc_specs": map[string]any{"device_type": "FPGA"}})
	}

	answers := atOnce(provision("a"), provision("b"), provision("c"), provision("d"))
	taken := map[string]bool{}
	for _, a := range answers {
		require.Equal(t, http.StatusCreated, a.status, a.body)
		taken[a.headers.Get("Location")] = true
	}
	require.Len(t, taken, 4, "four requests got four different accelerators")

	// Only one of two requests gets a name.
	answers = atOnce(provision("e"), provision("e"))
	statuses := []int{answers[0].status, answers[1].status}
	require.ElementsMatch(t, []int{http.StatusCreated, http.StatusConflict}, statuses, "%v", answers)

	// Only one of two requests gets the last accelerator.
	answers = atOnce(provision("f"), provision("g"))
	statuses = []int{answers[0].status, answers[1].status}

	require.ElementsMatch(t, []int{http.StatusCreated, http.StatusConflict}, statuses, "%v", answers)
	for _, a := range answers {
		if a.status == http.StatusConflict {
			require.Equal(t, "no_fit", a.body["kind"])
			require.NotEmpty(t, a.body["detail"], "the error says what came nearest")
		}
	}
}

// attachesAtOnce attaches one accelerator to two instances.
func attachesAtOnce(t *testing.T, s *harness.Standalone, send sender) {
	t.Helper()
	for _, a := range s.Accelerators(t)[:3] {
		if a.Status != cyborg.StatusReady {
			continue
		}

		at := "/v1/accelerators/" + a.UUID.String()
		answers := atOnce(
			send(http.MethodPut, at, map[string]any{"instance": "0f7e7a80-6e3c-4d5f-9a38-6a3f4dd4b001"}),
			send(http.MethodPut, at, map[string]any{"instance": "0f7e7a80-6e3c-4d5f-9a38-6a3f4dd4b002"}))

		loser := answers[0]
		if loser.status == http.StatusOK {
			loser = answers[1]
		}

		require.ElementsMatch(t, []int{http.StatusOK, http.StatusConflict}, []int{answers[0].status, answers[1].status}, "%v", answers)
		switch loser.body["kind"] {
		case "claimed":
			require.NotEmpty(t, loser.body["operation_id"], "the error names the operation that holds the claim")
		case "in_use":
			require.Contains(t, loser.body["detail"], "0f7e7a80-6e3c-4d5f-9a38-6a3f4dd4b00", "the error names the holder")
		default:
			t.Fatalf("the refusal is neither claimed nor in_use: %v", loser.body)
		}

		one, _, err := s.API.Accelerator(t.Context(), a.UUID)
		require.NoError(t, err)
		require.Len(t, one.Holders, 1)

		status, _, problem := request(t, s, http.MethodDelete, at, nil)
		require.Equal(t, http.StatusNoContent, status, problem)
	}
}

// specsAtOnce makes two changes of the same version of an accelerator's specs.
func specsAtOnce(t *testing.T, s *harness.Standalone, send sender) {
	t.Helper()
	at := "/v1/accelerators/" + named(t, s, "a").UUID.String()

	_, headers, _ := request(t, s, http.MethodGet, at, nil)
	etag := headers.Get("ETag")
	require.NotEmpty(t, etag)

	set := func(what string) func() answer {
		return send(http.MethodPut, at+"/acc_specs", map[string]any{"acc_specs": map[string]any{"acc_type": what}}, "If-Match", etag)
	}

	answers := atOnce(set("left"), set("right"))
	winner, loser := answers[0], answers[1]
	if winner.status != http.StatusOK {
		winner, loser = loser, winner
	}

	require.Equal(t, http.StatusOK, winner.status, winner.body)
	require.Equal(t, http.StatusConflict, loser.status, loser.body)
	require.Equal(t, "changed", loser.body["kind"])
	require.NotEqual(t, etag, winner.headers.Get("ETag"))

	_, headers, one := request(t, s, http.MethodGet, at, nil)
	require.Equal(t, winner.body["acc_specs"], one["acc_specs"])
	require.Equal(t, winner.headers.Get("ETag"), headers.Get("ETag"))

	etag = headers.Get("ETag")
	again := set("right")()
	require.Equal(t, http.StatusOK, again.status, again.body)
}

// asynchronous begins an operation without waiting, and follows its events.
func asynchronous(t *testing.T, s *harness.Standalone, _ sender) {
	t.Helper()
	at := "/v1/accelerators/" + named(t, s, "a").UUID.String()

	status, headers, op := request(t, s, http.MethodPut, at, map[string]any{}, "Prefer", "respond-async")
	require.Equal(t, http.StatusAccepted, status, op)
	require.Equal(t, "respond-async", headers.Get("Preference-Applied"))
	require.Equal(t, "/v1/operations/"+op["id"].(string), headers.Get("Location"))

	end := follow(t, s, headers.Get("Location")+"/events", "", nil)
	require.Equal(t, "succeeded", end[len(end)-1].event.To)

	// A reader that has every event of an ended stream gets 204, so that it does
	// not reconnect.
	status, _, _ = request(t, s, http.MethodGet, headers.Get("Location")+"/events", nil, "Last-Event-ID", end[len(end)-1].id)
	require.Equal(t, http.StatusNoContent, status)

	status, _, problem := request(t, s, http.MethodDelete, at, nil, "Prefer", "wait=600")
	require.Equal(t, http.StatusNoContent, status, problem)
}

// repeatedOverARestart repeats a request under its idempotency key, before and
// after a kill of the standalone.
func repeatedOverARestart(t *testing.T, s *harness.Standalone, send sender) {
	t.Helper()
	a := named(t, s, "a")
	at := "/v1/accelerators/" + a.UUID.String()

	device, err := s.API.Device(t.Context(), a.DeviceUUID)
	require.NoError(t, err)
	setLatency(t, s, "fake", device.Identity, fake.StepAttach, slow)

	key := uuid.NewString()
	attach := send(http.MethodPut, at, map[string]any{}, "Idempotency-Key", key, "Prefer", "respond-async")

	answers := atOnce(attach, attach, attach)
	for _, a := range answers {
		require.Equal(t, http.StatusAccepted, a.status, a.body)
		require.Equal(t, answers[0].body["id"], a.body["id"], "three requests with one key begin one operation")
	}

	other := send(http.MethodPut, at, map[string]any{"service": "ovs"}, "Idempotency-Key", key)()
	require.Equal(t, http.StatusBadRequest, other.status, "a key cannot be used for a different request: %v", other.body)

	s.Kill(t)
	setLatency(t, s, "fake", device.Identity, fake.StepAttach, 0)
	s.Restart(t)
	again := attach()
	require.Equal(t, http.StatusAccepted, again.status, again.body)
	require.Equal(t, answers[0].body["id"], again.body["id"])
	harness.RequireSound(t, s)

	again = send(http.MethodPut, at, map[string]any{}, "Idempotency-Key", key)()
	require.Equal(t, http.StatusOK, again.status, again.body)
	require.Equal(t, answers[0].body["id"], again.headers.Get("Cyborg-Operation"))

	operations, err := apiclient.Collect(s.API.Operations(t.Context(),
		apiclient.OperationFilter{Kinds: []cyborg.OperationKind{cyborg.OperationAttach}, Accelerator: a.UUID}, apiclient.Page{Limit: 1}))
	require.NoError(t, err)
	require.Equal(t, answers[0].body["id"], operations[0].ID.String(), "it is still the last operation")
}

// named returns the accelerator with this name.
func named(t *testing.T, s *harness.Standalone, name string) apiclient.Accelerator {
	t.Helper()
	found, err := apiclient.Collect(s.API.Accelerators(t.Context(), apiclient.AcceleratorFilter{Names: []string{name}}, apiclient.Page{}))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}

// received is one server-sent event.
type received struct {
	id    string
	event cyborg.Event
}

// follow reads an event stream as a browser does, and returns the events. It
// stops when done returns true or the stream ends; a nil done never does. last
// is the id of the last event that the reader has.

func follow(t *testing.T, s *harness.Standalone, path, last string, done func(received) bool) []received {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	var all []received
	err := stream(ctx, s.URL+path, last, func(r received) bool {
		all = append(all, r)
		return done == nil || !done(r)
	})

	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

// stream reads server-sent events until more returns false, or the stream or
// its connection ends.
func stream(ctx context.Context, url, last string, more func(received) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}

	request.Header.Set("Accept", "text/event-stream")
	if last != "" {
		request.Header.Set("Last-Event-ID", last)
	}

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()

	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}

	var (
		now     received
		isEvent bool // a message without data only says where the reader is
	)

	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			now.id = value
		case "data":
			isEvent = true
			if err := json.Unmarshal([]byte(value), &now.event); err != nil {
				return err
			}
		case "":
			if isEvent && !more(now) {
				return nil
			}

			now, isEvent = received{}, false
		}
	}
	return ctx.Err()
}

// TestEventStreamsSurviveKills kills the standalone while readers follow the
// feed, an accelerator and an operation. The readers reconnect, and get every
// event once and in order.
func TestEventStreamsSurviveKills(t *testing.T) {
	t.Parallel()
	// Each kill costs the install an attempt.
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:3xfpga"}, Env: append(shortWaits(), "CYBORG_OPERATIONS_ATTEMPTS=100")})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	cards := s.Accelerators(t)
	a := cards[0]
	device, err := s.API.Device(ctx, a.DeviceUUID)
	require.NoError(t, err)

	// reader follows a stream until more returns false. After a broken connection
	// it continues after the last event that it has, as a browser does.
	var readers sync.WaitGroup
	reader := func(path string, more func(received) bool) *[]received {
		got := new([]received)
		readers.Go(func() {
			last := "0-0"
			for over := false; !over && ctx.Err() == nil; {
				err := stream(ctx, s.URL+path, last, func(r received) bool {
					*got = append(*got, r)
					last = r.id
					over = !more(r)
					return !over
				})
				if err != nil && !over {
					select { // the server is away
					case <-time.After(50 * time.Millisecond):
					case <-ctx.Done():
					}
				}
			}
		})
		return got
	}

	feed := reader("/v1/events", func(r received) bool { return r.event.To != "the end" })

	setLatency(t, s, a.Host, device.Identity, fake.StepInstall, slow)
	status, headers, op := request(t, s, http.MethodPost, "/v1/accelerators/"+a.UUID.String()+"/ready", nil, "Prefer", "respond-async")
	require.Equal(t, http.StatusAccepted, status, op)
	id := op["id"].(string)

	ready := reader("/v1/events?accelerator="+a.UUID.String(), func(r received) bool {
		return r.event.Axis != cyborg.AxisLifecycle || r.event.To != string(cyborg.LifecycleReady)
	})

	ended := reader(headers.Get("Location")+"/events", func(r received) bool {
		return r.event.Axis != cyborg.AxisState || !cyborg.OperationState(r.event.To).Ended()
	})

	for i := range 3 {
		_, err := s.API.Maintain(ctx, cards[1].UUID, apiclient.Maintaining{Reason: fmt.Sprintf("round %d", i)})
		require.NoError(t, err)
		s.Kill(t)
		if i == 2 {
			setLatency(t, s, a.Host, device.Identity, fake.StepInstall, 0)
		}
		s.Restart(t)
		_, err = s.API.Enable(ctx, cards[1].UUID)
		require.NoError(t, err)
	}
	harness.RequireSound(t, s)

	sendEnd(t, s, cards[2].UUID)
	readers.Wait()
	require.NoError(t, ctx.Err(), "the readers have not got their last event in time")

	// The readers have got what is recorded, in the same order.
	recorded := follow(t, s, "/v1/events", "0-0", func(r received) bool { return r.event.To == "the end" })
	require.Equal(t, recorded, *feed)

	seen := map[string]bool{}
	for _, r := range *feed {
		require.False(t, seen[r.id], "event %s came twice", r.id)
		seen[r.id] = true
	}

	only := func(keep func(cyborg.Event) bool) []received {
		var out []received
		for _, r := range recorded {
			if keep(r.event) {
				out = append(out, r)
			}
		}
		return out
	}

	require.Equal(t, only(func(e cyborg.Event) bool { return e.Operation.String() == id || e.Subject.ID == id }), *ended)
	ofIt := only(func(e cyborg.Event) bool { return e.Subject.ID == a.UUID.String() })
	require.Equal(t, ofIt[:len(*ready)], *ready)

	last := (*ready)[len(*ready)-1].event
	require.Equal(t, string(cyborg.LifecycleReady), last.To)
	require.Equal(t, id, last.Operation.String())

	rounds := only(func(e cyborg.Event) bool {
		return e.Subject.ID == cards[1].UUID.String() && e.Axis == cyborg.AxisAdministration && e.From != ""
	})
	require.Len(t, rounds, 6, "three times into maintenance and back")
}

// sendEnd names an accelerator "the end", which makes an event that ends the
// readers.
func sendEnd(t *testing.T, s *harness.Standalone, id uuid.UUID) {
	t.Helper()
	status, _, problem := request(t, s, http.MethodPost, "/v1/accelerators/"+id.String(), map[string]any{"name": "the end"})
	require.Equal(t, http.StatusCreated, status, problem)
}
