package agent

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/workflows"
)

// serveImages returns an endpoint whose only conductor is this handler.
func serveImages(t *testing.T, handler http.HandlerFunc) *endpoint {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	e := newEndpoint("h1", []string{server.URL}, nil, nil)
	t.Cleanup(e.close)
	return e
}

// A download resumes at an offset within the image. At an offset behind its end
// it begins anew.
func TestImagesAreReadInRanges(t *testing.T) {
	t.Parallel()
	const image = "0123456789"
	operation := uuid.New()
	e := serveImages(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/agent/v1/images/"+operation.String() {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(image))
	})

	for offset, want := range map[int64]struct {
		offset int64
		text   string
	}{0: {0, image}, 4: {4, "456789"}, 10: {0, image}, 50: {0, image}} {
		download, err := e.Image(t.Context(), workflows.ImagesPath+operation.String(), offset)
		require.NoError(t, err)
		text, err := io.ReadAll(download)
		require.NoError(t, err)
		require.NoError(t, download.Close())

		require.Equal(t, want.text, string(text), "from %d", offset)
		require.Equal(t, want.offset, download.Offset)
		require.Equal(t, int64(len(image)), download.Size)
	}

	_, err := e.Image(t.Context(), workflows.ImagesPath+uuid.NewString(), 0)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
}

func TestImageErrorsOfTheConductor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status int
		body   string
		kind   cyborg.ErrorKind
		text   string
	}{
		{409, `{"kind":"changed","detail":"the operation has ended","hint":"Retry it."}`, cyborg.ErrChanged, "the operation has ended"},
		{413, `{"kind":"too_large","message":"too large"}`, cyborg.ErrTooLarge, "too large"},
		{404, `{"kind":"nonsense","detail":"no image"}`, cyborg.ErrNotFound, "no image"},
		{401, ``, cyborg.ErrUnauthenticated, "401"},
		{403, `not JSON`, cyborg.ErrForbidden, "403"},
		{429, ``, cyborg.ErrOverloaded, "429"},
		{400, ``, cyborg.ErrInvalid, "400"},
		{416, ``, cyborg.ErrUnavailable, "416"},
		{302, ``, cyborg.ErrUnavailable, "302"},
		{502, `{"kind":"hardware","detail":"the mirror burns"}`, cyborg.ErrUnavailable, "the mirror burns"},
		{503, ``, cyborg.ErrUnavailable, "503"},
	} {
		e := serveImages(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(test.status)
			_, _ = fmt.Fprint(w, test.body) // a failed write shows at the client
		})

		_, err := e.Image(t.Context(), workflows.ImagesPath+uuid.NewString(), 0)
		require.Equal(t, test.kind, cyborg.ErrorKindOf(err), "status %d: %v", test.status, err)
		require.ErrorContains(t, err, test.text)
	}
}

// An image is given back, with the agent's proof. No error contains the key,
// which a server of release 0.1 may have made a secret, nor the proof.
func TestOneTimeURLs(t *testing.T) {
	t.Parallel()
	path := workflows.ImageFetch(uuid.New(), "the-secret")
	asked := make(chan string, 2)
	e := serveImages(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.URL.RequestURI() + " " + r.Header.Get(agentapi.ProofHeader)
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_, _ = fmt.Fprint(w, "image") // a failed write shows at the client
	})

	e.proof = "the-proof"
	download, err := e.Image(t.Context(), path, 0)
	require.NoError(t, err)
	require.NoError(t, download.Close())
	require.NoError(t, e.GiveBack(t.Context(), path))

	require.Equal(t, "GET "+path+" the-proof", <-asked)
	require.Equal(t, "DELETE "+path+" the-proof", <-asked)

	nobody := newEndpoint("h1", []string{"http://127.0.0.1:1"}, nil, nil)
	defer nobody.close()
	nobody.proof = "the-proof"
	_, err = nobody.Image(t.Context(), path, 0)
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.NotContains(t, err.Error(), "the-")
	require.NotContains(t, nobody.GiveBack(t.Context(), path).Error(), "the-")
}

