package apiclient

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestMessages: event streams are read as the HTML standard says, at any cut of
// the bytes.
func TestMessages(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want []message
		last string
	}{
		"plain":              {"id: 1\nevent: change\ndata: {}\n\n", []message{{"1", "change", "{}"}}, "1"},
		"carriage returns":   {"id: 1\r\ndata: a\r\n\r\n", []message{{"1", "", "a"}}, "1"},
		"several lines":      {"data: a\ndata:b\ndata:  c\n\n", []message{{"", "", "a\nb\n c"}}, ""},
		"comments":           {": hello\n\n:\n\ndata: a\n: in between\n\n", []message{{"", "", "a"}}, ""},
		"id stays":           {"id: 1\ndata: a\n\ndata: b\n\n", []message{{"1", "", "a"}, {"1", "", "b"}}, "1"},
		"id without data":    {"id: 7\n\n", nil, "7"},
		"half is dropped":    {"id: 1\ndata: a\n\nid: 2\ndata: b\n", []message{{"1", "", "a"}}, "1"},
		"empty data":         {"data\n\n", []message{{"", "", ""}}, ""},
		"nul in id":          {"id: 1\x002\ndata: a\n\n", []message{{"", "", "a"}}, ""},
		"unknown field":      {"what: 1\ndata: a\n\n", []message{{"", "", "a"}}, ""},
		"event with no data": {"event: x\n\ndata: a\n\n", []message{{"", "", "a"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			reader := newMessageReader(iotest.OneByteReader(strings.NewReader(c.text)), func() {})
			var got []message

			for {
				msg, err := reader.next()
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				got = append(got, msg)
			}

			require.Equal(t, c.want, got)
			require.Equal(t, c.last, reader.lastID)
		})
	}
}

// TestMessageReaderReportsPingsAndTheEnd: every line counts as a sign of life.
// An interrupted stream and an overlong line are errors of kind unavailable.
func TestMessageReaderReportsPingsAndTheEnd(t *testing.T) {
	t.Parallel()
	lines := 0
	reader := newMessageReader(strings.NewReader("retry: 1500\n: ping\ndata: a\n\n"), func() { lines++ })
	_, err := reader.next()
	require.NoError(t, err)
	require.Equal(t, 4, lines)
	require.Equal(t, 1500*time.Millisecond, reader.retry)

	reader = newMessageReader(iotest.ErrReader(io.ErrUnexpectedEOF), func() {})
	_, err = reader.next()
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)

	reader = newMessageReader(strings.NewReader("data: "+strings.Repeat("x", maxLine)+"\n\n"), func() {})
	_, err = reader.next()
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
}
