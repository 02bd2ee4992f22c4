package temporalclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

// refusing is a Temporal that refuses every call as an authorizer does.
type refusing struct {
	workflowservice.UnimplementedWorkflowServiceServer
}

func (refusing) GetSystemInfo(context.Context, *workflowservice.GetSystemInfoRequest) (*workflowservice.GetSystemInfoResponse, error) {
	return nil, serviceerror.ToStatus(serviceerror.NewPermissionDenied("Request unauthorized.", "spiffe://lab/host/h2 may not do this")).Err()
}

// issue puts a certificate with its key into a file.
func issue(t *testing.T, from *pki.Authority, role identity.Role, name string) string {
	t.Helper()
	return issueFor(t, from, role, name, 0)
}

// issueFor is issue for a certificate that is valid for this long; 0 for any time.
func issueFor(t *testing.T, from *pki.Authority, role identity.Role, name string, life time.Duration) string {
	t.Helper()
	certificate, key, err := from.IssuePair(pki.Leaf{
		Valid: life, Identity: identity.Identity{TrustDomain: "lab", Role: role, Name: name}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, append(certificate, key...), 0o600))
	return path
}

// serveRefusing serves a Temporal that takes clients of the authority only, and
// returns its address.
func serveRefusing(t *testing.T, from *pki.Authority) string {
	t.Helper()
	own := issue(t, from, identity.Server, "temporal")
	serving, err := pki.Server(pki.ServerOptions{
		Files: pki.Files{Cert: own, Key: own, CA: from.CertificateFile()}, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	require.NoError(t, err)
	return serve(t, serving, refusing{})
}

// serve serves a Temporal until the test ends, and returns its address.
func serve(t *testing.T, serving *tls.Config, temporal workflowservice.WorkflowServiceServer) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(serving)))
	workflowservice.RegisterWorkflowServiceServer(server, temporal)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// TestErrorsSayWhatIsWrong: whoever reads the log, the answer of the API or what
// the doctor finds learns why Temporal does nothing for this process.
func TestErrorsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	ours := authority(t)
	address, ca := serveRefusing(t, ours), ours.CertificateFile()
	h2, stranger := issue(t, ours, identity.Host, "h2"), issue(t, authority(t), identity.Host, "h3")

	for name, test := range map[string]struct {
		tls  config.TemporalTLS
		says string
		do   string
	}{
		"no certificate": {config.TemporalTLS{}, "asks for a certificate: set temporal.tls.cert", "Correct temporal.tls"},
		"an authority":   {config.TemporalTLS{CA: ca}, "asks for a certificate: set temporal.tls.cert", "Correct temporal.tls"},
		"a foreign one":  {config.TemporalTLS{CA: ca, Cert: stranger, Key: stranger}, "refuses the certificate of this process (", "Correct temporal.tls"},
		"refused":        {config.TemporalTLS{CA: ca, Cert: h2, Key: h2}, "spiffe://lab/host/h2 may not do this", ""},
	} {
		configured := config.Temporal{Address: address, TLS: test.tls}
		options, err := Options(configured, slog.New(slog.DiscardHandler), "test")
		require.NoError(t, err)
		lazy, err := client.NewLazyClient(options)
		require.NoError(t, err)
		require.Eventually(t, func() bool { // the question has a limit, which a busy machine may exceed
			_, err = lazy.WorkflowService().GetSystemInfo(t.Context(), &workflowservice.GetSystemInfoRequest{})
			return err != nil && strings.Contains(err.Error(), test.says)
		}, 5*time.Minute, 10*time.Millisecond, name)
		lazy.Close()
		if test.do != "" {
			require.Regexp(t, ` \(.+\)$`, err.Error(), "what gRPC said")
		}

		var out bytes.Buffer
		NewLogger(slog.New(slog.NewTextHandler(&out, nil))).Warn("Failed to poll for task.", "Error", err)
		require.Contains(t, out.String(), test.says, name)

		var last doctor.Finding
		require.Eventually(t, func() bool {
			var findings doctor.Findings
			Examine(t.Context(), &findings, configured, Examination{})
			last = findings.All()[len(findings.All())-1]
			return strings.Contains(last.Found, test.says)
		}, 5*time.Minute, 10*time.Millisecond, name)
		require.Contains(t, last.Do, test.do, name)
		require.Contains(t, last.Do, "standalone.temporal_tls", name)
		require.NotContains(t, last.Do, "Start it", name)
	}
}

