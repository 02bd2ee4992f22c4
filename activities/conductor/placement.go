package conductor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/openstack/placement"
	"github.com/cyborg-project/cyborg/workflows"
)

// PlacementStore is what the activities about Placement need of the records.
type PlacementStore interface {
	Placement(ctx context.Context, host string) (db.PlacementHost, error)
	RecordedProviders(ctx context.Context, providers []uuid.UUID) ([]uuid.UUID, error)
	SavePlacementMarks(ctx context.Context, host string, version int64, marks []byte) (bool, error)
	RecordPlacement(ctx context.Context, outcome db.PlacementOutcome) error
	ComparePlacement(ctx context.Context, every time.Duration, before []string) (string, error)
	UncomparePlacement(ctx context.Context, host string) error
	Accelerator(ctx context.Context, id uuid.UUID) (cyborg.Accelerator, error)
}

// Placement is what follows the records in OpenStack Placement.
type Placement struct {
	store   PlacementStore
	client  *placement.Client
	options PlacementOptions
	log     *slog.Logger
}

// PlacementOptions are the choices.
type PlacementOptions struct {
	// CompareEvery is how often a host's whole tree is compared with the records.
	CompareEvery time.Duration
	// Width is of how many hosts the trees are compared at once.
	Width int
	// Repaired, where given, is told of each difference that nobody had asked for and that was repaired.
	Repaired func(class cyborg.DriftClass)
}

// NewPlacement returns the activities that touch Placement.
func NewPlacement(store PlacementStore, client *placement.Client, options PlacementOptions, log *slog.Logger) *Placement {
	return &Placement{store: store, client: client, options: options, log: log}
}

// Queued lists the activities of workflows.PlacementQueue.
func (p *Placement) Queued() map[string]any {
	return map[string]any{workflows.SyncPlacementActivity: p.Sync}
}

const (
	// collisions is how often others may change the same before we let Temporal try again.
	collisions = 6
	// retryPause is when what Placement refused is tried again at first.
	retryPause = 30 * time.Second
)

// Sync brings a host into step. What Placement refuses is recorded, and no error.
func (p *Placement) Sync(ctx context.Context, in workflows.SyncPlacementInput) (workflows.SyncPlacementResult, error) {
	defer alive(ctx)()
	done, err := p.bring(ctx, in.Host, nil)
	out := workflows.SyncPlacementResult{Waits: done.waits}
	for _, d := range done.differences {
		out.Differences = append(out.Differences, fmt.Sprintf("%s %s: %s", d.Class, d.Name, d.Detail))
	}
	return out, workflows.ToFailure(err)
}

// brought is what came of bringing a host into step.
type brought struct {
	compared    bool
	differences []placement.Difference
	waits       string
	closed      map[uuid.UUID]bool // the providers of which nothing may be scheduled
}

// bring makes the tree of a host as the records say, and records that. Where confirm names providers, what is reserved of
// them stays reserved until the records say otherwise, whoever else is about to write.
//
// The order is what makes it right: the records' version, then Placement's generations; then it is made sure that the version
// is still the records', and each write is refused where the generation is another by then. So nothing that is written
// stands on older records than what is there.
func (p *Placement) bring(ctx context.Context, host string, confirm []uuid.UUID) (brought, error) {
	var err error
	for collision := range collisions {
		var done brought
		if done, err = p.try(ctx, host, confirm, collision == 0); err == nil {
			return done, nil
		}
		if kind := cyborg.ErrorKindOf(err); kind != cyborg.ErrChanged {
			break
		}
	}
	switch kind := cyborg.ErrorKindOf(err); {
	case kind == cyborg.ErrChanged:
		return brought{}, cyborg.Errorf(cyborg.ErrBusy, "others keep changing the resource providers of host %s: %w", host, err)
	case kind.Retryable() || ctx.Err() != nil:
		return brought{}, err
	}
	p.log.WarnContext(ctx, "Placement cannot be brought into step", slog.String("host", host), slog.String("error", err.Error()))
	out := db.PlacementOutcome{Host: host, Error: err.Error(), TryIn: retryPause, Drift: []cyborg.Drift{
		{Class: cyborg.DriftRefused, Detail: cyborg.Sanitize(err.Error(), 1000)},
	}}
	if failed := p.store.RecordPlacement(ctx, out); failed != nil {
		return brought{}, failed
	}
	if confirm != nil {
		return brought{}, err
	}
	return brought{waits: err.Error()}, nil
}

