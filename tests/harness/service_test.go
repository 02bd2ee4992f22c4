package harness

import (
	"os/exec"
	"sync"
	"testing"
)

// TestServiceRestartsImmediately stops and starts a service from several
// goroutines at once, while the process starts others. Each start gets the
// address again immediately.
func TestServiceRestartsImmediately(t *testing.T) {
	t.Parallel()
	s := StartService(t, "stub", nil)

	var all, children sync.WaitGroup
	stopped := make(chan struct{})
	children.Go(func() {
		for {
			select {
			case <-stopped:
				return
			default:
				if err := exec.CommandContext(t.Context(), "true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})

	for range 4 {
		all.Go(func() {
			for range 100 {
				s.Down()
				if err := s.Up(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}

	all.Wait()
	close(stopped)
	children.Wait()
}
