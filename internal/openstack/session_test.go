package openstack_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/leaktest"
	"github.com/cyborg-project/cyborg/internal/openstack"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/internal/pki"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// session returns a session that is closed with the test.
func session(t *testing.T, c config.OpenStack) *openstack.Session {
	t.Helper()
	s, err := openstack.New(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// service returns a service that answers 200 to our own token and 401 to any
// other.
func service(t *testing.T, k *openstacktest.Keystone) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !k.IsOwn(r.Header.Get("X-Auth-Token")) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, `{"path":"`+r.URL.Path+`"}`)
	}))
	t.Cleanup(server.Close)
	return server
}

// get asks the service for a path and returns the path that it has seen.
func get(ctx context.Context, s *openstack.Session, serviceType string) (string, error) {
	client, err := s.Service(ctx, serviceType)
	if err != nil {
		return "", err
	}

	var answer struct{ Path string }
	_, err = client.Get(ctx, client.ServiceURL("x"), &answer, nil)
	return answer.Path, openstack.Explain(serviceType, err)
}

func TestServicesAreFoundInTheCatalog(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	server := service(t, k)
	k.Serve("placement", server.URL+"/catalog")
	k.Serve("compute", "http://127.0.0.1:1/v2.1")

	c := k.Config()
	c.Endpoints = []config.ServiceEndpoint{{Service: "compute", URL: server.URL + "/configured/"}}
	s := session(t, c)

	path, err := get(t.Context(), s, "placement")
	require.NoError(t, err)
	require.Equal(t, "/catalog/x", path)

	path, err = get(t.Context(), s, "compute")
	require.NoError(t, err)
	require.Equal(t, "/configured/x", path, "what is configured goes before the catalog")
	require.Equal(t, 1, k.Logins())

	_, err = s.Service(t.Context(), "image")
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "no service of type image")

	c.Region = "RegionTwo"
	_, err = session(t, c).Service(t.Context(), "placement")
	require.ErrorContains(t, err, "no internal endpoint of the service placement in the region RegionTwo")

	c.Region = "RegionOne"
	_, err = session(t, c).Service(t.Context(), "placement")
	require.NoError(t, err)
}

// TestRedirectionsStayAtTheService: a service may redirect to another path of
// its own, and to nobody else, because our own token goes along.
func TestRedirectionsStayAtTheService(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	server := service(t, k)
	var requests atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		_, _ = io.WriteString(w, `{}`)
	}))
	t.Cleanup(elsewhere.Close)

	redirecting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away/x":
			http.Redirect(w, r, elsewhere.URL+"/x", http.StatusTemporaryRedirect)
		case "/near/x":
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		default:
			server.Config.Handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(redirecting.Close)

	k.Serve("image", redirecting.URL+"/away")
	k.Serve("compute", redirecting.URL+"/near")
	s := session(t, k.Config())

	path, err := get(t.Context(), s, "compute")
	require.NoError(t, err)
	require.Equal(t, "/there", path)

	_, err = get(t.Context(), s, "image")
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "redirects to "+elsewhere.URL)
	require.Zero(t, requests.Load())
}

// TestConnectTimeout: a service to which a connection takes too long is away,
// which may pass. Go's net reports that as context.DeadlineExceeded, as if the
// caller had no time left.
func TestConnectTimeout(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	c := k.Config()
	c.Connect = time.Nanosecond
	err := session(t, c).Ping(t.Context())
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, "i/o timeout")

	gone, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err = get(gone, session(t, k.Config()), "placement")
	require.ErrorIs(t, err, context.DeadlineExceeded, "the caller has no time left")
}

// TestURLsOfKeystone: the URL may be given with or without its version and a
// last slash.
func TestURLsOfKeystone(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	for _, suffix := range []string{"", "/", "/v3", "/v3/"} {
		c := k.Config()
		c.AuthURL = k.URL + suffix
		require.NoError(t, session(t, c).Ping(t.Context()), suffix)
	}
}

