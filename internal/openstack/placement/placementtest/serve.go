package placementtest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// problem is a refusal, which becomes an error document.
type problem struct {
	status int
	code   string
	detail string
}

// refuse returns a refusal.
func refuse(status int, code, format string, args ...any) *problem {
	return &problem{status, cmp.Or(code, "placement.undefined_code"), fmt.Sprintf(format, args...)}
}

// ServeHTTP serves the request, or makes it go wrong as Fail wants.
func (p *Placement) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var fault *Fault
	if p.Fail != nil {
		fault = p.Fail(r)
	}

	answer := httptest.NewRecorder()

	if fault == nil || fault.After {
		p.serve(answer, r)
	}

	switch {
	case fault == nil:
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	case fault.Cut:
		panic(http.ErrAbortHandler)
	default:
		write(w, fault.Status, refuse(fault.Status, fault.Code, "injected"))
	}
}

// write answers with a document, or with an error document for a *problem.
func write(w http.ResponseWriter, status int, body any) {
	if failed, ok := body.(*problem); ok {
		status = failed.status
		body = map[string]any{"errors": []map[string]any{{
			"status": failed.status, "code": failed.code, "detail": failed.detail, "title": http.StatusText(failed.status),
		}}}
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)

	if body != nil {
		_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // of our own answers, to a recorder
	}
}

// serve checks what is common to all requests and counts them.
func (p *Placement) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()

	path := strings.Trim(r.URL.Path, "/")

	if path == "" {
		write(w, http.StatusOK, map[string]any{"versions": []map[string]any{{
			"id": "v1.0", "min_version": "1.0", "max_version": fmt.Sprintf("1.%d", cmp.Or(p.Max, 39)), "status": "CURRENT",
		}}})
		return
	}

	if r.Header.Get("X-Auth-Token") == "" {
		write(w, 0, refuse(http.StatusUnauthorized, "", "no token"))
		return
	}

	var body map[string]json.RawMessage
	if r.Method == http.MethodGet {
		p.reads++
	} else {
		p.writes = append(p.writes, r.Method+" "+path)
		text, err := io.ReadAll(r.Body)
		if err != nil || len(text) > 0 && json.Unmarshal(text, &body) != nil {
			write(w, 0, refuse(http.StatusBadRequest, "", "malformed JSON"))
			return
		}
	}

	status, out := p.route(r, strings.Split(path, "/"), body)
	write(w, status, out)
}

// route calls the handler of a request. It returns the status, which a *problem
// overrides, and the document.
func (p *Placement) route(r *http.Request, path []string, body map[string]json.RawMessage) (status int, out any) {
	key := r.Method + " " + path[0]

	switch {
	case key == "GET resource_providers" && len(path) == 1:
		return http.StatusOK, p.list(r)
	case key == "POST resource_providers" && len(path) == 1:
		return p.create(body)
	case key == "GET traits" && len(path) == 1:
		return http.StatusOK, p.listTraits(r.URL.Query().Get("name"))
	case key == "PUT traits" && len(path) == 2:
		return made(p.traits, path[1])
	case key == "PUT resource_classes" && len(path) == 2:
		return made(p.classes, path[1])
	case path[0] != "resource_providers" || len(path) < 2:
		return 0, refuse(http.StatusNotFound, "", "no such route")
	}

	id, err := uuid.Parse(path[1])
	provider := p.providers[id]
	if err != nil || provider == nil {
		return 0, refuse(http.StatusNotFound, "placement.resource_provider.not_found", "no resource provider %s", path[1])
	}

	switch r.Method + " " + strings.Join(path[2:], "/") {
	case "GET ":
		return http.StatusOK, p.view(provider)
	case "PUT ":
		return p.rename(provider, body)
	case "DELETE ":
		return p.destroy(provider)
	case "GET inventories":
		return http.StatusOK, map[string]any{"resource_provider_generation": provider.Generation, "inventories": orEmpty(provider.Inventories)}
	case "PUT inventories":
		return p.supply(provider, body)
	case "GET traits":
		return http.StatusOK, map[string]any{"resource_provider_generation": provider.Generation, "traits": append([]string{}, provider.Traits...)}
	case "PUT traits":
		return p.mark(provider, body)
	case "GET allocations":
		return http.StatusOK, map[string]any{"resource_provider_generation": provider.Generation, "allocations": p.allocationsOf(id)}
	}

	return 0, refuse(http.StatusMethodNotAllowed, "", "no such method")
}

func orEmpty(m map[string]Inventory) map[string]Inventory {
	if m == nil {
		return map[string]Inventory{}
	}
	return m
}

