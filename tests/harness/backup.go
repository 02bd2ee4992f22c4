package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg/internal/clock"
)

// Backup is a base backup of the PostgreSQL of a cluster, with all its databases.
type Backup struct {
	// Began is when it was begun: it has every commit of before.
	Began time.Time

	c   *Cluster
	dir string
}

// BackUp makes a backup while PostgreSQL serves its clients, as soon as that
// answers.
func (c *Cluster) BackUp(ctx context.Context) (*Backup, error) {
	p := c.postgres
	p.mu.Lock()
	p.servers++
	b := &Backup{c: c, dir: filepath.Join(p.disk, fmt.Sprint("backup", p.servers))}
	from := filepath.Join(p.dir, "data")
	p.mu.Unlock()

	for {
		b.Began = time.Now()
		err := p.copy(ctx, b.dir, from)
		if err == nil {
			return b, nil
		}
		if err := errors.Join(err, os.RemoveAll(b.dir)); clock.Sleep(ctx, 200*time.Millisecond) != nil {
			return nil, err
		}
	}
}

// copy makes a base backup in a directory. It has the owner of the server's own
// directory.
func (p *primary) copy(ctx context.Context, to, from string, options ...string) error {
	out, err := exec.CommandContext(ctx, "pg_basebackup", append([]string{
		"--dbname=" + p.conninfo(), "--pgdata=" + to, "--checkpoint=fast", "--no-sync",
	}, options...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("pg_basebackup: %w: %s", err, out)
	}
	return ownLike(to, from)
}

// Restore kills PostgreSQL, and puts the backup in the place of all its data;
// killed is false where it did not run. What works on the data must not run
// meanwhile: see Node.Hold. The backup is used up.
func (b *Backup) Restore() (killed bool, err error) {
	p := b.c.postgres
	children := family(p.node.PID())

	killed, err = p.node.PowerCut(func() error {
		for _, pid := range children {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}

		p.mu.Lock()
		data := filepath.Join(p.dir, "data")
		p.mu.Unlock()
		return errors.Join(os.RemoveAll(data), os.Rename(b.dir, data), b.c.syncDisk("postgres"))
	})
	p.node.Up()
	return killed, err
}
