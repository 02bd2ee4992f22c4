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

// PlacementStore is what the activities about Placement need of the records;
// *db.Store implements it.
type PlacementStore interface {
	Placement(ctx context.Context, host string) (db.PlacementHost, error)
	// RecordedProviders returns those of the providers that belong to recorded
	// accelerators of any host.
	RecordedProviders(ctx context.Context, providers []uuid.UUID) ([]uuid.UUID, error)
	// SavePlacementMarks keeps what is about to be written. It keeps nothing and
	// returns false where the records of the host no longer have this version.
	SavePlacementMarks(ctx context.Context, host string, version int64, marks []byte) (bool, error)
	RecordPlacement(ctx context.Context, outcome db.PlacementOutcome) error
	// TakePlacementComparison leases the synchronised host that was compared
	// longest ago, but not within the interval, and none of those in before; "" if
	// there is none.
	TakePlacementComparison(ctx context.Context, every time.Duration, before []string) (string, error)
	// ReturnPlacementComparison gives back a host that TakePlacementComparison has
	// leased.
	ReturnPlacementComparison(ctx context.Context, host string) error
	Accelerator(ctx context.Context, id uuid.UUID) (cyborg.Accelerator, error)
}

// Placement keeps OpenStack Placement as the records say.
type Placement struct {
	store   PlacementStore
	client  *placement.Client
	options PlacementOptions
	log     *slog.Logger
}

// PlacementOptions configure the activities about Placement.
type PlacementOptions struct {
	// CompareEvery is how often a host's whole tree of providers is compared with
	// the records.
	CompareEvery time.Duration
	// Width is how many hosts are compared at the same time.
	Width int
	// Repaired, if set, is called for each repaired difference that no change of
	// the records explains.
	Repaired func(class cyborg.DriftClass)
}

// NewPlacement returns the activities that touch Placement.
func NewPlacement(store PlacementStore, client *placement.Client, options PlacementOptions, log *slog.Logger) *Placement {
	return &Placement{store: store, client: client, options: options, log: log}
}

// Queued returns the activities of workflows.PlacementQueue by their registered
// names.
func (p *Placement) Queued() map[string]any {
	return map[string]any{workflows.SyncPlacementActivity: p.Sync}
}

const (
	// maxCollisions is how many attempts may collide with changes of others before
	// Temporal's slower retries take over.
	maxCollisions = 6
	// retryPause is how long a host that could not be synchronised waits until it
	// is due again for the first time.
	retryPause = 30 * time.Second
)

// Sync is the activity that synchronises one host. Where Placement refuses a
// change, that is recorded, and Sync returns the reason in Waits instead of an
// error.
func (p *Placement) Sync(ctx context.Context, in workflows.SyncPlacementInput) (workflows.SyncPlacementResult, error) {
	defer heartbeat(ctx)()

	result, err := p.syncHost(ctx, in.Host, nil)
	out := workflows.SyncPlacementResult{Waits: result.waits}
	for _, d := range result.differences {
		out.Differences = append(out.Differences, fmt.Sprintf("%s %s: %s", d.Class, d.Name, d.Detail))
	}

	return out, workflows.ToFailure(err)
}

// syncResult is the result of synchronising a host.
type syncResult struct {
	compared    bool // the whole tree, and not only what the records had changed
	differences []placement.Difference
	waits       string             // why the host could not be synchronised; empty where it was
	closed      map[uuid.UUID]bool // the providers that are fully reserved, so that nothing of them is scheduled
}

