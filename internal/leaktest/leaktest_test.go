package leaktest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A goroutine that ends later than goleak waits by itself is no leak, and one
// that does not end is.
func TestLeft(t *testing.T) { //nolint:paralleltest // the goroutines of other tests would be found
	slow := make(chan struct{})
	time.AfterFunc(2*time.Second, func() { close(slow) })
	go func() { <-slow }()
	require.NoError(t, left(time.Minute))

	stuck := make(chan struct{})
	go func() { <-stuck }()
	require.ErrorContains(t, left(time.Second), "TestLeft")
	close(stuck)
}
