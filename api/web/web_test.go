package web_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// observed serves the handler below Observe, to a caller who is known. What is
// logged is written to log.
func observed(t *testing.T, handler web.Handler) (server *httptest.Server, log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	metrics, err := web.NewMetrics(prometheus.NewRegistry(), "test")
	require.NoError(t, err)
	logger := slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))

	server = httptest.NewUnstartedServer(web.Observe(logger, metrics, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		web.SetIdentity(r.Context(), web.Identity{ID: "u-1"})
		handler.ServeHTTP(w, r)
	})))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
	return server, log
}

// get sends a request and reads the answer.
func get(t *testing.T, url string) (*http.Response, []byte, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, body, err
}

// A routine request, such as those that agents send all the time, is logged at
// debug. If it fails, it is logged as any other.
func TestRoutineRequestsAreLoggedAtDebug(t *testing.T) {
	t.Parallel()
	for failure, level := range map[error]slog.Level{
		nil: slog.LevelDebug, cyborg.Errorf(cyborg.ErrForbidden, "no"): slog.LevelWarn,
	} {
		server, log := observed(t, func(_ http.ResponseWriter, r *http.Request) error {
			web.SetRoutine(r.Context())
			return failure
		})

		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
		require.NoError(t, err)

		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		server.Close()

		var line map[string]any
		require.NoError(t, json.Unmarshal(log.Bytes(), &line))
		require.Equal(t, level.String(), line["level"])
	}
}

// Each kind of error has an answer with its status, a title of its own and the
// message. The message of an internal error goes only into the log.
func TestWriteError(t *testing.T) {
	t.Parallel()
	titles := map[string]cyborg.ErrorKind{}

	for _, kind := range cyborg.ErrorKinds() {
		server, log := observed(t, func(http.ResponseWriter, *http.Request) error {
			return fmt.Errorf("wrapped: %w", cyborg.Errorf(kind, "secret message").WithHint("Do this."))
		})

		response, body, err := get(t, server.URL)
		require.NoError(t, err)
		server.Close()

		require.Equal(t, kind.HTTPStatus(), response.StatusCode)

		var problem web.Problem
		require.NoError(t, json.Unmarshal(body, &problem))
		require.Equal(t, kind, problem.Kind)
		require.Equal(t, "urn:cyborg:problem:"+string(kind), problem.Type)
		require.Equal(t, response.Header.Get(web.RequestIDHeader), problem.RequestID)

		require.NotEmpty(t, problem.Title)
		require.NotContains(t, titles, problem.Title, "%s", kind)
		titles[problem.Title] = kind

		if kind == cyborg.ErrInternal {
			require.NotContains(t, string(body), "secret")
		} else {
			require.Equal(t, "secret message", problem.Detail)
			require.Equal(t, "Do this.", problem.Hint)
		}

		require.Equal(t, kind.Retryable() || kind.HTTPStatus() == http.StatusServiceUnavailable, response.Header.Get("Retry-After") != "", "%s", kind)

		var line map[string]any
		require.NoError(t, json.Unmarshal(log.Bytes(), &line))
		require.Equal(t, kind.LogLevel().String(), line["level"])
		require.Contains(t, line["error"], "secret message")
		require.Equal(t, problem.RequestID, line["request_id"])
	}
}

func TestForeignErrorsAreHidden(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		kind cyborg.ErrorKind
	}{
		"unknown":  {errors.New("secret at db.go:17"), cyborg.ErrInternal},
		"deadline": {fmt.Errorf("secret: %w", context.DeadlineExceeded), cyborg.ErrTimeout},
	} {
		server, _ := observed(t, func(http.ResponseWriter, *http.Request) error { return test.err })
		response, body, err := get(t, server.URL)
		require.NoError(t, err, name)
		require.Equal(t, test.kind.HTTPStatus(), response.StatusCode, name)
		require.NotContains(t, string(body), "secret", name)
	}
}

func TestPanic(t *testing.T) {
	t.Parallel()
	server, log := observed(t, func(http.ResponseWriter, *http.Request) error { panic("secret") })

	response, body, err := get(t, server.URL)
	require.NoError(t, err)

	require.Equal(t, http.StatusInternalServerError, response.StatusCode)
	require.Equal(t, "application/problem+json", response.Header.Get("Content-Type"))
	require.NotContains(t, string(body), "secret")

	server.Close()
	require.Contains(t, log.String(), "secret")
	require.Contains(t, log.String(), "web_test.go", "the log has the stack")
}

