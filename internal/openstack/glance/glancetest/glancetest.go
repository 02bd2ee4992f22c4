// Package glancetest is a Glance for tests. It answers as the real one does
// (version 2 of the Image API, Zed) and can be made to fail. Only tests import
// it.
package glancetest

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
)

// Glance is the service with its images, together with the session of a user
// who may see them. Its methods are safe for concurrent use.
type Glance struct {
	URL string

	routes *http.ServeMux

	mu       sync.Mutex // guards the fields below
	images   map[string]*Image
	order    []string // ids of the images, oldest first
	token    int      // number of the only valid token of the session
	trusted  func(token string) bool
	logins   int
	failures []Failure
	ranges   []string // of each download; empty for the whole image
}

// Image is an image. Properties override what Glance derives from Content.
type Image struct {
	Content    []byte
	Properties map[string]any
}

// Failure is how one request goes wrong.
type Failure struct {
	// Status is the status of the answer; 0 is none.
	Status int
	// Cut closes the connection after that many bytes of an image's content; 0 does
	// not.
	Cut int
	// Stall is the time before the first byte of the answer. It ends early when the
	// client gives up.
	Stall time.Duration
	// NoRange ignores Range and answers with the whole image, as some stores behind
	// Glance do.
	NoRange bool
}

// Start starts a server with an empty Glance. It ends with the test.
func Start(t testing.TB) *Glance {
	t.Helper()
	g := New()

	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	g.URL = server.URL

	return g
}

// New returns an empty Glance without a server or a URL.
func New() *Glance {
	g := &Glance{images: map[string]*Image{}, token: 1, routes: http.NewServeMux()}
	g.routes.HandleFunc("GET /v2/images", g.guarded(g.list))
	g.routes.HandleFunc("GET /v2/images/{id}", g.guarded(g.show))
	g.routes.HandleFunc("GET /v2/images/{id}/file", g.guarded(g.file))

	return g
}

// ServeHTTP answers as Glance does.
func (g *Glance) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.routes.ServeHTTP(w, r) }

// Add adds an active image and returns its id.
func (g *Glance) Add(content []byte, properties map[string]any) uuid.UUID {
	g.mu.Lock()
	defer g.mu.Unlock()

	id := uuid.New()
	g.images[id.String()] = &Image{Content: content, Properties: properties}
	g.order = append(g.order, id.String())

	return id
}

// Replace replaces an image's content and properties. Checksums among the
// properties need not fit the new content.
func (g *Glance) Replace(id uuid.UUID, content []byte, properties map[string]any) {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.images[id.String()] = &Image{Content: content, Properties: properties}
}

// Trust also accepts tokens for which good returns true, such as those of a
// test's Keystone.
func (g *Glance) Trust(good func(token string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.trusted = good
}

// Remove deletes an image.
func (g *Glance) Remove(id uuid.UUID) {
	g.mu.Lock()
	defer g.mu.Unlock()

	delete(g.images, id.String())
	g.order = slices.DeleteFunc(g.order, func(other string) bool { return other == id.String() })
}

// Fail makes the next requests fail, one for each failure.
func (g *Glance) Fail(failures ...Failure) {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.failures = append(g.failures, failures...)
}

// Expire invalidates the session's current token.
func (g *Glance) Expire() {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.token++
}

// Ranges returns the Range headers of the downloads so far; an empty one is a
// download of the whole image.
func (g *Glance) Ranges() []string {
	g.mu.Lock()
	defer g.mu.Unlock()

	return slices.Clone(g.ranges)
}

// Logins returns how often the session has logged in.
func (g *Glance) Logins() int {
	g.mu.Lock()
	defer g.mu.Unlock()

	return g.logins
}

// Service returns a client of the session, which logs in again when its token
// has become invalid.
func (g *Glance) Service(ctx context.Context, _ string) (*gophercloud.ServiceClient, error) {
	provider := &gophercloud.ProviderClient{}
	provider.UseTokenLock()

	login := func(context.Context) error {
		g.mu.Lock()
		defer g.mu.Unlock()

		g.logins++
		provider.SetToken(strconv.Itoa(g.token))
		return nil
	}

	provider.ReauthFunc = login
	return &gophercloud.ServiceClient{ProviderClient: provider, Endpoint: g.URL + "/"}, login(ctx)
}

// guarded checks the token and applies the next failure before it calls the
// handler.
func (g *Glance) guarded(next func(http.ResponseWriter, *http.Request, Failure)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		token := r.Header.Get("X-Auth-Token")
		good := token == strconv.Itoa(g.token) || g.trusted != nil && g.trusted(token)

		var failure Failure
		if good && len(g.failures) > 0 {
			failure, g.failures = g.failures[0], g.failures[1:]
		}

		g.mu.Unlock()

		if !good {
			w.Header().Set("WWW-Authenticate", "Keystone uri='http://127.0.0.1:5000'")
			refuse(w, http.StatusUnauthorized, "This server could not verify that you are authorized to access the document you requested.")
			return
		}

		if failure.Stall > 0 {
			select {
			case <-time.After(failure.Stall):
			case <-r.Context().Done():
				return
			}
		}

		if failure.Status != 0 {
			refuse(w, failure.Status, "told to fail")
			return
		}

		next(w, r, failure)
	}
}

