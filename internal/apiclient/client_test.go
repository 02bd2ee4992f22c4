package apiclient_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

// TestProblemsBecomeErrorsOfTheirKind: callers handle the API's failures by
// kind, like those of any other package.
func TestProblemsBecomeErrorsOfTheirKind(t *testing.T) {
	t.Parallel()
	operation := uuid.New()

	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3")
		answerProblem(w, http.StatusConflict, `{"type":"about:blank","title":"Another operation works on it","status":409,
			"detail":"accelerator fpga0 is being programmed","kind":"claimed","request_id":"req-7",
			"operation_id":"`+operation.String()+`","hint":"Wait for it."}`)
	})

	_, err := client.Attach(t.Context(), uuid.New(), cyborg.Holder{})
	require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err))

	e := cyborg.AsError(err)
	require.Equal(t, "accelerator fpga0 is being programmed", e.Message)
	require.Equal(t, "Wait for it.", e.Hint)
	require.Equal(t, operation, e.Operation)

	problem, ok := errors.AsType[*apiclient.Problem](err)
	require.True(t, ok)
	require.Equal(t, "req-7", problem.RequestID)
	require.Equal(t, 409, problem.Status)
	require.Equal(t, 3*time.Second, problem.RetryAfter)
}

// TestForeignErrorPages: a proxy or another server may answer in the API's
// place. Its status gives the error's kind, and the hint says to check the URL.
func TestForeignErrorPages(t *testing.T) {
	t.Parallel()
	for status, kind := range map[int]cyborg.ErrorKind{
		400: cyborg.ErrInvalid, 401: cyborg.ErrUnauthenticated, 403: cyborg.ErrForbidden, 404: cyborg.ErrNotFound, 418: cyborg.ErrInvalid,
		429: cyborg.ErrOverloaded, 500: cyborg.ErrInternal, 502: cyborg.ErrUnavailable, 503: cyborg.ErrUnavailable, 504: cyborg.ErrTimeout,
	} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()

			client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Openstack-Request-Id", "req-7") // a proxy may keep the API's headers
				http.Error(w, "<h1>No</h1>", status)
			})

			_, err := client.Host(t.Context(), "h1")
			require.Equal(t, kind, cyborg.ErrorKindOf(err))
			require.ErrorContains(t, err, strconv.Itoa(status))
			require.Contains(t, cyborg.AsError(err).Hint, "check the URL")

			problem, ok := errors.AsType[*apiclient.Problem](err)
			require.True(t, ok)
			require.Equal(t, "req-7", problem.RequestID)
		})
	}
}

func TestUnreachableServerIsUnavailable(t *testing.T) {
	t.Parallel()
	nowhere := "http://" + porttest.Address(t)
	client := newClient(t, apiclient.Options{URL: nowhere})
	_, err := client.Host(t.Context(), "h1")
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "nothing listens at "+nowhere)
	require.Contains(t, cyborg.AsError(err).Hint, "make run")
}

// TestBadOptionsAreRefused: a client that could never connect is not made.
func TestBadOptionsAreRefused(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))

	for name, options := range map[string]apiclient.Options{
		"no scheme":          {URL: "127.0.0.1:6666"},
		"other scheme":       {URL: "ftp://127.0.0.1"},
		"no host":            {URL: "http:///v1"},
		"no such authority":  {CACert: filepath.Join(t.TempDir(), "none.pem")},
		"no certificate":     {CACert: empty},
		"certificate alone":  {Cert: empty},
		"key alone":          {Key: empty},
		"certificate is bad": {Cert: empty, Key: empty},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := apiclient.New(options)
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", err)
		})
	}
}

// TestRequestHeaders: what a request says about its caller and about how it is
// to be answered.
func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body string

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got, body = r, string(content)
		answer(w, http.StatusAccepted, `{"id":"`+uuid.Nil.String()+`","kind":"attach","state":"admitted"}`)
	}))
	t.Cleanup(server.Close)
	client := newClient(t, apiclient.Options{URL: server.URL + "/v1/", Token: "s3cret", UserAgent: "test/1"})
	id := uuid.New()

	got = nil
	reply, err := client.Attach(t.Context(), id, cyborg.Holder{Kind: cyborg.HolderService, ID: "ovs"}, apiclient.Async(), apiclient.Key("k1"))
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationAdmitted, reply.Operation.State)
	require.Equal(t, "/v1/accelerators/"+id.String(), got.URL.Path)
	require.Equal(t, http.MethodPut, got.Method)
	require.JSONEq(t, `{"service":"ovs"}`, body)
	require.Equal(t, "Bearer s3cret", got.Header.Get("Authorization"))
	require.Equal(t, "respond-async", got.Header.Get("Prefer"))
	require.Equal(t, "k1", got.Header.Get("Idempotency-Key"))
	require.Equal(t, "test/1", got.Header.Get("User-Agent"))

	_, err = client.AttachWith(t.Context(), id, cyborg.Holder{}, map[string]string{"vlan": "5"})
	require.NoError(t, err)
	require.JSONEq(t, `{"parameters":{"vlan":"5"}}`, body)

	_, err = client.Detach(t.Context(), id, cyborg.Holder{Kind: cyborg.HolderInstance, ID: "i1"})
	require.NoError(t, err)
	first := got.Header.Get("Idempotency-Key")
	require.NoError(t, uuid.Validate(first), "each change has a key")
	require.Equal(t, "instance=i1", got.URL.RawQuery)

	_, err = client.Detach(t.Context(), id, cyborg.Holder{})
	require.NoError(t, err)
	require.NotEqual(t, first, got.Header.Get("Idempotency-Key"))
	require.Empty(t, got.URL.RawQuery)
	require.Empty(t, got.Header.Get("Prefer"))

	_, err = client.UpdateDriver(t.Context(), "host/1", "a b", cyborg.JSONObject{"x": 1})
	require.NoError(t, err)
	require.Equal(t, "/v1/hosts/host%2F1/drivers/a%20b", got.URL.EscapedPath())
}