// syncHost makes the tree of a host as the records say, and records that it
// did. The inventories of the providers in confirm are written even where they
// are right already. That raises their generations and so invalidates whatever
// another process has planned for them: what is reserved of them now stays
// reserved until the records change.
//
// The order of reading and writing makes this correct. It reads the version of
// the records first, and Placement's generations second. Before it writes, it
// checks that the records still have that version, and Placement refuses each
// write whose generation is no longer current. So older records never overwrite
// newer ones.
func (p *Placement) syncHost(ctx context.Context, host string, confirm []uuid.UUID) (syncResult, error) {
	var (
		err      error
		repaired []placement.Difference // by attempts that collided
	)
	for collision := range maxCollisions {
		var result syncResult
		result, err = p.attempt(ctx, host, confirm, collision == 0, repaired)
		if err == nil {
			return result, nil
		}
		repaired = union(result.differences, repaired)
		if kind := cyborg.ErrorKindOf(err); kind != cyborg.ErrChanged {
			break
		}
	}

	// What may pass by itself is returned as an error, and Temporal tries again.
	// Everything else is a refusal, which only the records or an operator can
	// change: it is recorded, and the host is due again after a pause.
	switch kind := cyborg.ErrorKindOf(err); {
	case kind == cyborg.ErrChanged:
		return syncResult{}, cyborg.Errorf(cyborg.ErrBusy, "others keep changing the resource providers of host %s: %w", host, err)
	case kind.Retryable() || ctx.Err() != nil:
		return syncResult{}, err
	}

	p.log.WarnContext(ctx, "Placement cannot be brought into step", slog.String("host", host), slog.String("error", err.Error()))
	out := db.PlacementOutcome{Host: host, Error: err.Error(), TryIn: retryPause, Drift: []cyborg.Drift{
		{Class: cyborg.DriftRefused, Detail: cyborg.Sanitize(err.Error(), 1000)},
	}}

	if failed := p.store.RecordPlacement(ctx, out); failed != nil {
		return syncResult{}, failed
	}

	// An operation that needs its fence confirmed must fail with the refusal.
	if confirm != nil {
		return syncResult{}, err
	}
	return syncResult{waits: err.Error()}, nil
}

// attempt is one attempt of syncHost. The error is of kind ErrChanged where the
// next one should follow at once. With trusting set, it assumes that providers
// which this system has never written do not exist yet, which saves requests;
// after a collision that is not assumed any more. An attempt that collides
// returns what it has repaired until then, and the next one is given that.
func (p *Placement) attempt(
	ctx context.Context, host string, confirm []uuid.UUID, trusting bool, repaired []placement.Difference,
) (syncResult, error) {
	records, err := p.store.Placement(ctx, host)
	if err != nil {
		return syncResult{}, err
	}

	marks := placement.Marks{}
	if err := json.Unmarshal(records.Marks, &marks); err != nil {
		return syncResult{}, cyborg.Errorf(cyborg.ErrInternal, "what was written of host %s cannot be read: %w", host, err)
	}
	wanted := wantedOf(records)

	unusable, err := p.client.PrepareTraits(ctx, wanted)
	if err != nil {
		return syncResult{}, err
	}

	tree, err := p.client.Read(ctx, placement.Request{
		Host: host, Wanted: wanted, Marks: marks, Allocations: records.Compare, AssumeNew: trusting,
	})
	if err != nil {
		return syncResult{}, err
	}
	if err := p.ignoreOtherHosts(ctx, wanted, &tree); err != nil {
		return syncResult{}, err
	}

	plan := placement.NewPlan(wanted, tree, marks)
	plan.Confirm(wanted, confirm)

	if !plan.Empty() {
		if err := p.write(ctx, host, records.Version, marks.With(wanted), plan); err != nil {
			return syncResult{differences: plan.Repaired()}, err
		}
	}

	result := syncResult{
		compared: records.Compare, differences: append(union(plan.Differences, repaired), unusable...), closed: map[uuid.UUID]bool{},
	}
	if records.Compare {
		result.differences = append(result.differences, allocationDrift(records, tree)...)
	}
	for _, w := range wanted {
		result.closed[w.UUID] = w.Reserved == w.Total
	}

	return result, p.record(ctx, host, records, plan.Marks, &result)
}

// union returns the differences with those of earlier attempts that are not among
// them.
func union(differences, earlier []placement.Difference) []placement.Difference {
	out := slices.Clone(differences)
	for _, e := range earlier {
		if !slices.ContainsFunc(out, func(d placement.Difference) bool { return d.Class == e.Class && d.Provider == e.Provider }) {
			out = append(out, e)
		}
	}
	return out
}

// wantedOf returns the providers that the host should have, as its records say.
func wantedOf(records db.PlacementHost) []placement.Provider {
	deployables := make([]placement.Deployable, len(records.Deployables))
	for i := range records.Deployables {
		d := &records.Deployables[i]
		deployables[i] = placement.Deployable{Accelerator: d.Accelerator, Untouched: d.Untouched, HeldOutsideNova: d.HeldOutsideNova, Stuck: d.Stuck}
	}

	return placement.Wanted(deployables, records.Silent)
}