// refuse answers with an error page, which is HTML in Glance.
func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/html; charset=UTF-8")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<html>\n <head>\n  <title>%d %s</title>\n </head>\n <body>\n  <h1>%[1]d %[2]s</h1>\n  %[3]s<br /><br />\n </body>\n</html>",
		status, http.StatusText(status), text) // a client that is gone is no matter of ours
}

// document returns an image as the Image API shows it.
func (g *Glance) document(id string, image *Image) map[string]any {
	sum := sha512.Sum512(image.Content)

	out := map[string]any{
		"id": id, "name": "bitstream", "status": "active", "visibility": "private", "protected": false, "os_hidden": false,
		"size": len(image.Content), "virtual_size": nil, "container_format": "bare", "disk_format": "raw", "min_disk": 0, "min_ram": 0,
		"checksum": "d41d8cd98f00b204e9800998ecf8427e", "os_hash_algo": "sha512", "os_hash_value": hex.EncodeToString(sum[:]),
		"owner": "0c9d7b6e5a4f4e3d9c8b7a6f5e4d3c2b", "tags": []string{}, "created_at": "2026-11-20T12:00:00Z", "updated_at": "2026-11-20T12:00:01Z",
		"self": "/v2/images/" + id, "file": "/v2/images/" + id + "/file", "schema": "/v2/schemas/image",
	}

	maps.Copy(out, image.Properties)
	return out
}

// show answers with one image.
func (g *Glance) show(w http.ResponseWriter, r *http.Request, _ Failure) {
	g.mu.Lock()
	image, ok := g.images[r.PathValue("id")]
	g.mu.Unlock()

	if !ok {
		refuse(w, http.StatusNotFound, "No image found with ID "+r.PathValue("id"))
		return
	}

	answer(w, g.document(r.PathValue("id"), image))
}

// list answers with the images whose properties match the query, page by page.
func (g *Glance) list(w http.ResponseWriter, r *http.Request, _ Failure) {
	g.mu.Lock()
	defer g.mu.Unlock()

	query := r.URL.Query()
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil {
		limit = 25
	}

	found, out := []map[string]any{}, map[string]any{"schema": "/v2/schemas/images", "first": r.URL.RequestURI()}

	skip := query.Get("marker") != ""

	for _, id := range g.order {
		if skip {
			skip = id != query.Get("marker")
			continue
		}

		document := g.document(id, g.images[id])
		if !slices.ContainsFunc(slices.Collect(maps.Keys(query)), func(key string) bool {
			return key != "limit" && key != "marker" && fmt.Sprint(document[key]) != query.Get(key)
		}) {
			found = append(found, document)
		}

		if len(found) == limit {
			next := r.URL.Query()
			next.Set("marker", id)
			out["next"] = "/v2/images?" + next.Encode()
			break
		}
	}

	out["images"] = found
	answer(w, out)
}

func answer(w http.ResponseWriter, document map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(document) //nolint:errchkjson // a client that is gone is no matter of ours
}

// file answers with an image's content, or with the part that Range asks for.
func (g *Glance) file(w http.ResponseWriter, r *http.Request, failure Failure) {
	g.mu.Lock()
	image, ok := g.images[r.PathValue("id")]
	g.ranges = append(g.ranges, r.Header.Get("Range"))
	g.mu.Unlock()

	switch {
	case !ok:
		refuse(w, http.StatusNotFound, "No image found with ID "+r.PathValue("id"))
		return
	case len(image.Content) == 0:
		w.WriteHeader(http.StatusNoContent)
		return
	}

	begin, status := 0, http.StatusOK

	if text, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok && !failure.NoRange {
		var err error
		begin, err = strconv.Atoi(strings.TrimSuffix(text, "-"))
		if err != nil || begin >= len(image.Content) {
			refuse(w, http.StatusRequestedRangeNotSatisfiable, "Invalid byte range")
			return
		}

		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", begin, len(image.Content)-1, len(image.Content)))
	}

	content := image.Content[begin:]
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	w.WriteHeader(status)

	if failure.Cut > 0 {
		content = content[:min(failure.Cut, len(content))]
	}

	_, _ = w.Write(content) // a client that is gone is no matter of ours

	if failure.Cut > 0 {
		if flusher, ok := w.(http.Flusher); ok {
			flusher.Flush()
		}
		panic(http.ErrAbortHandler)
	}
}
