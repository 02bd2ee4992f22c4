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
	// park is what stands in each host: cards for the schedule, and spare ones to take into service.
	park = "20xfpga"
	// spareBackend is the one that operations configure, with one card.
	spareBackend = "spare"
	spareDomain  = "01fa"
	// held is how long a step takes that a fault is to meet; it is let go long before.
	held = fake.Duration(10 * time.Minute)

	tryLimit    = 12 * time.Second // of one request
	answerLimit = 10 * time.Minute // until a request is answered, whatever is away meanwhile
	reachLimit  = 15 * time.Second // until a step is under way
)

// answer is what a client was told in the end about one request, which it may have sent several times under one key.
type answer struct {
	key         string
	what        string
	kind        cyborg.OperationKind
	accelerator uuid.UUID
	holder      cyborg.Holder
	status      int       // of a success
	operation   uuid.UUID // that goes on, where status is 202
	err         error     // the API's refusal, or the operation's failure
	unanswered  bool      // nobody knows
}

// driver asks for operations as clients do, and remembers every answer.
type driver struct {
	t      testing.TB
	c      *harness.Cluster
	cloud  *cloud
	ledger ledger

	mu      sync.Mutex
	answers []answer
	count   int
}

// request is one change that a client asks for.
type request struct {
	what        string
	kind        cyborg.OperationKind
	accelerator uuid.UUID
	holder      cyborg.Holder
	api         int
	async       bool
	send        func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error)
}

// ask sends a request until it is answered: by one API, then by the other, always under the same key.
func (d *driver) ask(ctx context.Context, r request) answer {
	d.mu.Lock()
	d.count++
	a := answer{
		key: fmt.Sprintf("chaos-%d", d.count), what: r.what, kind: r.kind, accelerator: r.accelerator, holder: r.holder,
	}
	d.mu.Unlock()
	options := []apiclient.Option{apiclient.Key(a.key)}
	if r.async {
		options = append(options, apiclient.Async())
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	for try := 0; ; try++ {
		limited, stop := context.WithTimeout(ctx, tryLimit)
		got, err := r.send(limited, d.c.APIs[(r.api+try)%len(d.c.APIs)], options...)
		stop()
		a.status, a.err = got.Status, err
		if err == nil && got.Operation != nil {
			a.operation = got.Operation.ID
		}
		if err == nil || definite(err) {
			break
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

// definite says whether an error is the last word on a request: a refusal, or how its operation ended.
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

// remembered are the answers so far.
func (d *driver) remembered() []answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.answers)
}

// job is a piece of work that has found its accelerator.
type job struct {
	work

	request request
	rival   request
	binding *binding // of work on accelerator requests
	host    string
	card    string // identity of the card whose step is held

	earlier uuid.UUID // the newest operation of its kind on its accelerator before it begins

	asked chan struct{} // closed when its request is on its way
	letGo func()        // lets its step go on, once
}

// holderOf is the holder of a number.
func holderOf(host string, n int) cyborg.Holder {
	switch n {
	case 0:
		return cyborg.Holder{Kind: cyborg.HolderHost, ID: host}
	case 1, 2:
		return cyborg.Holder{Kind: cyborg.HolderInstance, ID: fmt.Sprintf("5f5f5f5f-0000-4000-8000-00000000000%d", n)}
	default:
		return cyborg.Holder{Kind: cyborg.HolderService, ID: fmt.Sprintf("service-%d", n)}
	}
}

// prepare finds the accelerator of a piece of work and brings it where the work can begin.
func (d *driver) prepare(ctx context.Context, w work) (*job, error) {
	j := &job{work: w, host: hostName(w.host), asked: make(chan struct{}), letGo: func() {}}
	if w.kind == cyborg.OperationConfigure {
		return j, d.prepareConfigure(ctx, j)
	}
	if w.kind == cyborg.OperationWhitelist {
		return j, d.prepareWhitelist(ctx, j)
	}
	accelerator, err := d.find(ctx, j)
	if err != nil {
		return nil, err
	}
	if w.kind != cyborg.OperationProvision {
		if accelerator, err = d.makeReady(ctx, accelerator); err != nil {
			return nil, err
		}
	}
	id, holder := accelerator.UUID, holderOf(j.host, w.holder)
	holds := slices.Contains(accelerator.Holders, holder)
	j.request = request{kind: w.kind, accelerator: id, api: w.api, async: w.async}
	if w.ofRequests() {
		return j, d.prepareRequests(ctx, j, accelerator)
	}
	switch w.kind {
	case cyborg.OperationProvision:
		j.request.what = "make ready"
		j.request.send = func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.MakeReady(ctx, id, options...)
		}
	case cyborg.OperationProgram:
		if err := d.free(ctx, accelerator); err != nil {
			return nil, err
		}
		image, err := d.c.Image(j.host, fmt.Sprintf("image-%d", d.serial()), fake.MakeImage("FPGA", "f-"+id.String(), []byte(uuid.NewString())))
		if err != nil {
			return nil, err
		}
		j.request.what = "program"
		j.request.send = func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.Program(ctx, id, cyborg.Image{Source: image}, options...)
		}
	case cyborg.OperationRetire:
		if err := d.free(ctx, accelerator); err != nil {
			return nil, err
		}
		retire := d.retire(id)
		j.request.what, j.request.send = retire.what, retire.send
	case cyborg.OperationAttach:
		if holds || noneFree(accelerator) {
			if err := d.free(ctx, accelerator); err != nil {
				return nil, err
			}
		}
		j.request = d.attach(id, holder, w.api, w.async)
		if w.rival >= 0 {
			j.rival = d.attach(id, holderOf(j.host, w.rival), 1-w.api, true)
		}
	case cyborg.OperationDetach:
		if !holds {
			if noneFree(accelerator) {
				if err := d.free(ctx, accelerator); err != nil {
					return nil, err
				}
			}
			if err := d.mustDo(ctx, d.attach(id, holder, w.api, false)); err != nil {
				return nil, err
			}
		}
		j.request = d.detach(id, holder, w.api, w.async)
		if w.force {
			j.request.what = "detach by force"
			j.request.send = func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
				return c.ForceDetach(ctx, id, holder, options...)
			}
		}
	}
	return j, nil
}

