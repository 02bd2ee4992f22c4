package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Runbook has the commands of docs/operations.md.
type Runbook struct {
	page, binaries string
	environ        []string
}

// ReadRunbook reads the page. The caller is a test in a directory below tests, as
// that is where its tests run.
func ReadRunbook(t testing.TB) (*Runbook, error) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	return &Runbook{page: string(page), binaries: filepath.Dir(Binary(t, "cyborg"))}, err
}

// With returns the runbook for a reader with these variables, "NAME=value".
func (r *Runbook) With(variables ...string) *Runbook {
	return &Runbook{r.page, r.binaries, append(slices.Clone(r.environ), variables...)}
}

// Follow runs the commands that begin so, in a directory, on the database of a
// system.
func (r *Runbook) Follow(ctx context.Context, s *System, dir string, beginnings ...string) error {
	database, err := s.DatabaseURL()
	if err != nil {
		return err
	}

	for _, beginning := range beginnings {
		text, err := r.command(beginning)
		if err != nil {
			return err
		}

		command := exec.CommandContext(ctx, "bash", "-c", text)
		command.Dir = dir
		command.Env = Environ(dir, "CYBORG_DATABASE_URL="+database, "PATH="+r.binaries+":"+os.Getenv("PATH"))
		command.Env = append(command.Env, r.environ...)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", text, err, out)
		}
	}
	return nil
}

// command returns the command that begins so, with all its lines. There must be
// only one, so that a new one in the page is not run in its place.
func (r *Runbook) command(beginning string) (string, error) {
	if strings.Count(r.page, "\n$ "+beginning) > 1 {
		return "", fmt.Errorf("several commands of the runbook begin with %q", beginning)
	}

	_, text, found := strings.Cut(r.page, "\n$ "+beginning)
	if !found {
		return "", fmt.Errorf("no command of the runbook begins with %q", beginning)
	}

	text, rest, _ := strings.Cut(beginning+text, "\n")
	for strings.HasSuffix(text, `\`) {
		var more string
		if more, rest, found = strings.Cut(rest, "\n"); !found {
			return "", fmt.Errorf("the page ends in the command %q", text)
		}
		text += "\n" + more
	}
	return text, nil
}
