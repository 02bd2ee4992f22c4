package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// attachWhileQueried calls everything that changes nothing from several
// goroutines while a handle is attached and detached. The race detector finds
// data that is not guarded, and the answers show whether a caller ever sees the
// hardware half changed.
func attachWhileQueried(t *testing.T, b *bench) {
	b.install(t)
	before := b.discover(t)
	stop, watchers, problems := make(chan struct{}), 4, make(chan error, 4)

	for range watchers {
		go func() { problems <- b.queryUntil(t.Context(), stop, before) }()
	}

	for range 5 {
		book := &notebook{}
		b.attach(t, book)
		b.detach(t, book)
	}

	// Each goroutine sends one result, so all of them have ended after the loop.
	close(stop)
	for range watchers {
		require.NoError(t, <-problems)
	}
}

// minRounds is how often each goroutine calls everything at least.
const minRounds = 20

// queryUntil calls everything that changes nothing, again and again, until stop
// is closed. The devices must stay as they are.
func (b *bench) queryUntil(ctx context.Context, stop <-chan struct{}, park []cyborg.DeviceReport) error {
	for round := 1; ; round++ {
		select {
		case <-stop:
			if round > minRounds {
				return nil
			}
		default:
		}

		now, err := b.Driver.Discover(ctx)
		if err == nil && !slices.Equal(outline(park), outline(now)) {
			err = fmt.Errorf("now Discover shows %v, and before it showed %v", outline(now), outline(park))
		}

		if attacher, ok := b.Driver.(drivers.Attacher); ok {
			_, attachedErr := attacher.Attached(ctx, b.asks(b.handle))
			err = errors.Join(err, attachedErr)
		}

		if users, ok := b.Driver.(drivers.Users); ok {
			_, usersErr := users.InUse(ctx, b.target, b.handle)
			err = errors.Join(err, usersErr)
		}

		if meter, ok := b.Driver.(drivers.Meter); ok {
			_, meterErr := meter.Metrics(ctx, b.target.Device)
			err = errors.Join(err, meterErr)
		}

		if err != nil {
			return err
		}
	}
}

// outline lists the identities that may not change while handles are attached
// and detached.
func outline(devices []cyborg.DeviceReport) []string {
	var lines []string
	for _, device := range devices {
		lines = append(lines, "device "+device.Identity)
		for _, deployable := range device.Deployables {
			lines = append(lines, "deployable "+deployable.Name, "goes with "+deployable.SameHolder, fmt.Sprint("excludes ", deployable.Excludes),
				fmt.Sprint("is prepared ", deployable.Preparation != nil))
			for _, handle := range deployable.Handles {
				lines = append(lines, "handle "+handle.Identity+fmt.Sprint(" with ", handle.With))
			}
		}
	}

	return lines
}
