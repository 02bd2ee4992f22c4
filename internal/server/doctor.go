package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	v1 "github.com/cyborg-project/cyborg/api/v1"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/english"
	"github.com/cyborg-project/cyborg/internal/openstack"
	"github.com/cyborg-project/cyborg/internal/openstack/placement"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/revocation"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	// databaseLimit bounds the examination of the database.
	databaseLimit = 10 * time.Second
	// warningsLimit bounds what a caller of the API waits for Temporal to say what it
	// leaves open.
	warningsLimit = 3 * time.Second
)

// doctorCommand returns the command that examines what a server needs, whether
// a server runs or not. It changes nothing.
func doctorCommand() *cobra.Command {
	cmd := doctor.Command("Check a server's set-up on its own machine, and say what to do",
		"Looks, with the server's configuration, at what a server stands on, whether one runs or not: the configuration, the\n"+
			"database, Temporal, certificates and ports. It changes nothing.",
		func(cmd *cobra.Command, f *doctor.Findings) {
			c, err := config.Load(config.LoadOptions{Process: config.ProcessServer, Flags: cmd.Flags()})
			if err != nil {
				do := "Correct it; `cyborg config dump` shows what is in force and where it is from."
				if strings.Contains(err.Error(), "database.url: expected") {
					do += " This is no check of a standalone with a PostgreSQL of its own: use `cyborg doctor` there."
				}
				f.Error("configuration", err, do)
				return
			}

			f.OKf("configuration", "is good")
			alive := examineDatabase(cmd.Context(), f, c)
			if err := temporalclient.CheckIdentity(c.Temporal, ownIdentity(c)); err != nil {
				f.Warn("certificate for Temporal", err.Error(), "A Temporal that goes by identities refuses this process. "+cyborg.AsError(err).Hint)
			}
			temporalclient.Examine(cmd.Context(), f, c.Temporal, temporalclient.Examination{
				Histories: c.Retention.Histories, Attributes: workflows.SearchAttributes(),
				Queue: workflows.ConductorQueue, IfUnserved: "Start a server with: cyborg server", IsAlive: alive,
			})

			examineGrants(f, c)
			examineListeners(cmd.Context(), f, c)
			examineEnrollment(f, c)
			examineRevocations(f, c)
			examineCloud(cmd.Context(), f, c)

			if _, err := newPolicy(c, c.Log.Logger(cmd.ErrOrStderr())); err != nil {
				f.Error("policy", err, "Correct policy.file.")
			}
		})
	cmd.AddCommand(afterRestoreCommand())
	return cmd
}

// examineRevocations examines the file that keeps what was revoked. Nothing is said
// where no certificate of a host counts.
func examineRevocations(f *doctor.Findings, c *config.Config) {
	const check = "revocations"
	path := c.Identity.Revocations
	if path == "" {
		if c.AgentEndpoint.TLS.ClientCA != "" {
			f.Warn(check, "only the records know which hosts were revoked: a restore of the records from a backup forgets it", "Set identity.revocations.")
		}
		return
	}

	_, err := revocation.File(path).Read()
	if err != nil {
		f.Error(check, err, cyborg.AsError(err).Hint)
		return
	}

	const writable = 2 // of access(2)
	if err := syscall.Access(filepath.Dir(path), writable); err != nil {
		f.Warn(check, fmt.Sprintf("which hosts were revoked cannot be kept in %s: %s", path, err),
			"Make the directory and let the server's user write there, or set identity.revocations to another file.")
		return
	}
	f.OKf(check, "are kept in %s, too", path)
}

// examineGrants says what is open while agents take steps that nobody has signed.
func examineGrants(f *doctor.Findings, c *config.Config) {
	if c.Conductor.Grants == config.GrantsOff {
		f.Warn("grants", "agents take steps that nobody has signed: who can write to Temporal can have any host do anything", "Set conductor.grants to required.")
	}
}