// TestExpiringTokenIsReplaced: our own token is replaced before it ends and
// where a service refuses it, and concurrent requests cause one login.
func TestExpiringTokenIsReplaced(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	k.Serve("placement", service(t, k).URL)
	s := session(t, k.Config())

	use := func() {
		t.Helper()
		_, err := get(t.Context(), s, "placement")
		require.NoError(t, err)
	}

	use()
	use()
	require.Equal(t, 1, k.Logins())

	k.RevokeOwn() // as when Keystone's keys are changed

	var work sync.WaitGroup
	for range 20 {
		work.Go(func() {
			_, err := get(t.Context(), s, "placement")
			if err != nil {
				t.Error(err)
			}
		})
	}

	work.Wait()
	require.Equal(t, 2, k.Logins(), "one login for all that met a 401")

	k.SetLifetime(time.Minute)
	k.RevokeOwn()
	use()
	require.Equal(t, 3, k.Logins())
	k.SetLifetime(time.Hour)
	use()
	require.Equal(t, 4, k.Logins(), "it is replaced before it ends")
	use()
	require.Equal(t, 4, k.Logins())
}

// TestTokenIsUsedWhileKeystoneIsAway: a token that ends soon is still used
// where Keystone gives us no other.
func TestTokenIsUsedWhileKeystoneIsAway(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	k.Serve("placement", service(t, k).URL)
	k.SetLifetime(time.Minute)
	s := session(t, k.Config())
	require.NoError(t, s.Ping(t.Context()))

	var asked atomic.Int64
	k.Disturb(func(http.ResponseWriter, *http.Request) {
		asked.Add(1)
		panic(http.ErrAbortHandler)
	})

	for range 5 {
		_, err := get(t.Context(), s, "placement")
		require.NoError(t, err)
	}

	require.Less(t, asked.Load(), int64(5), "Keystone is left alone for a while") // a machine that stalls may outlast it
}