var customPattern = regexp.MustCompile(`^CUSTOM_[A-Z0-9_]+$`)

// made handles the PUT of a trait or a resource class. Only custom ones can be
// created.
func made(known map[string]bool, name string) (int, any) {
	switch {
	case known[name]:
		return http.StatusNoContent, nil
	case !customPattern.MatchString(name) || len(name) > 255:
		return 0, refuse(http.StatusBadRequest, "", "%q does not match ^CUSTOM_[A-Z0-9_]+$", name)
	}

	known[name] = true
	return http.StatusCreated, nil
}

// listTraits returns those of the named traits that exist.
func (p *Placement) listTraits(query string) any {
	found := []string{}
	for trait := range strings.SplitSeq(strings.TrimPrefix(query, "in:"), ",") {
		if p.traits[trait] {
			found = append(found, trait)
		}
	}

	return map[string]any{"traits": found}
}

// view returns a provider as Placement shows it.
func (p *Placement) view(provider *Provider) map[string]any {
	var parent any
	if provider.Parent != uuid.Nil {
		parent = provider.Parent
	}

	return map[string]any{
		"uuid": provider.UUID, "name": provider.Name, "generation": provider.Generation,
		"parent_provider_uuid": parent, "root_provider_uuid": p.root(provider).UUID,
	}
}

// root returns the root of a provider's tree.
func (p *Placement) root(provider *Provider) *Provider {
	for p.providers[provider.Parent] != nil {
		provider = p.providers[provider.Parent]
	}
	return provider
}

// list returns the providers that match a query.
func (p *Placement) list(r *http.Request) any {
	query := r.URL.Query()
	found := []map[string]any{}

	for _, provider := range p.among(query) {
		if !query.Has("required") || slices.Contains(provider.Traits, query.Get("required")) {
			found = append(found, p.view(provider))
		}
	}

	return map[string]any{"resource_providers": found}
}

// among returns the providers with the query's name, or in the query's tree, or
// all.
func (p *Placement) among(query url.Values) []*Provider {
	switch {
	case query.Has("name"):
		if provider := p.named(query.Get("name")); provider != nil {
			return []*Provider{provider}
		}

		return nil
	case query.Has("in_tree"):
		tree, err := uuid.Parse(query.Get("in_tree"))
		if err != nil || p.providers[tree] == nil {
			return nil
		}

		return p.below(p.root(p.providers[tree]))
	}
	return slices.Collect(maps.Values(p.providers))
}

// below returns a provider with everything below it.
func (p *Placement) below(provider *Provider) []*Provider {
	found := []*Provider{provider}
	for child := range p.children[provider.UUID] {
		found = append(found, p.below(p.providers[child])...)
	}
	return found
}

// into decodes a member of a body, and reports whether it is there and
// well-formed.
func into(body map[string]json.RawMessage, member string, to any) bool {
	text, ok := body[member]
	return ok && json.Unmarshal(text, to) == nil
}

// create handles the POST of a provider.
func (p *Placement) create(body map[string]json.RawMessage) (int, any) {
	provider := Provider{UUID: uuid.New()}
	if !into(body, "name", &provider.Name) || provider.Name == "" || len(provider.Name) > 200 {
		return 0, refuse(http.StatusBadRequest, "", "name")
	}

	into(body, "uuid", &provider.UUID)
	if into(body, "parent_provider_uuid", &provider.Parent) && provider.Parent != uuid.Nil && p.providers[provider.Parent] == nil {
		return 0, refuse(http.StatusBadRequest, "", "parent provider UUID does not exist")
	}

	if p.providers[provider.UUID] != nil {
		return 0, refuse(http.StatusConflict, "", "Conflicting resource provider %s already exists", provider.UUID)
	}

	if p.named(provider.Name) != nil {
		return 0, refuse(http.StatusConflict, "placement.duplicate_name", "Conflicting resource provider name: %s already exists", provider.Name)
	}

	p.keep(&provider)
	return http.StatusOK, p.view(&provider)
}

// named returns the provider with that name, or nil.
func (p *Placement) named(name string) *Provider {
	return p.providers[p.names[name]]
}

