package agents_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/agents"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/openstack/glance"
	"github.com/cyborg-project/cyborg/internal/openstack/glance/glancetest"
	"github.com/cyborg-project/cyborg/workflows"
)

// inGlance is an endpoint, an image in Glance, and an operation on h1 that
// needs the image.
type inGlance struct {
	*harness
	glance    *glancetest.Glance
	image     []byte
	id        uuid.UUID
	operation uuid.UUID
	path      string
}

// setupGlance begins the operation and grants a one-time URL for its image.
func setupGlance(t *testing.T, config agents.Config) *inGlance {
	t.Helper()
	g := &inGlance{glance: glancetest.Start(t), image: bytes.Repeat([]byte("0123456789"), 70_000)}
	g.id = g.glance.Add(g.image, nil)
	g.harness = setupWith(t, config, glance.New(g.glance, glance.Options{Max: 1 << 20}))
	g.operation = g.programming(cyborg.GlanceImage(g.id).Source, true)
	g.path = g.grant(t, "a-secret", time.Hour)
	return g
}

// grant makes a one-time URL for the operation's image.
func (g *inGlance) grant(t *testing.T, secret string, valid time.Duration) string {
	t.Helper()
	op, err := g.store.Operation(t.Context(), g.operation)
	require.NoError(t, err)
	image := cyborg.GlanceImage(g.id)
	image.SHA256 = anySum
	_, err = g.store.GrantImage(t.Context(), db.Run{Operation: g.operation, ID: "run"}, db.ImageURL{
		Operation: g.operation, Accelerator: uuid.MustParse(op.Subjects[0].ID), Host: "h1", Asked: image, Image: image,
		Size: int64(len(g.image)), Valid: valid,
	}, secret)
	require.NoError(t, err)
	return workflows.ImageFetch(g.operation, secret)
}

// A one-time URL serves the image, whole or from where a transfer broke off,
// until the host says that it has the image.
func TestOneTimeURL(t *testing.T) {
	t.Parallel()
	g := setupGlance(t, agents.Config{})
	g.plain()
	g.glance.Fail(glancetest.Failure{Cut: 300_000})

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.server.URL+g.path, nil)
	require.NoError(t, err)
	response, err := g.client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()

	first, err := io.ReadAll(response.Body)
	require.ErrorContains(t, err, "EOF", "the agent must see that the transfer broke off")
	require.Equal(t, int64(len(g.image)), response.ContentLength)
	require.True(t, bytes.HasPrefix(g.image, first))

	response, body := g.send(http.MethodGet, g.path, nil, "Range", "bytes=300000-")
	require.Equal(t, http.StatusPartialContent, response.StatusCode)
	require.Equal(t, "bytes 300000-699999/700000", response.Header.Get("Content-Range"))
	require.True(t, bytes.Equal(g.image[300_000:], body))
	require.Equal(t, []string{"", "bytes=300000-"}, g.glance.Ranges(), "Glance sent nothing twice")

	response, _ = g.send(http.MethodGet, g.path, nil, "Range", "bytes=700000-")
	require.Equal(t, http.StatusRequestedRangeNotSatisfiable, response.StatusCode)

	response, _ = g.send(http.MethodDelete, g.path, nil)
	require.Equal(t, http.StatusNoContent, response.StatusCode)
	response, _ = g.send(http.MethodDelete, g.path, nil)
	require.Equal(t, http.StatusNoContent, response.StatusCode, "its acknowledgement may have been lost")
	for _, header := range [][]string{nil, {"Range", "bytes=1-"}} {
		response, body = g.send(http.MethodGet, g.path, nil, header...)
		g.refused(cyborg.ErrChanged, response, body)
	}
}