// write notes in the records what is about to be written, and then writes it to
// Placement. The note comes first, so that a process that dies in between
// leaves no provider in Placement that the records do not know. The error is of
// kind ErrChanged if the records no longer have this version.
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

// ignoreOtherHosts removes from the tree the providers of accelerators that are
// recorded on another host: the sync of that host moves them back.
func (p *Placement) ignoreOtherHosts(ctx context.Context, wanted []placement.Provider, tree *placement.Tree) error {
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

// record writes down which version of its records the host is synchronised to,
// and what differed. If Placement has no compute node for the host, nothing
// could be written: the host is then due again after a pause, and result.waits
// says why.
func (p *Placement) record(ctx context.Context, host string, records db.PlacementHost, marks placement.Marks, result *syncResult) error {
	text, err := json.Marshal(marks)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "%w", err)
	}

	out := db.PlacementOutcome{Host: host, Version: records.Version, Compared: records.Compare, Marks: text}
	for _, d := range result.differences {
		if d.Class == cyborg.DriftNoComputeNode {
			out.Error, out.TryIn = d.Detail, retryPause
			result.waits = d.Detail
		}

		// A repaired difference is drift only in a comparison. Otherwise it is the very
		// change that the records asked for.
		if !d.Repaired || records.Compare {
			out.Drift = addDrift(out.Drift, host, d)
		}

		if d.Repaired && records.Compare {
			p.log.WarnContext(ctx, "Placement differed from what was written there, and has been repaired", slog.String("host", host),
				slog.String("class", string(d.Class)), slog.String("provider", d.Name), slog.String("detail", d.Detail))
			if p.options.Repaired != nil {
				p.options.Repaired(d.Class)
			}
		}
	}

	return p.store.RecordPlacement(ctx, out)
}

// addDrift appends a difference. Two of the same class and provider become one,
// because the records hold one row for each.
func addDrift(to []cyborg.Drift, host string, d placement.Difference) []cyborg.Drift {
	const longest = 1000 // characters of a detail

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

// allocationDrift returns the differences between Placement's allocations and
// the accelerator requests in the records, and the allocations of accelerators
// that have vanished. None of them is repaired, because allocations belong to
// Nova.
func allocationDrift(records db.PlacementHost, tree placement.Tree) []placement.Difference {
	var out []placement.Difference
	if tree.Root == nil {
		return nil
	}

	for i := range records.Deployables {
		d := &records.Deployables[i]
		node := tree.Nodes[d.ProviderUUID]
		if node == nil {
			node = &placement.Node{} // without a provider there is no allocation
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
				missing = append(missing, fmt.Sprintf("%s has %d of it through accelerator requests, and %d allocated in Placement", instance, bound, has))
			}
		}

		if len(missing) > 0 {
			differ(cyborg.DriftMissingAllocation, "%s", strings.Join(missing, "; "))
		}
	}

	return out
}

