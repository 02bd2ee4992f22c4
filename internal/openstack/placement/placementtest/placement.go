// Package placementtest is a Placement in memory for tests. It has the same
// rules as the real one (placement 8.0.0, its handlers and schemas), and can be
// made to fail. Only tests import it.
package placementtest

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
)

// Inventory is a provider's inventory of one resource class.
type Inventory struct {
	Total           int     `json:"total"`
	Reserved        int     `json:"reserved"`
	MinUnit         int     `json:"min_unit"`
	MaxUnit         int     `json:"max_unit"`
	StepSize        int     `json:"step_size"`
	AllocationRatio float64 `json:"allocation_ratio"`
}

// Provider is a resource provider.
type Provider struct {
	UUID        uuid.UUID
	Name        string
	Parent      uuid.UUID
	Generation  int64
	Inventories map[string]Inventory
	Traits      []string
}

// Fault is how one request goes wrong.
type Fault struct {
	// Status is the status of the answer, with Code as the error's code.
	Status int
	Code   string
	// Cut closes the connection instead of answering.
	Cut bool
	// After lets the request take effect before it goes wrong.
	After bool
}

// Placement is the service; New returns one. Its methods are safe for
// concurrent use.
type Placement struct {
	// Fail, unless nil, is called before each request and returns how it goes
	// wrong; nil if it does not.
	Fail func(r *http.Request) *Fault
	// Max is the highest microversion, minor of 1; 0 means 39.
	Max int

	mu          sync.Mutex // guards the fields below
	providers   map[uuid.UUID]*Provider
	names       map[string]uuid.UUID
	children    map[uuid.UUID]map[uuid.UUID]bool // by parent; uuid.Nil is the parent of roots
	traits      map[string]bool
	classes     map[string]bool
	allocations map[string]map[uuid.UUID]map[string]int // by consumer, provider and class
	writes      []string
	reads       int
}

// New returns a Placement with the parts of os-traits and os-resource-classes
// that tests need.
func New() *Placement {
	p := &Placement{
		providers: map[uuid.UUID]*Provider{}, names: map[string]uuid.UUID{}, children: map[uuid.UUID]map[uuid.UUID]bool{}, allocations: map[string]map[uuid.UUID]map[string]int{},
		traits: map[string]bool{}, classes: map[string]bool{},
	}

	for _, trait := range []string{"OWNER_CYBORG", "OWNER_NOVA", "HW_NUMA_ROOT", "COMPUTE_ACCELERATORS", "HW_CPU_X86_AVX2"} {
		p.traits[trait] = true
	}

	for _, class := range []string{"VCPU", "MEMORY_MB", "DISK_GB", "FPGA", "PGPU", "VGPU", "PCI_DEVICE"} {
		p.classes[class] = true
	}

	return p
}

// Service makes a client that calls the handler without a network, so that this
// type can be the session of package placement.
func (p *Placement) Service(context.Context, string) (*gophercloud.ServiceClient, error) {
	provider := &gophercloud.ProviderClient{TokenID: "token"}
	provider.HTTPClient = http.Client{Transport: direct{p}}
	return &gophercloud.ServiceClient{ProviderClient: provider, Endpoint: "http://placement.test/"}, nil
}

// direct is a transport that calls the handler itself.
type direct struct{ p *Placement }

// RoundTrip serves the request, or fails as a broken connection does.
func (d direct) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}

	if r.Body == nil {
		r.Body = http.NoBody
	}

	recorder := httptest.NewRecorder()
	defer func() {
		if cut := recover(); cut != nil {
			if cut != http.ErrAbortHandler { //nolint:errorlint // panics are compared
				panic(cut)
			}
			answer, err = nil, io.ErrUnexpectedEOF
		}
	}()

	d.p.ServeHTTP(recorder, r)
	return recorder.Result(), nil
}

// AddHost creates the provider of a compute node with an inventory, a child and
// traits, as Nova does.
func (p *Placement) AddHost(name string) *Provider {
	root := p.Put(Provider{
		UUID: uuid.New(), Name: name, Traits: []string{"COMPUTE_ACCELERATORS"},
		Inventories: map[string]Inventory{"VCPU": {Total: 8, MinUnit: 1, MaxUnit: 8, StepSize: 1, AllocationRatio: 16}},
	})

	p.Put(Provider{UUID: uuid.New(), Name: name + "_numa0", Parent: root.UUID, Traits: []string{"HW_NUMA_ROOT"}})

	return root
}

// Put creates or replaces a provider.
func (p *Placement) Put(provider Provider) *Provider {
	p.mu.Lock()
	defer p.mu.Unlock()

	for _, trait := range provider.Traits {
		p.traits[trait] = true
	}

	for class := range provider.Inventories {
		p.classes[class] = true
	}

	if old := p.providers[provider.UUID]; old != nil {
		provider.Generation = old.Generation + 1
		p.drop(old)
	}

	p.keep(&provider)
	return &provider
}

// keep adds a provider to the indexes by UUID, name and parent.
func (p *Placement) keep(provider *Provider) {
	p.providers[provider.UUID], p.names[provider.Name] = provider, provider.UUID

	if p.children[provider.Parent] == nil {
		p.children[provider.Parent] = map[uuid.UUID]bool{}
	}
	p.children[provider.Parent][provider.UUID] = true
}

// drop removes a provider from the indexes.
func (p *Placement) drop(provider *Provider) {
	delete(p.providers, provider.UUID)
	delete(p.names, provider.Name)
	delete(p.children[provider.Parent], provider.UUID)
}

// Provider returns a copy of the provider with that name, or nil.
func (p *Placement) Provider(name string) *Provider {
	p.mu.Lock()
	defer p.mu.Unlock()

	provider := p.named(name)
	if provider == nil {
		return nil
	}

	out := provider.clone()
	return &out
}

// Providers returns copies of all providers, by name.
func (p *Placement) Providers() map[string]Provider {
	p.mu.Lock()
	defer p.mu.Unlock()

	out := map[string]Provider{}

	for _, provider := range p.providers {
		out[provider.Name] = provider.clone()
	}

	return out
}

// clone returns a copy that shares nothing with the provider.
func (p *Provider) clone() Provider {
	out := *p
	out.Inventories, out.Traits = maps.Clone(p.Inventories), slices.Clone(p.Traits)
	return out
}

// Remove deletes a provider, even if it is in use.
func (p *Placement) Remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if provider := p.named(name); provider != nil {
		p.drop(provider)
	}
}

// Allocate allocates some of a provider to a consumer, as the scheduler does. A
// negative amount ends the allocation. As in the real one, only a new
// allocation raises the generation.
func (p *Placement) Allocate(consumer, provider, class string, amount int) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for id, found := range p.providers {
		if found.Name != provider {
			continue
		}

		if amount < 0 {
			delete(p.allocations[consumer], id)
			return
		}

		if p.allocations[consumer] == nil {
			p.allocations[consumer] = map[uuid.UUID]map[string]int{}
		}

		p.allocations[consumer][id] = map[string]int{class: amount}

		found.Generation++
	}
}

// Writes returns the writing requests since the last call, and the number of
// reading ones.
func (p *Placement) Writes() (writes []string, reads int) {
	p.mu.Lock()
	defer p.mu.Unlock()

	writes, reads = p.writes, p.reads

	p.writes, p.reads = nil, 0
	return writes, reads
}
