package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
)

const (
	// oldestMajor is the oldest PostgreSQL that works: the one of Debian 12.
	oldestMajor = 15

	installAdvice = "on Debian and Ubuntu `apt-get install postgresql` does it, and the server that the package starts by itself does no harm"
)

// installation is one set of PostgreSQL binaries.
type installation struct {
	binDir  string
	major   int
	version string // as the binary says it, such as "15.18"
}

func (i installation) binary(name string) string { return filepath.Join(i.binDir, name) }

// findInstallation finds the binaries to use: those in binDir if it is given; else those that fit the data where there
// is some; else those that PATH offers if they are new enough, else the newest.
func findInstallation(ctx context.Context, binDir string, l layout) (installation, error) {
	wanted, err := l.dataMajor()
	if err != nil {
		return installation{}, err
	}
	if binDir != "" {
		inst, err := inspect(ctx, binDir)
		if err != nil {
			return installation{}, cyborg.Errorf(cyborg.ErrInvalid, "%s holds no usable PostgreSQL server: %w", binDir, err)
		}
		return choose([]installation{inst}, wanted, l)
	}
	found := []installation{} // in order of preference
	for _, dir := range candidates(ctx) {
		inst, err := inspect(ctx, dir)
		if err != nil {
			continue // not a server; several places are only guesses
		}
		known := slices.ContainsFunc(found, func(other installation) bool { return other.binDir == inst.binDir })
		if !known {
			found = append(found, inst)
		}
	}
	if ctx.Err() != nil { // what was asked of them may not have been answered
		return installation{}, context.Cause(ctx)
	}
	return choose(found, wanted, l)
}

func choose(found []installation, wanted int, l layout) (installation, error) {
	if wanted != 0 {
		for _, inst := range found {
			if inst.major == wanted {
				return inst, nil
			}
		}
		return installation{}, cyborg.Errorf(cyborg.ErrUnavailable,
			"the database in %s was made by PostgreSQL %d, and %s: install that version (on Debian and Ubuntu `apt-get install postgresql-%d`); nothing was changed",
			l.data(), wanted, describe(found), wanted)
	}
	for _, inst := range found {
		if inst.major >= oldestMajor {
			return inst, nil
		}
	}
	return installation{}, cyborg.Errorf(cyborg.ErrUnavailable, "PostgreSQL %d or newer is needed, and %s: install it (%s)",
		oldestMajor, describe(found), installAdvice)
}

func describe(found []installation) string {
	if len(found) == 0 {
		return "no PostgreSQL server is installed"
	}
	names := make([]string, 0, len(found))
	for _, inst := range found {
		names = append(names, fmt.Sprintf("%s in %s", inst.version, inst.binDir))
	}
	return "there is only " + strings.Join(names, ", ")
}

// candidates lists the directories that may hold PostgreSQL's server, the preferred ones first: what PATH finds; where
// Debian and Ubuntu, then where PostgreSQL's own RPMs put it, newest first; what pg_config says.
func candidates(ctx context.Context) []string {
	var dirs []string
	for _, name := range []string{"postgres", "pg_ctl"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"} {
		installed, err := filepath.Glob(pattern)
		if err != nil {
			continue // only a malformed pattern
		}
		slices.SortFunc(installed, func(a, b string) int {
			return numberOr0(numberPattern.FindString(b)) - numberOr0(numberPattern.FindString(a))
		})
		dirs = append(dirs, installed...)
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	return dirs
}

var (
	numberPattern  = regexp.MustCompile(`\d+`)
	versionPattern = regexp.MustCompile(`\(PostgreSQL\) ((\d+)\S*)`)
)

// inspect asks the binaries in a directory for their version.
func inspect(ctx context.Context, binDir string) (installation, error) {
	binDir, err := filepath.Abs(binDir)
	if err != nil {
		return installation{}, err
	}
	inst := installation{binDir: binDir}
	if _, err := os.Stat(inst.binary("initdb")); err != nil {
		return installation{}, fmt.Errorf("initdb is missing: %w", err)
	}
	out, err := exec.CommandContext(ctx, inst.binary("postgres"), "--version").Output()
	if err != nil {
		return installation{}, fmt.Errorf("postgres --version: %w", err)
	}
	match := versionPattern.FindStringSubmatch(string(out))
	if match == nil {
		return installation{}, fmt.Errorf("postgres --version answers %.80q", out)
	}
	inst.version = match[1]
	inst.major, err = strconv.Atoi(match[2])
	return inst, err
}

// dataMajor returns the major version that made the data, or 0 where there is none yet.
func (l layout) dataMajor() (int, error) {
	content, err := os.ReadFile(filepath.Join(l.data(), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(l.data()); errors.Is(err, fs.ErrNotExist) {
			return 0, nil
		}
	}
	if err != nil {
		return 0, unusable(l.data(), err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0, cyborg.Errorf(cyborg.ErrInvalid, "%s holds no PostgreSQL database that can be read: its PG_VERSION is %.20q", l.data(), content)
	}
	return major, nil
}
