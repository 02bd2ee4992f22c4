package commandline

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// UsageError is a command line that cannot be understood.
type UsageError struct {
	err error
	// Command is the command as it was typed, without its arguments: the one whose help says more.
	Command string
}

// Error says what is wrong.
func (u *UsageError) Error() string { return u.err.Error() }

// Unwrap returns the cause.
func (u *UsageError) Unwrap() error { return u.err }

// UsageErrorf makes a UsageError; the format and its arguments are those of fmt.Errorf.
func UsageErrorf(cmd *cobra.Command, format string, args ...any) error {
	return &UsageError{err: fmt.Errorf(format, args...), Command: cmd.CommandPath()}
}

// Prepare makes what is wrong with a command line, of the command or one below it, an error of usage, and leaves it to the
// caller to tell errors.
func Prepare(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(flagError)
	prepareBelow(root)
}

func prepareBelow(cmd *cobra.Command) {
	completeWords(cmd)
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := cmd.ValidateFlagGroups(); err != nil { // before cobra does, which knows no error of usage
				return groupError(cmd, err)
			}
			err := check(cmd, args)
			if _, ok := errors.AsType[*UsageError](err); ok || err == nil {
				return err
			}
			return UsageErrorf(cmd, "%w", err)
		}
	}
	for _, below := range cmd.Commands() {
		prepareBelow(below)
	}
}

// Noun is a command that only holds verbs. By itself it shows them.
func Noun(use, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: NoVerb,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(verbs...)
	return cmd
}

// Examples are command lines as a help has them, a line each.
func Examples(lines ...string) string { return "  " + strings.Join(lines, "\n  ") }

// NoVerb is for commands that hold verbs and take no argument: what stands there is a verb that does not exist.
func NoVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	message := "there is no `" + cmd.CommandPath() + " " + args[0] + "`"
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2 // letters that may be wrong
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		message += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return UsageErrorf(cmd, "%s", message)
}
