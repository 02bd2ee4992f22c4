package agentcmd

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/novaconf"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/workers/agent"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	// healthPath is the path that an agent endpoint answers to every client that it
	// lets in.
	healthPath = "/healthz"
	// hostsPath, followed by a host's name, is the path of that host's record.
	hostsPath = "/agent/v1/hosts/"
	// endpointLimit limits a request to one endpoint.
	endpointLimit = 5 * time.Second
)

// doctorCommand is the doctor's command, which makes all checks, also after one
// has failed.
func (p program) doctorCommand() *cobra.Command {
	return doctor.Command("Check the agent's set-up on this host, and say what to do",
		"Looks, with the agent's configuration, at what an agent stands on, whether one runs or not: the configuration, the\n"+
			"state directory, the hardware as its drivers see it, the drop-in of its Nova, the servers, Temporal, clocks and\n"+
			"certificates. It changes nothing.",
		func(cmd *cobra.Command, f *doctor.Findings) {
			c, err := load(cmd)
			if err != nil {
				f.Error("configuration", err, "Correct it; `cyborg-agent config dump` shows what is in force and where it is from.")
				return
			}

			if err := c.Agent.TLS.Files().CheckOwn("agent.tls.cert", ownIdentity(c)); err != nil {
				f.Error("configuration", err, "Give the agent the certificate of its host.")
			} else {
				f.OKf("configuration", "is good; this host is %s", c.Agent.Host)
			}
			if err := temporalclient.CheckIdentity(c.Temporal, ownIdentity(c)); err != nil {
				f.Warn("certificate for Temporal", err.Error(), "A Temporal that goes by identities refuses this process. "+cyborg.AsError(err).Hint)
			}

			examineStateDir(f, c.Agent.StateDir)
			examineKernel(cmd.Context(), f, c.Agent)
			examineWhitelist(f, novaconf.File{Host: c.Agent.Host, Dir: c.Agent.NovaConfDir})
			p.examineBackends(cmd, f, c)
			examineEndpoints(cmd.Context(), f, c)
			temporalclient.Examine(cmd.Context(), f, c.Temporal, temporalclient.Examination{
				Queue: workflows.AgentQueue(c.Agent.Host), IfUnserved: "Start the agent of this host.",
				Renewed: agent.EnrolledFiles(c.Agent.StateDir).Cert, Examined: []string{c.Agent.TLS.Cert, c.Agent.TLS.CA},
			})

			examineCertificates(f, c.Agent)
		})
}

// examineStateDir checks that the agent can keep its journal. The agent makes a
// missing directory, so then its nearest existing parent is checked.
func examineStateDir(f *doctor.Findings, dir string) {
	// place ends as the directory itself, or as its nearest parent that exists.
	place := dir
	for {
		info, err := os.Stat(place)
		if errors.Is(err, fs.ErrNotExist) && place != filepath.Dir(place) {
			place = filepath.Dir(place)
			continue
		}
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is no directory", place)
		}

		if err == nil {
			err = unix.Access(place, unix.W_OK|unix.X_OK)
			if err != nil {
				err = fmt.Errorf("%s: %w", place, err)
			}
		}

		if err != nil {
			f.Fail("state directory", dir+" cannot be used: "+err.Error(), "Let this user write there, or set agent.state_dir.")
			return
		}
		break
	}

	var space unix.Statfs_t
	if err := unix.Statfs(place, &space); err == nil {
		const enough = 64 << 20 // the journal itself is far smaller
		if free := space.Bavail * uint64(space.Bsize); free < enough {
			f.Fail("state directory", fmt.Sprintf("%s has %s left", dir, config.Size(free)), "Make room: without it no step can be journalled, and none is taken.")
			return
		}
	}

	if place != dir {
		f.OKf("state directory", "%s can be made", dir)
		return
	}
	f.OKf("state directory", "%s can be written", dir)
}

// examineWhitelist checks that the agent can tell its Nova which PCI devices to
// give out, and that nothing else tells Nova so.
func examineWhitelist(f *doctor.Findings, file novaconf.File) {
	const check = "whitelist of Nova"
	if file.Dir == "" {
		f.OKf(check, "this agent writes none: agent.nova_conf_dir is not set")
		return
	}

	content, err := file.Read()
	if err == nil {
		err = unix.Access(file.Dir, unix.W_OK|unix.X_OK)
		if err != nil {
			err = fmt.Errorf("%s cannot be written: %w", file.Dir, err)
		}
	}
	if err != nil {
		f.Error(check, err, "Let this user write there, or set agent.nova_conf_dir.")
		return
	}

	if why := novaconf.ForeignReason(file.Host, content); why != "" {
		f.Warn(check, file.Path()+" is not as Cyborg left it: "+why,
			"Look at the difference with `cyborg host whitelist HOST … --dry-run`, move what is needed to another file, then apply it with --force.")
		return
	}

	neighbours, err := file.Neighbours()
	switch {
	case err != nil:
		f.Warn(check, "what else Nova is told about PCI devices cannot be read: "+err.Error(), "Let this user read nova.conf.")
	case len(neighbours) > 0:
		f.Warn(check, "Nova is told about PCI devices in "+strings.Join(neighbours, ", ")+", too",
			"Remove from there the devices that Cyborg manages: nova.conf comes before the file that Cyborg writes, and Nova gives out what nova.conf matches, even if Cyborg does not know of it.")
	case len(content) == 0:
		f.OKf(check, "%s can be written; there is none now", file.Path())
	default:
		f.OKf(check, "%s is as Cyborg left it, and can be written", file.Path())
	}
}