// noneFree says that no handle is free. One holder may have several.
func noneFree(a apiclient.Accelerator) bool {
	return !slices.ContainsFunc(a.Handles, func(h cyborg.AttachHandle) bool { return h.Holder == nil })
}

func (d *driver) attach(id uuid.UUID, holder cyborg.Holder, api int, async bool) request {
	return request{
		what: "attach", kind: cyborg.OperationAttach, accelerator: id, holder: holder, api: api, async: async,
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.Attach(ctx, id, holder, options...)
		},
	}
}

func (d *driver) retire(id uuid.UUID) request {
	return request{
		what: "retire", kind: cyborg.OperationRetire, accelerator: id,
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.Retire(ctx, id, options...)
		},
	}
}

func (d *driver) detach(id uuid.UUID, holder cyborg.Holder, api int, async bool) request {
	return request{
		what: "detach", kind: cyborg.OperationDetach, accelerator: id, holder: holder, api: api, async: async,
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.Detach(ctx, id, holder, options...)
		},
	}
}

// find finds the accelerator of the work's card; for a provision one that has not been taken into service.
func (d *driver) find(ctx context.Context, j *job) (apiclient.Accelerator, error) {
	all, err := d.accelerators(ctx, j.host)
	if err != nil {
		return apiclient.Accelerator{}, err
	}
	chosen := all[j.work.card]
	if j.kind == cyborg.OperationProvision {
		spare := all[cards+j.work.card : len(all)-novas]
		i := slices.IndexFunc(spare, func(a apiclient.Accelerator) bool { return a.Lifecycle != cyborg.LifecycleReady })
		if i < 0 { // all are in service: one goes out again
			i = 0
			if err := d.mustDo(ctx, d.retire(spare[i].UUID)); err != nil {
				return chosen, err
			}
		}
		chosen = spare[i]
	}
	return chosen, d.findCard(ctx, j, chosen)
}

