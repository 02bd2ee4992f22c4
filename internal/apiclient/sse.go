package apiclient

import (
	"bufio"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
)

// maxLine bounds one line of a stream, in bytes.
const maxLine = 4 << 20

// message is one server-sent event (WHATWG HTML, 9.2 "Server-sent events").
type message struct {
	id    string
	event string
	data  string
}

// messageReader reads server-sent events.
type messageReader struct {
	lines *bufio.Scanner
	// lastID is the id of the last message, which may come from an earlier one. A
	// reconnect sends it as Last-Event-ID.
	lastID string

	// retry is how long the server asks to wait before a reconnect, or zero.
	retry time.Duration

	// alive is called for each line, comments included, to show that the connection
	// works.
	alive func()
}

// newMessageReader reads messages from the body of an answer.
func newMessageReader(r io.Reader, alive func()) *messageReader {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	return &messageReader{lines: lines, alive: alive}
}

// next returns the next message that has data, or io.EOF at the end of the
// stream, where an incomplete message is discarded.
func (m *messageReader) next() (message, error) {
	var data []string
	msg := message{}
	id := m.lastID
	for m.lines.Scan() {
		m.alive()
		line := strings.TrimSuffix(m.lines.Text(), "\r")
		if line == "" {
			// An id counts from the end of its message on, and a message without data is
			// not dispatched (WHATWG HTML 9.2.6).
			m.lastID = id
			if data == nil {
				msg = message{}
				continue
			}
			msg.id, msg.data = id, strings.Join(data, "\n")
			return msg, nil
		}

		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")

		switch field {
		case "data":
			data = append(data, value)
		case "event":
			msg.event = value
		case "id":
			// The standard ignores ids with a NUL.
			if !strings.ContainsRune(value, 0) {
				id = value
			}
		case "retry":
			if ms, err := strconv.Atoi(value); err == nil && ms >= 0 {
				m.retry = time.Duration(ms) * time.Millisecond
			}
		}
	}

	if err := m.lines.Err(); err != nil {
		return message{}, cyborg.Errorf(cyborg.ErrUnavailable, "the event stream broke: %w", err)
	}

	return message{}, io.EOF
}