// try is one try of bring. The error is of kind ErrChanged where it should be tried again at once, then without trusting that what
// was never written is not there.
func (p *Placement) try(ctx context.Context, host string, confirm []uuid.UUID, trusting bool) (brought, error) {
	records, err := p.store.Placement(ctx, host)
	if err != nil {
		return brought{}, err
	}
	marks := placement.Marks{}
	if err := json.Unmarshal(records.Marks, &marks); err != nil {
		return brought{}, cyborg.Errorf(cyborg.ErrInternal, "what was written of host %s cannot be read: %w", host, err)
	}
	wanted := wantedOf(records)
	unusable, err := p.client.Usable(ctx, wanted)
	if err != nil {
		return brought{}, err
	}
	tree, err := p.client.Read(ctx, placement.Request{
		Host: host, Wanted: wanted, Marks: marks, Allocations: records.Compare, Trusting: trusting,
	})
	if err != nil {
		return brought{}, err
	}
	if err := p.leaveToOthers(ctx, wanted, &tree); err != nil {
		return brought{}, err
	}
	plan := placement.NewPlan(wanted, tree, marks)
	plan.Confirm(wanted, confirm)
	if !plan.Empty() {
		if err := p.write(ctx, host, records.Version, marks.With(wanted), plan); err != nil {
			return brought{}, err
		}
	}
	done := brought{
		compared: records.Compare, differences: append(plan.Differences, unusable...), closed: map[uuid.UUID]bool{},
	}
	if records.Compare {
		done.differences = append(done.differences, unequalUse(records, tree)...)
	}
	for _, w := range wanted {
		done.closed[w.UUID] = w.Reserved == w.Total
	}
	return done, p.record(ctx, host, records, plan.Marks, &done)
}

func wantedOf(records db.PlacementHost) []placement.Provider {
	deployables := make([]placement.Deployable, len(records.Deployables))
	for i := range records.Deployables {
		d := &records.Deployables[i]
		deployables[i] = placement.Deployable{Accelerator: d.Accelerator, Untouched: d.Untouched, Outside: d.Outside}
	}
	return placement.Wanted(deployables, records.Silent)
}

// write records what is about to be written, and writes it.
func (p *Placement) write(ctx context.Context, host string, version int64, marks placement.Marks, plan *placement.Plan) error {
	text, err := json.Marshal(marks)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "%w", err)
	}
	current, err := p.store.SavePlacementMarks(ctx, host, version, text)
	if err != nil {
		return err
	}
	if !current {
		return cyborg.Errorf(cyborg.ErrChanged, "the records of host %s have changed meanwhile", host)
	}
	return p.client.Apply(ctx, plan)
}

// leaveToOthers takes out of the tree what belongs to another host of ours: that one brings it back.
func (p *Placement) leaveToOthers(ctx context.Context, wanted []placement.Provider, tree *placement.Tree) error {
	var unknown []uuid.UUID
	for id := range tree.Nodes {
		if !slices.ContainsFunc(wanted, func(w placement.Provider) bool { return w.UUID == id }) {
			unknown = append(unknown, id)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	recorded, err := p.store.RecordedProviders(ctx, unknown)
	for _, id := range recorded {
		delete(tree.Nodes, id)
	}
	return err
}

// record says in the records how far the host is.
func (p *Placement) record(ctx context.Context, host string, records db.PlacementHost, marks placement.Marks, done *brought) error {
	text, err := json.Marshal(marks)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "%w", err)
	}
	out := db.PlacementOutcome{Host: host, Version: records.Version, Compared: records.Compare, Marks: text}
	for _, d := range done.differences {
		if d.Class == cyborg.DriftNoComputeNode {
			out.Error, out.TryIn = d.Detail, retryPause
			done.waits = d.Detail
		}
		// What was asked for by a change of the records, and is done, is no drift.
		if !d.Repaired || records.Compare {
			out.Drift = addDrift(out.Drift, host, d)
		}
		if d.Repaired && records.Compare {
			p.log.WarnContext(ctx, "Placement was not as it had been left, and is again", slog.String("host", host),
				slog.String("class", string(d.Class)), slog.String("provider", d.Name), slog.String("detail", d.Detail))
			if p.options.Repaired != nil {
				p.options.Repaired(d.Class)
			}
		}
	}
	return p.store.RecordPlacement(ctx, out)
}