// No other URL serves the image, and none does once a later one has been
// granted, its time is over or its operation has ended.
func TestOneTimeURLIsRefused(t *testing.T) {
	t.Parallel()
	g := setupGlance(t, agents.Config{})
	g.plain()
	refused := func(kind cyborg.ErrorKind, path string) string {
		response, body := g.send(http.MethodGet, path, nil)
		return g.refused(kind, response, body).Detail
	}

	refused(cyborg.ErrChanged, workflows.ImageFetch(g.operation, "another-secret"))
	refused(cyborg.ErrForbidden, workflows.ImageFetch(uuid.New(), "a-secret"))
	refused(cyborg.ErrInvalid, workflows.ImagesPath+g.operation.String())
	refused(cyborg.ErrInvalid, workflows.ImagesPath+"x?key=a-secret")

	g.grant(t, "later-secret", time.Hour)
	refused(cyborg.ErrChanged, g.path)

	short := g.grant(t, "short-secret", time.Millisecond)
	require.Eventually(t, func() bool {
		response, _ := g.send(http.MethodGet, short, nil)
		return response.StatusCode == http.StatusConflict
	}, 5*time.Minute, 5*time.Millisecond, "each use makes it good for another moment only")

	path := g.grant(t, "last-secret", time.Hour)
	g.glance.Fail(glancetest.Failure{Status: http.StatusServiceUnavailable})
	require.NotContains(t, refused(cyborg.ErrUnavailable, path), "secret")
	g.glance.Remove(g.id)
	refused(cyborg.ErrNotFound, path)

	require.NoError(t, g.store.End(t.Context(), db.Run{Operation: g.operation, ID: "run"}, cyborg.Outcome{
		Operation: g.operation, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrNotFound, "gone"),
	}))
	refused(cyborg.ErrChanged, path)

	_, err := g.store.GrantImage(t.Context(), db.Run{Operation: g.operation, ID: "run"}, db.ImageURL{
		Operation: g.operation, Accelerator: uuid.New(), Host: "h1", Valid: time.Hour,
	}, "too-late")
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err))
}

// Where no certificate says who an agent is, an image is served only to the
// agent that the host has, which proves that it is. What Temporal and the
// records say of the operation and of the agent is not enough.
func TestImagesAreServedToTheHostsAgentOnly(t *testing.T) {
	t.Parallel()
	url, _ := origin(t)
	g := setupGlance(t, agents.Config{})
	g.plain()
	web := setup(t, agents.Config{}, url)
	web.plain()
	byOperation := workflows.ImagesPath + web.programming(url+"/ranged", true).String()

	served := func(h *harness, path string, header ...string) {
		t.Helper()
		response, body := h.send(http.MethodGet, path, nil, header...)
		require.Equal(t, http.StatusOK, response.StatusCode, "%.200s", body)
	}
	refused := func(h *harness, method, path string, header ...string) {
		t.Helper()
		response, body := h.send(method, path, nil, header...)
		require.Contains(t, h.refused(cyborg.ErrForbidden, response, body).Detail, "does not prove")
	}

	// An agent of release 0.1 has no proof. It gets what a server of that release
	// has made a secret for, and no image whose name everybody knows.
	served(g.harness, g.path)
	served(web, byOperation)
	op, err := g.store.Operation(t.Context(), g.operation)
	require.NoError(t, err)
	named := g.grant(t, workflows.ImageName(g.operation, uuid.MustParse(op.Subjects[0].ID)), time.Hour)
	refused(g.harness, http.MethodGet, named)

	// This release's agent has one, and needs it.
	proof := []string{agentapi.ProofHeader, "what only the agent has"}
	become := func(instance string) {
		t.Helper()
		for _, h := range []*harness{g.harness, web} {
			_, err := h.database.Exec(t.Context(), "UPDATE hosts SET instance = $1", instance)
			require.NoError(t, err)
		}
	}
	become(agentapi.ProvenInstance(proof[1]))
	for _, wrong := range [][]string{nil, {proof[0], ""}, {proof[0], "a guess"}, {proof[0], agentapi.ProvenInstance(proof[1])}} {
		refused(g.harness, http.MethodGet, named, wrong...)
		refused(g.harness, http.MethodGet, workflows.ImageFetch(g.operation, "any-secret"), wrong...)
		refused(g.harness, http.MethodDelete, named, wrong...)
		refused(web, http.MethodGet, byOperation, wrong...)
	}
	served(g.harness, named, proof...)
	served(web, byOperation, proof...)

	// Whoever is refused fills no log.
	require.NotContains(t, g.said.String()+web.said.String(), "does not prove")

	// An agent in the server's own process needs none, and nobody else gets its
	// images.
	become(agentapi.InProcessInstance(proof[1]))
	for _, wrong := range [][]string{nil, proof} {
		refused(g.harness, http.MethodGet, named, wrong...)
		refused(g.harness, http.MethodGet, workflows.ImageFetch(g.operation, "any-secret"), wrong...)
		refused(web, http.MethodGet, byOperation, wrong...)
	}
	inside := httptest.NewServer(agents.InProcess(g.server.Config.Handler))
	t.Cleanup(inside.Close)
	g.server = inside
	served(g.harness, named)
}