// warnings says what this server's set-up leaves open, and what Reconcile could not
// settle, for the doctor of the command line, which sees neither.
func (s *server) warnings(ctx context.Context) []v1.Warning {
	ctx, cancel := context.WithTimeout(ctx, warningsLimit)
	defer cancel()

	var f doctor.Findings
	examineGrants(&f, s.config)
	examineAttachments(ctx, &f, s.store) // before Temporal, which may take all the time
	temporalclient.ExamineGuard(ctx, &f, s.Temporal, s.Namespace)

	var warnings []v1.Warning
	for _, finding := range f.All() {
		warnings = append(warnings, v1.Warning{Check: finding.Check, Found: finding.Found, Do: finding.Do})
	}
	return warnings
}

// mostUnsettled is how many attachments examineAttachments looks at.
const mostUnsettled = 100

// examineAttachments warns of attachments that Reconcile could not settle.
func examineAttachments(ctx context.Context, f *doctor.Findings, store *db.Store) {
	const check = "attachments"
	found, err := store.Unsettled(ctx, mostUnsettled)
	if err != nil {
		f.Warn(check, "could not be looked at: "+err.Error(), "Look at the server's log.")
		return
	}

	var texts []string
	for _, u := range found {
		texts = append(texts, fmt.Sprintf("%s of accelerator %s on host %s (%s)", u.Handle, u.Accelerator, u.Host, u.Error))
	}
	if len(texts) > 0 {
		f.Warn(check, "are not on their hosts as recorded, and could not be settled: "+english.Some(texts),
			"See \"An attachment is not as recorded\" in docs/operations.md.")
	}
}

// examineCloud logs in to Keystone as the server does, looks up the services
// that the server uses in the catalog, and asks Placement where it is
// configured.
func examineCloud(ctx context.Context, f *doctor.Findings, c *config.Config) {
	if !c.OpenStack.Enabled() {
		return
	}

	session, err := openstack.New(c.OpenStack, c.Log.Logger(io.Discard))
	if err != nil {
		f.Error("openstack", err, "Correct openstack.auth_url and openstack.ca_file, or openstack.cloud.")
		return
	}
	defer session.Close()

	if err := session.Ping(ctx); err != nil {
		f.Error("keystone", err, "Start it, or correct openstack.auth_url: "+session.AuthURL())
		return
	}

	f.OKf("keystone", "lets in our own %s", session.Who())
	for _, service := range []string{"placement", "compute", "image"} {
		if client, err := session.Service(ctx, service); err != nil {
			f.Warn("catalog", err.Error(), cyborg.AsError(err).Hint)
		} else {
			f.OKf("catalog", "has %s at %s", service, client.Endpoint)
		}
	}

	if c.Placement.Enabled {
		examinePlacement(ctx, f, placement.New(session))
	}
}

// examinePlacement asks Placement for a host that does not exist. That needs
// the same rights as asking for a real one.
func examinePlacement(ctx context.Context, f *doctor.Findings, client *placement.Client) {
	version, err := client.Negotiate(ctx)
	if err == nil {
		_, err = client.Read(ctx, placement.Request{Host: "no host of that name"})
	}

	if err != nil {
		f.Error("placement", err, "Start it, and give the server's own user the roles that it needs.")
		return
	}

	f.OKf("placement", "answers our own user, in version %s", version)
}

