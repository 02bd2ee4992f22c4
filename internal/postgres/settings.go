package postgres

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
)

// fingerprintSetting is a setting that PostgreSQL keeps but does not use. It
// holds a hash of the configuration that the server was started with, so that
// Start can tell whether a running server has the settings that are wanted.
const fingerprintSetting = "cyborg.settings"

// settings holds the contents of the server's configuration files.
type settings struct {
	conf, hba, ident string // postgresql.conf, pg_hba.conf and pg_ident.conf
	fingerprint      string // a hash of all three
}

// serverSettings returns the server's settings by name, with those of the
// caller on top. They suit a database that shares a small machine with the rest
// of Cyborg. Temporal holds up to about a hundred connections under load, and
// connections that are allowed but not open cost next to nothing.
func serverSettings(cfg Config, l layout, e endpoint) map[string]string {
	values := map[string]string{
		"listen_addresses":        "",
		"port":                    strconv.Itoa(e.port),
		"unix_socket_directories": e.socketDir,
		"unix_socket_permissions": "0700",
		"hba_file":                l.file("pg_hba.conf"),
		"ident_file":              l.file("pg_ident.conf"),
		"cluster_name":            "cyborg",

		"max_connections":    "200",
		"shared_buffers":     "128MB",
		"max_wal_size":       "1GB",
		"wal_compression":    "on",
		"checkpoint_timeout": "15min",

		"jit":                "off", // the queries are too short for it to pay
		"autovacuum_naptime": "15s", // rows in Temporal's task tables live for a short time

		"timezone":          "UTC",
		"log_timezone":      "UTC",
		"lc_messages":       "C", // this package searches for messages and quotes them
		"log_checkpoints":   "off",
		"logging_collector": "off", // the server writes to a file that this package keeps small
		"log_line_prefix":   "%m [%p] ",
	}

	if cfg.TCP {
		values["listen_addresses"] = "127.0.0.1"
	}

	if cfg.FsyncOff {
		for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
			values[name] = "off"
		}
	}

	maps.Copy(values, cfg.Settings)
	return values
}

// newSettings returns the contents of the configuration files.
func newSettings(cfg Config, l layout, acct account, e endpoint) settings {
	values := serverSettings(cfg, l, e)
	var conf, hba, ident strings.Builder

	conf.WriteString("# Written at each start; what is changed here is lost. ALTER SYSTEM is respected.\n")
	for _, name := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&conf, "%s = %s\n", name, quote(values[name], "'"))
	}

	// Through the socket the kernel says who the client is (peer). The map cyborg,
	// which is pg_ident.conf, lists the users who may be the database role.
	hba.WriteString("# Written at each start; what is changed here is lost.\nlocal all all peer map=cyborg\n")
	if cfg.TCP {
		hba.WriteString("host all all 127.0.0.1/32 scram-sha-256\n")
	}

	ident.WriteString("# Written at each start; what is changed here is lost.\n")
	for _, name := range slices.Compact([]string{acct.self, acct.name}) {
		fmt.Fprintf(&ident, "cyborg %s %s\n", quote(name, `"`), role)
	}

	// The fingerprint cannot cover its own setting, which is added afterwards.
	s := settings{conf: conf.String(), hba: hba.String(), ident: ident.String()}
	sum := sha256.Sum256([]byte(s.conf + "\x00" + s.hba + "\x00" + s.ident))
	s.fingerprint = hex.EncodeToString(sum[:8])
	s.conf += fmt.Sprintf("%s = '%s'\n", fingerprintSetting, s.fingerprint)

	return s
}

// quote puts marks around a value and doubles those in it, as PostgreSQL's
// configuration files and SQL want them.
func quote(value, mark string) string {
	return mark + strings.ReplaceAll(value, mark, mark+mark) + mark
}

// file returns the path of a file in the server's directory.
func (l layout) file(name string) string { return filepath.Join(l.dir, name) }

// write replaces the configuration files. Everybody may read them: they hold no
// secret, and the server's user has to.
func (s settings) write(l layout) error {
	for name, content := range map[string]string{"postgresql.conf": s.conf, "pg_hba.conf": s.hba, "pg_ident.conf": s.ident} {
		if err := atomicfile.Write(l.file(name), []byte(content), 0o644); err != nil {
			return unusable(l.dir, err)
		}
	}
	return nil
}

// password returns the password for TCP, and makes one if there is none yet.
func (l layout) password() (string, error) {
	path := l.file("password")
	content, err := os.ReadFile(path)
	if err == nil && len(content) > 0 {
		return string(content), nil
	}

	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", unusable(l.dir, err)
	}

	password := rand.Text()
	if err := atomicfile.Write(path, []byte(password), 0o600); err != nil {
		return "", unusable(l.dir, err)
	}

	return password, nil
}

// choosePort returns the port for TCP. If one is asked for, it is that one, and
// an error if the port is in use. Otherwise it is the port of the last start if
// it is free, else any free port. A port counts as free if the running server
// itself has it.
func (l layout) choosePort(asked int, running *postmaster) (int, error) {
	port := asked
	if port == 0 {
		port = l.lastPort()
	}

	if port != 0 && running != nil && running.port == port {
		return port, nil
	}

	free, err := freePort(port)
	if errors.Is(err, syscall.EADDRINUSE) {
		if asked != 0 {
			return 0, cyborg.Errorf(cyborg.ErrUnavailable, "port %d of 127.0.0.1, meant for PostgreSQL, is in use: choose another, or 0 for any", asked)
		}
		free, err = freePort(0)
	}
	if err != nil {
		return 0, cyborg.Errorf(cyborg.ErrUnavailable, "cannot get port %d of 127.0.0.1 for PostgreSQL: %w", port, err)
	}

	if err := atomicfile.Write(l.file("port"), []byte(strconv.Itoa(free)), 0o600); err != nil {
		return 0, unusable(l.dir, err)
	}

	return free, nil
}

// lastPort returns the port of the last start, or 0 if it is not known.
func (l layout) lastPort() int {
	content, err := os.ReadFile(l.file("port"))
	if err != nil {
		return 0
	}
	return numberOr0(string(content))
}

// freePort returns the port if it is free, or any free port for 0. It listens
// for a moment to find out, so another process can still take the port before
// the server does.
func freePort(port int) (int, error) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return 0, err
	}

	addr, ok := listener.Addr().(*net.TCPAddr)
	if err := listener.Close(); err != nil || !ok {
		return 0, err
	}

	return addr.Port, nil
}
