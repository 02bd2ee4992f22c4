package harness

import (
	"sync"
	"testing"
)

// A service can be away and back at once, any number of times.
func TestServiceComesBackAtOnce(t *testing.T) {
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
