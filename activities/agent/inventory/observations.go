package inventory

import (
	"context"
	"sync"
)

// observations orders reports after what operations observed: a report may have a later number than an observation only
// where it has what that saw. The zero value is ready.
type observations struct {
	mu       sync.Mutex
	underWay map[int64]chan struct{} // by number; closed when what was seen is kept
}

// begin gives an observation its number. It is under way until end is called.
func (o *observations) begin(j Journal) (sequence int64, end func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if sequence, err = j.NextSequence(); err != nil {
		return 0, nil, err
	}
	if o.underWay == nil {
		o.underWay = map[int64]chan struct{}{}
	}
	ended := make(chan struct{})
	o.underWay[sequence] = ended
	return sequence, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.underWay, sequence)
		close(ended)
	}, nil
}

// after gives a report its number and waits for the observations with earlier ones. Those that begin meanwhile have later
// ones, and nobody waits.
func (o *observations) after(ctx context.Context, j Journal) (int64, error) {
	o.mu.Lock()
	sequence, err := j.NextSequence()
	var earlier []chan struct{}
	for _, ended := range o.underWay {
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
