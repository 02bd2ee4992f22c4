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

	"github.com/jackc/pgx/v5"

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

// PostgresData returns the directory of PostgreSQL's data.
func (c *Cluster) PostgresData() string {
	c.postgres.mu.Lock()
	defer c.postgres.mu.Unlock()
	return filepath.Join(c.postgres.dir, "data")
}

// PostgresDir makes a directory on PostgreSQL's disk in which that can write.
func (c *Cluster) PostgresDir(name string) (string, error) {
	dir := filepath.Join(c.postgres.disk, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	return dir, ownLike(dir, c.PostgresData())
}

// Recover stops PostgreSQL in order, has put bring other data into the place of
// its data, and returns when it has recovered and can be written. What works on
// the data must not run meanwhile.
func (c *Cluster) Recover(ctx context.Context, put func(data string) error) error {
	data := c.PostgresData()
	var owner syscall.Stat_t
	if err := syscall.Stat(data, &owner); err != nil {
		return err
	}

	release, code, err := c.postgres.node.Hold()
	if err == nil && code != 0 {
		err = fmt.Errorf("PostgreSQL has ended with code %d", code)
	}
	if err == nil {
		err = put(data)
	}
	if err == nil {
		err = own(data, owner)
	}
	release()
	c.postgres.node.Up()
	if err != nil {
		return err
	}

	for {
		recovers := true
		err := c.onPrimary(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&recovers)
		})
		if !recovers {
			return nil
		}
		if clock.Sleep(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("PostgreSQL has not recovered: %w", errors.Join(err, ctx.Err()))
		}
	}
}
