package inventory

import (
	"context"
	"sync"
)

// observations keep the order between the agent's reports and what operations
// observe. A report may have a later number than an observation only if it
// contains what that observation saw; else the conductor would overwrite the
// newer state by an older one. The zero value is ready to use.
type observations struct {
	mu sync.Mutex
	// pending are the observations that have begun, by number. Each channel is
	// closed when the observation has been kept.
	pending map[int64]chan struct{}
}

// begin gives an observation its number. The observation counts as under way
// until end is called.
func (o *observations) begin(j Journal) (sequence int64, end func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	sequence, err = j.NextSequence()
	if err != nil {
		return 0, nil, err
	}
	if o.pending == nil {
		o.pending = map[int64]chan struct{}{}
	}

	ended := make(chan struct{})
	o.pending[sequence] = ended

	return sequence, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.pending, sequence)
		close(ended)
	}, nil
}

// after gives a report its number and waits for the observations with earlier
// numbers to end. It does not wait for those that begin meanwhile: they have
// later numbers.
func (o *observations) after(ctx context.Context, j Journal) (int64, error) {
	o.mu.Lock()
	sequence, err := j.NextSequence()

	var earlier []chan struct{}
	for _, ended := range o.pending {
		earlier = append(earlier, ended)
	}
	o.mu.Unlock()

	if err != nil {
		return 0, err
	}

	for _, ended := range earlier {
		select {
		case <-ended:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}

	return sequence, nil
}
