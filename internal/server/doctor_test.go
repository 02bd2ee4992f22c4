package server

import (
	"bytes"
	"context"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

// TestDoctorTellsWhatIsUnsettled: the doctor names the attachments that Reconcile could
// not settle, and why.
func TestDoctorTellsWhatIsUnsettled(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewFrom(t, "migrated", migrate)
	store, err := db.Open(t.Context(), url, db.Options{}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(store.Close)
	look := func() []doctor.Finding {
		var f doctor.Findings
		examineAttachments(t.Context(), &f, store)
		return f.All()
	}
	require.Empty(t, look())

	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	_, err = conn.Exec(t.Context(), `
		INSERT INTO hosts (name, boot_id, agent_version, report_seq, digest) VALUES ('h1', 'b', 'v', 1, '');
		INSERT INTO pending_settlements (host, backend, handle, deployable, attach, first_assignment, assignment, event, error)
		VALUES ('h1', 'fake', 'card0.0', 'card0', true, 1, 1, '{}', 'it is not installed'), ('h1', 'fake', 'card1.0', 'card1', true, 1, 1, '{}', '')`)
	require.NoError(t, err)

	found := look()
	require.Len(t, found, 1)
	require.Equal(t, doctor.Warning, found[0].State)
	require.Equal(t, "are not on their hosts as recorded, and could not be settled: card0.0 of accelerator card0 on host h1 (it is not installed)", found[0].Found)
}

// TestDoctorChecksTheCloud: doctor logs in, looks for each service in the
// catalog, and says what to do about what is wrong.
func TestDoctorChecksTheCloud(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	k.Serve("placement", "http://127.0.0.1:1/placement")

	look := func(change func(c *config.OpenStack)) []doctor.Finding {
		c := config.Default()
		c.OpenStack = k.Config()
		change(&c.OpenStack)
		var f doctor.Findings
		examineCloud(t.Context(), &f, c)
		return f.All()
	}

	require.Empty(t, look(func(c *config.OpenStack) { c.AuthURL = "" }))
	found := look(func(*config.OpenStack) {})
	require.Len(t, found, 4)
	require.Equal(t, doctor.Finding{Check: "keystone", State: doctor.OK, Found: "lets in our own user cyborg of the domain Default, for the project service"}, found[0])
	require.Equal(t, doctor.Finding{Check: "catalog", State: doctor.OK, Found: "has placement at http://127.0.0.1:1/placement/"}, found[1])
	require.Equal(t, doctor.Warning, found[2].State)
	require.Contains(t, found[2].Do, "openstack.endpoints")

	found = look(func(c *config.OpenStack) { c.Password = "wrong" })
	require.Len(t, found, 1)
	require.Equal(t, doctor.Failed, found[0].State)
	require.Contains(t, found[0].Do, "openstack.username")
	require.NotContains(t, found[0].Found, "wrong")
	require.Equal(t, doctor.Failed, look(func(c *config.OpenStack) { c.CAFile = "/nowhere" })[0].State)
}

// TestDoctorChecksTheDatabase: doctor notices each thing that is wrong with a
// database, and says what to do.
func TestDoctorChecksTheDatabase(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sql   string // done to a database that is as it should be
		check string
		found string
	}{
		"nothing in it":     {"DROP TABLE goose_db_version", "schema", "there is none"},
		"an old schema":     {"DELETE FROM goose_db_version WHERE version_id = (SELECT max(version_id) FROM goose_db_version)", "schema", "and this release needs "},
		"a newer schema":    {"INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)", "schema", "has version 99999, and this release knows only "},
		"a newer kind":      {"INSERT INTO operation_kinds VALUES ('survey', true)", "schema", "has operations of kind survey, which this release does not know"},
		"a kind is missing": {"DELETE FROM operation_kinds WHERE kind = 'bind'", "schema", "does not know operations of kind bind"},
		"read-only": {
			"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$",
			"writing", "the database is read-only",
		},
		"a second agent": {
			`
			INSERT INTO hosts (name, boot_id, agent_version, report_seq, digest, agent_address) VALUES ('h1', 'b', '1', 1, 'd', '10.0.0.1');
			INSERT INTO duplicate_agents (host, instance, boot_id, agent_version, address) VALUES ('h1', 'two', 'c', '1', '10.0.0.2')`,
			"agents", "host h1 and is refused: one at 10.0.0.2, while the host's is at 10.0.0.1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config.Default()
			url := postgrestest.NewFrom(t, "migrated", migrate)
			c.Database.URL = config.DatabaseURL(url)

			conn, err := pgx.Connect(t.Context(), url)
			require.NoError(t, err)
			_, err = conn.Exec(t.Context(), test.sql)
			require.NoError(t, err)
			require.NoError(t, conn.Close(t.Context()))

			var f doctor.Findings
			examineDatabase(t.Context(), &f, c)

			last := f.All()[len(f.All())-1]
			for _, finding := range f.All() {
				if finding.State != doctor.OK {
					last = finding
				}
			}

			require.Equal(t, doctor.Failed, last.State)
			require.Equal(t, test.check, last.Check)
			require.Contains(t, last.Found, test.found)
			require.NotEmpty(t, last.Do)
		})
	}
}

