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
)

// fingerprintSetting is a setting of our own, which PostgreSQL only keeps: it tells with which settings a running
// server was started.
const fingerprintSetting = "cyborg.settings"

// settings are the server's configuration files, as they should be.
type settings struct {
	conf, hba, ident string
	fingerprint      string
}

// ours are the settings that suit a database which shares a small machine with everything else of ours. Temporal holds
// up to about a hundred connections under load, and a slot that nobody uses costs next to nothing.
func ours(cfg Config, l layout, e endpoint) map[string]string {
	values := map[string]string{
		"listen_addresses":        "",
		"port":                    strconv.Itoa(e.port),
		"unix_socket_directories": e.socketDir,
		"unix_socket_permissions": "0700",
		"hba_file":                l.file("pg_hba.conf"),
		"ident_file":              l.file("pg_ident.conf"),
		"cluster_name":            "cyborg",
		"max_connections":         "200",
		"shared_buffers":          "128MB",
		"max_wal_size":            "1GB",
		"wal_compression":         "on",
		"checkpoint_timeout":      "15min",
		"jit":                     "off", // our queries are short
		"autovacuum_naptime":      "15s", // Temporal's task tables turn over fast
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"lc_messages":             "C", // we quote and recognise messages
		"log_checkpoints":         "off",
		"logging_collector":       "off", // it writes to a file that we keep small
		"log_line_prefix":         "%m [%p] ",
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

func newSettings(cfg Config, l layout, acct account, e endpoint) settings {
	values := ours(cfg, l, e)
	var conf, hba, ident strings.Builder
	conf.WriteString("# Written at each start; what is changed here is lost. ALTER SYSTEM is respected.\n")
	for _, name := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&conf, "%s = %s\n", name, quote(values[name], "'"))
	}
	hba.WriteString("# Written at each start; what is changed here is lost.\nlocal all all peer map=cyborg\n")
	if cfg.TCP {
		hba.WriteString("host all all 127.0.0.1/32 scram-sha-256\n")
	}
	ident.WriteString("# Written at each start; what is changed here is lost.\n")
	for _, name := range slices.Compact([]string{acct.self, acct.name}) {
		fmt.Fprintf(&ident, "cyborg %s %s\n", quote(name, `"`), role)
	}
	s := settings{conf: conf.String(), hba: hba.String(), ident: ident.String()}
	sum := sha256.Sum256([]byte(s.conf + "\x00" + s.hba + "\x00" + s.ident))
	s.fingerprint = hex.EncodeToString(sum[:8])
	s.conf += fmt.Sprintf("%s = '%s'\n", fingerprintSetting, s.fingerprint)
	return s
}

func quote(value, mark string) string {
	return mark + strings.ReplaceAll(value, mark, mark+mark) + mark
}

func (l layout) file(name string) string { return filepath.Join(l.dir, name) }

// write puts the files in place. They hold no secret, and the server's user has to read them.
func (s settings) write(l layout) error {
	for name, content := range map[string]string{"postgresql.conf": s.conf, "pg_hba.conf": s.hba, "pg_ident.conf": s.ident} {
		if err := writeFile(l.file(name), content, 0o644); err != nil {
			return unusable(l.dir, err)
		}
	}
	return nil
}

// writeFile replaces a file in one step.
func writeFile(path, content string, mode fs.FileMode) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(content), mode); err != nil {
		return err
	}
	if err := os.Chmod(tmp, mode); err != nil { // whatever the umask, or an earlier file's mode
		return err
	}
	return os.Rename(tmp, path)
}

// password returns the one for TCP, and makes it when there is none.
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
	if err := writeFile(path, password, 0o600); err != nil {
		return "", unusable(l.dir, err)
	}
	return password, nil
}

// choosePort returns the port for TCP: the one that was asked for; else the one of the last start while it is free, or
// while it is our own running server that has it; else any that is free.
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
	if err := writeFile(l.file("port"), strconv.Itoa(free), 0o600); err != nil {
		return 0, unusable(l.dir, err)
	}
	return free, nil
}

// lastPort returns the port of the last start, or 0.
func (l layout) lastPort() int {
	content, err := os.ReadFile(l.file("port"))
	if err != nil {
		return 0
	}
	return numberOr0(string(content))
}

// freePort makes sure that a port is free; 0 finds one.
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
