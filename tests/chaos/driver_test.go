package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/tests/harness"
)

const (
	// park describes the fake cards of each host: cards that the schedule names,
	// and spare ones for provisions.
	park = "20xfpga"

	// spareBackend is the backend that operations configure. It has one card, in a
	// PCI domain of its own.
	spareBackend = "spare"
	spareDomain  = "01fa"

	// held is the duration of a step that a fault is to meet. The step is let go
	// long before.
	held = fake.Duration(10 * time.Minute)

	// heldWhileBooting is that of a step which an agent also takes when its host has booted,
	// before it takes any other. It must be back in time for those: see backWithin.
	heldWhileBooting = fake.Duration(8 * time.Second)

	tryLimit    = 30 * time.Second // for one try of a request
	answerLimit = 10 * time.Minute // for the answer to a request, with all its tries
	reachLimit  = 15 * time.Second // for a step to get under way
)

// answer is the final answer that a client got to one request, which it may
// have sent several times under one key.
type answer struct {
	key         string
	what        string
	kind        cyborg.OperationKind
	accelerator uuid.UUID
	holder      cyborg.Holder
	trace       trace     // what its success leaves in the feed, where it is not empty
	asked, at   time.Time // when the last try began, and when it was answered
	status      int       // HTTP status of a success
	operation   uuid.UUID // the operation that continues, where status is 202
	err         error     // the API's refusal, or the operation's failure
	unanswered  bool      // no try got a final answer
	hung        bool      // a try got no answer at all before the last one did, and may have come later
}

// driver requests operations as clients do, and remembers every answer.
type driver struct {
	t      testing.TB
	c      *harness.Cluster
	cloud  *cloud
	ledger ledger

	// losing is closed in each round when what is committed may be lost.
	losing     chan struct{}
	beginsLoss func() // closes it; further calls do nothing

	replaced map[string]bool // hosts that have got another journal in an earlier round

	mu sync.Mutex // guards the fields below
	// prepared are the accelerators whose hosts prepare their handles.
	prepared map[uuid.UUID]bool
	laid     map[string][]tripwire // of the present round, by host
	answers  []answer
	failed   []failedTry
	count    int // for unique keys and names
}

// request is one change that a client requests.
type request struct {
	what        string // for people
	kind        cyborg.OperationKind
	accelerator uuid.UUID
	holder      cyborg.Holder
	trace       trace // what its success leaves in the feed; empty where that follows from its kind
	api         int   // index of the API that gets the first try
	async       bool  // the client does not wait for the end
	send        func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error)
}

// ask sends a request until it has a final answer, to one API and then to the
// other, always under the same idempotency key.
func (d *driver) ask(ctx context.Context, r request) answer {
	d.mu.Lock()
	d.count++
	a := answer{
		key: fmt.Sprintf("chaos-%d", d.count), what: r.what, kind: r.kind, accelerator: r.accelerator, holder: r.holder, trace: r.trace,
	}
	d.mu.Unlock()

	options := []apiclient.Option{apiclient.Key(a.key)}
	if r.async {
		options = append(options, apiclient.Async())
	}

	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()

	for try := 0; ; try++ {
		a.asked = time.Now()
		api := (r.api + try) % len(d.c.APIs)
		limited, stop := context.WithTimeout(ctx, tryLimit)
		got, err := r.send(limited, d.c.APIs[api], options...)
		stop()
		d.noteTry(failedTry{what: r.what, api: nodesOf(harness.NodeAPI)[api], began: a.asked, err: err})
		a.status, a.err, a.at = got.Status, err, time.Now()
		if err == nil && got.Operation != nil {
			a.operation = got.Operation.ID
		}

		if err == nil || definite(err) {
			break
		}
		if _, answered := errors.AsType[*apiclient.Problem](err); !answered {
			a.hung = true
		}
		if clock.Sleep(ctx, 150*time.Millisecond) != nil {
			a.unanswered = true
			break
		}
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers = append(d.answers, a)
	return a
}

// definite reports whether an error is the final answer to a request: a
// refusal, or the failure of its operation.
func definite(err error) bool {
	problem, ok := errors.AsType[*apiclient.Problem](err)
	if !ok {
		return false
	}

	if problem.Err.Operation != uuid.Nil {
		return true
	}
	return problem.Status < http.StatusInternalServerError && problem.Status != http.StatusTooManyRequests
}

// remembered returns the answers so far.
func (d *driver) remembered() []answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.answers)
}