// A step names what to fetch. It can name images of the conductors only: with
// anything else the agent would ask servers that the step has chosen.
func TestOnlyImagesOfTheConductorsAreFetched(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	count := func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusNoContent)
	}
	e := serveImages(t, count)
	elsewhere := httptest.NewServer(http.HandlerFunc(count))
	t.Cleanup(elsewhere.Close)
	other := strings.TrimPrefix(elsewhere.URL, "http://")
	image := workflows.ImagesPath + uuid.NewString()

	for _, fetch := range []string{
		"", "/", "x", "@" + other + "/x", "@" + other + image, ".example.org" + image, elsewhere.URL + image, "//" + other + image,
		"://" + other + image, "/agent/v1/reports", workflows.ImagesPath, workflows.ImagesPath + "x", image + "/x", "/x/.." + image,
		workflows.ImagesPath + "../reports", workflows.ImagesPath + "%2e%2e/reports", image + "#x", image + "?", image + "?other=the-secret",
		image + "?key=the-secret&other=1", image + "?key=the-secret#x", image + "?key=a b", image + "?key=%0a", "\\" + other + image,
	} {
		_, err := e.Image(t.Context(), fetch, 0)
		require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), "%s: %v", fetch, err)
		require.NotContains(t, err.Error(), "the-secret")
		err = e.GiveBack(t.Context(), fetch)
		require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), "%s: %v", fetch, err)
	}
	require.Zero(t, asked.Load())

	require.NoError(t, e.GiveBack(t.Context(), image+"?key=the-secret"))
	require.Equal(t, int64(1), asked.Load())
}

// A partial answer that does not say which part it is cannot be used.
func TestUnrequestedRangeIsRefused(t *testing.T) {
	t.Parallel()
	e := serveImages(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Range", "items 1-2/3")
		w.WriteHeader(http.StatusPartialContent)
	})
	_, err := e.Image(t.Context(), workflows.ImagesPath+uuid.NewString(), 1)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "does not say which")
}

// The delay that an answer asks for is respected up to a limit.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]time.Duration{"": 0, "soon": 0, "-1": 0, "3": 3 * time.Second, "86400": lastRetry} {
		e := serveImages(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", header)
			w.WriteHeader(http.StatusTooManyRequests)
		})

		err := e.post(t.Context(), reportPath, agentapi.Report{}, &agentapi.ReportReply{})
		require.Equal(t, cyborg.ErrOverloaded, cyborg.ErrorKindOf(err))

		var asked retryAfter
		require.Equal(t, want > 0, errors.As(err, &asked), header)
		require.Equal(t, want, asked.after, header)
	}
}

// TestSilentConductorIsPassedBy: the first conductor accepts requests and never
// answers, as one whose process is frozen. The second one is asked, and from
// then on asked first.
func TestSilentConductorIsPassedBy(t *testing.T) {
	t.Parallel()
	operation := uuid.New()
	image := workflows.ImagesPath + operation.String()

	for name, ask := range map[string]func(t *testing.T, e *endpoint) error{
		"a heartbeat": func(t *testing.T, e *endpoint) error {
			t.Helper()
			return e.post(t.Context(), heartbeatPath, agentapi.Heartbeat{}, &agentapi.HeartbeatReply{})
		},
		"a report": func(t *testing.T, e *endpoint) error {
			t.Helper()
			return e.post(t.Context(), reportPath, agentapi.Report{}, &agentapi.ReportReply{})
		},
		"an image": func(t *testing.T, e *endpoint) error {
			t.Helper()
			download, err := e.Image(t.Context(), image, 0)
			if err != nil {
				return err
			}
			text, err := io.ReadAll(download)
			require.Equal(t, "{}", string(text))
			return errors.Join(err, download.Close())
		},
		"an image that is given back": func(t *testing.T, e *endpoint) error {
			t.Helper()
			return e.GiveBack(t.Context(), image)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked, answers atomic.Int64
			thawed := make(chan struct{})
			silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				asked.Add(1)
				<-thawed
			}))
			t.Cleanup(silent.Close)
			t.Cleanup(func() { close(thawed) })

			lively := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				answers.Add(1)
				_, _ = io.WriteString(w, "{}")
			}))
			t.Cleanup(lively.Close)

			e := newEndpoint("h1", []string{silent.URL, lively.URL}, nil, nil)
			t.Cleanup(e.close)
			e.patience = 20 * time.Millisecond

			require.NoError(t, ask(t, e))
			e.patience = time.Minute
			require.NoError(t, ask(t, e))
			require.LessOrEqual(t, asked.Load(), int64(1), "only the first request goes to the silent one")
			require.EqualValues(t, 2, answers.Load())
		})
	}
}