// rename handles the PUT of a provider, which changes its name and its parent.
func (p *Placement) rename(provider *Provider, body map[string]json.RawMessage) (int, any) {
	var name string
	parent := provider.Parent

	if !into(body, "name", &name) || name == "" {
		return 0, refuse(http.StatusBadRequest, "", "name")
	}

	into(body, "parent_provider_uuid", &parent)

	if other := p.named(name); other != nil && other != provider {
		return 0, refuse(http.StatusConflict, "placement.duplicate_name", "Conflicting resource provider name: %s already exists", name)
	}

	if parent != provider.Parent {
		target := p.providers[parent]

		switch {
		case target == nil:
			return 0, refuse(http.StatusBadRequest, "", "parent provider UUID does not exist")
		case provider.Parent != uuid.Nil && p.Max != 0 && p.Max < 37:
			return 0, refuse(http.StatusBadRequest, "", "re-parenting a provider is not currently allowed")
		}
	}

	p.drop(provider)
	provider.Name, provider.Parent = name, parent
	p.keep(provider)

	return http.StatusOK, p.view(provider)
}

// destroy handles the DELETE of a provider. A provider with allocations or
// children cannot be deleted.
func (p *Placement) destroy(provider *Provider) (int, any) {
	if len(p.allocationsOf(provider.UUID)) > 0 {
		return 0, refuse(http.StatusConflict, "placement.resource_provider.inuse", "Unable to delete resource provider %s: allocations", provider.UUID)
	}

	if len(p.children[provider.UUID]) > 0 {
		return 0, refuse(http.StatusConflict, "placement.resource_provider.cannot_delete_parent", "it has children")
	}

	p.drop(provider)
	return http.StatusNoContent, nil
}

// current refuses a write whose generation is not the provider's.
func (p *Placement) current(provider *Provider, body map[string]json.RawMessage) *problem {
	var generation int64

	switch {
	case !into(body, "resource_provider_generation", &generation):
		return refuse(http.StatusBadRequest, "", "resource_provider_generation")
	case generation != provider.Generation:
		return refuse(http.StatusConflict, "placement.concurrent_update", "resource provider generation conflict")
	}
	return nil
}

// supply handles the PUT of a provider's inventories, which replaces all of
// them. An allocated class cannot be removed.
func (p *Placement) supply(provider *Provider, body map[string]json.RawMessage) (int, any) {
	if failed := p.current(provider, body); failed != nil {
		return 0, failed
	}

	var raw map[string]json.RawMessage
	if !into(body, "inventories", &raw) {
		return 0, refuse(http.StatusBadRequest, "", "inventories")
	}

	inventories := map[string]Inventory{}

	for class, text := range raw {
		i := Inventory{MinUnit: 1, MaxUnit: 0x7FFFFFFF, StepSize: 1, AllocationRatio: 1}
		if json.Unmarshal(text, &i) != nil || i.Total < 1 || i.Reserved < 0 || i.MinUnit < 1 || i.MaxUnit < 1 || i.StepSize < 1 ||
			i.Reserved > i.Total || !p.classes[class] {
			return 0, refuse(http.StatusBadRequest, "", "invalid inventory for %s: %s", class, text)
		}

		inventories[class] = i
	}

	for class := range provider.Inventories {
		if _, stays := inventories[class]; !stays && p.allocated(provider.UUID, class) > 0 {
			return 0, refuse(http.StatusConflict, "placement.inventory.inuse", "Inventory for %s on resource provider in use", class)
		}
	}

	provider.Inventories = inventories
	provider.Generation++

	return http.StatusOK, map[string]any{"resource_provider_generation": provider.Generation, "inventories": inventories}
}

// mark handles the PUT of a provider's traits, which replaces all of them.
func (p *Placement) mark(provider *Provider, body map[string]json.RawMessage) (int, any) {
	var traits []string

	if failed := p.current(provider, body); failed != nil {
		return 0, failed
	}

	if !into(body, "traits", &traits) {
		return 0, refuse(http.StatusBadRequest, "", "traits")
	}

	for _, trait := range traits {
		if !p.traits[trait] {
			return 0, refuse(http.StatusBadRequest, "", "No such trait(s): %s.", trait)
		}
	}

	slices.Sort(traits)
	provider.Traits = slices.Compact(traits)
	provider.Generation++

	return http.StatusOK, map[string]any{"resource_provider_generation": provider.Generation, "traits": provider.Traits}
}

// allocationsOf returns a provider's allocations as Placement shows them.
func (p *Placement) allocationsOf(provider uuid.UUID) map[string]any {
	out := map[string]any{}

	for consumer, of := range p.allocations {
		if resources, ok := of[provider]; ok {
			out[consumer] = map[string]any{"resources": resources, "consumer_generation": 1}
		}
	}

	return out
}

// allocated returns how much of a provider's class is allocated.
func (p *Placement) allocated(provider uuid.UUID, class string) int {
	sum := 0
	for _, of := range p.allocations {
		sum += of[provider][class]
	}
	return sum
}