// find returns the accelerator of the work's card. For a provision it returns a
// spare one that is not in service.
func (d *driver) find(ctx context.Context, j *job) (apiclient.Accelerator, error) {
	all, err := d.accelerators(ctx, j.host)
	if err != nil {
		return apiclient.Accelerator{}, err
	}

	chosen := all[j.work.card]
	if j.kind == cyborg.OperationProvision {
		spare := all[cards+j.work.card : len(all)-novaCards]
		i := slices.IndexFunc(spare, func(a apiclient.Accelerator) bool { return a.Lifecycle != cyborg.LifecycleReady })
		if i < 0 { // all are in service, so one is retired
			i = 0
			if err := d.mustDo(ctx, d.retire(spare[i].UUID)); err != nil {
				return chosen, err
			}
		}
		chosen = spare[i]
	}

	return chosen, d.findCard(ctx, j, chosen)
}

// accelerators returns the accelerators of a host's cards, sorted by name.
// Those of the spare backend are left out.
func (d *driver) accelerators(ctx context.Context, host string) ([]apiclient.Accelerator, error) {
	all, err := apiclient.Collect(d.c.API.Accelerators(ctx, apiclient.AcceleratorFilter{
		Hosts: []string{host}, Backends: []string{"fake"},
	}, apiclient.Page{}))
	if err == nil && len(all) <= 2*cards+novaCards {
		err = fmt.Errorf("host %s has only %d accelerators", host, len(all))
	}

	slices.SortFunc(all, func(a, b apiclient.Accelerator) int { return strings.Compare(a.ProviderName, b.ProviderName) })
	return all, err
}

// findCard sets the card of the job, whose step can be held.
func (d *driver) findCard(ctx context.Context, j *job, a apiclient.Accelerator) error {
	device, err := d.c.API.Device(ctx, a.DeviceUUID)
	j.card = device.Identity
	return err
}

// makeReady takes an accelerator into service where it is not ready.
func (d *driver) makeReady(ctx context.Context, a apiclient.Accelerator) (apiclient.Accelerator, error) {
	if a.Lifecycle != cyborg.LifecycleReady {
		if err := d.free(ctx, a); err != nil {
			return a, err
		}

		if err := d.mustDo(ctx, d.makingReady(a.UUID)); err != nil {
			return a, err
		}
	}

	now, _, err := d.c.API.Accelerator(ctx, a.UUID)
	return now, err
}

// makingReady returns the request that takes an accelerator into service.
func (d *driver) makingReady(id uuid.UUID) request {
	return request{
		what: "make ready", kind: cyborg.OperationProvision, accelerator: id,
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.MakeReady(ctx, id, options...)
		},
	}
}

// free releases every handle of an accelerator.
func (d *driver) free(ctx context.Context, a apiclient.Accelerator) error {
	released, err := d.release(ctx, a.UUID)
	if err == nil && released {
		a, _, err = d.c.API.Accelerator(ctx, a.UUID)
	}

	if err != nil || len(a.Holders) == 0 {
		return err
	}
	if err := d.mustDo(ctx, d.detach(a.UUID, cyborg.Holder{}, 0, false)); err != nil {
		return err
	}
	return d.takenBack(ctx, a.UUID)
}

// mustDo requests an operation while there is no fault, and waits for its
// success. It repeats what fails for a passing reason, because an agent may be
// slow on a busy machine.
func (d *driver) mustDo(ctx context.Context, r request) (err error) {
	for range 10 {
		if err = d.doOnce(ctx, r); err == nil {
			return nil
		}

		if kind := cyborg.ErrorKindOf(err); kind != cyborg.ErrHostSilent && !kind.Retryable() {
			return err
		}
		r.trace = trace{} // what has failed may have left it
	}
	return err
}

// doOnce requests an operation once, and waits for its success.
func (d *driver) doOnce(ctx context.Context, r request) error {
	a := d.ask(ctx, r)
	if a.err != nil || a.operation == uuid.Nil {
		return a.err
	}

	op, err := d.await(ctx, a.operation)
	if err == nil && op.State != cyborg.OperationSucceeded {
		err = fmt.Errorf("the operation %q ended %s: %w", r.what, op.State, op.Error)
	}
	return err
}

