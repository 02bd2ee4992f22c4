package server

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

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

// migrate gives a database the current schema.
func migrate(ctx context.Context, url string) error {
	_, err := db.Migrate(ctx, url)
	return err
}