// addDrift adds a difference; two of one class and provider are told as one.
func addDrift(to []cyborg.Drift, host string, d placement.Difference) []cyborg.Drift {
	const longest = 1000
	for i := range to {
		if to[i].Class == d.Class && to[i].Provider == d.Provider {
			to[i].Detail = cyborg.Sanitize(to[i].Detail+"; "+d.Detail, longest)
			return to
		}
	}
	drift := cyborg.Drift{Host: host, Class: d.Class, Provider: d.Provider, Name: d.Name, Detail: cyborg.Sanitize(d.Detail, longest)}
	if d.Repaired {
		drift.RepairedAt = time.Now()
	}
	return append(to, drift)
}

// unequalUse finds where Placement and the records do not agree on who uses what, and what of that is no longer there. Nothing
// of it is repaired: allocations are Nova's.
func unequalUse(records db.PlacementHost, tree placement.Tree) []placement.Difference {
	var out []placement.Difference
	if tree.Root == nil {
		return nil
	}
	for i := range records.Deployables {
		d := &records.Deployables[i]
		node := tree.Nodes[d.ProviderUUID]
		if node == nil {
			node = &placement.Node{} // it was not there, and nobody has an allocation of it
		}
		differ := func(class cyborg.DriftClass, format string, args ...any) {
			out = append(out, placement.Difference{
				Class: class, Provider: d.ProviderUUID, Name: d.ProviderName, Detail: fmt.Sprintf(format, args...),
			})
		}
		consumers := node.Consumers()
		if d.Presence == cyborg.PresenceMissing && len(consumers) > 0 {
			differ(cyborg.DriftVanishedInUse, "it has vanished, and %s has an allocation of it", strings.Join(consumers, ", "))
		}
		unknown := slices.DeleteFunc(consumers, func(consumer string) bool { _, known := d.Instances[consumer]; return known })
		if len(unknown) > 0 {
			differ(cyborg.DriftUnknownAllocation, "%s has an allocation of it, and no accelerator request", strings.Join(unknown, ", "))
		}
		var missing []string
		for _, instance := range slices.Sorted(maps.Keys(d.Instances)) {
			if bound, has := d.Instances[instance], node.Has(instance); has < bound {
				missing = append(missing, fmt.Sprintf("%s has %d of it by accelerator requests, and %d allocated", instance, bound, has))
			}
		}
		if len(missing) > 0 {
			differ(cyborg.DriftMissingAllocation, "%s", strings.Join(missing, "; "))
		}
	}
	return out
}

// Compare compares the trees of hosts that were compared longest ago, and repairs what differs. Where Placement does not
// answer for one of them, it does not try the others. It takes a host only when it is its turn: where this process dies, few wait
// until somebody else may take them.
func (p *Placement) Compare(ctx context.Context, in workflows.ComparePlacementInput) (workflows.ComparePlacementResult, error) {
	defer alive(ctx)()
	out := workflows.ComparePlacementResult{Drift: map[cyborg.DriftClass]int{}}
	var (
		mu     sync.Mutex
		askers sync.WaitGroup
		taken  []string
		failed error // of the records
		away   bool
	)
	take := func() string {
		mu.Lock()
		defer mu.Unlock()
		if away || failed != nil || len(taken) >= in.Hosts {
			return ""
		}
		var host string
		host, failed = p.store.ComparePlacement(ctx, p.options.CompareEvery, taken)
		taken = append(taken, host)
		return host
	}
	compare := func(host string) {
		done, err := p.bring(ctx, host, nil)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			out.Failed = append(out.Failed, "host "+host+": "+err.Error())
			away = away || cyborg.ErrorKindOf(err) != cyborg.ErrBusy
			failed = errors.Join(failed, p.store.UncomparePlacement(context.WithoutCancel(ctx), host))
			return
		}
		out.Compared++
		for _, d := range done.differences {
			out.Drift[d.Class]++
			if d.Repaired {
				out.Repaired++
			}
		}
	}
	for range max(p.options.Width, 1) {
		askers.Go(func() {
			for host := take(); host != ""; host = take() {
				compare(host)
			}
		})
	}
	askers.Wait()
	return out, workflows.ToFailure(failed)
}