// await waits until an operation has ended.
func (d *driver) await(ctx context.Context, id uuid.UUID) (apiclient.Operation, error) {
	for {
		op, err := d.operation(ctx, id)
		if err == nil && op.State.Ended() {
			return op, nil
		}

		if clock.Sleep(ctx, 50*time.Millisecond) != nil {
			return op, fmt.Errorf("operation %s has not ended: %w", id, ctx.Err())
		}
	}
}

// operation reads an operation, past the links, from the first API that
// answers.
func (d *driver) operation(ctx context.Context, id uuid.UUID) (op apiclient.Operation, err error) {
	for _, api := range d.c.Directs {
		limited, cancel := context.WithTimeout(ctx, time.Second)
		op, err = api.Operation(limited, id)
		cancel()
		if err == nil {
			return op, nil
		}
	}
	return op, err
}

// prepareConfigure chooses how the work changes the spare backend. It installs
// the backend where that has never been, because only a card that has a file can
// be held.
func (d *driver) prepareConfigure(ctx context.Context, j *job) error {
	settings := func() cyborg.JSONObject { // other ones each time
		return cyborg.JSONObject{"park": "1xfpga", "domain": spareDomain, "install_latency": fmt.Sprintf("%dms", d.serial())}
	}
	backends, err := apiclient.Collect(d.c.API.Drivers(ctx, []string{j.host}, apiclient.Page{}))
	if err != nil {
		return err
	}

	i := slices.IndexFunc(backends, func(b cyborg.Backend) bool { return b.Name == spareBackend })
	if i < 0 {
		return fmt.Errorf("host %s has no backend %s", j.host, spareBackend)
	}
	j.card = spareDomain + ":01:00.0"

	subject := string(cyborg.SubjectBackend) + " " + j.host + "/" + spareBackend
	changed := trace{subject: subject, axis: cyborg.AxisOptions}

	installing := func(async bool) request {
		options := settings()
		return request{
			what: "install driver", kind: cyborg.OperationConfigure, trace: changed, api: j.api, async: async,
			send: func(ctx context.Context, c *apiclient.Client, more ...apiclient.Option) (apiclient.Answer, error) {
				return c.InstallDriver(ctx, j.host, spareBackend, "fake", options, more...)
			},
		}
	}

	disabled := backends[i].State == cyborg.BackendDisabled
	_, err = d.c.Bench(j.host).Card(ctx, j.card)
	if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
		disabled, err = false, d.mustDo(ctx, installing(false))
	}
	if err != nil {
		return err
	}

	switch {
	case disabled:
		j.request = installing(j.async)
	case j.work.card%2 == 0:
		options := settings()
		j.request = request{
			what: "update driver", kind: cyborg.OperationConfigure, trace: changed, api: j.api, async: j.async,
			send: func(ctx context.Context, c *apiclient.Client, more ...apiclient.Option) (apiclient.Answer, error) {
				return c.UpdateDriver(ctx, j.host, spareBackend, options, more...)
			},
		}
	default:
		j.request = request{
			what: "uninstall driver", kind: cyborg.OperationConfigure, api: j.api, async: j.async,
			trace: trace{subject, cyborg.AxisState, string(cyborg.BackendDisabled)},
			send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
				return c.UninstallDriver(ctx, j.host, spareBackend, options...)
			},
		}
	}

	return nil
}

// serial returns a number that is not used yet.
func (d *driver) serial() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
	return d.count
}

// hold makes the job's step last until letGo.
func (d *driver) hold(ctx context.Context, j *job) error {
	if j.step == "" {
		return nil
	}

	if j.step == stepReboot {
		d.cloud.nova.Hold()
		j.letGo = sync.OnceFunc(func() { d.cloud.nova.Release("Success") })
		return nil
	}

	set := func(latency fake.Duration) error {
		return d.c.Bench(j.host).Edit(ctx, j.card, func(card *fake.Card) {
			if latency == 0 {
				delete(card.Latency, j.step)
				return
			}
			if card.Latency == nil {
				card.Latency = map[fake.Step]fake.Duration{}
			}
			card.Latency[j.step] = latency
		})
	}

	j.letGo = sync.OnceFunc(func() {
		if err := set(0); err != nil {
			d.t.Errorf("the hold on card %s of %s cannot be ended: %v", j.card, j.host, err)
		}
	})

	if j.step == fake.StepPartition {
		return set(heldWhileBooting)
	}
	return set(held)
}