// TestCallsWaitForTheAnswerAsLongAsTheyMay: whoever asks Temporal in its own time, as
// the readiness does, is not held up by a listener that says nothing, nor by another
// call that waits for it.
func TestCallsWaitForTheAnswerAsLongAsTheyMay(t *testing.T) {
	t.Parallel()
	open := &question{answered: make(chan struct{})}
	e := &explainer{address: "temporal:7233", asking: open}
	plain := status.Error(codes.Unavailable, "nobody answers")

	ended, end := context.WithCancel(t.Context())
	end()
	require.Equal(t, plain, e.unavailable(ended, plain))

	patient := make(chan error, 1)
	go func() { patient <- e.unavailable(t.Context(), plain) }()
	open.wrong, open.at = "speaks TLS", time.Now().Add(time.Hour)
	close(open.answered)
	require.ErrorContains(t, <-patient, "Temporal at temporal:7233 speaks TLS (nobody answers)")
	require.ErrorContains(t, e.unavailable(t.Context(), plain), "speaks TLS", "the answer counts for others, too")

	// Later somebody asks again. Nobody listens there by then.
	e.address, open.at = porttest.Address(t), time.Now().Add(-askAgain)
	require.Equal(t, plain, e.unavailable(t.Context(), plain))
}

// unavailable is a Temporal whose proxy asks for a certificate, takes clients without
// one, and finds nobody behind it.
type unavailable struct {
	workflowservice.UnimplementedWorkflowServiceServer
}

func (unavailable) GetSystemInfo(context.Context, *workflowservice.GetSystemInfoRequest) (*workflowservice.GetSystemInfoResponse, error) {
	return nil, status.Error(codes.Unavailable, "no healthy upstream")
}

// TestOptionalCertificate: a certificate that is asked for and not missed is not what
// is wrong, and the question asks for Temporal by the name that the client uses.
func TestOptionalCertificate(t *testing.T) {
	t.Parallel()
	ours := authority(t)
	own := issue(t, ours, identity.Server, "temporal")
	serving, err := pki.Server(pki.ServerOptions{
		Files: pki.Files{Cert: own, Key: own, CA: ours.CertificateFile()}, ClientAuth: tls.VerifyClientCertIfGiven,
	})
	require.NoError(t, err)
	var names sync.Map
	chosen := serving.GetConfigForClient
	serving.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		names.Store(hello.ServerName, true)
		return chosen(hello)
	}
	address := serve(t, serving, unavailable{})

	options, err := Options(config.Temporal{Address: address, TLS: config.TemporalTLS{CA: ours.CertificateFile(), ServerName: "temporal.lab"}},
		slog.New(slog.DiscardHandler), "test")
	require.NoError(t, err)
	e := explainerOf(options, &envconfig.ClientConfigTLS{ServerCACertPath: ours.CertificateFile()})
	wrong, peer := e.handshake(t.Context())
	require.Empty(t, wrong)
	require.Equal(t, "spiffe://lab/server/temporal", peer.URIs[0].String())
	_, asked := names.Load("temporal.lab")
	require.True(t, asked)

	plain := status.Error(codes.Unavailable, "no healthy upstream")
	require.Equal(t, plain, e.unavailable(t.Context(), plain))
}