// accelerators are those of the fake cards of a host, by name.
func (d *driver) accelerators(ctx context.Context, host string) ([]apiclient.Accelerator, error) {
	all, err := apiclient.Collect(d.c.API.Accelerators(ctx, apiclient.AcceleratorFilter{
		Hosts: []string{host}, Backends: []string{"fake"},
	}, apiclient.Page{}))
	if err == nil && len(all) <= 2*cards+novas {
		err = fmt.Errorf("host %s shows %d accelerators", host, len(all))
	}
	slices.SortFunc(all, func(a, b apiclient.Accelerator) int { return strings.Compare(a.ProviderName, b.ProviderName) })
	return all, err
}

// findCard notes by which card the work can be held.
func (d *driver) findCard(ctx context.Context, j *job, a apiclient.Accelerator) error {
	device, err := d.c.API.Device(ctx, a.DeviceUUID)
	j.card = device.Identity
	return err
}

// makeReady takes an accelerator into service, unless it is.
func (d *driver) makeReady(ctx context.Context, a apiclient.Accelerator) (apiclient.Accelerator, error) {
	if a.Lifecycle != cyborg.LifecycleReady {
		if err := d.free(ctx, a); err != nil {
			return a, err
		}
		err := d.mustDo(ctx, request{
			what: "make ready", kind: cyborg.OperationProvision, accelerator: a.UUID,
			send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
				return c.MakeReady(ctx, a.UUID, options...)
			},
		})
		if err != nil {
			return a, err
		}
	}
	now, _, err := d.c.API.Accelerator(ctx, a.UUID)
	return now, err
}

// free takes back what is held of an accelerator.
func (d *driver) free(ctx context.Context, a apiclient.Accelerator) error {
	released, err := d.release(ctx, a.UUID)
	if err == nil && released {
		a, _, err = d.c.API.Accelerator(ctx, a.UUID)
	}
	if err != nil || len(a.Holders) == 0 {
		return err
	}
	return d.mustDo(ctx, d.detach(a.UUID, cyborg.Holder{}, 0, false))
}

// mustDo asks while nothing is wrong, and waits for the end. On a busy machine an agent may take its time: what can pass
// is tried again.
func (d *driver) mustDo(ctx context.Context, r request) (err error) {
	for range 10 {
		if err = d.doOnce(ctx, r); err == nil {
			return nil
		}
		if kind := cyborg.ErrorKindOf(err); kind != cyborg.ErrHostSilent && !kind.Retryable() {
			return err
		}
	}
	return err
}

