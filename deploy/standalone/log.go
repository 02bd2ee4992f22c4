package main

import (
	"context"
	"io"
	"os"
	"sync"

	"golang.org/x/term"

	"github.com/cyborg-project/cyborg"
)

const (
	logName = "standalone.log"
	// logLimit is how large the file may become before it is set aside, replacing the one that was before.
	logLimit = 32 << 20
)

// openLog begins to log to stderr, unless that is a terminal: there the log would drown what is said to the person, and
// goes to a file in the state directory.
func (s *standalone) openLog(stderr io.Writer) error {
	file, ok := stderr.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		s.log = s.config.Log.Logger(stderr)
		return nil
	}
	log, err := openLogFile(s.state.Join(logName), logLimit)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the log cannot be written: %w", err)
	}
	s.later(func(context.Context) error { return log.Close() })
	s.log = s.config.Log.Logger(log)
	s.say("The log goes to %s.", log.path)
	return nil
}

// logFile is a file that is appended to and kept small.
type logFile struct {
	path  string
	limit int64

	mu   sync.Mutex
	file *os.File
	size int64
}

func openLogFile(path string, limit int64) (*logFile, error) {
	l := &logFile{path: path, limit: limit}
	return l, l.open()
}

func (l *logFile) open() error {
	file, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close() // nothing was written
		return err
	}
	l.file, l.size = file, info.Size()
	return nil
}

// Write appends a line. A file that has become too large is set aside first, under its name with ".1".
func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(line)) > l.limit {
		if err := os.Rename(l.path, l.path+".1"); err != nil {
			return 0, err
		}
		full := l.file
		if err := l.open(); err != nil {
			return 0, err
		}
		_ = full.Close() // it was written to without a buffer
	}
	n, err := l.file.Write(line)
	l.size += int64(n)
	return n, err
}

// Close closes the file.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
