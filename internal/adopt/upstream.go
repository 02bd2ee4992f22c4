package adopt

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/cyborg-project/cyborg"
)

// head is the newest revision (alembic) of OpenStack Cyborg's schema, and the
// only one that is supported.
const head = "6c77bd6afea5"

// columnsTable has the tables that are read, with all columns of that revision.
// A column more or less means another schema, whatever its revision says, so
// that a patched database is refused instead of being misread.
var columnsTable = map[string]string{
	"devices":         "created_at updated_at id uuid type vendor model std_board_info vendor_board_info hostname status",
	"deployables":     "created_at updated_at id uuid parent_id root_id name num_accelerators device_id rp_uuid driver_name bitstream_id",
	"attributes":      "created_at updated_at id uuid deployable_id key value",
	"controlpath_ids": "created_at updated_at id uuid device_id cpid_type cpid_info",
	"attach_handles":  "created_at updated_at id uuid deployable_id cpid_id in_use attach_type attach_info",
	"device_profiles": "created_at updated_at id uuid name profile_json description",
	"extended_accelerator_requests": "created_at updated_at id uuid project_id state device_profile_id device_profile_group_id hostname " +
		"device_rp_uuid instance_uuid attach_handle_id substate deployable_id",
}

// upstream holds the records of an OpenStack Cyborg. Its rows refer to each
// other by their numeric ids.
type upstream struct {
	devices      []device
	deployables  []deployable
	attributes   []attribute
	controlPaths []controlPath
	handles      []handle
	profiles     []profile
	arqs         []arq
}

// stamps are the times of a row, in UTC; both may be null.
type stamps struct{ created, updated sql.NullTime }

// device is a row of devices. kind is the column type.
type device struct {
	stamps
	id                                          int64
	uuid, kind, vendor, model, hostname, status string
	stdBoardInfo, vendorBoardInfo               sql.NullString
}

// deployable is a row of deployables. parent and root are always null in
// practice, and refused if not.
type deployable struct {
	stamps
	id, accelerators, device    int64
	parent, root                sql.NullInt64
	uuid, name                  string
	provider, driver, bitstream sql.NullString
}

// attribute is a row of attributes.
type attribute struct {
	stamps
	id, deployable   int64
	uuid, key, value string
}

// controlPath is a row of controlpath_ids: the address of a device. kind and
// info are cpid_type and cpid_info; info is JSON.
type controlPath struct {
	stamps
	id, device       int64
	uuid, kind, info string
}

// handle is a row of attach_handles. kind and info are attach_type and
// attach_info; info is JSON.
type handle struct {
	stamps
	id, deployable, controlPath int64
	uuid, kind, info            string
	inUse                       sql.NullBool
}

// profile is a row of device_profiles. json has the groups.
type profile struct {
	stamps
	id               int64
	uuid, name, json string
	description      sql.NullString
}

// arq is a row of extended_accelerator_requests. group is the index of the
// profile's group that the request was made for.
type arq struct {
	stamps
	id, profile, group                int64
	uuid, state                       string
	project, host, provider, instance sql.NullString
	handle, deployable                sql.NullInt64
}

// source is the database to read from.
type source struct {
	db *sql.DB
	// quote quotes an identifier in the database's dialect; "key" is a reserved
	// word of MySQL.
	quote func(string) string
	// schema is a condition on information_schema.columns that selects the
	// database's own tables.
	schema string
}

// open opens the database of a URL. It accepts the schemes that SQLAlchemy
// uses: mysql, mysql+pymysql, mariadb, postgresql and postgresql+psycopg2. It
// does not connect yet. The error is of kind ErrInvalid and never contains the
// password.
func open(text string) (*source, error) {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Host == "" && parsed.Query().Get("unix_socket") == "" && parsed.Query().Get("host") == "" || len(parsed.Path) < 2 {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "what --from gives is no URL of a database").
			WithHint("Write mysql://user:password@host/cyborg or postgresql://user:password@host/cyborg, as [database] connection of cyborg.conf has it.")
	}

	scheme, _, _ := strings.Cut(parsed.Scheme, "+")
	switch scheme {
	case "mysql", "mariadb":
		return openMySQL(parsed)
	case "postgresql", "postgres":
		return openPostgreSQL(parsed)
	}

	return nil, cyborg.Errorf(cyborg.ErrInvalid, "a database of kind %q cannot be adopted; MySQL (MariaDB) and PostgreSQL can", parsed.Scheme)
}