// Fence confirms that nothing more of these accelerators is given away, and then that nobody has an allocation of them. The
// error is of kind ErrInUse where somebody has.
func (p *Placement) Fence(ctx context.Context, in workflows.FencePlacementInput) error {
	defer alive(ctx)()
	providers, names := []uuid.UUID{}, map[uuid.UUID]string{}
	for _, id := range in.Accelerators {
		a, err := p.store.Accelerator(ctx, id)
		if err != nil {
			return workflows.ToFailure(err)
		}
		providers = append(providers, a.ProviderUUID)
		names[a.ProviderUUID] = a.Name
	}
	done, err := p.bring(ctx, in.Host, providers)
	if err != nil {
		return workflows.ToFailure(err)
	}
	for _, provider := range providers {
		if !done.closed[provider] {
			return workflows.ToFailure(cyborg.Errorf(cyborg.ErrInternal, "accelerator %q is not fenced in the records", names[provider]))
		}
		if err := p.unallocated(ctx, names[provider], provider, func(consumer string) bool {
			return !slices.Contains(in.Consumers, consumer)
		}); err != nil {
			return workflows.ToFailure(err)
		}
	}
	return nil
}

// CheckAllocations refuses where one of the consumers has an allocation of the accelerator.
func (p *Placement) CheckAllocations(ctx context.Context, in workflows.CheckAllocationsInput) error {
	defer alive(ctx)()
	a, err := p.store.Accelerator(ctx, in.Accelerator)
	if err != nil {
		return workflows.ToFailure(err)
	}
	return workflows.ToFailure(p.unallocated(ctx, a.Name, a.ProviderUUID, func(consumer string) bool {
		return slices.Contains(in.Consumers, consumer)
	}))
}

func (p *Placement) unallocated(ctx context.Context, name string, provider uuid.UUID, counts func(consumer string) bool) error {
	allocations, err := p.client.Allocations(ctx, provider)
	if err != nil {
		return err
	}
	var consumers []string
	for consumer := range allocations {
		if counts(consumer) {
			consumers = append(consumers, consumer)
		}
	}
	if len(consumers) == 0 {
		return nil
	}
	slices.Sort(consumers)
	return cyborg.Errorf(cyborg.ErrInUse, "Placement has accelerator %q allocated to %s", name, strings.Join(consumers, ", ")).
		WithHint("Delete the instance, or unbind its accelerator request, first: Nova believes that it has the accelerator.")
}

// allocated says whether a consumer has an allocation of one of the providers.
func (p *Placement) allocated(ctx context.Context, consumer uuid.UUID, providers []uuid.UUID) (bool, error) {
	for _, provider := range providers {
		allocations, err := p.client.Allocations(ctx, provider)
		if err != nil {
			return false, err
		}
		if _, has := allocations[consumer.String()]; has {
			return true, nil
		}
	}
	return false, nil
}

// The activities of workflows.ConductorQueue: a process without Placement leaves them to one that has it.

func (a *Activities) fencePlacement(ctx context.Context, in workflows.FencePlacementInput) error {
	if a.cloud.Placement == nil {
		return workflows.ToFailure(withoutPlacement())
	}
	return a.cloud.Placement.Fence(ctx, in)
}

func (a *Activities) checkAllocations(ctx context.Context, in workflows.CheckAllocationsInput) error {
	if a.cloud.Placement == nil {
		return workflows.ToFailure(withoutPlacement())
	}
	return a.cloud.Placement.CheckAllocations(ctx, in)
}

func (a *Activities) comparePlacement(ctx context.Context, in workflows.ComparePlacementInput) (workflows.ComparePlacementResult, error) {
	if a.cloud.Placement == nil {
		return workflows.ComparePlacementResult{}, workflows.ToFailure(withoutPlacement())
	}
	return a.cloud.Placement.Compare(ctx, in)
}

func withoutPlacement() error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "this process has no Placement to ask").
		WithHint("Give all servers the same configuration of openstack and placement.")
}