// Compare is the activity that compares the trees of the hosts that were
// compared longest ago, and repairs what differs. If Placement does not answer
// for one host, the remaining ones are left for another round. Each host is
// leased only when its turn comes: if this process dies, only a few hosts have
// to wait until their lease is over.
func (p *Placement) Compare(ctx context.Context, in workflows.ComparePlacementInput) (workflows.ComparePlacementResult, error) {
	defer heartbeat(ctx)()
	out := workflows.ComparePlacementResult{Drift: map[cyborg.DriftClass]int{}}

	var (
		mu     sync.Mutex
		askers sync.WaitGroup
		taken  []string
		failed error // the records could not be read or written
		away   bool  // Placement does not answer
	)

	// take leases the next host; "" where there is none, or the round is over. mu
	// is held during the query, so that no two of the goroutines get the same host.
	take := func() string {
		mu.Lock()
		defer mu.Unlock()

		if away || failed != nil || len(taken) >= in.Hosts {
			return ""
		}

		var host string
		host, failed = p.store.TakePlacementComparison(ctx, p.options.CompareEvery, taken)
		taken = append(taken, host)
		return host
	}

	compare := func(host string) {
		result, err := p.syncHost(ctx, host, nil)

		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			out.Failed = append(out.Failed, "host "+host+": "+err.Error())
			away = away || cyborg.ErrorKindOf(err) != cyborg.ErrBusy
			// Give the lease back even after a cancel, or the host would wait for the lease
			// to end.
			failed = errors.Join(failed, p.store.ReturnPlacementComparison(context.WithoutCancel(ctx), host))
			return
		}

		out.Compared++
		for _, d := range result.differences {
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

// Fence is the activity that makes sure that Placement schedules nothing more
// on these accelerators, and then that nobody but the given consumers has an
// allocation of them. In the opposite order an allocation could appear between
// the two. The error is of kind ErrInUse if somebody else has one.
func (p *Placement) Fence(ctx context.Context, in workflows.FencePlacementInput) error {
	defer heartbeat(ctx)()
	providers, names := []uuid.UUID{}, map[uuid.UUID]string{} // never nil: with nil, syncHost would return no error for a refusal
	for _, id := range in.Accelerators {
		a, err := p.store.Accelerator(ctx, id)
		if err != nil {
			return workflows.ToFailure(err)
		}
		providers = append(providers, a.ProviderUUID)
		names[a.ProviderUUID] = a.Name
	}

	result, err := p.syncHost(ctx, in.Host, providers)
	if err != nil {
		return workflows.ToFailure(err)
	}

	for _, provider := range providers {
		if !result.closed[provider] {
			return workflows.ToFailure(cyborg.Errorf(cyborg.ErrInternal, "accelerator %q is not fenced in the records", names[provider]))
		}

		if err := p.requireUnallocated(ctx, names[provider], provider, func(consumer string) bool {
			return !slices.Contains(in.Consumers, consumer)
		}); err != nil {
			return workflows.ToFailure(err)
		}
	}

	return nil
}

// CheckAllocations is the activity that returns an error of kind ErrInUse where
// one of the consumers has an allocation of the accelerator.
func (p *Placement) CheckAllocations(ctx context.Context, in workflows.CheckAllocationsInput) error {
	defer heartbeat(ctx)()
	a, err := p.store.Accelerator(ctx, in.Accelerator)
	if err != nil {
		return workflows.ToFailure(err)
	}

	return workflows.ToFailure(p.requireUnallocated(ctx, a.Name, a.ProviderUUID, func(consumer string) bool {
		return slices.Contains(in.Consumers, consumer)
	}))
}

// requireUnallocated returns an error of kind ErrInUse where a consumer that
// counts has an allocation of the provider.
func (p *Placement) requireUnallocated(ctx context.Context, name string, provider uuid.UUID, counts func(consumer string) bool) error {
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

// The methods below are the activities of workflows.ConductorQueue that ask
// Placement. A process without Placement answers with a retryable error, so
// that a process with Placement may take the next attempt.

func (a *Activities) fencePlacement(ctx context.Context, in workflows.FencePlacementInput) error {
	if err := a.requireOwner(ctx, in.Operation); err != nil {
		return err
	}
	if a.cloud.Placement == nil {
		return workflows.ToFailure(noPlacementError())
	}
	return a.cloud.Placement.Fence(ctx, in)
}

func (a *Activities) checkAllocations(ctx context.Context, in workflows.CheckAllocationsInput) error {
	if err := a.requireOwner(ctx, in.Operation); err != nil {
		return err
	}
	if a.cloud.Placement == nil {
		return workflows.ToFailure(noPlacementError())
	}
	return a.cloud.Placement.CheckAllocations(ctx, in)
}

func (a *Activities) comparePlacement(ctx context.Context, in workflows.ComparePlacementInput) (workflows.ComparePlacementResult, error) {
	if a.cloud.Placement == nil {
		return workflows.ComparePlacementResult{}, workflows.ToFailure(noPlacementError())
	}
	return a.cloud.Placement.Compare(ctx, in)
}

// noPlacementError is of the retryable kind ErrUnavailable.
func noPlacementError() error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "this process has no Placement to ask").
		WithHint("Give all servers the same configuration of openstack and placement.")
}