// TestOwnCertificate: a process learns from its own files that it has the
// certificate of somebody else.
func TestOwnCertificate(t *testing.T) {
	t.Parallel()
	ours := authority(t)
	ca, h2, s1 := ours.CertificateFile(), issue(t, ours, identity.Host, "h2"), issue(t, ours, identity.Server, "s1")
	check := func(file string, own identity.Identity) error {
		own.TrustDomain = "lab"
		return CheckIdentity(config.Temporal{TLS: config.TemporalTLS{Cert: file, Key: file, CA: ca}}, own)
	}

	require.NoError(t, check(h2, identity.Identity{Role: identity.Host, Name: "h2"}))
	require.NoError(t, check(s1, identity.Identity{Role: identity.Server}))
	require.NoError(t, CheckIdentity(config.Temporal{}, identity.Identity{TrustDomain: "lab", Role: identity.Server}))

	for _, err := range []error{
		check(h2, identity.Identity{Role: identity.Host, Name: "h1"}),
		check(h2, identity.Identity{Role: identity.Host, Name: "H2"}),
		check(h2, identity.Identity{Role: identity.Server}),
	} {
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, "is the certificate of spiffe://lab/host/h2, and this process needs one of spiffe://lab/")
	}
}

// TestCertificateOfTemporalThatEndsSoon: whoever connects to Temporal sees its
// certificate, too.
func TestCertificateOfTemporalThatEndsSoon(t *testing.T) {
	t.Parallel()
	ours := authority(t)
	for life, state := range map[time.Duration]doctor.State{13 * 24 * time.Hour: doctor.Warning, 15 * 24 * time.Hour: doctor.OK} {
		own := issueFor(t, ours, identity.Server, "temporal", life)
		serving, err := pki.Server(pki.ServerOptions{Files: pki.Files{Cert: own, Key: own}})
		require.NoError(t, err)

		configured := config.Temporal{Address: serve(t, serving, answeringInfo{}), TLS: config.TemporalTLS{CA: ours.CertificateFile()}}
		var findings doctor.Findings
		Examine(t.Context(), &findings, configured, Examination{Examined: []string{ours.CertificateFile()}})
		require.Equal(t, "temporal", findings.All()[0].Check, findings.All())
		require.Equal(t, "certificate of Temporal", findings.All()[1].Check)
		require.Equal(t, state, findings.All()[1].State)
	}
}

// answeringInfo is a Temporal that says what it is, and nothing else.
type answeringInfo struct {
	workflowservice.UnimplementedWorkflowServiceServer
}

func (answeringInfo) GetSystemInfo(context.Context, *workflowservice.GetSystemInfoRequest) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{}, nil
}

// TestCertificatesForTemporalThatEndSoon: the doctor warns before the end.
func TestCertificatesForTemporalThatEndSoon(t *testing.T) {
	t.Parallel()
	ours := authority(t)
	soon, late := issueFor(t, ours, identity.Host, "h1", 13*24*time.Hour), issueFor(t, ours, identity.Host, "h1", 15*24*time.Hour)
	state := func(file, renewed string) doctor.State {
		var findings doctor.Findings
		configured := config.Temporal{Address: "127.0.0.1:1", TLS: config.TemporalTLS{CA: ours.CertificateFile(), Cert: file, Key: file}}
		Examine(t.Context(), &findings, configured, Examination{Renewed: renewed})
		require.Equal(t, "certificate of temporal.tls.cert", findings.All()[0].Check)
		require.Equal(t, doctor.Finding{
			Check: "certificate of temporal.tls.ca", State: doctor.OK, Found: "is valid until " + ours.Certificate().NotAfter.UTC().Format(time.DateOnly),
		}, findings.All()[1])
		return findings.All()[0].State
	}

	require.Equal(t, doctor.Warning, state(soon, ""))
	require.Equal(t, doctor.OK, state(late, ""))
	require.Equal(t, doctor.OK, state(soon, soon), "its agent renews it")
}