func TestKeystoneDoesNotAnswer(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	s := session(t, k.Config())
	for name, handler := range map[string]http.HandlerFunc{
		"broken connection": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"500":               func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"503 in HTML": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "<html>"+strings.Repeat("x", 1<<20))
		},
		"no JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Subject-Token", "x")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "<html>")
		},
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"token":`)
		},
	} {
		k.Disturb(handler)
		_, err := s.Service(t.Context(), "placement")
		require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), name)
		require.NotContains(t, err.Error(), openstacktest.OwnPassword, name)
		require.Less(t, len(err.Error()), 1000, name)
	}

	k.Disturb(nil)
	require.NoError(t, s.Ping(t.Context()))

	k.SetPassword("another")
	_, err := session(t, k.Config()).Service(t.Context(), "placement")
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "does not let our own user cyborg")
	require.Contains(t, cyborg.AsError(err).Hint, "openstack.username")
}

// TestLoginOutlivesItsRequest: a login that others wait for does not end with
// the request that happened to come first.
func TestLoginOutlivesItsRequest(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	s := session(t, k.Config())

	inside, goOn := make(chan struct{}), make(chan struct{})
	k.Disturb(func(w http.ResponseWriter, r *http.Request) {
		close(inside)
		<-goOn
		k.Disturb(nil)
		k.ServeUndisturbed(w, r)
	})

	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- s.Ping(ctx) }()

	<-inside
	cancel()
	require.ErrorIs(t, <-first, context.Canceled)

	second := make(chan error, 1)
	go func() { second <- s.Ping(t.Context()) }()
	close(goOn) // the second comes during the login or after it
	require.NoError(t, <-second)
	require.Equal(t, 1, k.Logins())
}

// TestKeystoneRefusesALogin: whatever status Keystone gives to our login, the
// error may pass. It is not taken for the service's answer to the request.
func TestKeystoneRefusesALogin(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 404, 409, 413, 429, 500, 503} {
		k := openstacktest.NewKeystone(t)
		k.Disturb(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		s := session(t, k.Config())
		_, err := s.Service(t.Context(), "image")
		require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), "%d: %v", status, err)
		require.ErrorContains(t, err, strconv.Itoa(status))
	}
}

func TestCertificatesAreChecked(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	server := httptest.NewTLSServer(http.HandlerFunc(k.ServeHTTP))
	t.Cleanup(server.Close)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)

	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))

	c := k.Config()
	c.AuthURL = server.URL
	err := session(t, c).Ping(t.Context())
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "certificate")

	c.CAFile = file
	require.NoError(t, session(t, c).Ping(t.Context()))

	c.CAFile, c.Insecure = "", true
	require.NoError(t, session(t, c).Ping(t.Context()))

	c.CAFile = filepath.Join(t.TempDir(), "none.pem")
	_, err = openstack.New(c, slog.New(slog.DiscardHandler))
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
}

// TestReplacedAuthorities: a service gets a certificate of another authority, and
// the file has that authority soon after. No session is made anew. The client
// certificate of a clouds.yaml is shown before and after.
func TestReplacedAuthorities(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "ca.pem")
	put := func(authorities ...*pki.Authority) {
		var text []byte
		for _, one := range authorities {
			text = append(text, pki.EncodeCertificate(one.Certificate())...)
		}
		require.NoError(t, os.WriteFile(file+".fresh", text, 0o600))
		require.NoError(t, os.Rename(file+".fresh", file))
	}
	made := func(role identity.Role) (*pki.Authority, []byte, []byte) {
		authority, err := pki.Temporary()
		require.NoError(t, err)
		certificate, key, err := authority.IssuePair(pki.Leaf{
			Identity: identity.Identity{TrustDomain: "cyborg", Role: role, Name: "x"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
		})
		require.NoError(t, err)
		return authority, certificate, key
	}

	var shown atomic.Pointer[tls.Certificate]
	serve := func() *pki.Authority {
		authority, certificate, key := made(identity.Server)
		pair, err := tls.X509KeyPair(certificate, key)
		require.NoError(t, err)
		shown.Store(&pair)
		return authority
	}
	k := openstacktest.NewKeystone(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(k.ServeHTTP))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	server.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAnyClientCert,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAnyClientCert, Certificates: []tls.Certificate{*shown.Load()}}, nil
		},
	}
	first := serve()
	put(first)
	server.StartTLS()
	t.Cleanup(server.Close)

	_, certificate, key := made(identity.Reader)
	for name, text := range map[string][]byte{"own.crt": certificate, "own.key": key} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	c := k.Config()
	clouds := filepath.Join(dir, "clouds.yaml")
	require.NoError(t, os.WriteFile(clouds, fmt.Appendf(nil, `
clouds:
  it:
    auth: {auth_url: %q, username: %q, password: %q, user_domain_name: %q, project_name: %q, project_domain_name: %q}
    cert: %q
    key: %q
