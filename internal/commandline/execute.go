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

// Execute runs one command line (without the program's name) of a server
// program, prints its error to errOut, and returns the exit code. The end of
// ctx means that a signal asked the program to end.
func Execute(ctx context.Context, root *cobra.Command, args []string, out, errOut io.Writer) int {
	Prepare(root)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)

	err := root.ExecuteContext(ctx)
	if err != nil {
		printError(errOut, err)
	}

	return ExitCode(err)
}

// printError prints the error in a line, or one line for each mistake in the
// configuration, and what to do about it in another.
func printError(w io.Writer, err error) {
	fmt.Fprintf(w, "Error: %s\n", Message(err))
	if usage, ok := errors.AsType[*UsageError](err); ok {
		fmt.Fprintf(w, "See `%s --help`.\n", usage.Command)
		return
	}
	if hint := cyborg.AsError(err).Hint; hint != "" {
		fmt.Fprintln(w, hint)
	}
}

// Message is an error in one line, to follow "Error: ". The mistakes of a
// configuration, and errors that were joined, have a line each.
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

	// PostgreSQL's client puts each address that it tried on a line.
	return strings.Join(strings.Fields(err.Error()), " ")
}