// examineBackends checks that each backend's driver can be made and discovers
// its devices.
func (p program) examineBackends(cmd *cobra.Command, f *doctor.Findings, c *config.Config) {
	if len(c.Agent.Backends) == 0 {
		f.Warn("backends", "none is configured", "Set agent.backends, or install drivers with: cyborg driver install")
		return
	}

	seen := func(backend config.Backend, newDriver func() (drivers.Driver, error)) error {
		report, err := look(cmd.Context(), c, backend, newDriver)
		switch {
		case err != nil:
			f.Error("backend "+backend.Name, err, "Correct its options, or look at the kernel's log.")
		case report.State == cyborg.BackendDisabled:
			f.OKf("backend "+backend.Name, "is disabled")
		default:
			f.OKf("backend "+backend.Name, "sees %d devices with %s", len(report.Devices), backend.Driver)
		}
		return nil
	}

	if err := p.eachBackend(cmd, c, seen); err != nil {
		f.Error("backends", err, "Correct agent.drivers, or make room in the directory for temporary files.")
	}
}

// examineEndpoints checks each server's endpoint. One that answers is enough
// for the agent to work, so the others are then only a warning.
func examineEndpoints(ctx context.Context, f *doctor.Findings, c *config.Config) {
	trust, err := pki.NewClient(pki.ClientOptions{Files: c.Agent.TLS.Files(), TrustDomain: c.Identity.TrustDomain})
	if err != nil {
		f.Error("servers", err, "Correct agent.tls.")
		return
	}

	answered, failures, servers := false, map[string]error{}, serverClient{trust: trust.Config(), files: c.Agent.TLS.Files()}
	for _, endpoint := range c.Agent.Endpoints {
		at := strings.TrimSuffix(endpoint, "/")
		asked := time.Now()
		then, err := servers.health(ctx, at)
		if err != nil {
			failures[at] = err
			continue
		}

		// One server is enough to ask: all of them read the same records.
		if !answered {
			examineName(ctx, f, c, at, servers)
		}
		answered = true

		f.OKf("server "+at, "answers in %s", time.Since(asked).Round(time.Millisecond))
		f.Clock("the server "+at, asked, time.Now(), then)
	}

	for at, err := range failures {
		if answered {
			f.Warn("server "+at, err.Error(), cmp.Or(cyborg.AsError(err).Hint, "Start it, or take it out of agent.endpoints; others answer."))
		} else {
			f.Error("server "+at, err, "Start the server, or correct agent.endpoints and agent.tls.")
		}
	}
}

// examineName checks that no other agent reports under this host's name, and what
// the server has this one take.
func examineName(ctx context.Context, f *doctor.Findings, c *config.Config, endpoint string, servers serverClient) {
	const check = "name of the host"
	own, err := agent.Instances(c.Agent.Root, c.Agent.StateDir)
	if err != nil {
		f.Error(check, err, "Run it as the agent's user, and set agent.root to where /proc is.")
		return
	}

	host, err := servers.host(ctx, endpoint, c.Agent.Host, own)
	const do = "Give one of the two machines a name of its own (agent.host), or stop its agent."
	switch {
	case cyborg.ErrorKindOf(err) == cyborg.ErrNotFound:
		f.OKf(check, "%s has not reported yet", c.Agent.Host)
	case err != nil:
		f.Error(check, err, "Look at the server's log.")
	case !host.Silent && host.OtherAgent:
		f.Fail(check, fmt.Sprintf("%s has an agent that is not of this state directory and boot: one at %s, heard at %s",
			c.Agent.Host, host.Address, host.LastSeen.Format(time.RFC3339)), do)
	case len(host.DuplicateAgents) > 0:
		f.Fail(check, fmt.Sprintf("a second agent speaks for %s, and is refused: one at %s", c.Agent.Host, host.DuplicateAgents[0].Address), do)
	default:
		f.OKf(check, "nobody else speaks for %s", c.Agent.Host)
	}

	if err == nil && host.GrantsOff {
		f.Warn("grants", "the server "+endpoint+" has this agent take steps that nobody has signed: who can write to Temporal can have it do anything",
			"Set conductor.grants to required on all servers.")
	}
}