// TestDoctorChecksWhereRevocationsAreKept: without a file that can be written, a
// restore of the records would forget them.
func TestDoctorChecksWhereRevocationsAreKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	damaged := filepath.Join(dir, "damaged")
	require.NoError(t, os.WriteFile(damaged, nil, 0o600))

	for name, test := range map[string]struct {
		file, clientCA string
		state          doctor.State
		found          string
	}{
		"kept":            {filepath.Join(dir, "revoked"), "ca.crt", doctor.OK, "are kept in"},
		"no file":         {"", "ca.crt", doctor.Warning, "only the records know"},
		"no certificates": {"", "", "", ""},
		"no directory":    {filepath.Join(dir, "none", "revoked"), "", doctor.Warning, "cannot be kept"},
		"damaged":         {damaged, "ca.crt", doctor.Failed, "cannot be read"},
	} {
		c := config.Default()
		c.Identity.Revocations, c.AgentEndpoint.TLS.ClientCA = test.file, test.clientCA
		var f doctor.Findings
		examineRevocations(&f, c)
		if test.state == "" {
			require.Empty(t, f.All(), name)
			continue
		}
		require.Len(t, f.All(), 1, name)
		require.Equal(t, test.state, f.All()[0].State, name)
		require.Contains(t, f.All()[0].Found, test.found, name)
	}
}

// TestDoctorSaysWhatAFailoverLoses: doctor reads what the database promises, and
// says in a sentence what is lost.
func TestDoctorSaysWhatAFailoverLoses(t *testing.T) {
	t.Parallel()
	url := postgrestest.NewFrom(t, "migrated", migrate)
	h, err := db.CheckHealth(t.Context(), url)
	require.NoError(t, err)
	require.Equal(t, db.Durability{FullPageWrites: h.Durability.FullPageWrites, SynchronousCommit: h.Durability.SynchronousCommit}, h.Durability,
		"a server of tests, without fsync and without a standby")

	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	_, err = conn.Exec(t.Context(), "CREATE ROLE reads_tables; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reads_tables")
	require.NoError(t, err)

	h, err = db.CheckHealth(t.Context(), url+"&synchronous_commit=remote_write&role=reads_tables")
	require.NoError(t, err)
	require.Equal(t, "remote_write", h.Durability.SynchronousCommit)
	require.Equal(t, -1, h.Durability.Synchronous, "that role sees no statistics")
	require.Equal(t, -1, h.Durability.Quorum)

	safe := db.Durability{Fsync: true, FullPageWrites: true, SynchronousCommit: "on"}
	pair := safe
	pair.Standbys, pair.Synchronous = "FIRST 2 (a, b)", 2
	const last = "the last moments"

	for name, test := range map[string]struct {
		change            func(d *db.Durability)
		from              db.Durability
		crash, failover   string
		warns, warnsLater bool
	}{
		"one server":              {from: safe, crash: "loses nothing", failover: last},
		"fsync off":               {from: safe, change: func(d *db.Durability) { d.Fsync = false }, crash: "can destroy", failover: last, warns: true},
		"full_page_writes off":    {from: safe, change: func(d *db.Durability) { d.FullPageWrites = false }, crash: "can destroy", failover: last, warns: true},
		"asynchronous commits":    {from: pair, change: func(d *db.Durability) { d.SynchronousCommit = "off" }, crash: last, failover: last, warns: true, warnsLater: true},
		"local commits":           {from: pair, change: func(d *db.Durability) { d.SynchronousCommit = "local" }, crash: "loses nothing", failover: last, warnsLater: true},
		"two synchronous":         {from: pair, crash: "loses nothing", failover: "one of 2 synchronous standbys loses nothing"},
		"a quorum":                {from: pair, change: func(d *db.Durability) { d.Synchronous, d.Quorum = 0, 2 }, crash: "loses nothing", failover: "only if the standby with the most WAL"},
		"written, not synced":     {from: pair, change: func(d *db.Durability) { d.SynchronousCommit = "remote_write" }, crash: "loses nothing", failover: "unless"},
		"none connected":          {from: pair, change: func(d *db.Durability) { d.Synchronous = 0 }, crash: "loses nothing", failover: "changes wait", warnsLater: true},
		"the role may not see it": {from: pair, change: func(d *db.Durability) { d.Synchronous = -1 }, crash: "loses nothing", failover: "pg_monitor"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.change != nil {
				test.change(&test.from)
			}

			var f doctor.Findings
			examineDurability(&f, test.from)
			require.Len(t, f.All(), 2)

			for i, want := range []struct {
				check, found string
				warns        bool
			}{{"durability", test.crash, test.warns}, {"failover", test.failover, test.warnsLater}} {
				found := f.All()[i]
				require.Equal(t, want.check, found.Check)
				require.Contains(t, found.Found, want.found)
				require.Equal(t, want.warns, found.State == doctor.Warning)
				require.Equal(t, want.warns, found.Do != "")
			}
		})
	}
}