// TestBrokenChangeIsRetriedWithItsIdempotencyKey: the API may have made the
// change before the connection broke, so the second try must be the same
// request.
func TestBrokenChangeIsRetriedWithItsIdempotencyKey(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	keys, bodies := map[string]bool{}, map[string]bool{}
	count := 0

	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}

		mu.Lock()
		count++
		present := count
		keys[r.Header.Get("Idempotency-Key")], bodies[string(body)] = true, true
		mu.Unlock()

		if present == 1 {
			breakConnection()
		}

		w.Header().Set("Location", "/v1/accelerators/"+uuid.Nil.String())
		w.WriteHeader(http.StatusCreated)
	})

	reply, err := client.Provision(t.Context(), apiclient.Provisioning{Name: "fast"})
	require.NoError(t, err)
	id, err := reply.Created()
	require.NoError(t, err)
	require.Equal(t, uuid.Nil, id)

	require.Equal(t, 2, count)
	require.Len(t, keys, 1)
	require.Len(t, bodies, 1)
}

// TestUnansweredChangeMayHaveBeenAdmitted: where every try breaks, the error
// must not claim that nothing was changed.
func TestUnansweredChangeMayHaveBeenAdmitted(t *testing.T) {
	t.Parallel()
	client := serve(t, func(http.ResponseWriter, *http.Request) { breakConnection() })
	_, err := client.MakeReady(t.Context(), uuid.New())
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.Contains(t, cyborg.AsError(err).Hint, "may have been admitted")
}

func TestCancelledContextIsTheError(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	client := serve(t, func(_ http.ResponseWriter, r *http.Request) { close(asked); <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	_, err := client.Discover(ctx, "h1")
	require.ErrorIs(t, err, context.Canceled)
}

// park serves n hosts page by page, as the API does, and counts the pages.
func park(n int, pages *int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		*pages++

		limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
		if err != nil || limit < 1 || limit > 1000 {
			answerProblem(w, http.StatusBadRequest, `{"kind":"invalid","detail":"limit"}`)
			return
		}

		start := 0
		if marker := r.URL.Query().Get("marker"); marker != "" {
			if _, err := fmt.Sscanf(marker, "h%d", &start); err != nil {
				answerProblem(w, http.StatusBadRequest, `{"kind":"invalid","detail":"marker"}`)
				return
			}
			start++
		}

		hosts := []cyborg.Host{}
		for i := start; i < min(n, start+limit); i++ {
			hosts = append(hosts, cyborg.Host{Name: fmt.Sprintf("h%d", i)})
		}

		body, err := json.Marshal(map[string]any{"host": hosts})
		if err != nil {
			panic(err)
		}
		answer(w, http.StatusOK, string(body))
	}
}

// TestListsAreReadPageByPage: a list is read in as few pages as it takes, up to
// the caller's limit.
func TestListsAreReadPageByPage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		have        int
		page        apiclient.Page
		first       string
		want, pages int
	}{
		"none":             {have: 0, want: 0, pages: 1},
		"one page":         {have: 3, first: "h0", want: 3, pages: 1},
		"just full":        {have: 1000, first: "h0", want: 1000, pages: 2},
		"several":          {have: 2500, first: "h0", want: 2500, pages: 3},
		"limit":            {have: 2500, page: apiclient.Page{Limit: 5}, first: "h0", want: 5, pages: 1},
		"limit over pages": {have: 2500, page: apiclient.Page{Limit: 1500}, first: "h0", want: 1500, pages: 2},
		"limit past end":   {have: 7, page: apiclient.Page{Limit: 1500}, first: "h0", want: 7, pages: 1},
		"marker":           {have: 7, page: apiclient.Page{Marker: "h4"}, first: "h5", want: 2, pages: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pages := 0
			client := serve(t, park(c.have, &pages))

			hosts, err := apiclient.Collect(client.Hosts(t.Context(), c.page))
			require.NoError(t, err)
			require.Len(t, hosts, c.want)
			require.Equal(t, c.pages, pages)

			if c.want > 0 {
				require.Equal(t, c.first, hosts[0].Name)
			}
		})
	}
}