// A one-time URL serves only the host that it was made for. A conductor that
// cannot reach Glance says so.
func TestOneTimeURLIsValidForOneHost(t *testing.T) {
	t.Parallel()
	signer := newAuthority(t)
	g := setupGlance(t, agents.Config{Certificates: true})
	g.mutual(signer, tls.RequireAndVerifyClientCert)

	// A use extends the validity, so one that is refused must not count as a use.
	expiry := func() (at time.Time) {
		require.NoError(t, g.database.QueryRow(t.Context(), "SELECT expires_at FROM image_urls").Scan(&at))
		return at
	}
	before := expiry()
	response, body := g.as(signer.host("h2")).send(http.MethodGet, g.path, nil)
	g.refused(cyborg.ErrForbidden, response, body)
	require.Equal(t, before, expiry())

	response, body = g.as(signer.host("h1")).send(http.MethodGet, g.path, nil)
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.True(t, bytes.Equal(g.image, body))

	without := setup(t, agents.Config{}).plain()
	operation := without.programming("glance:"+g.id.String(), true)
	op, err := without.store.Operation(t.Context(), operation)
	require.NoError(t, err)
	image := cyborg.GlanceImage(g.id)
	image.SHA256 = anySum
	_, err = without.store.GrantImage(t.Context(), db.Run{Operation: operation, ID: "run"}, db.ImageURL{
		Operation: operation, Accelerator: uuid.MustParse(op.Subjects[0].ID), Host: "h1", Asked: image, Image: image, Size: 1, Valid: time.Hour,
	}, "s")
	require.NoError(t, err)

	response, body = without.send(http.MethodGet, workflows.ImageFetch(operation, "s"), nil)
	require.Contains(t, without.refused(cyborg.ErrUnavailable, response, body).Detail, "not configured for Glance")
}

// A host that fetches as many images as it may is told to come back, and gets
// the next one when a transfer has ended.
func TestTooManyTransfersOfOneHost(t *testing.T) {
	t.Parallel()
	begun, proceed := make(chan struct{}), make(chan struct{})
	resume := sync.OnceFunc(func() { close(proceed) })
	var asked atomic.Int64
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			close(begun)
			<-proceed
		}
		_, _ = w.Write([]byte("image"))
	}))
	t.Cleanup(source.Close)

	h := setup(t, agents.Config{MaxTransfers: 1}, source.URL).plain()
	t.Cleanup(resume) // before the servers are closed, which wait for it
	path := workflows.ImagesPath + h.programming(source.URL+"/image", true).String()

	first := make(chan int, 1)
	go func() {
		response, err := h.client.Get(h.server.URL + path)
		if err != nil {
			first <- 0
			return
		}
		_ = response.Body.Close() // the status says it
		first <- response.StatusCode
	}()

	<-begun
	response, body := h.send(http.MethodGet, path, nil)
	h.refused(cyborg.ErrOverloaded, response, body)
	require.NotEmpty(t, response.Header.Get("Retry-After"))

	resume()
	require.Equal(t, http.StatusOK, <-first)

	require.Eventually(t, func() bool {
		response, _ := h.send(http.MethodGet, path, nil)
		return response.StatusCode == http.StatusOK
	}, 5*time.Minute, time.Millisecond)
}
