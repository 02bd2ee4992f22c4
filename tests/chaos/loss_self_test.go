package chaos_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestOnlyAnswersOfALossAreLost checks the checker: an answer is excused only
// where it was given while commits could be lost, and an internal error never.
func TestOnlyAnswersOfALossAreLost(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	losses := []loss{{at(10), at(20)}, {at(50), at(60)}}

	for _, test := range []struct {
		asked, answered int
		err             error
		lost            bool
	}{
		{1, 9, nil, false},   // the standby had it
		{21, 22, nil, false}, // the new primary has it
		{30, 40, nil, false},
		{5, 15, nil, true},
		{12, 13, nil, true},
		{19, 30, nil, true}, // a link has kept it
		{55, 56, nil, true},
		{55, 56, cyborg.Errorf(cyborg.ErrInUse, "x"), true},
		{55, 56, cyborg.Errorf(cyborg.ErrInternal, "x"), false},
	} {
		a := answer{status: http.StatusOK, operation: uuid.New(), asked: at(test.asked), at: at(test.answered), err: test.err}
		require.Error(t, contradiction(answer{status: http.StatusOK}, operation{}, false, nil))
		require.Equal(t, test.lost, lostAnswer(losses, a), "%+v", test)
		require.False(t, lostAnswer(nil, a), "without a loss: %+v", test)
	}
}

// TestReaderIsToldWhatIsLost checks the checker: a reader gets each event once,
// is told which of them are lost, and loses none from before the loss.
func TestReaderIsToldWhatIsLost(t *testing.T) {
	t.Parallel()
	start := time.Now()
	cursor := func(n int) cyborg.Cursor { // from 30 on, they are of the next epoch
		c := cyborg.Cursor{Transaction: uint64(n), Event: int64(n)}
		if n >= 30 {
			c.Transaction += oneEpoch
		}
		return c
	}
	got := func(n, second int) seen {
		return seen{cursor: cursor(n), at: start.Add(time.Duration(second) * time.Second)}
	}
	lost := func(after, second int) seen {
		return seen{cursor: cursor(after), at: start.Add(time.Duration(second) * time.Second), lost: true}
	}
	may := []loss{{start.Add(10 * time.Second), start.Add(20 * time.Second)}}

	for _, test := range []struct {
		what   string
		losses []loss
		brings []seen
		feed   []int
		wrong  string
	}{
		{"nothing is lost", nil, []seen{got(1, 1), got(2, 2)}, []int{1, 2}, ""},
		{"an event is newer than the records that were read", nil, []seen{got(1, 1), got(2, 2)}, []int{1}, ""},
		{"one is missed", nil, []seen{got(1, 1), got(3, 3)}, []int{1, 2, 3}, "event 1 of the stream is 3-3"},
		{"one comes twice", nil, []seen{got(1, 1), got(1, 2)}, []int{1, 2}, "event 1 of the stream is 1-1"},
		{"one is lost", may, []seen{got(1, 1), got(2, 12), lost(1, 21), got(30, 22)}, []int{1, 30}, ""},
		{"all are lost that there were", may, []seen{got(1, 12), lost(0, 21), got(30, 22)}, []int{30}, ""},
		{"one that is lost came late", may, []seen{got(1, 1), got(2, 25), lost(1, 26), got(30, 27)}, []int{1, 30}, ""},
		{"one is lost, and not the one behind it", may, []seen{got(1, 1), got(2, 12), got(3, 12), got(30, 22)}, []int{1, 3, 30}, ""},
		{"both are lost", may, []seen{got(1, 1), got(2, 12), got(3, 12), got(30, 22)}, []int{1, 30}, "event 1 of the stream is 2-2"},
		{"one of before is lost, and not the one behind it", may, []seen{got(1, 1), got(2, 9), got(3, 12), got(30, 22)}, []int{1, 3, 30}, "event 1 of the stream is 2-2"},
		{"nobody says that one is lost", may, []seen{got(1, 1), got(2, 12), got(30, 22)}, []int{1, 30}, "event 1 of the stream is 2-2"},
		{"one of before is lost", may, []seen{got(1, 1), got(2, 9), lost(1, 21), got(30, 22)}, []int{1, 30}, "before anything could be lost"},
		{"the reader is sent back too far", may, []seen{got(1, 1), got(2, 9), got(3, 12), lost(1, 21), got(2, 22)}, []int{1, 2, 30}, "before anything could be lost"},
		{"the reader is sent to where it was not", may, []seen{got(1, 1), got(3, 12), lost(2, 21), got(30, 22)}, []int{1, 2, 30}, "which it has not brought"},
		{"a reader that has all is sent away", may, []seen{got(1, 1), lost(1, 21), got(30, 22)}, []int{1, 30}, "where the reader is"},
		{"something is lost without a loss", nil, []seen{got(1, 1), got(2, 12), lost(1, 21), got(30, 22)}, []int{1, 30}, "event 1 of the stream is 2-2"},
	} {
		r := &reader{seen: make(chan seen, len(test.brings)), done: make(chan error, 1)}
		for _, one := range test.brings {
			r.seen <- one
		}
		close(r.seen)
		r.done <- errors.New("it was told to")

		var events []event
		for _, n := range test.feed {
			events = append(events, event{cursor: cursor(n)})
		}

		err := r.compare(events, test.losses, time.Minute)
		if test.wrong == "" {
			require.NoError(t, err, test.what)
			continue
		}
		require.ErrorContains(t, err, test.wrong, test.what)
	}
}