func (d *driver) doOnce(ctx context.Context, r request) error {
	a := d.ask(ctx, r)
	if a.err != nil || a.operation == uuid.Nil {
		return a.err
	}
	op, err := d.await(ctx, a.operation)
	if err == nil && op.State != cyborg.OperationSucceeded {
		err = fmt.Errorf("%s ended %s: %w", r.what, op.State, op.Error)
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

// operation reads an operation past the links, from whichever API answers.
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

// prepareConfigure sees to it that there is a spare backend, and has the work change it.
func (d *driver) prepareConfigure(ctx context.Context, j *job) error {
	settings := cyborg.JSONObject{
		"park": "1xfpga", "domain": spareDomain, "park_dir": d.c.ParkDir(j.host), "install_latency": fmt.Sprintf("%dms", d.serial()),
	}
	backends, err := apiclient.Collect(d.c.API.Drivers(ctx, []string{j.host}, apiclient.Page{}))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(backends, func(b cyborg.Backend) bool { return b.Name == spareBackend })
	j.card = spareDomain + ":01:00.0"
	install := request{
		what: "install driver", kind: cyborg.OperationConfigure, api: j.api, async: j.async,
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.InstallDriver(ctx, j.host, spareBackend, "fake", settings, options...)
		},
	}
	if i < 0 {
		first := install
		first.async = false
		if err := d.mustDo(ctx, first); err != nil {
			return err
		}
	}
	switch {
	case i >= 0 && backends[i].State == cyborg.BackendDisabled:
		j.request = install
	case j.work.card%2 == 0:
		j.request = request{
			what: "update driver", kind: cyborg.OperationConfigure, api: j.api, async: j.async,
			send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
				return c.UpdateDriver(ctx, j.host, spareBackend, settings, options...)
			},
		}
	default:
		j.request = request{
			what: "uninstall driver", kind: cyborg.OperationConfigure, api: j.api, async: j.async,
			send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
				return c.UninstallDriver(ctx, j.host, spareBackend, options...)
			},
		}
	}
	return nil
}

func (d *driver) serial() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
	return d.count
}

// hold makes the job's step last until it is let go.
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
			d.t.Errorf("card %s of %s is not let go: %v", j.card, j.host, err)
		}
	})
	return set(held)
}

// run asks for the job's operation, and what goes with it, until all of that is answered.
func (d *driver) run(ctx context.Context, j *job) {
	var all sync.WaitGroup
	close(j.asked)
	if j.binding != nil {
		if err := d.runRequests(ctx, j); err != nil {
			d.t.Errorf("%s: %v", j.work, err)
		}
		return
	}
	all.Go(func() {
		a := d.ask(ctx, j.request)
		for try := 0; j.force && try < 20 && cyborg.ErrorKindOf(a.err) == cyborg.ErrChanged; try++ { // its host is not silent yet
			_ = clock.Sleep(ctx, 500*time.Millisecond) // then the next request fails
			a = d.ask(ctx, j.request)
		}
	})
	if j.rival.send != nil {
		all.Go(func() { d.ask(ctx, j.rival) })
	}
	all.Wait()
}

// reached returns when the job's step is under way on its host, or is past, or does not come in time. It says whether the
// operation is known.
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

// open finds the operation of the job's request, past the links; there is none while the newest is an earlier one.
func (d *driver) open(ctx context.Context, j *job) (apiclient.Operation, bool) {
	filter := apiclient.OperationFilter{Kinds: []cyborg.OperationKind{j.kind}, Hosts: []string{j.host}, Accelerator: j.request.accelerator}
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

// cancelIt asks the job's operation to stop while it is under way.
func (d *driver) cancelIt(ctx context.Context, j *job) {
	op, ok := d.open(ctx, j)
	if !ok || op.State.Ended() {
		return
	}
	limited, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	_, err := d.c.APIs[j.api].CancelOperation(limited, op.ID)
	if err != nil && cyborg.ErrorKindOf(err) == cyborg.ErrInternal && limited.Err() == nil {
		d.t.Errorf("to cancel %s %s is answered %v", op.Kind, op.ID, err)
	}
}

// retryIt tries again what has failed, when all is at rest, and waits for the end.
func (d *driver) retryIt(ctx context.Context, j *job) error {
	op, ok := d.open(ctx, j)
	if !ok || op.State == cyborg.OperationSucceeded || !op.State.Ended() {
		return nil
	}
	a := d.ask(ctx, request{
		what: "retry", kind: j.kind, accelerator: j.request.accelerator, holder: j.request.holder, api: j.api,
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.RetryOperation(ctx, op.ID, options...)
		},
	})
	if a.operation == uuid.Nil {
		return nil // it may be refused, or fail again: the card may be another's by now
	}
	_, err := d.await(ctx, a.operation)
	return err
}
