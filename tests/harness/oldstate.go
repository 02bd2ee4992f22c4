package harness

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/uuid"
)

// agentState is the state directory of a host's agent.
func (c *Cluster) agentState(host string) string {
	return filepath.Join(c.StateDir, "agents", host, "agent")
}

// CopyState copies the state directory of a host's agent while that runs, as a
// backup does, and returns the copy. What was written meanwhile may lack.
func (c *Cluster) CopyState(host string) (copied string, err error) {
	copied = filepath.Join(c.dir, "backups", host, uuid.NewString())
	return copied, copyState(copied, c.agentState(host))
}

// PutStateBack kills the agent of a host, and puts a copy in the place of what is
// in its state directory. ran is whether the agent ran. Node.Up lets it run
// again. The file that locks the directory stays, as on a machine that goes back
// to a snapshot, so that it is the same agent to the conductors.
func (c *Cluster) PutStateBack(host, copied string) (ran bool, err error) {
	return c.Node(host).PowerCut(func() error {
		state := c.agentState(host)
		entries, err := os.ReadDir(state)
		if err != nil {
			return err
		}

		for _, entry := range entries {
			if entry.Name() != lockFile {
				err = errors.Join(err, os.RemoveAll(filepath.Join(state, entry.Name())))
			}
		}
		return errors.Join(err, copyState(state, copied), c.syncDisk(host))
	})
}

// lockFile is the file in a state directory that its process holds locked.
const lockFile = "lock"

// copyState copies what is in a state directory, except for its lock. A file may
// be removed meanwhile.
func copyState(to, from string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}

		name, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case name == lockFile:
			return nil
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}

		content, err := os.ReadFile(path) //nolint:gosec // a directory of this test
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), content, 0o600)
	})
}
