package chaos_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// saboteur makes go wrong what a schedule says.
type saboteur struct {
	t testing.TB
	c *harness.Cluster
	d *driver

	cloud *cloud

	kills atomic.Int64 // processes that were killed
}

// carryOut waits for the fault's moment, strikes, and heals after its time.
func (s *saboteur) carryOut(ctx context.Context, f fault, j *job) {
	<-j.asked
	switch f.when {
	case before:
	case within:
		s.d.reached(ctx, j)
	case after:
		s.d.reached(ctx, j)
		j.letGo()
	}
	_ = clock.Sleep(ctx, f.after) // the round is over where it fails
	heal, err := s.strike(f)
	if err != nil {
		s.t.Errorf("%s: %v", f, err)
		return
	}
	// The step goes on amid the fault, or when it is over.
	_ = clock.Sleep(ctx, f.lasts/2)
	if f.after%2 == 0 {
		j.letGo()
	}
	_ = clock.Sleep(ctx, f.lasts-f.lasts/2)
	if err := heal(); err != nil {
		s.t.Errorf("healing %s: %v", f, err)
	}
}

// strike makes it go wrong and returns how to heal it.
func (s *saboteur) strike(f fault) (heal func() error, err error) {
	nothing := func() error { return nil }
	switch f.manner {
	case kill, reboot:
		node := s.c.Node(f.target)

		var ran bool
		if f.manner == kill {
			ran = node.Kill()
		} else {
			ran, err = s.d.reboot(f.target)
		}
		if ran {
			s.kills.Add(1)
		}
		return func() error { node.Up(); return nil }, err
	case freeze:
		node := s.c.Node(f.target)
		node.Freeze()
		return func() error { node.Thaw(); return nil }, nil
	case restart:
		return s.restart(f)
	case jump:
		return nothing, s.c.Node(f.target).SetClock(f.amount)
	case full:
		for _, disk := range s.c.Disks {
			if disk.Node == f.target {
				return disk.Heal, disk.Fill()
			}
		}
		return nil, fmt.Errorf("%s has no disk of its own", f.target)
	}
	from, to, ok := strings.Cut(f.target, ">")
	if !ok {
		return s.cloud.strike(f)
	}
	link := s.c.Link(from, to)
	switch f.manner {
	case cut:
		link.Cut()
	case silence:
		link.Silence()
	case delay:
		link.Delay(f.amount)
	default:
		return nil, fmt.Errorf("nobody knows how to %s", f.manner)
	}
	return func() error { link.Heal(); return nil }, nil
}

// restart tells a process to stop. Unless something else befalls it meanwhile, it does so in order.
func (s *saboteur) restart(f fault) (func() error, error) {
	node := s.c.Node(f.target)
	stopped := make(chan error, 1)
	go func() {
		code, err := node.Stop()
		if err == nil && code > 0 && node.Kind != harness.NodePostgres {
			err = fmt.Errorf("%s was told to stop and ended with exit code %d:\n%s", node.Name, code, node.Said(1000))
		}
		stopped <- err
	}()
	return func() error {
		err := <-stopped
		node.Up()
		return err
	}, nil
}

// calm heals everything.
func (s *saboteur) calm() {
	if err := s.cloud.calm(); err != nil {
		s.t.Errorf("the cloud: %v", err)
	}
	for _, link := range s.c.Links {
		link.Heal()
	}
	for _, node := range s.c.Nodes {
		node.Thaw()
		node.Up()
	}
	for _, disk := range s.c.Disks {
		if err := disk.Heal(); err != nil {
			s.t.Errorf("the disk of %s: %v", disk.Node, err)
		}
	}
}