// serverClient sends requests to the servers' endpoints.
type serverClient struct {
	trust *tls.Config
	files pki.Files // of the agent
}

// get requests a URL within endpointLimit and calls read with the answer. It
// uses no connection twice, so that each check connects anew.
func (a serverClient) get(ctx context.Context, from string, headers http.Header, read func(*http.Response) error) error {
	ctx, cancel := context.WithTimeout(ctx, endpointLimit)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, http.NoBody)
	if err != nil {
		return err
	}
	maps.Copy(request.Header, headers)

	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: a.trust, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()

	response, err := transport.RoundTrip(request)
	if err != nil {
		return a.notReached(ctx, request.URL, err)
	}
	defer response.Body.Close()
	return read(response)
}

// notReached says why a server does not answer. One that refuses a certificate tells
// it by an alert only, which says no more than that.
func (a serverClient) notReached(ctx context.Context, to *url.URL, err error) error {
	alert := a.alert(ctx, to)
	switch {
	case alert == nil || !strings.Contains(alert.Error(), "certificate"):
		return cyborg.Errorf(cyborg.ErrUnavailable, "does not answer: %w", err)
	case a.files.Cert == "":
		return cyborg.Errorf(cyborg.ErrUnauthenticated, "asks for a certificate, and this agent has none (%w)", alert).
			WithHint("Enroll the host (cyborg host enroll HOST), or set agent.tls.")
	}
	return cyborg.Errorf(cyborg.ErrForbidden, "refuses the certificate of this agent (%w): it was revoked, has expired, or is of another authority", alert).
		WithHint("`cyborg host show HOST` says whether the host was revoked. If that was a mistake, stop the agent, enroll the host again (cyborg host enroll HOST), and start the agent.")
}

// alert connects as get does, within the time that is left of that, and returns the
// alert with which the server ends the connection; nil for none. A server says what it
// thinks of a certificate only after the handshake, and who has written a request by
// then may learn only that the connection is closed. By way of a proxy nothing is asked.
func (a serverClient) alert(ctx context.Context, to *url.URL) error {
	if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: to}); err != nil || proxy != nil || to.Scheme != "https" {
		return nil
	}
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(to.Hostname(), cmp.Or(to.Port(), "443")))
	if err != nil {
		return nil
	}
	defer raw.Close() //nolint:errcheck // nothing was written to it that anybody waits for

	config := a.trust.Clone()
	config.ServerName, config.NextProtos = to.Hostname(), []string{"h2"} // whose server speaks first
	connection := tls.Client(raw, config)
	if err = connection.HandshakeContext(ctx); err == nil {
		deadline, _ := ctx.Deadline()
		if err = connection.SetReadDeadline(deadline); err == nil {
			_, err = connection.Read(make([]byte, 1))
		}
	}

	if told, ok := errors.AsType[*net.OpError](err); ok && told.Op == "remote error" { // as crypto/tls names an alert of the other end
		return told.Err
	}
	return nil
}

// health returns the time on the server's clock. HTTP sends whole seconds, so
// half a second is added.
func (a serverClient) health(ctx context.Context, endpoint string) (then time.Time, err error) {
	err = a.get(ctx, endpoint+healthPath, nil, func(response *http.Response) error {
		if response.StatusCode != http.StatusOK {
			return cyborg.Errorf(cyborg.ErrUnavailable, "is no agent endpoint of Cyborg: it answers %s", response.Status)
		}
		then, err = http.ParseTime(response.Header.Get("Date"))
		then = then.Add(time.Second / 2)
		return err
	})
	return then, err
}

// host returns how a host is recorded, compared with its own agent. The error is
// of kind ErrNotFound where there is no such host.
func (a serverClient) host(ctx context.Context, endpoint, name string, own []string) (host agentapi.HostReply, err error) {
	err = a.get(ctx, endpoint+hostsPath+name, http.Header{agentapi.InstanceHeader: append([]string{""}, own...)}, func(response *http.Response) error {
		switch response.StatusCode {
		case http.StatusOK:
			return json.NewDecoder(response.Body).Decode(&host)
		case http.StatusNotFound:
			return cyborg.Errorf(cyborg.ErrNotFound, "the server knows no host %s", name)
		}
		return cyborg.Errorf(cyborg.ErrUnavailable, "the server does not tell who speaks for %s: it answers %s", name, response.Status)
	})
	return host, err
}

// examineCertificates checks the certificate files that are configured, or are
// from the host's enrollment.
func examineCertificates(f *doctor.Findings, c config.Agent) {
	if c.TLS.Cert == agent.EnrolledFiles(c.StateDir).Cert {
		f.EnrolledCertificateFile("enrollment", c.TLS.Cert, time.Now())
	} else if c.TLS.Cert != "" {
		f.CertificateFile("agent.tls.cert", c.TLS.Cert, time.Now())
	}
	if c.TLS.CA != "" {
		f.CertificateFile("agent.tls.ca", c.TLS.CA, time.Now())
	}
}
