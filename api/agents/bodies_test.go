package agents

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// connection records the deadlines of what is read from it.
type connection struct {
	http.ResponseWriter
	until time.Time
}

func (c *connection) SetReadDeadline(until time.Time) error {
	c.until = until
	return nil
}

// The time for which a body waits for its place is not taken from the time that
// it has to arrive.
func TestWaitIsNotTheBodysTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 10 * time.Second
		b, began := &bodies{limit: 1, time: limit}, time.Now()
		w := &connection{ResponseWriter: httptest.NewRecorder()}

		_, err := b.read(w, httptest.NewRequest(http.MethodPost, ReportsPath, nil), func(_ context.Context, one *body) ([]byte, error) {
			require.Equal(t, began.Add(limit), w.until)
			err := b.pause(one, func() error {
				<-time.After(time.Hour)
				return nil
			})
			require.Equal(t, began.Add(time.Hour).Add(limit), w.until)
			return nil, err
		})
		require.NoError(t, err)
	})
}

// A body that waits for its place is given up as one that is being read.
func TestBodyThatWaitsIsGivenUp(t *testing.T) {
	t.Parallel()
	b := &bodies{limit: 1, time: time.Hour}
	read := func(inside func(ctx context.Context, one *body) ([]byte, error)) error {
		_, err := b.read(&connection{ResponseWriter: httptest.NewRecorder()}, httptest.NewRequest(http.MethodPost, ReportsPath, nil), inside)
		return err
	}

	err := read(func(ctx context.Context, one *body) ([]byte, error) {
		return nil, b.pause(one, func() error {
			err := read(func(context.Context, *body) ([]byte, error) { return nil, nil })
			require.NoError(t, err, "of a peer's bodies, the oldest makes room")
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Minute):
				t.Error("nobody gives it up")
				return nil
			}
		})
	})
	require.ErrorContains(t, err, "no room for this one")
}
