package standalone_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/porttest"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/internal/transcript"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// withDoors starts a standalone whose agent endpoint asks for certificates of the
// authority that the standalone has made itself.
func withDoors(t *testing.T, env ...string) *harness.Standalone {
	t.Helper()
	dir := harness.Place(t)
	first := harness.Start(t, harness.Options{Dir: dir})
	first.Stop(t)

	authority, err := pki.Open(filepath.Join(first.StateDir, "certificates"))
	require.NoError(t, err)
	certificate, key, err := authority.IssuePair(pki.Leaf{
		Identity: identity.Identity{TrustDomain: identity.DefaultTrustDomain, Role: identity.Server, Name: "s1"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	require.NoError(t, err)
	held := filepath.Join(t.TempDir(), "server.pem")
	require.NoError(t, os.WriteFile(held, append(certificate, key...), 0o600))

	return harness.Start(t, harness.Options{Dir: dir, Env: append(env,
		"CYBORG_AGENT_ENDPOINT_TLS_CERT="+held, "CYBORG_AGENT_ENDPOINT_TLS_KEY="+held,
		"CYBORG_AGENT_ENDPOINT_TLS_CLIENT_CA="+authority.CertificateFile(), "CYBORG_LOG_LEVEL=debug",
	)})
}

// invitation is what cyborg host enroll prints.
type invitation struct {
	Host, Token, Pin, Command string
}

// invite has the host invited with the command line.
func invite(t *testing.T, s *harness.Standalone, host string) invitation {
	t.Helper()
	out, said, code := s.CLI(t, "host", "enroll", host, "-f", "json")
	require.Zero(t, code, said)
	var made invitation
	require.NoError(t, json.Unmarshal([]byte(out), &made))
	return made
}

// guest is a host outside of the standalone, which has nothing of it but what
// cyborg host enroll prints.
type guest struct {
	s         *harness.Standalone
	host, dir string
	agent     *exec.Cmd
	said      *transcript.Text
	arguments string // of all its processes
}

func newGuest(t *testing.T, s *harness.Standalone, host string) *guest {
	t.Helper()
	g := &guest{s: s, host: host, dir: filepath.Join(t.TempDir(), "state")}
	t.Cleanup(func() {
		g.stop(t)
		if t.Failed() && g.said != nil {
			t.Logf("the agent of %s said:\n%s", host, g.said)
		}
	})
	return g
}

// command is the agent's program on that host.
func (g *guest) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(harness.Binary(t, "cyborg-test-agent"), append(args, "--host", g.host, "--state-dir", g.dir)...)
	c.Env = append(g.s.Environ(), "CYBORG_AGENT_DRIVERS=fake")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

// enroll has the host enroll with the command that was printed.
func (g *guest) enroll(t *testing.T, made invitation) (string, error) {
	t.Helper()
	words := strings.Fields(made.Command)
	require.Equal(t, []string{"cyborg-agent", "enroll", "--host", made.Host}, words[:4])
	c := g.command(t, append([]string{"enroll"}, words[4:]...)...)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	token, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	g.arguments += harness.Arguments(t, c.Process.Pid) // it waits for the token
	_, err = fmt.Fprintln(token, made.Token)
	require.NoError(t, err)
	require.NoError(t, token.Close())
	err = c.Wait()
	return said.String(), err
}

// start runs the agent.
func (g *guest) start(t *testing.T) {
	t.Helper()
	if g.said == nil {
		g.said = &transcript.Text{}
	}
	g.agent = g.command(t, "run", "--endpoints", strings.Replace(g.s.AgentEndpoint(), "http:", "https:", 1), "--temporal-address", g.s.Temporal,
		"--metrics-listen", porttest.Address(t), "--backends", "[{driver: fake, options: {park: 1xfpga}}]")
	g.agent.Stdout, g.agent.Stderr = g.said, g.said
	require.NoError(t, g.agent.Start())
	g.arguments += harness.Arguments(t, g.agent.Process.Pid)
}

// stop ends the agent.
func (g *guest) stop(t *testing.T) {
	t.Helper()
	if g.agent != nil {
		require.NoError(t, g.agent.Process.Signal(syscall.SIGTERM))
		require.NoError(t, g.agent.Wait())
		g.agent = nil
	}
}

// heard waits until the standalone has heard of the host after now.
func (g *guest) heard(t *testing.T) {
	t.Helper()
	after := time.Now()
	harness.Until(t, t.Context(), "heard of "+g.host, func() error {
		host, err := g.s.API.Host(t.Context(), g.host)
		if err == nil && (!host.LastSeen.After(after) || host.Devices == 0) {
			return fmt.Errorf("it was seen at %s, with %d devices", host.LastSeen, host.Devices)
		}
		return err
	})
}

// serves waits until the host's agent takes a step from Temporal.
func (g *guest) serves(t *testing.T) {
	t.Helper()
	harness.Until(t, t.Context(), "step of "+g.host, func() error {
		_, err := g.s.API.Discover(t.Context(), g.host)
		return err
	})
}

// held is the agent's certificate.
func (g *guest) held(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, "certificates", "agent.pem"))
	require.NoError(t, err)
	return string(text)
}

// TestEnrolledHost: with what cyborg host enroll prints, a host gets a certificate
// that is good for the agent endpoint and for Temporal. Its agent renews it, while
// it runs and also if it comes back after the certificate has expired. The token,
// the keys that the host has made, and that of the authority are in no log, event,
// list of processes, row of a database or history of Temporal.
func TestEnrolledHost(t *testing.T) {
	t.Parallel()
	s := withDoors(t, "CYBORG_IDENTITY_CERTIFICATE_LIFE=30s")
	g := newGuest(t, s, "guest")

	made := invite(t, s, "guest")
	require.Equal(t, "guest", made.Host)
	require.NotContains(t, made.Command, made.Token)

	stranger := newGuest(t, s, "stranger")
	said, err := stranger.enroll(t, made)
	require.Error(t, err)
	require.Contains(t, said, "the token is for host guest")

	wrong := made
	wrong.Command = strings.Replace(made.Command, made.Pin, "sha256:"+strings.Repeat("ab", 32), 1)
	said, err = g.enroll(t, wrong)
	require.Error(t, err)
	require.Contains(t, said, "shows no authority with the pin")

	enrolled, err := g.enroll(t, made)
	require.NoError(t, err, enrolled)
	require.Contains(t, enrolled, "spiffe://cyborg/host/guest")
	said, err = g.enroll(t, made)
	require.Error(t, err)
	require.Contains(t, said, "no invitation with this token")

	first := g.held(t)
	g.start(t)
	g.heard(t)
	g.serves(t)
	harness.Until(t, t.Context(), "renewed", func() error {
		if g.held(t) == first {
			return errors.New("the certificate is the first one")
		}
		return nil
	})
	g.heard(t)
	g.serves(t)

	g.stop(t)
	s.Stop(t)
	s.Restart(t)
	block := []byte(g.held(t))
	pair, err := tls.X509KeyPair(block, block)
	require.NoError(t, err)
	harness.Until(t, t.Context(), "expired", func() error {
		if time.Now().Before(pair.Leaf.NotAfter) {
			return fmt.Errorf("the certificate ends at %s", pair.Leaf.NotAfter)
		}
		return nil
	})
	g.start(t)
	g.heard(t)
	g.serves(t)

	events, said, code := s.CLI(t, "host", "history", "guest", "-f", "json")
	require.Zero(t, code, said)
	require.Contains(t, events, "identity")

	database, err := s.DatabaseURL()
	require.NoError(t, err)
	server, err := url.Parse(database)
	require.NoError(t, err)
	secrets := harness.Secrets{}
	secrets.Add("the token", made.Token)
	secrets.AddKey(t, "the first key", first)
	secrets.AddKey(t, "the last key", g.held(t))
	secrets.AddKeys(t, filepath.Join(s.StateDir, "certificates", "ca.key"))
	require.Contains(t, g.arguments, "enroll")
	places := map[string]string{
		"the log": s.Output(), "the agent's log": g.said.String(), "what enroll says": enrolled + said, "the events": events,
		"the arguments": g.arguments + harness.Arguments(t, s.PID()),
		"Temporal":      harness.Histories(t.Context(), t, s.TemporalClient(t)), "all databases": harness.Rows(t.Context(), t, server),
	}
	require.Contains(t, places["all databases"], "guest")
	secrets.RequireAbsent(t, places)

	_, err = s.API.EnrollHost(t.Context(), "no host")
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
}

// TestRevokedHost: a host that is revoked is out of the agent endpoint and of
// Temporal, also after a restart of the server and after the records have lost the
// revocation, with whatever certificates it has.
// Enrolled again, it is in.
func TestRevokedHost(t *testing.T) {
	t.Parallel()
	s := withDoors(t)
	g := newGuest(t, s, "guest")
	said, err := g.enroll(t, invite(t, s, "guest"))
	require.NoError(t, err, said)
	g.start(t)
	g.heard(t)
	g.serves(t)

	held := filepath.Join(g.dir, "certificates", "agent.pem")
	enrolled := pki.Files{Cert: held, Key: held, CA: filepath.Join(g.dir, "certificates", "ca.crt")}
	issued := s.Certificates(t).Of(t, identity.Host, "guest")
	in := func(files pki.Files) error {
		client, err := pki.NewClient(pki.ClientOptions{Files: files, TrustDomain: identity.DefaultTrustDomain})
		require.NoError(t, err)
		return connect(t, s.Temporal, client.Config())
	}
	require.NoError(t, in(enrolled))
	require.NoError(t, in(issued))

	_, text, code := s.CLI(t, "host", "revoke", "guest", "--reason", "stolen", "--yes")
	require.Zero(t, code, text)
	out := func() {
		t.Helper()
		for name, files := range map[string]pki.Files{"enrolled": enrolled, "issued": issued} {
			harness.Until(t, t.Context(), name+" is out", func() error {
				if in(files) == nil {
					return errors.New("it is in")
				}
				return nil
			})
		}
		harness.Until(t, t.Context(), "silent", func() error {
			host, err := s.API.Host(t.Context(), "guest")
			if err == nil && !host.Silent {
				err = errors.New("it is heard")
			}
			return err
		})
	}
	out()
	host, err := s.API.Host(t.Context(), "guest")
	require.NoError(t, err)
	require.False(t, host.Revoked.IsZero())
	found, err := g.command(t, "doctor", "--endpoints", strings.Replace(s.AgentEndpoint(), "http:", "https:", 1), "--temporal-address", s.Temporal).Output()
	require.Error(t, err)
	require.Contains(t, string(found), "refuses the certificate of this agent")
	stdout, _, _ := s.CLI(t, "doctor")
	require.Contains(t, stdout, "revoked hosts: 1 of 2: guest (since ")
	require.NotRegexp(t, `level=WARN.*ListWorkflowRules`, s.Output(), "the doctor asks for what is always refused")
	require.NoError(t, in(s.Certificates(t).Of(t, identity.Host, "other")), "nobody else is out")

	// Records that were restored from an older backup do not know of it. The state
	// directory does: while the process runs, and when it is started on them, even if
	// they lose it again at once.
	exec := func(sql string) {
		t.Helper()
		address, err := s.DatabaseURL()
		require.NoError(t, err)
		records, err := pgx.Connect(t.Context(), address)
		require.NoError(t, err)
		_, err = records.Exec(t.Context(), sql)
		require.NoError(t, err)
		require.NoError(t, records.Close(t.Context()))
	}
	exec("DELETE FROM host_identities")
	out()
	exec(`DELETE FROM host_identities; CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER lose BEFORE INSERT ON host_identities FOR EACH ROW EXECUTE FUNCTION lose()`)
	s.Stop(t)
	s.Restart(t)
	out()
	exec("DROP FUNCTION lose CASCADE")
	store := s.Store(t)
	harness.Until(t, t.Context(), "recorded again, which ends invitations", func() error {
		revoked, err := store.RevokedHosts(t.Context())
		if err == nil && len(revoked) == 0 {
			err = errors.New("the records know of no revocation")
		}
		return err
	})
	store.Close()
	_, text, code = s.CLI(t, "host", "revoke", "nobody", "--yes")
	require.NotZero(t, code)
	require.Contains(t, text, "no host")
	_, text, code = s.CLI(t, "host", "revoke", "fake", "--yes")
	require.NotZero(t, code)
	require.Contains(t, text, "server's own process")

	made := invite(t, s, "guest")
	said, err = g.enroll(t, made)
	require.Error(t, err)
	require.Contains(t, said, "stop that one first")
	g.stop(t)
	said, err = g.enroll(t, made)
	require.NoError(t, err, said)
	g.start(t)
	g.heard(t)
	g.serves(t)
	require.NoError(t, in(enrolled))
	require.Error(t, in(issued))
}

// TestRevokedHostIsOutWhereItIsConnected: a host that is revoked gets no answer any
// more on the connection that it has to the agent endpoint. Temporal closes the one
// that it has there, and with it the poll that it has begun before. Nobody asks it for
// anything.
func TestRevokedHostIsOutWhereItIsConnected(t *testing.T) {
	t.Parallel()
	s := withDoors(t, "CYBORG_CONDUCTOR_SILENT_AFTER=20m") // the host must not seem silent
	g := newGuest(t, s, "guest")
	said, err := g.enroll(t, invite(t, s, "guest"))
	require.NoError(t, err, said)
	g.start(t)
	g.heard(t)
	g.serves(t)
	g.stop(t)

	held := filepath.Join(g.dir, "certificates", "agent.pem")
	certified, err := pki.NewClient(pki.ClientOptions{
		Files: pki.Files{Cert: held, Key: held, CA: filepath.Join(g.dir, "certificates", "ca.crt")}, TrustDomain: identity.DefaultTrustDomain,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()

	// One connection to each door, and a poll.
	agents := &http.Client{Transport: &http.Transport{TLSClientConfig: certified.Config()}}
	defer agents.CloseIdleConnections()
	connections := 0
	ask := func() int {
		t.Helper()
		traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
			if !got.Reused {
				connections++
			}
		}})
		request, err := http.NewRequestWithContext(traced, http.MethodGet, strings.Replace(s.AgentEndpoint(), "http:", "https:", 1)+"/agent/v1/hosts/guest", nil)
		require.NoError(t, err)
		response, err := agents.Do(request)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	require.Equal(t, http.StatusOK, ask())

	temporal, err := grpc.NewClient(s.Temporal, grpc.WithTransportCredentials(credentials.NewTLS(certified.Config())))
	require.NoError(t, err)
	defer temporal.Close()
	open := workflowservice.NewWorkflowServiceClient(temporal)
	_, err = open.GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
	require.NoError(t, err)

	polled := make(chan error, 1)
	go func() {
		for { // Temporal ends a poll that finds nothing after a minute
			task, err := open.PollActivityTaskQueue(ctx, &workflowservice.PollActivityTaskQueueRequest{
				Namespace: temporalclient.DefaultNamespace, Identity: "agent@guest/open", TaskQueue: &taskqueuepb.TaskQueue{Name: workflows.AgentQueue("guest")},
			})
			if err == nil && len(task.GetTaskToken()) == 0 {
				continue
			}
			if err == nil {
				err = errors.New("it got a step")
			}
			polled <- err
			return
		}
	}()
	admin := s.TemporalClient(t)
	harness.Until(t, ctx, "polling", func() error {
		queue, err := admin.DescribeTaskQueue(ctx, workflows.AgentQueue("guest"), enumspb.TASK_QUEUE_TYPE_ACTIVITY)
		if err == nil && !slices.ContainsFunc(queue.GetPollers(), func(p *taskqueuepb.PollerInfo) bool { return p.GetIdentity() == "agent@guest/open" }) {
			err = errors.New("nobody polls")
		}
		return err
	})

	_, text, code := s.CLI(t, "host", "revoke", "guest", "--reason", "stolen", "--yes")
	require.Zero(t, code, text)
	harness.Until(t, ctx, "out of the agent endpoint", func() error {
		if status := ask(); status != http.StatusForbidden {
			return fmt.Errorf("the answer is %d", status)
		}
		return nil
	})
	require.Equal(t, 1, connections, "on the connection that was open")
	harness.Until(t, ctx, "out of Temporal", func() error {
		_, err := open.GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
		if status.Code(err) != codes.Unavailable {
			return fmt.Errorf("the answer is %w", err)
		}
		return nil
	})
	err = <-polled
	require.Contains(t, []codes.Code{codes.Unavailable, codes.Canceled}, status.Code(err), "%v", err)

	_, err = s.API.Discover(ctx, "guest")
	require.Equal(t, cyborg.ErrHostSilent, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, "its certificates were revoked")
}

// connect connects with Temporal as an agent does, which asks what Temporal can do.
func connect(t *testing.T, address string, config *tls.Config) error {
	t.Helper()
	c, err := client.DialContext(t.Context(), client.Options{
		HostPort: address, Namespace: temporalclient.DefaultNamespace, ConnectionOptions: client.ConnectionOptions{TLS: config},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	return nil
}
