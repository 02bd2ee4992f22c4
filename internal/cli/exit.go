package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

// usageErrorf is the error of a wrong command line.
func usageErrorf(cmd *cobra.Command, format string, args ...any) error {
	return commandline.UsageErrorf(cmd, format, args...)
}

// detached is the error of a wait that ended before its operation, which
// continues.
type detached struct{ operation uuid.UUID }

func (d *detached) Error() string { return fmt.Sprintf("operation %s goes on", d.operation) }

// conclude prints the error, if there is one, and returns the exit code.
func (s *shell) conclude(ctx context.Context, err error) int {
	if err == nil {
		return commandline.ExitOK
	}

	// A wait ends by Ctrl-C, which is the end of the outer context, or by
	// --timeout, which is a deadline of the command only.
	interrupted := ctx.Err() != nil
	timedOut := !interrupted && errors.Is(err, context.DeadlineExceeded)

	if wait, ok := errors.AsType[*detached](err); ok {
		what := "Stopped waiting"
		if !interrupted {
			timedOut = true
			what = fmt.Sprintf("Not ended within %s", s.timeout)
		}
		s.sayf("%s: operation %s goes on.", what, wait.operation)
		s.sayf("Return to it with: cyborg operation watch %s", wait.operation)
	} else if usage, ok := errors.AsType[*commandline.UsageError](err); ok {
		s.sayf("Error: %s", usage)
		s.sayf("See `%s --help`.", usage.Command)
		return commandline.ExitUsage
	} else if errors.Is(err, errDeclined) {
		s.sayf("Nothing was changed.")
		return commandline.ExitFailed
	} else if isReported(err) {
		return commandline.ExitCode(err)
	} else if timedOut {
		s.sayf("Error: no answer within %s", s.timeout)
	} else if !interrupted {
		s.printError(err)
	}

	switch {
	case interrupted:
		return commandline.ExitInterrupted
	case timedOut:
		return commandline.ExitTimeout
	}

	return commandline.ExitCode(err)
}

// printError prints an error: the message, what to do about it, and where to
// look.
func (s *shell) printError(err error) {
	e := cyborg.AsError(err)
	s.sayf("Error: %s", commandline.Message(err))

	if e.Hint != "" {
		s.sayf("%s", e.Hint)
	}
	if e.Operation != uuid.Nil {
		s.sayf("Operation %s: cyborg operation show %s", e.Operation, e.Operation)
	}

	if problem, ok := errors.AsType[*apiclient.Problem](err); ok {
		if problem.RetryAfter > 0 {
			s.sayf("Try again in %s.", problem.RetryAfter)
		}
		if e.Kind == cyborg.ErrInternal && problem.RequestID != "" {
			s.sayf("The server's log has more under request %s.", problem.RequestID)
		}
	}
}

// sayf prints one message to standard error.
func (s *shell) sayf(format string, args ...any) {
	s.write(message(fmt.Sprintf(format, args...)) + "\n")
}

// message is clean for a text that is printed as one message: if it has further
// lines, they are indented, so that none of them looks like a message of ours.
func message(text string) string { return strings.ReplaceAll(clean(text), "\n", "\n  ") }

// write prints to standard error. A failure is ignored, because there is no
// other place to report it.
func (s *shell) write(text string) { _, _ = io.WriteString(s.Err, text) }

// clean replaces the control characters in a text from elsewhere, which could
// otherwise steer the terminal.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if r < ' ' || (r >= 0x7f && r < 0xa0) {
			return '?'
		}
		return r
	}, text)
}