// openMySQL opens a MySQL or MariaDB database.
func openMySQL(from *url.URL) (*source, error) {
	config := mysql.NewConfig()
	config.User = from.User.Username()
	config.Passwd, _ = from.User.Password()
	config.DBName = strings.TrimPrefix(from.Path, "/")

	config.Net, config.Addr = "tcp", from.Host
	if from.Port() == "" {
		config.Addr = net.JoinHostPort(from.Hostname(), "3306")
	}

	// DATETIME columns have no zone; upstream writes UTC into them.
	config.ParseTime, config.Loc, config.Timeout = true, time.UTC, connectWithin
	config.Collation = "utf8mb4_general_ci"

	for key, values := range from.Query() {
		switch key {
		case "charset": // the collation above already decides it
		case "unix_socket":
			config.Net, config.Addr = "unix", values[0]

		case "ssl_ca":
			roots, err := authorities(values[0])
			if err != nil {
				return nil, err
			}

			config.TLS = &tls.Config{RootCAs: roots, ServerName: from.Hostname(), MinVersion: tls.VersionTLS12}
		default:
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "the URL of --from has the parameter %q, which is not known; charset, unix_socket and ssl_ca are", key)
		}
	}

	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the URL of --from cannot be used: %w", err)
	}

	return &source{
		db: sql.OpenDB(connector), schema: "table_schema = database()",
		quote: func(name string) string { return "`" + name + "`" },
	}, nil
}

// authorities reads the certificate authorities of the parameter ssl_ca.
func authorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	roots := x509.NewCertPool()

	if err != nil || !roots.AppendCertsFromPEM(text) {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "ssl_ca of --from, %q, is no file of certificates that can be read", file)
	}

	return roots, nil
}

// openPostgreSQL opens a PostgreSQL database. pgx reads the parameters of the
// URL itself.
func openPostgreSQL(from *url.URL) (*source, error) {
	// SQLAlchemy's schemes, such as postgresql+psycopg2, mean nothing to pgx.
	plain := *from
	plain.Scheme = "postgres"
	config, err := pgx.ParseConfig(plain.String())
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the URL of --from cannot be used") // the error of pgx may contain the password
	}

	config.ConnectTimeout = connectWithin
	return &source{
		db: stdlib.OpenDB(*config), schema: "table_schema = current_schema()",
		quote: func(name string) string { return `"` + name + `"` },
	}, nil
}

// connectWithin bounds connecting to the database.
const connectWithin = 10 * time.Second

// unopened explains why no transaction could be begun. It is ErrInvalid if the
// server refuses the database, the user or the password of the URL, otherwise
// ErrUnavailable.
func unopened(err error) error {
	const (
		// SQLSTATE codes, from Appendix A of PostgreSQL's manual.
		noDatabase, badPassword, badAuthorization, noPrivilege = "3D000", "28P01", "28000", "42501"

		// Error numbers, from MySQL's list of server errors.
		mysqlBadDB, mysqlAccessDenied, mysqlDBAccessDenied = 1049, 1045, 1044
	)

	refused := false
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		refused = slices.Contains([]string{noDatabase, badPassword, badAuthorization, noPrivilege}, pg.Code)
	}

	if my, ok := errors.AsType[*mysql.MySQLError](err); ok {
		refused = slices.Contains([]uint16{mysqlBadDB, mysqlAccessDenied, mysqlDBAccessDenied}, my.Number)
	}

	if !refused {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the database of --from does not answer: %w", err).
			WithHint("Check that its server runs and can be reached from here, and that the URL names the right one.")
	}

	return cyborg.Errorf(cyborg.ErrInvalid, "the database of --from cannot be opened: %w", err).
		WithHint("Correct the URL: [database] connection of that Cyborg's cyborg.conf has it.")
}

