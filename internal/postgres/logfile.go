package postgres

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

const (
	// logLimit is the size in bytes at which the server's log is moved to a second
	// file. The second file has at most that size too.
	logLimit = 8 << 20
	// tailLength is how many bytes at the end of the log are searched for the
	// reason of a failure.
	tailLength = 64 << 10
)

// logFile is the path of the file that the server writes its log to. The server
// has it open for appending, so it can be truncated while the server writes.
type logFile string

// open opens the log for the server's output.
func (path logFile) open() (*os.File, error) {
	file, err := os.OpenFile(string(path), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, unusable(string(path), err)
	}
	return file, nil
}

// size returns the length of the log, which is the position of the next line.
// It is 0 if there is no log.
func (path logFile) size() int64 {
	info, err := os.Stat(string(path))
	if err != nil {
		return 0
	}
	return info.Size()
}

// trim moves the end of a log that has grown too large to a second file, and
// truncates the log. It copies, because the server would go on writing to a
// renamed file. Lines that the server writes during the copy are lost.
func (path logFile) trim() error {
	if path.size() <= logLimit {
		return nil
	}

	from, err := os.OpenFile(string(path), os.O_RDWR, 0)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "cannot trim PostgreSQL's log: %w", err)
	}

	err = func() error {
		if _, err := from.Seek(-logLimit, io.SeekEnd); err != nil {
			return err
		}
		to, err := os.OpenFile(string(path)+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(to, from)
		return errors.Join(err, to.Close(), from.Truncate(0))
	}()

	if err := errors.Join(err, from.Close()); err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "cannot trim PostgreSQL's log: %w", err)
	}
	return nil
}

// since returns what was written after a position, at most the last tailLength
// bytes. It returns "" if the log cannot be read.
func (path logFile) since(position int64) string {
	file, err := os.Open(string(path))
	if err != nil {
		return ""
	}
	defer file.Close()

	size := path.size()
	if position > size { // it was trimmed in the meantime
		position = 0
	}
	position = max(position, size-tailLength)

	content, err := io.ReadAll(io.NewSectionReader(file, position, tailLength))
	if err != nil && !errors.Is(err, fs.ErrClosed) {
		return ""
	}
	return string(content)
}

// lastWords returns the line of a log that says why something failed: the last
// line of the gravest severity that is in the log, else the last line of all.
func lastWords(output string) string {
	lines := strings.FieldsFunc(output, func(r rune) bool { return r == '\n' })

	for _, severity := range []string{"PANIC:", "FATAL:", "ERROR:", "error:"} {
		for _, line := range slices.Backward(lines) {
			if at := strings.Index(line, severity); at >= 0 {
				return strings.Join(strings.Fields(line[at:]), " ")
			}
		}
	}

	if len(lines) == 0 {
		return "it said nothing"
	}

	return strings.TrimSpace(lines[len(lines)-1])
}

// outOfSpace reports whether the output has the C library's message for ENOSPC
// or EDQUOT.
func outOfSpace(output string) bool {
	return strings.Contains(output, "No space left on device") || strings.Contains(output, "Disk quota exceeded")
}
