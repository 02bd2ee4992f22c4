package harness

import (
	"sync"
	"testing"
)

// TestServiceRestartsImmediately stops and starts a service from several
// goroutines at once. Each start gets the address again immediately.
func TestServiceRestartsImmediately(t *testing.T) {
	t.Parallel()
	s := StartService(t, "stub", nil)

	var all sync.WaitGroup
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
}
