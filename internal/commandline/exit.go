package commandline

import (
	"errors"
	"net/http"

	"github.com/cyborg-project/cyborg"
)

// The exit codes of every binary. Scripts rely on them; docs/cli.md has the
// table for users.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2 // the command line, the configuration or the request is wrong
	ExitNotFound    = 3
	ExitConflict    = 4
	ExitTimeout     = 5
	ExitUnavailable = 6
	ExitInterrupted = 130 // 128 + SIGINT, as shells report it
)

// ExitCode returns the exit code of a process that ends with err: ExitOK for
// nil, ExitUsage for a UsageError, and otherwise the code for the HTTP status
// of the error's kind.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}

	if _, ok := errors.AsType[*UsageError](err); ok {
		return ExitUsage
	}

	switch cyborg.ErrorKindOf(err).HTTPStatus() {
	case http.StatusBadRequest:
		return ExitUsage
	case http.StatusNotFound:
		return ExitNotFound
	case http.StatusConflict:
		return ExitConflict
	case http.StatusGatewayTimeout:
		return ExitTimeout
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return ExitUnavailable
	}

	return ExitFailed
}

// exitTable explains the exit codes in the manual pages.
var exitTable = []struct {
	code    int
	meaning string
}{
	{ExitOK, "It is done."},
	{ExitFailed, "It failed: the hardware, the image, no permission, a defect; or a question was answered with no."},
	{ExitUsage, "The command line, the configuration or the request is wrong, or needs --yes."},
	{ExitNotFound, "There is no such thing."},
	{ExitConflict, "Conflict: in use, another operation works on it, the name is taken, nothing fits, somebody changed it."},
	{ExitTimeout, "It took too long; the operation may go on."},
	{ExitUnavailable, "Try later: something does not answer, or has too much to do."},
	{ExitInterrupted, "Interrupted; the operation, if there is one, goes on."},
}
