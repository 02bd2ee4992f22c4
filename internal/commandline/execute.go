package commandline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
)

// Execute runs one command line (without the program's name) of a program that serves, tells its error, and returns the
// exit code. The ctx's end stands for a signal.
func Execute(ctx context.Context, root *cobra.Command, args []string, out, errOut io.Writer) int {
	Prepare(root)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err != nil {
		tell(errOut, err)
	}
	return ExitCode(err)
}

// tell prints what is wrong in a line, or one for each mistake in the configuration, and what to do in another.
func tell(w io.Writer, err error) {
	fmt.Fprintf(w, "Error: %s\n", Message(err))
	if usage, ok := errors.AsType[*UsageError](err); ok {
		fmt.Fprintf(w, "See `%s --help`.\n", usage.Command)
		return
	}
	if hint := cyborg.AsError(err).Hint; hint != "" {
		fmt.Fprintln(w, hint)
	}
}

// Message is the error in one line, as it goes behind "Error: "; the mistakes of a configuration, and errors that were
// joined, have a line each.
func Message(err error) string {
	if _, ok := errors.AsType[config.Problems](err); ok {
		return err.Error()
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var lines []string
		for _, one := range joined.Unwrap() {
			lines = append(lines, Message(one))
		}
		return strings.Join(lines, "\n")
	}
	return strings.Join(strings.Fields(err.Error()), " ") // PostgreSQL's client gives a line to each address it tried
}