// A panic in the middle of an answer breaks the connection, because half an
// answer must not look like a whole one.
func TestPanicDuringAnAnswer(t *testing.T) {
	t.Parallel()
	server, log := observed(t, func(w http.ResponseWriter, _ *http.Request) error {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic("secret")
	})

	_, _, err := get(t, server.URL)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	server.Close()
	require.Contains(t, log.String(), "secret")
}

func TestDisconnectCancelsTheRequest(t *testing.T) {
	t.Parallel()
	entered, left := make(chan struct{}), make(chan struct{})
	server, log := observed(t, func(_ http.ResponseWriter, r *http.Request) error {
		close(entered)
		<-r.Context().Done()
		close(left)
		return r.Context().Err()
	})

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	require.NoError(t, err)
	go func() {
		<-entered
		cancel()
	}()

	response, err := http.DefaultClient.Do(request)
	if err == nil {
		require.NoError(t, response.Body.Close())
	}

	require.ErrorIs(t, err, context.Canceled)
	<-left
	server.Close()
	require.Contains(t, log.String(), `"status":499`)
	require.Contains(t, log.String(), `"level":"INFO"`, "a client that leaves is no defect of ours")
}

func TestMetricsAreRegisteredOnce(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()

	_, err := web.NewMetrics(registry, "one")
	require.NoError(t, err)

	_, err = web.NewMetrics(registry, "two")
	require.NoError(t, err)

	_, err = web.NewMetrics(registry, "one")
	require.Error(t, err)
}

func TestReadBody(t *testing.T) {
	t.Parallel()
	for size, ok := range map[int]bool{0: true, 100: true, 101: false} {
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(make([]byte, size)))
		body, err := web.ReadBody(httptest.NewRecorder(), r, 100)
		if ok {
			require.NoError(t, err)
			require.Len(t, body, size)
		} else {
			require.Equal(t, cyborg.ErrTooLarge, cyborg.ErrorKindOf(err))
		}
	}

	broken := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(bytes.NewReader([]byte("{")), brokenReader{}))
	_, err := web.ReadBody(httptest.NewRecorder(), broken, 100)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
}

// brokenReader is a body that breaks off.
type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// What anybody can do leaves no line in the log each time: what a stranger does
// wrong has none, and what fails for strangers has one a minute, with the number
// of those since the one before.
func TestStrangersAreNotLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		metrics, err := web.NewMetrics(prometheus.NewRegistry(), "test")
		require.NoError(t, err)
		observe := web.Observe(slog.New(slog.NewTextHandler(&said, nil)), metrics, nil)

		serve := func(method string, err error, identity web.Identity) {
			handler := observe(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				web.SetIdentity(r.Context(), identity)
				if err != nil {
					web.WriteError(w, r, err)
				}
			}))
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, "/"+strings.Repeat("x", 5000), nil))
		}
		no := func(kind cyborg.ErrorKind) error { return cyborg.Errorf(kind, "no") }

		serve(http.MethodHead, nil, web.Identity{})
		for _, kind := range []cyborg.ErrorKind{
			cyborg.ErrUnauthenticated, cyborg.ErrForbidden, cyborg.ErrNotFound, cyborg.ErrInvalid, cyborg.ErrOverloaded, cyborg.ErrTooLarge,
		} {
			serve(http.MethodHead, no(kind), web.Identity{})
			serve(http.MethodPost, no(kind), web.Identity{})
		}
		require.Empty(t, said.String())

		for range 5 {
			serve(http.MethodPost, no(cyborg.ErrUnavailable), web.Identity{})
		}
		require.Equal(t, 1, strings.Count(said.String(), "\n"))
		<-time.After(time.Minute)
		serve(http.MethodPost, no(cyborg.ErrInternal), web.Identity{})
		require.Equal(t, 2, strings.Count(said.String(), "\n"))
		require.Contains(t, said.String(), "repeated=4")

		said.Reset()
		serve(http.MethodGet, no(cyborg.ErrForbidden), web.Identity{Name: "ada"})
		require.Contains(t, said.String(), "ada")
		require.Less(t, len(said.String()), 2000)
		serve(http.MethodGet, no(cyborg.ErrInternal), web.Identity{Name: "ada"})
		require.Equal(t, 2, strings.Count(said.String(), "\n"))
	})
}
