package imagesource_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/imagesource"
)

// origin starts a server with one image, and returns its URL and the image.
// Each path below /images/ answers in another way, with and without ranges, or
// fails. Nobody may ask for /private.
func origin(t *testing.T) (base string, image []byte) {
	t.Helper()
	image = make([]byte, 100_000)
	_, err := rand.Read(image)
	require.NoError(t, err)

	mux := http.NewServeMux()
	mux.HandleFunc("/images/ranged", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(image))
	})
	mux.HandleFunc("/images/plain", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(image) })
	mux.HandleFunc("/images/gone", http.NotFound)
	mux.HandleFunc("/images/secret", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	mux.HandleFunc("/images/broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	mux.HandleFunc("/images/teapot", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })

	mux.HandleFunc("/images/short", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write(image[:10])
	})

	mux.HandleFunc("/images/still", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(image[:10])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})

	mux.HandleFunc("/images/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/images/ranged", http.StatusFound) })
	mux.HandleFunc("/images/elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/private", http.StatusFound) })
	mux.HandleFunc("/images/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/images/loop", http.StatusFound) })
	mux.HandleFunc("/private", func(http.ResponseWriter, *http.Request) { t.Error("the private page was asked for") })

	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)

	return server.URL, image
}

// source is an image source that is closed when the test ends.
func source(t *testing.T, options imagesource.Options) *imagesource.HTTP {
	t.Helper()
	s, err := imagesource.New(options)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// TestOpen: an image is read from any offset, also from a server without
// ranges.
func TestOpen(t *testing.T) {
	t.Parallel()
	base, image := origin(t)
	s := source(t, imagesource.Options{Allow: []string{base + "/images/"}})

	for name, test := range map[string]struct {
		path   string
		offset int64
		size   int64
	}{
		"whole":                   {"ranged", 0, 100_000},
		"continued":               {"ranged", 99_000, 100_000},
		"whole, no ranges":        {"plain", 0, -1},
		"continued, no ranges":    {"plain", 99_000, -1},
		"redirected to its like":  {"moved", 0, 100_000},
		"continued by redirected": {"moved", 10, 100_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			content, size, err := s.Open(t.Context(), cyborg.Image{Source: base + "/images/" + test.path}, test.offset)
			require.NoError(t, err)
			require.Equal(t, test.size, size)

			got, err := io.ReadAll(content)
			require.NoError(t, err)
			require.NoError(t, content.Close())
			require.True(t, bytes.Equal(image[test.offset:], got), "%d bytes", len(got))
		})
	}
}

// TestOpenFails: failures have kinds by which a caller knows whether to try
// again, and nothing outside the allowed URLs is asked for.
func TestOpenFails(t *testing.T) {
	t.Parallel()
	base, _ := origin(t)
	s := source(t, imagesource.Options{Allow: []string{base + "/images"}})
	port := base[strings.LastIndex(base, ":"):]

	for name, test := range map[string]struct {
		source string
		offset int64
		kind   cyborg.ErrorKind
	}{
		"not there":               {base + "/images/gone", 0, cyborg.ErrNotFound},
		"not for us":              {base + "/images/secret", 0, cyborg.ErrForbidden},
		"server broken":           {base + "/images/broken", 0, cyborg.ErrUnavailable},
		"odd answer":              {base + "/images/teapot", 0, cyborg.ErrImageRejected},
		"beyond the end":          {base + "/images/ranged", 100_001, cyborg.ErrInvalid},
		"outside the allowed":     {base + "/private", 0, cyborg.ErrForbidden},
		"like the allowed":        {base + "/imagesque", 0, cyborg.ErrForbidden},
		"up for some servers":     {base + "/images/..;/private", 0, cyborg.ErrForbidden},
		"up by backslashes":       {base + "/images/..%5Cprivate", 0, cyborg.ErrForbidden},
		"up from the allowed":     {base + "/images/../private", 0, cyborg.ErrForbidden},
		"up, escaped":             {base + "/images/%2e%2e/private", 0, cyborg.ErrForbidden},
		"another port":            {"http://127.0.0.1:1/images/ranged", 0, cyborg.ErrForbidden},
		"another scheme":          {strings.Replace(base, "http:", "https:", 1) + "/images/ranged", 0, cyborg.ErrForbidden},
		"another name":            {"http://localhost" + port + "/images/ranged", 0, cyborg.ErrForbidden},
		"a password":              {strings.Replace(base, "http://", "http://u:p@", 1) + "/images/ranged", 0, cyborg.ErrForbidden},
		"a file":                  {"file:///etc/passwd", 0, cyborg.ErrForbidden},
		"redirected elsewhere":    {base + "/images/elsewhere", 0, cyborg.ErrForbidden},
		"redirected for ever":     {base + "/images/loop", 0, cyborg.ErrUnavailable},
		"no URL":                  {"http://[", 0, cyborg.ErrInvalid},
		"nobody listens, but may": {"http://127.0.0.1:1/", 0, cyborg.ErrForbidden},
		"cloud metadata":          {"http://169.254.169.254/latest/meta-data/", 0, cyborg.ErrForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, _, err := s.Open(t.Context(), cyborg.Image{Source: test.source}, test.offset)
			require.Error(t, err)
			require.Equal(t, test.kind, cyborg.ErrorKindOf(err), err)
			require.NotContains(t, err.Error(), "u:p@")
		})
	}
}

