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
	// logName is the name of the log file in the state directory.
	logName = "standalone.log"
	// logLimit is the size in bytes at which the log file is renamed. It then
	// replaces the file that was renamed before it.
	logLimit = 32 << 20
)

// openLog starts logging. The log goes to stderr, unless that is a terminal.
// There it would drown the messages to the person who started the process, so
// it goes to a file in the state directory instead.
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

// logFile is a log that is appended to and kept small. It is safe for
// concurrent use.
type logFile struct {
	path  string
	limit int64

	mu   sync.Mutex // guards the fields below, and keeps lines whole
	file *os.File
	size int64 // of the file, in bytes
}

// openLogFile opens the log, and makes the file if it is missing.
func openLogFile(path string, limit int64) (*logFile, error) {
	l := &logFile{path: path, limit: limit}
	return l, l.open()
}

// open opens the file for appending. The caller holds mu, or is the only one
// who has l.
func (l *logFile) open() error {
	file, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}

	info, err := file.Stat()
	if err != nil {
		_ = file.Close() // nothing was written to it
		return err
	}

	l.file, l.size = file, info.Size()
	return nil
}

// Write appends a line. If the file would become larger than the limit, it is
// first renamed to its name with ".1" at the end, and a new file is started.
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
		_ = full.Close() // nothing is lost: there is no buffer
	}

	n, err := l.file.Write(line)
	l.size += int64(n)
	return n, err
}

// Close closes the file. Lines that are written later are lost.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
