package temporalclient

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.temporal.io/api/errordetails/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// explainer has the errors of calls say what is wrong. Temporal's own text for a
// refused call is always the same, and its reason is in the details, which nobody
// logs. A connection that ends because a certificate is missing looks like a
// Temporal that is away.
type explainer struct {
	address string
	name    string                     // by which the client asks for Temporal's certificate
	secure  bool                       // the client speaks TLS
	tls     *envconfig.ClientConfigTLS // nil for none

	mu     sync.Mutex // guards the fields below
	asking *question  // the last one; nil before the first
}

// question is one that is asked, or was. Many calls fail at once, and wait for one
// answer.
type question struct {
	answered chan struct{} // closed with the answer
	at       time.Time     // of the answer
	wrong    string        // as ask returns it
}

const (
	// askAgain is for how long the answer of Temporal's listener counts.
	askAgain = 5 * time.Second
	// askLimit limits the question. A call waits for it only as long as it may itself.
	askLimit = 10 * time.Second
)

// explainerOf returns the explainer of a client with these options.
func explainerOf(options client.Options, from *envconfig.ClientConfigTLS) *explainer {
	e := &explainer{address: options.HostPort, tls: from}
	e.name, _, _ = net.SplitHostPort(options.HostPort)
	if secure := options.ConnectionOptions.TLS; secure != nil {
		e.secure, e.name = true, cmp.Or(secure.ServerName, e.name)
	}
	return e
}

// intercept is the interceptor of the client. It is within the SDK's own, so that
// these see the same codes as without it.
func (e *explainer) intercept(
	ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, call grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	err := call(ctx, method, request, reply, connection, options...)
	switch status.Code(err) {
	case codes.PermissionDenied:
		return withReason(err)
	case codes.Unavailable:
		return e.unavailable(ctx, err)
	default:
		return err
	}
}

// refusedThis begins the text of a refusal.
const refusedThis = "Temporal has refused this: "

// withReason puts the reason of a refusal into its text.
func withReason(err error) error {
	refused := status.Convert(err)
	for _, detail := range refused.Details() {
		if denied, ok := detail.(*errordetails.PermissionDeniedFailure); ok && denied.GetReason() != "" {
			said := refused.Proto()
			said.Message = refusedThis + denied.GetReason()
			return status.ErrorProto(said)
		}
	}
	return err
}

// unavailable says where certificates are the reason that Temporal cannot be
// reached.
func (e *explainer) unavailable(ctx context.Context, err error) error {
	if wrong := e.ask(ctx); wrong != "" {
		return status.Errorf(codes.Unavailable, "Temporal at %s %s (%s)", e.address, wrong, status.Convert(err).Message())
	}
	return err
}

// ask connects to Temporal and returns what is wrong with how this client speaks
// to it, as the end of a sentence; empty for nothing, and where ctx ends before that
// is known. The next call that fails learns it then.
func (e *explainer) ask(ctx context.Context) string {
	asked := e.question(ctx)
	select {
	case <-asked.answered:
		return asked.wrong
	case <-ctx.Done():
		return ""
	}
}

// question returns the one that is being asked, or whose answer still counts, or else
// asks it.
func (e *explainer) question(ctx context.Context) *question {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asking != nil {
		select {
		case <-e.asking.answered:
			if time.Since(e.asking.at) < askAgain {
				return e.asking
			}
		default:
			return e.asking
		}
	}

	asked := &question{answered: make(chan struct{})}
	e.asking = asked
	go func() {
		asked.wrong, _ = e.handshake(context.WithoutCancel(ctx)) // others wait for it, too
		asked.at = time.Now()
		close(asked.answered)
	}()
	return asked
}

// handshake makes a connection as the client does, but for one thing: it believes
// whatever the other end shows, because it only wants to know what that asks for.
// Nothing is sent but the certificate. It asks nothing where the client goes by way
// of a proxy: Temporal need not be there without one. It returns what is wrong, as ask
// does, and the certificate of the other end; nil for none.
func (e *explainer) handshake(ctx context.Context) (wrong string, peer *x509.Certificate) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: e.address}}); err != nil || proxy != nil {
		return "", nil
	}
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", e.address)
	if err != nil {
		return "", nil
	}
	defer raw.Close() //nolint:errcheck // nothing was written to it that anybody waits for

	requested, shown := false, tls.Certificate{}
	if hasCertificate(e.tls) {
		if shown, err = certificateOf(e.tls); err != nil {
			return "", nil
		}
	}
	connection := tls.Client(raw, &tls.Config{
		ServerName: e.name, NextProtos: []string{"h2"},
		InsecureSkipVerify: true, //nolint:gosec // see above
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			requested = true
			return &shown, nil
		},
	})

	// A server says what it thinks of a certificate only after the handshake. One that
	// takes it begins to speak HTTP/2.
	err = connection.HandshakeContext(ctx)
	speaks := err == nil || requested
	if err == nil {
		deadline, _ := ctx.Deadline()
		if err = connection.SetReadDeadline(deadline); err == nil {
			_, err = connection.Read(make([]byte, 1))
		}
	}

	if chain := connection.ConnectionState().PeerCertificates; len(chain) > 0 {
		peer = chain[0]
	}

	// Where a certificate is asked for, only an alert says that it was not enough: many
	// proxies ask for one and go on without it.
	alert, _ := errors.AsType[*net.OpError](err)
	refused := requested && alert != nil && alert.Op == "remote error" // as crypto/tls names an alert of the other end
	switch {
	case refused && !hasCertificate(e.tls):
		return "asks for a certificate: set temporal.tls.cert, temporal.tls.key and temporal.tls.ca (an agent can be enrolled instead), and start this process again", peer
	case refused:
		return fmt.Sprintf("refuses the certificate of this process (%s): it takes those that its own authority has signed, that are valid now and were not revoked", alert.Err), peer
	case speaks && !e.secure:
		return "speaks TLS: set temporal.tls.enabled, and temporal.tls.ca if its authority is not one of the system's", peer
	}
	return "", peer
}

// remedy returns what to do about a Temporal that does not answer.
func remedy(err error, address string) string {
	if said := err.Error(); strings.Contains(said, "certificate") || strings.Contains(said, "TLS") || strings.Contains(said, refusedThis) {
		return "Correct temporal.tls: docs/operations.md says how to get a certificate for Temporal. Temporal itself is there. " +
			"If the host was enrolled, Temporal must trust the servers' identity.authority: for the embedded one, set standalone.temporal_tls."
	}
	return fmt.Sprintf("Start it, or set temporal.address or TEMPORAL_ADDRESS: %s does not answer.", address)
}