// run sends the job's requests, and returns when all are answered.
func (d *driver) run(ctx context.Context, j *job) {
	var all sync.WaitGroup

	close(j.asked)
	if j.lose {
		select {
		case <-d.losing:
		case <-ctx.Done():
		}
	}

	if j.binding != nil {
		if err := d.runRequests(ctx, j); err != nil {
			d.t.Errorf("%s: %v", j.work, err)
		}
		return
	}

	if j.crossing != nil {
		d.runCrossing(ctx, j)
		return
	}
	if j.sharing != nil {
		d.runSharing(ctx, j)
		return
	}

	if j.kind == cyborg.OperationClean {
		d.runClean(ctx, j)
		return
	}

	if j.kind == cyborg.OperationPartition {
		d.runPartition(ctx, j)
		return
	}

	all.Go(func() {
		a := d.ask(ctx, j.request)
		for try := 0; j.force && try < 20 && cyborg.ErrorKindOf(a.err) == cyborg.ErrChanged; try++ { // refused until the host counts as silent
			_ = clock.Sleep(ctx, 500*time.Millisecond) // the next request fails where ctx has ended
			a = d.ask(ctx, j.request)
		}
	})

	if j.contender.send != nil {
		all.Go(func() { d.ask(ctx, j.contender) })
	}

	all.Wait()
}

// reached returns when the job's step is under way, when its operation has
// ended, or when that takes longer than reachLimit. known tells whether the
// operation was found.
func (d *driver) reached(ctx context.Context, j *job) (known bool) {
	if j.step == "" {
		return false
	}

	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()

	for {
		if j.step == stepReboot && d.cloud.nova.Reboots(j.binding.instance) > 0 {
			return true
		}

		if op, ok := d.open(ctx, j); ok {
			known = true
			if op.State.Ended() {
				return known
			}
			if op.State == cyborg.OperationRunning && op.Progress != nil && !strings.HasPrefix(op.Progress.Note, "waits for the agent") {
				return known
			}
		}

		if clock.Sleep(ctx, 20*time.Millisecond) != nil {
			return known
		}
	}
}

// open returns the operation of the job's request, read past the links. ok is
// false while the newest operation on the accelerator is an earlier one.
func (d *driver) open(ctx context.Context, j *job) (apiclient.Operation, bool) {
	filter := apiclient.OperationFilter{Hosts: []string{j.host}, Accelerator: j.request.accelerator}
	if j.kind != kindCross { // whose newest operation may be of any kind
		filter.Kinds = []cyborg.OperationKind{j.kind}
	}

	for _, api := range d.c.Directs {
		limited, cancel := context.WithTimeout(ctx, time.Second)
		found, err := apiclient.Collect(api.Operations(limited, filter, apiclient.Page{Limit: 1}))
		if err == nil && len(found) == 1 && found[0].ID == j.earlier {
			cancel()
			return apiclient.Operation{}, false
		}

		if err == nil && len(found) == 1 {
			op, err := api.Operation(limited, found[0].ID)
			cancel()
			return op, err == nil
		}
		cancel()
	}
	return apiclient.Operation{}, false
}

// cancelIt cancels the job's operation while it is under way. The request may
// get lost, but it must not fail with an internal error.
func (d *driver) cancelIt(ctx context.Context, j *job) {
	op, ok := d.open(ctx, j)
	if !ok || op.State.Ended() {
		return
	}

	limited, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()

	_, err := d.c.APIs[j.api].CancelOperation(limited, op.ID)
	if err != nil && cyborg.ErrorKindOf(err) == cyborg.ErrInternal && limited.Err() == nil {
		d.t.Errorf("the answer to the cancellation of %s %s is an internal error: %v", op.Kind, op.ID, err)
	}
}

// retryIt retries the job's operation where it has failed, and waits for the
// end. It is called when the system is at rest.
func (d *driver) retryIt(ctx context.Context, j *job) error {
	op, ok := d.open(ctx, j)
	if !ok || op.State == cyborg.OperationSucceeded || !op.State.Ended() {
		return nil
	}

	kind := j.kind
	if j.contender.send != nil {
		kind = "" // it may be the other holder's, so nobody knows whose event follows
	}
	a := d.ask(ctx, request{
		what: "retry", kind: kind, accelerator: j.request.accelerator, holder: j.request.holder, api: j.api,
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.RetryOperation(ctx, op.ID, options...)
		},
	})

	if a.operation == uuid.Nil {
		return nil // it may be refused or fail again: by now somebody else may have the card
	}

	_, err := d.await(ctx, a.operation)
	return err
}
