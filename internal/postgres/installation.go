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
	// oldestMajor is the oldest PostgreSQL that is supported: the one of Debian 12.
	oldestMajor = 15

	// installAdvice ends the errors about a PostgreSQL that is missing or too old.
	installAdvice = "on Debian and Ubuntu `apt-get install postgresql` does it, and the server that the package starts by itself does no harm"
)

// installation is one set of PostgreSQL binaries.
type installation struct {
	binDir  string
	major   int
	version string // as the binary prints it, such as "15.18"
}

func (i installation) binary(name string) string { return filepath.Join(i.binDir, name) }

// findInstallation finds the binaries to use. If binDir is given, they must be
// there. Otherwise, if there is a database already, they are of the version
// that made it, because no other version can read it. Otherwise they are the
// first in the order of candidates that are new enough.
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

	found := []installation{} // in the order of preference
	for _, dir := range candidates(ctx) {
		inst, err := inspect(ctx, dir)
		if err != nil {
			continue // many of the places are only guesses
		}

		known := slices.ContainsFunc(found, func(other installation) bool { return other.binDir == inst.binDir })
		if !known {
			found = append(found, inst)
		}
	}

	// Binaries that were asked for their version after the context had ended did
	// not answer. To say that none is installed would be wrong.
	if ctx.Err() != nil {
		return installation{}, context.Cause(ctx)
	}

	return choose(found, wanted, l)
}

// choose returns the first installation of the wanted major version, or, if
// wanted is 0, the first that is new enough.
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

// describe says in words which installations there are.
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

// candidates lists the directories that may hold PostgreSQL's server, in the
// order of preference: those in PATH; those of Debian's and Ubuntu's packages,
// the newest version first; those of PostgreSQL's own RPMs, the newest first;
// and the one that pg_config prints.
func candidates(ctx context.Context) []string {
	var dirs []string
	for _, name := range []string{"postgres", "pg_ctl"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}

		// The command in PATH may be a link. The other binaries are beside its target.
		path, err = filepath.EvalSymlinks(path)
		if err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}

	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"} {
		installed, err := filepath.Glob(pattern)
		if err != nil {
			continue // the only possible error is a malformed pattern
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

// inspect runs the server binary in a directory to get its version. It fails if
// the directory does not have all binaries that are needed.
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

// dataMajor returns the major version of the PostgreSQL that made the database,
// or 0 if there is none yet. A data directory without PG_VERSION is an error:
// something is there that must not be overwritten.
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