// TestOpenRefusesTooLarge: the limit holds whether the server announces the
// size or not.
func TestOpenRefusesTooLarge(t *testing.T) {
	t.Parallel()
	base, image := origin(t)
	small := source(t, imagesource.Options{Allow: []string{base}, Max: 99_999})
	_, _, err := small.Open(t.Context(), cyborg.Image{Source: base + "/images/ranged"}, 0)
	require.Equal(t, cyborg.ErrTooLarge, cyborg.ErrorKindOf(err), "the server says how large it is: %v", err)

	content, _, err := small.Open(t.Context(), cyborg.Image{Source: base + "/images/plain"}, 0)
	require.NoError(t, err, "the server does not say how large it is")
	got, err := io.ReadAll(content)
	require.Equal(t, cyborg.ErrTooLarge, cyborg.ErrorKindOf(err), err)
	require.LessOrEqual(t, len(got), 99_999)
	require.NoError(t, content.Close())

	exact := source(t, imagesource.Options{Allow: []string{base}, Max: int64(len(image))})
	content, _, err = exact.Open(t.Context(), cyborg.Image{Source: base + "/images/plain"}, 10)
	require.NoError(t, err)
	got, err = io.ReadAll(content)
	require.NoError(t, err)
	require.Equal(t, image[10:], got)
	require.NoError(t, content.Close())
}

// TestInterruptedRead: an answer that is too short, and one that falls silent,
// are errors that may be tried again.
func TestInterruptedRead(t *testing.T) {
	t.Parallel()
	base, _ := origin(t)
	s := source(t, imagesource.Options{Allow: []string{base}, Silence: 2 * time.Second})

	for _, path := range []string{"short", "still"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			content, _, err := s.Open(t.Context(), cyborg.Image{Source: base + "/images/" + path}, 0)
			require.NoError(t, err)

			_, err = io.ReadAll(content)
			require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), err)
			require.NoError(t, content.Close())
		})
	}
}

// TestOpenAllowsExplicitLoopback: this machine is refused unless the
// configuration names it.
func TestOpenAllowsExplicitLoopback(t *testing.T) {
	t.Parallel()
	base, _ := origin(t)
	parsed, err := url.Parse(base)
	require.NoError(t, err)

	named := "http://localhost:" + parsed.Port()
	s := source(t, imagesource.Options{Allow: []string{named}})

	content, _, err := s.Open(t.Context(), cyborg.Image{Source: named + "/images/ranged"}, 0)
	require.NoError(t, err)
	require.NoError(t, content.Close())
}

func TestNewRefusesInvalidURLs(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"images.example.org", "ftp://images.example.org/", "http://", "http://u:p@images.example.org", "http://["} {
		_, err := imagesource.New(imagesource.Options{Allow: []string{text}})
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), text)
	}
}

// The query of a URL may be a signature, which is in no error.
func TestNoErrorHasTheQuery(t *testing.T) {
	t.Parallel()
	const query = "?X-Signature=canary"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/short":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "short") // the reader sees that the rest is missing
		case "/large":
			_, _ = w.Write(make([]byte, 200)) // the reader gives up before
		case "/away":
			http.Redirect(w, r, "http://elsewhere.example/x"+query, http.StatusFound)
		case "/again":
			http.Redirect(w, r, "/again"+query, http.StatusFound)
		default:
			status, err := strconv.Atoi(r.URL.Path[1:])
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(status)
		}
	}))
	t.Cleanup(server.Close)
	s := source(t, imagesource.Options{Allow: []string{server.URL, "http://127.0.0.1:1"}, Max: 100})

	for _, from := range []string{
		server.URL + "/short", server.URL + "/large", server.URL + "/away", server.URL + "/again", server.URL + "/404", server.URL + "/403",
		server.URL + "/416", server.URL + "/503", server.URL + "/201", server.URL + "/broken", "http://127.0.0.1:1/x", "http://forbidden.example/x",
		"http://user:canary@" + server.URL[7:] + "/x", server.URL + "/%zz",
	} {
		content, _, err := s.Open(t.Context(), cyborg.Image{Source: from + query}, 0)
		if err == nil {
			_, err = io.ReadAll(content)
			require.NoError(t, content.Close())
		}
		require.Error(t, err, from)
		require.NotContains(t, err.Error(), "canary")
	}
}

// TestRedirectsKeepQueries: the query of one URL may be a signature. A redirect
// does not tell it to the next server, and a redirect that cannot be followed
// does not show the one that it leads to.
func TestRedirectsKeepQueries(t *testing.T) {
	t.Parallel()
	const canary = "X-Signature=canary"
	mux := http.NewServeMux()
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/here?target=1", http.StatusFound)
	})
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Referer())
	})
	mux.HandleFunc("/nowhere", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/%zz?"+canary)
		w.WriteHeader(http.StatusFound)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s := source(t, imagesource.Options{Allow: []string{server.URL}})

	content, _, err := s.Open(t.Context(), cyborg.Image{Source: server.URL + "/moved?" + canary}, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, content.Close()) }()
	referer, err := io.ReadAll(content)
	require.NoError(t, err)
	require.Empty(t, referer)

	_, _, err = s.Open(t.Context(), cyborg.Image{Source: server.URL + "/nowhere?" + canary}, 0)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "redirects to what is not a URL")
	require.NotContains(t, err.Error(), "canary")
}