// TestUnexpectedListIsAnError: an answer of another server must not look like
// an empty list.
func TestUnexpectedListIsAnError(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"hosts":[]}`, `{"host":{}}`, `[]`, `<html>`, ``} {
		client := serve(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, body) })
		_, err := apiclient.Collect(client.Hosts(t.Context(), apiclient.Page{}))
		require.Equal(t, cyborg.ErrInternal, cyborg.ErrorKindOf(err), body)
		require.Contains(t, cyborg.AsError(err).Hint, "Is the URL that of a Cyborg API")
	}
}

// TestAcceleratorsIncludeComputedFields: the API adds the status and the
// holders to an accelerator. A field of a newer API is ignored.
func TestAcceleratorsIncludeComputedFields(t *testing.T) {
	t.Parallel()
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"7"`)
		answer(w, http.StatusOK, `{"uuid":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","name":"fpga0","status":"attached",
			"holders":[{"kind":"host","id":"h1"}],"acc_specs":{"num":1,"acc_capability":{"a":1}},"unknown":true}`)
	})

	accelerator, etag, err := client.Accelerator(t.Context(), uuid.New())
	require.NoError(t, err)
	require.Equal(t, `"7"`, etag)
	require.Equal(t, cyborg.StatusAttached, accelerator.Status)
	require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderHost, ID: "h1"}}, accelerator.Holders)
	require.Equal(t, "fpga0", accelerator.Name)
}

// TestTLS: a server is trusted by its authority alone, and what is wrong with
// TLS is told apart.
func TestTLS(t *testing.T) {
	t.Parallel()

	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, `{"name":"h1"}`) }))
	t.Cleanup(server.Close)
	server.Config.ErrorLog = nil

	_, err := newClient(t, apiclient.Options{URL: server.URL}).Host(t.Context(), "h1")
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.Contains(t, cyborg.AsError(err).Hint, "--cacert")

	authority := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	host, err := newClient(t, apiclient.Options{URL: server.URL, CACert: authority}).Host(t.Context(), "h1")
	require.NoError(t, err)
	require.Equal(t, "h1", host.Name)

	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	_, err = newClient(t, apiclient.Options{URL: "https://" + plain.Listener.Addr().String()}).Host(t.Context(), "h1")
	require.ErrorContains(t, err, "speaks http, not https")

	_, err = newClient(t, apiclient.Options{URL: "http://" + server.Listener.Addr().String()}).Host(t.Context(), "h1")
	require.ErrorContains(t, err, "speaks https, not http")
	require.Contains(t, cyborg.AsError(err).Hint, "https://")
	require.NotContains(t, cyborg.AsError(err).Hint, "proxy")
}

// TestMissingTokenIsNamedAsTheClientTakesIt: the API's hint names the header, which
// nobody sends who uses the command line. What it says of a token that was sent stays.
func TestMissingTokenIsNamedAsTheClientTakesIt(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"kind": "unauthenticated", "detail": "no", "hint": "Send the header Authorization."}`)
	}))
	t.Cleanup(server.Close)

	_, err := newClient(t, apiclient.Options{URL: server.URL}).Host(t.Context(), "h1")
	require.Contains(t, cyborg.AsError(err).Hint, "--token-file")
	for _, err := range newClient(t, apiclient.Options{URL: server.URL}).Events(t.Context(), apiclient.EventFilter{}, "", nil) {
		require.Contains(t, cyborg.AsError(err).Hint, "--token-file")
		break
	}
	_, err = newClient(t, apiclient.Options{URL: server.URL, Token: "wrong"}).Host(t.Context(), "h1")
	require.Equal(t, "Send the header Authorization.", cyborg.AsError(err).Hint)
}

// TestMutualTLS: a server that wants a certificate of the client gets it.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, `{"name":"h1"}`) }))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)

	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}

	own := server.TLS.Certificates[0] // the server accepts any certificate
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	require.NoError(t, err)
	options := apiclient.Options{URL: server.URL, CACert: write("ca.pem", "CERTIFICATE", server.Certificate().Raw)}

	require.Eventually(t, func() bool { // the connection may break before the server's reason is read
		_, err = newClient(t, options).Host(t.Context(), "h1")
		require.Error(t, err)
		return !strings.Contains(err.Error(), "closed the connection")
	}, 5*time.Minute, time.Millisecond)
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(err), "%v", err)
	require.Contains(t, cyborg.AsError(err).Hint, "--cert and --key")

	options.Cert, options.Key = write("cert.pem", "CERTIFICATE", own.Certificate[0]), write("key.pem", "PRIVATE KEY", key)
	host, err := newClient(t, options).Host(t.Context(), "h1")
	require.NoError(t, err)
	require.Equal(t, "h1", host.Name)
}
