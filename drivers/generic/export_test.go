package generic

import "time"

// WithAnswerLimit has the discoveries of the driver wait this long for the cards to
// answer.
func (d *Driver) WithAnswerLimit(limit time.Duration) *Driver {
	d.answerLimit = limit
	return d
}
