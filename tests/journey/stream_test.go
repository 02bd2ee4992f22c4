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

// answer is what one of several requests at the same time got.
type answer struct {
	status  int
	headers http.Header
	body    map[string]any
}

// atOnce sends the requests at the same moment and returns the answers in their order.
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

// Many at once ask for the same and for different things: each gets one clear answer, nothing is handed out twice, and a
// repeated request is the same one, also of another process.
func TestManyAtOnce(t *testing.T) { //nolint:tparallel // chapters of one story
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

type sender func(method, path string, body any, headers ...string) func() answer

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
	require.Len(t, taken, 4, "each took another accelerator")

	// One name goes to one of them.
	answers = atOnce(provision("e"), provision("e"))
	statuses := []int{answers[0].status, answers[1].status}
	require.ElementsMatch(t, []int{http.StatusCreated, http.StatusConflict}, statuses, "%v", answers)
	// Of the last one there is only one.
	answers = atOnce(provision("f"), provision("g"))
	statuses = []int{answers[0].status, answers[1].status}
	require.ElementsMatch(t, []int{http.StatusCreated, http.StatusConflict}, statuses, "%v", answers)
	for _, a := range answers {
		if a.status == http.StatusConflict {
			require.Equal(t, "no_fit", a.body["kind"])
			require.NotEmpty(t, a.body["detail"], "it says what came nearest")
		}
	}
}

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
			require.NotEmpty(t, loser.body["operation_id"], "it names the operation that is in the way")
		case "in_use":
			require.Contains(t, loser.body["detail"], "0f7e7a80-6e3c-4d5f-9a38-6a3f4dd4b00", "it names the holder")
		default:
			t.Fatalf("it says %v", loser.body)
		}
		one, _, err := s.API.Accelerator(t.Context(), a.UUID)
		require.NoError(t, err)
		require.Len(t, one.Holders, 1)
		status, _, problem := request(t, s, http.MethodDelete, at, nil)
		require.Equal(t, http.StatusNoContent, status, problem)
	}
}

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

func asynchronous(t *testing.T, s *harness.Standalone, _ sender) {
	t.Helper()
	at := "/v1/accelerators/" + named(t, s, "a").UUID.String()
	status, headers, op := request(t, s, http.MethodPut, at, map[string]any{}, "Prefer", "respond-async")
	require.Equal(t, http.StatusAccepted, status, op)
	require.Equal(t, "respond-async", headers.Get("Preference-Applied"))
	require.Equal(t, "/v1/operations/"+op["id"].(string), headers.Get("Location"))
	end := follow(t, s, headers.Get("Location")+"/events", "", nil)
	require.Equal(t, "succeeded", end[len(end)-1].event.To)

	// Who has all of a stream that is over is told not to come again.
	status, _, _ = request(t, s, http.MethodGet, headers.Get("Location")+"/events", nil, "Last-Event-ID", end[len(end)-1].id)
	require.Equal(t, http.StatusNoContent, status)
	status, _, problem := request(t, s, http.MethodDelete, at, nil, "Prefer", "wait=20")
	require.Equal(t, http.StatusNoContent, status, problem)
}

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
		require.Equal(t, answers[0].body["id"], a.body["id"], "three requests, one operation")
	}
	other := send(http.MethodPut, at, map[string]any{"service": "ovs"}, "Idempotency-Key", key)()
	require.Equal(t, http.StatusBadRequest, other.status, "the key of another request: %v", other.body)

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
	require.Equal(t, answers[0].body["id"], operations[0].ID.String(), "there is none after it")
}

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

// follow reads an event stream as a browser does, until done says so or the stream ends, and returns what came. It
// asserts that nothing came twice.
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

// stream reads server-sent events until more says no, or the stream ends; a broken connection is the end of it too.
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
	var now received
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			now.id = value
		case "data":
			if err := json.Unmarshal([]byte(value), &now.event); err != nil {
				return err
			}
		case "":
			if now.id == "" { // a comment, or the time to wait
				continue
			}
			if !more(now) {
				return nil
			}
			now = received{}
		}
	}
	return ctx.Err()
}

// Readers of the feed and of an operation stay through kill -9 and restart, and get every event once and in order; one
// of them only waits for "ready".
func TestStreamsOverKills(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:3xfpga"}, Env: shortWaits()})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cards := s.Accelerators(t)
	a := cards[0]
	device, err := s.API.Device(ctx, a.DeviceUUID)
	require.NoError(t, err)

	// reader goes on after the last event that it has, as a browser does.
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
					select { // it is away
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
	require.NoError(t, ctx.Err(), "the readers have not come to their end")

	// What the feed brought is what is recorded, in the same order.
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
	require.Len(t, rounds, 6, "three times out of use and back")
}

// sendEnd makes an event that nothing else makes: an accelerator gets a name.
func sendEnd(t *testing.T, s *harness.Standalone, id uuid.UUID) {
	t.Helper()
	status, _, problem := request(t, s, http.MethodPost, "/v1/accelerators/"+id.String(), map[string]any{"name": "the end"})
	require.Equal(t, http.StatusCreated, status, problem)
}