`, server.URL, c.Username, c.Password.Reveal(), c.UserDomain, c.Project, c.ProjectDomain, filepath.Join(dir, "own.crt"), filepath.Join(dir, "own.key")), 0o600))
	c.Cloud, c.CloudsFile, c.CAFile = "it", clouds, file

	c.Endpoints = []config.ServiceEndpoint{{Service: "image", URL: server.URL}}
	s := session(t, c)
	ask := func() error {
		images, err := s.Service(t.Context(), "image")
		require.NoError(t, err)
		answer, err := images.Get(t.Context(), server.URL, nil, &gophercloud.RequestOpts{OkCodes: []int{http.StatusNotFound}})
		if err == nil {
			require.NoError(t, answer.Body.Close())
		}
		return err
	}
	require.NoError(t, ask())
	second := serve()
	server.CloseClientConnections()
	require.ErrorContains(t, ask(), "certificate")
	put(first, second)
	require.NoError(t, ask())

	// One that is left out counts no more, also where a connection is open. While
	// the file cannot be used, the authorities of before count.
	put(first)
	require.ErrorContains(t, ask(), "certificate")
	put(second)
	require.NoError(t, ask())
	require.NoError(t, os.WriteFile(file, []byte("none"), 0o600))
	require.NoError(t, ask())
	server.CloseClientConnections()
	require.NoError(t, ask())
}

func TestUnsafeSettingsAreWarnedAbout(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	c := config.Default().OpenStack
	c.AuthURL, c.Insecure, c.Password = "http://keystone.example.org:5000", true, "hush"
	s, err := openstack.New(c, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)

	s.Close()
	require.Contains(t, log.String(), "unencrypted")
	require.Contains(t, log.String(), "openstack.insecure")
	require.NotContains(t, log.String(), "hush")
}

// TestStalledAnswersTimeOut: a service that stops in the middle of an answer is
// noticed; one that goes on slowly is not interrupted.
func TestStalledAnswersTimeOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 10 * time.Second
		var parts sync.WaitGroup
		defer parts.Wait()

		part := func(pipe *io.PipeWriter, pause time.Duration, times int) {
			for range times {
				<-time.After(pause) // on the clock of synctest
				_, _ = io.WriteString(pipe, "x")
			}
			pipe.Close()
		}

		ask := func(next func(r *http.Request) (*http.Response, error)) (string, error) {
			client := http.Client{Transport: openstack.IdleTimeout(limit, roundTrip(next))}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://image/v2", nil)
			require.NoError(t, err)
			response, err := client.Do(request)
			if err != nil {
				return "", err
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			return string(body), err
		}

		of := func(pause time.Duration) func(r *http.Request) (*http.Response, error) {
			return func(r *http.Request) (*http.Response, error) {
				reader, writer := io.Pipe()
				parts.Go(func() { part(writer, pause, 4) })
				context.AfterFunc(r.Context(), func() { writer.CloseWithError(context.Cause(r.Context())) })
				return &http.Response{StatusCode: http.StatusOK, Body: reader}, nil
			}
		}

		text, err := ask(of(9 * time.Second))
		require.NoError(t, err)
		require.Equal(t, "xxxx", text, "36 seconds, and never silent for 10")

		_, err = ask(of(11 * time.Second))
		require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))

		_, err = ask(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, "image said nothing for 10s")
	})
}

// roundTrip is a transport made of a function.
type roundTrip func(r *http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestExplainMapsErrors: an error of gophercloud gets a kind and the service's
// own words, and keeps its cause.
func TestExplainMapsErrors(t *testing.T) {
	t.Parallel()
	require.NoError(t, openstack.Explain("compute", nil))
	require.Equal(t, context.Canceled, openstack.Explain("compute", context.Canceled))

	for status, kind := range map[int]cyborg.ErrorKind{
		400: cyborg.ErrInvalid, 401: cyborg.ErrUnavailable, 403: cyborg.ErrUnavailable, 404: cyborg.ErrNotFound, 409: cyborg.ErrChanged,
		413: cyborg.ErrTooLarge, 429: cyborg.ErrUnavailable, 500: cyborg.ErrUnavailable, 503: cyborg.ErrUnavailable,
	} {
		err := openstack.Explain("compute", gophercloud.ErrUnexpectedResponseCode{Actual: status, Method: "GET", URL: "http://nova/v2.1/x"})
		require.Equal(t, kind, cyborg.ErrorKindOf(err), status)
		require.True(t, gophercloud.ResponseCodeIs(err, status), "the cause is kept")
		require.Equal(t, err, openstack.Explain("compute", err), "once")
	}

	for body, words := range map[string]string{
		`{"error": {"code": 404, "message": "Could not find project."}}`:   ": Could not find project.",
		`{"errors": [{"status": 409, "detail": "generation\nconflict"}]}`:  ": generation conflict",
		`{"itemNotFound": {"code": 404, "message": "Instance not found"}}`: ": Instance not found",
		`{"error": {"message": "` + strings.Repeat("x", 5000) + `"}}`:      "…",
		`<html>oops</html>`: "/x",
	} {
		err := openstack.Explain("compute", gophercloud.ErrUnexpectedResponseCode{Actual: 500, Method: "GET", URL: "http://nova/x", Body: []byte(body)})
		require.Contains(t, err.Error(), words, body)
		require.True(t, strings.HasSuffix(err.Error(), words), err.Error())
	}
}
