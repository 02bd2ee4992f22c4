package apiclient

import (
	"bufio"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
)

// maxLine bounds one line of a stream.
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
	// lastID is the id of the last message, which may have come with an earlier one; it is what a reconnect sends back.
	lastID string
	// retry is how long the server asks to wait before a reconnect; zero where it did not say.
	retry time.Duration
	// alive is called for each line, comments included.
	alive func()
}

func newMessageReader(r io.Reader, alive func()) *messageReader {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	return &messageReader{lines: lines, alive: alive}
}

// next returns the next message that has data; io.EOF at the stream's end, where a half-sent message is dropped.
func (m *messageReader) next() (message, error) {
	var data []string
	msg := message{}
	id := m.lastID
	for m.lines.Scan() {
		m.alive()
		line := strings.TrimSuffix(m.lines.Text(), "\r")
		if line == "" {
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