// read reads all tables in one transaction with REPEATABLE READ, so that rows
// and what they refer to are of the same moment even if upstream is still
// running. Errors: ErrUnavailable; ErrInvalid if the URL is wrong;
// ErrUnsupported for another schema.
func (s *source) read(ctx context.Context) (*upstream, error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return nil, unopened(err)
	}
	defer func() { _ = tx.Rollback() }() // nothing was written

	if err := s.checkSchema(ctx, tx); err != nil {
		return nil, err
	}

	u := &upstream{}
	for _, read := range []func() error{
		func() error {
			return each(ctx, s, tx, "devices", "id, uuid, type, vendor, model, std_board_info, vendor_board_info, hostname, status, created_at, updated_at",
				&u.devices, func(d *device) []any {
					return []any{&d.id, &d.uuid, &d.kind, &d.vendor, &d.model, &d.stdBoardInfo, &d.vendorBoardInfo, &d.hostname, &d.status, &d.created, &d.updated}
				})
		},
		func() error {
			return each(ctx, s, tx, "deployables", "id, uuid, parent_id, root_id, name, num_accelerators, device_id, rp_uuid, driver_name, bitstream_id, created_at, updated_at",
				&u.deployables, func(d *deployable) []any {
					return []any{&d.id, &d.uuid, &d.parent, &d.root, &d.name, &d.accelerators, &d.device, &d.provider, &d.driver, &d.bitstream, &d.created, &d.updated}
				})
		},
		func() error {
			return each(ctx, s, tx, "attributes", "id, uuid, deployable_id, "+s.quote("key")+", value, created_at, updated_at", &u.attributes, func(a *attribute) []any {
				return []any{&a.id, &a.uuid, &a.deployable, &a.key, &a.value, &a.created, &a.updated}
			})
		},
		func() error {
			return each(ctx, s, tx, "controlpath_ids", "id, uuid, device_id, cpid_type, cpid_info, created_at, updated_at", &u.controlPaths, func(c *controlPath) []any {
				return []any{&c.id, &c.uuid, &c.device, &c.kind, &c.info, &c.created, &c.updated}
			})
		},
		func() error {
			return each(ctx, s, tx, "attach_handles", "id, uuid, deployable_id, cpid_id, in_use, attach_type, attach_info, created_at, updated_at", &u.handles, func(h *handle) []any {
				return []any{&h.id, &h.uuid, &h.deployable, &h.controlPath, &h.inUse, &h.kind, &h.info, &h.created, &h.updated}
			})
		},
		func() error {
			return each(ctx, s, tx, "device_profiles", "id, uuid, name, profile_json, description, created_at, updated_at", &u.profiles, func(p *profile) []any {
				return []any{&p.id, &p.uuid, &p.name, &p.json, &p.description, &p.created, &p.updated}
			})
		},
		func() error {
			return each(ctx, s, tx, "extended_accelerator_requests", "id, uuid, project_id, state, device_profile_id, device_profile_group_id, hostname, "+
				"device_rp_uuid, instance_uuid, attach_handle_id, deployable_id, created_at, updated_at", &u.arqs, func(a *arq) []any {
				return []any{
					&a.id, &a.uuid, &a.project, &a.state, &a.profile, &a.group, &a.host, &a.provider, &a.instance, &a.handle, &a.deployable,
					&a.created, &a.updated,
				}
			})
		},
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}

	return u, nil
}

// each reads the columns of a table into a list, in the order of the rows' ids.
// places returns where the columns of a row go.
func each[T any](ctx context.Context, s *source, tx *sql.Tx, table, columns string, into *[]T, places func(*T) []any) error {
	rows, err := tx.QueryContext(ctx, "SELECT "+columns+" FROM "+s.quote(table)+" ORDER BY id") //nolint:gosec // names of ours
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "table %s of --from cannot be read: %w", table, err)
	}
	defer func() { _ = rows.Close() }() // rows.Err has the error, if any

	for rows.Next() {
		var row T
		if err := rows.Scan(places(&row)...); err != nil {
			return cyborg.Errorf(cyborg.ErrUnsupported, "table %s of --from has a row that cannot be read: %w", table, err)
		}

		*into = append(*into, row)
	}

	if err := rows.Err(); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "table %s of --from cannot be read: %w", table, err)
	}

	return nil
}

// checkSchema returns an error of kind ErrUnsupported that names the
// difference, unless the schema is the supported one.
func (s *source) checkSchema(ctx context.Context, tx *sql.Tx) error {
	rows, err := tx.QueryContext(ctx, "SELECT table_name, column_name FROM information_schema.columns WHERE "+s.schema) //nolint:gosec // words of ours
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the schema of --from cannot be read: %w", err)
	}
	defer func() { _ = rows.Close() }() // rows.Err has the error, if any

	found := map[string][]string{}
	for rows.Next() {
		var table, column string
		if err := rows.Scan(&table, &column); err != nil {
			return cyborg.Errorf(cyborg.ErrUnavailable, "the schema of --from cannot be read: %w", err)
		}

		found[table] = append(found[table], column)
	}

	if err := rows.Err(); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the schema of --from cannot be read: %w", err)
	}

	// Check the kind of database first, then the revision, then the columns, so
	// that the error is about the first cause.
	if len(found["alembic_version"]) == 0 {
		return cyborg.Errorf(cyborg.ErrUnsupported, "the database of --from is not OpenStack Cyborg's: it has no table alembic_version")
	}

	var version string
	if err := tx.QueryRowContext(ctx, "SELECT version_num FROM alembic_version").Scan(&version); err != nil {
		return cyborg.Errorf(cyborg.ErrUnsupported, "the version of the schema of --from cannot be read: %w", err)
	}

	if version != head {
		return cyborg.Errorf(cyborg.ErrUnsupported, "the schema of --from has version %s, and only %s is understood", version, head).
			WithHint("Bring it there with cyborg-dbsync upgrade of an OpenStack Cyborg that has it.")
	}

	var wrong []string
	for _, table := range slices.Sorted(maps.Keys(columnsTable)) {
		want, got := slices.Sorted(strings.FieldsSeq(columnsTable[table])), slices.Sorted(slices.Values(found[table]))
		if !slices.Equal(want, got) {
			wrong = append(wrong, fmt.Sprintf("%s has %s, not %s", table, strings.Join(got, " "), strings.Join(want, " ")))
		}
	}

	if len(wrong) > 0 {
		return cyborg.Errorf(cyborg.ErrUnsupported, "the schema of --from is not the one of OpenStack Cyborg: %s", strings.Join(wrong, "; "))
	}

	return nil
}
