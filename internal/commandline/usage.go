package commandline

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// UsageError is the error of a command line that is wrong by itself, whatever
// the state of the system.
type UsageError struct {
	err error
	// Command is the command as typed, without its arguments; its help explains the
	// usage.
	Command string
}

// Error returns the message.
func (u *UsageError) Error() string { return u.err.Error() }

// Unwrap returns the cause.
func (u *UsageError) Unwrap() error { return u.err }

// UsageErrorf returns a UsageError about cmd; the format and its arguments are
// those of fmt.Errorf.
func UsageErrorf(cmd *cobra.Command, format string, args ...any) error {
	return &UsageError{err: fmt.Errorf(format, args...), Command: cmd.CommandPath()}
}

// Prepare makes every mistake in a command line of root, or of a command below
// it, a UsageError, and turns off cobra's own printing of errors.
func Prepare(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(flagError)
	prepareBelow(root)
}

// prepareBelow prepares a command and all commands below it.
func prepareBelow(cmd *cobra.Command) {
	completeWords(cmd)
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := cmd.ValidateFlagGroups(); err != nil { // cobra checks these later, and not with a UsageError
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

// Noun is a command that only holds verbs. Called without a verb, it prints its
// help.
func Noun(use, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: NoVerb,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}

	cmd.AddCommand(verbs...)
	return cmd
}

// Examples formats command lines for cobra's Example, a line each.
func Examples(lines ...string) string { return "  " + strings.Join(lines, "\n  ") }

// NoVerb checks the arguments of commands that only hold verbs: an argument
// there is a verb that does not exist.
func NoVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}

	message := "there is no `" + cmd.CommandPath() + " " + args[0] + "`"
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2 // of the letters, so many may differ
	}

	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		message += "; did you mean " + strings.Join(near, " or ") + "?"
	}

	return UsageErrorf(cmd, "%s", message)
}
