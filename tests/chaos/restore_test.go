package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// A backup is taken at some moment of a round, and put back later as
// docs/operations.md says. What was committed meanwhile is lost: see loss_test.go.

// restoreBackup takes a backup, and puts it back after a while.
func (s *injector) restoreBackup(ctx context.Context, f fault) error {
	one, err := s.backUp(ctx, f)
	if err != nil {
		return err
	}
	s.d.beginsLoss()
	_ = clock.Sleep(ctx, f.amount) // what follows fails where ctx has ended

	began := time.Now()
	err = s.whileStopped(one.stops, func() error {
		_ = clock.Sleep(ctx, f.lasts)
		return one.putBack(ctx)
	})

	s.mu.Lock()
	defer s.mu.Unlock()
	s.losses = append(s.losses, loss{one.began, time.Now()})
	s.t.Logf("a backup was put back: %s, %s after it was begun; the servers stood still for %s (%v)",
		f, began.Sub(one.began).Round(time.Millisecond), time.Since(began).Round(time.Millisecond), err)
	return err
}

// backup is a backup that was taken.
type backup struct {
	began   time.Time
	stops   []harness.NodeKind // what must not run while it is put back
	putBack func(ctx context.Context) error
}

// backUp takes the backup that a fault is about.
func (s *injector) backUp(ctx context.Context, f fault) (backup, error) {
	servers := []harness.NodeKind{harness.NodeAPI, harness.NodeConductor}
	if f.target == allData {
		all, err := s.c.BackUp(ctx)
		if err != nil {
			return backup{}, err
		}
		return backup{all.Began, append(servers, harness.NodeTemporal), func(context.Context) error {
			killed, err := all.Restore()
			if killed {
				s.kills.Add(1)
			}
			return err
		}}, nil
	}

	runbook, err := harness.ReadRunbook(s.t)
	if err != nil {
		return backup{}, err
	}

	dir := s.t.TempDir()
	var began time.Time
	err = again(ctx, func() error {
		began = time.Now()
		return runbook.Follow(ctx, &s.c.System, dir, "pg_dump")
	})
	return backup{began, servers, func(ctx context.Context) error {
		return again(ctx, func() error {
			return runbook.Follow(ctx, &s.c.System, dir, `psql "$CYBORG_DATABASE_URL" --quiet`, "pg_restore", "cyborg migrate", "cyborg server doctor after-restore")
		})
	}}, err
}

// again repeats what fails while another fault keeps PostgreSQL from answering.
func again(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		if clock.Sleep(ctx, 200*time.Millisecond) != nil {
			return err
		}
	}
}

// whileStopped stops the processes of these kinds in order, and keeps them from
// running until do has returned. Those that use others are stopped first, and
// started last.
func (s *injector) whileStopped(kinds []harness.NodeKind, do func() error) (err error) {
	for _, kind := range kinds {
		for _, node := range slices.Backward(s.c.Nodes) {
			if node.Kind != kind {
				continue
			}

			release, code, stopErr := node.Hold()
			err = errors.Join(err, stoppedInOrder(node, code, stopErr))
			defer func() {
				release()
				node.Up()
			}()
		}
	}

	if err != nil {
		return fmt.Errorf("the servers cannot be stopped: %w", err)
	}
	return do()
}