// migrate gives a database the current schema.
func migrate(ctx context.Context, url string) error {
	_, err := db.Migrate(ctx, url)
	return err
}

// TestDoctorChecksTheEnrollment: doctor and config check find what the start would
// refuse.
func TestDoctorChecksTheEnrollment(t *testing.T) {
	t.Parallel()
	c := config.Default()
	var f doctor.Findings
	examineEnrollment(&f, c)
	require.Empty(t, f.All(), "nobody enrolls")

	c.Identity.Authority = filepath.Join(t.TempDir(), "none")
	c.Server.Roles = []config.Role{config.RoleAPI}
	examineEnrollment(&f, c)
	require.Empty(t, f.All(), "a server without agents starts")
	require.NoError(t, checkEnrollment(nil, c))

	c.Server.Roles = []config.Role{config.RoleConductor}
	examineEnrollment(&f, c)
	require.Len(t, f.All(), 1)
	require.Equal(t, doctor.Failed, f.All()[0].State)
	require.Contains(t, f.All()[0].Found, "identity.authority")
	require.NotEmpty(t, f.All()[0].Do)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(checkEnrollment(nil, c)))
}

// TestDoctorSaysHowToMakeTheDatabase: a PostgreSQL that has no such database runs, so
// starting it is no remedy. A machine that has no database to name is perhaps a
// standalone's.
func TestDoctorSaysHowToMakeTheDatabase(t *testing.T) {
	t.Parallel()
	there, err := url.Parse(postgrestest.NewFrom(t, "migrated", migrate))
	require.NoError(t, err)
	there.Path = "/nowhere"
	c := config.Default()
	c.Database.URL = config.DatabaseURL(there.String())
	var f doctor.Findings
	examineDatabase(t.Context(), &f, c)
	require.Len(t, f.All(), 1)
	require.Contains(t, f.All()[0].Do, "createdb")
	require.NotContains(t, f.All()[0].Do, "Start it")

	empty := filepath.Join(t.TempDir(), "cyborg.yaml")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	root := &cobra.Command{Use: "cyborg"}
	root.AddCommand(Commands()...)
	commandline.Prepare(root)
	var out, errOut bytes.Buffer
	require.Equal(t, 1, commandline.Execute(t.Context(), root, []string{"server", "doctor", "--config", empty}, &out, &errOut))
	require.Contains(t, out.String(), "use `cyborg doctor` there", errOut.String())
}