// examineDatabase examines the database, what it loses in a crash or a
// failover, its schema, the rights of the role, and duplicate agents. The result says whether the process whose worker has
// the identity is alive, as the records know; it is nil where the records
// cannot be read.
func examineDatabase(ctx context.Context, f *doctor.Findings, c *config.Config) (alive func(identity string) bool) {
	ctx, cancel := context.WithTimeout(ctx, databaseLimit)
	defer cancel()

	h, err := db.CheckHealth(ctx, c.Database.URL.Reveal())
	if err != nil {
		f.Error("database", err, fmt.Sprintf("Start it, or correct database.url: %s", c.Database.URL))
		return nil
	}
	f.OKf("database", "is PostgreSQL %s", h.Release)

	f.Clock("the database", h.Asked, h.Answered, h.Time)
	examineDurability(f, h.Durability)

	switch {
	case h.Schema.Current == 0:
		f.Fail("schema", "there is none", "Run `cyborg migrate`.")
		return nil
	case h.Schema.Current < h.Schema.Latest:
		f.Fail("schema", fmt.Sprintf("has version %d, and this release needs %d", h.Schema.Current, h.Schema.Latest), "Run `cyborg migrate`.")
	case h.Schema.Current > h.Schema.Latest:
		f.Fail("schema", fmt.Sprintf("has version %d, and this release knows only %d", h.Schema.Current, h.Schema.Latest), "Run the newer release that migrated it.")
	case len(h.MissingKinds) > 0:
		f.Fail("schema", "does not know operations of kind "+strings.Join(h.MissingKinds, ", "), "Run `cyborg migrate`.")
	case len(h.NewerKinds) > 0:
		f.Fail("schema", "has operations of kind "+strings.Join(h.NewerKinds, ", ")+", which this release does not know", "Run the newer release that migrated it.")
	default:
		f.OKf("schema", "has version %d, which this release needs", h.Schema.Current)
	}
	if h.ReadOnly {
		f.Fail("writing", "the database is read-only", "Name the primary in database.url, or set default_transaction_read_only off.")
	} else if len(h.Denied) > 0 {
		f.Fail("writing", fmt.Sprintf("the role may not read and write %s", strings.Join(h.Denied, ", ")),
			"Migrate with the role that the server uses, or GRANT SELECT, INSERT, UPDATE, DELETE on all tables to it.")
	} else {
		f.OKf("writing", "the role may read and write all tables")
	}
	for _, duplicate := range h.DuplicateAgents {
		f.Fail("agents", fmt.Sprintf("a second agent speaks for host %s and is refused: one at %s, while the host's is at %s",
			duplicate.Host, duplicate.Address, duplicate.Known), "Give that machine a name of its own (agent.host), or stop its agent.")
	}
	if h.Servers == nil {
		return nil
	}

	return func(identity string) bool {
		return slices.ContainsFunc(h.Servers, func(s db.Server) bool { return workerIdentity(s.Host, s.Version, s.Instance) == identity })
	}
}

// examineListeners examines ports and certificates. A port that is in use is no
// failure, because the server itself may run.
func examineListeners(ctx context.Context, f *doctor.Findings, c *config.Config) {
	// examine examines one listener. setting is its section of the configuration, and
	// own says whether the certificate is that of a server.
	examine := func(setting, address string, given config.ServerTLS, own func(*config.Config) error) {
		if given.Cert != "" {
			if _, err := pki.Server(pki.ServerOptions{Files: given.Files()}); err != nil {
				f.Error("certificate of "+setting, err, "Put a certificate and its key there, and authorities that can be read.")
			} else if err := own(c); err != nil {
				f.Error("certificate of "+setting, err, "")
			} else {
				f.CertificateFile(setting+".tls.cert", given.Cert, time.Now())
			}
		}
		if given.ClientCA != "" {
			f.CertificateFile(setting+".tls.client_ca", given.ClientCA, time.Now())
		}

		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		switch {
		case err == nil:
			f.OKf("port of "+setting, "%s is free", address)
			listener.Close()
		case errors.Is(err, syscall.EADDRINUSE):
			f.Warn("port of "+setting, address+" is in use", "Nothing where the server runs; else stop what uses it, or set "+setting+".listen to another.")
		default:
			f.Fail("port of "+setting, err.Error(), "Set "+setting+".listen to an address of this machine.")
		}
	}

	if c.Server.Has(config.RoleAPI) {
		examine("api", c.API.Listen, c.API.TLS, func(*config.Config) error { return nil })
	}
	if c.Server.Has(config.RoleConductor) {
		examine("agent_endpoint", c.AgentEndpoint.Listen, c.AgentEndpoint.TLS, checkEndpoint)
	}
}
