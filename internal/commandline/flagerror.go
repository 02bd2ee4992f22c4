package commandline

import (
	"errors"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagError rewrites pflag's errors about a flag in the words of this command
// line.
func flagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return unknownFlag(cmd, unknown)
	}

	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return UsageErrorf(cmd, "--%s needs a value", missing.GetFlag().Name)
	}

	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		flag := invalid.GetFlag()
		if what := valueOf(flag); what != "" {
			return UsageErrorf(cmd, "--%s must be %s, not %q", flag.Name, what, invalid.GetValue())
		}

		return UsageErrorf(cmd, "--%s %q: %w", flag.Name, invalid.GetValue(), invalid.Unwrap())
	}

	return UsageErrorf(cmd, "%w", err)
}

// valueOf describes what a flag accepts, or returns "" where the flag's own
// error does that better.
func valueOf(flag *pflag.Flag) string {
	switch flag.Value.Type() {
	case "uint":
		return "a whole number, 0 or more"
	case "int":
		return "a whole number"
	case "bool":
		return "true or false"
	case "duration":
		return "a time such as 90s or 2h30m"
	}

	return ""
}

// unknownFlag is the error about a flag that does not exist, with the flags of
// a similar name.
func unknownFlag(cmd *cobra.Command, unknown *pflag.NotExistError) error {
	name := unknown.GetSpecifiedName()
	if unknown.GetSpecifiedShortnames() != "" {
		return UsageErrorf(cmd, "there is no flag -%s", name)
	}

	if near := nearFlags(cmd, name); len(near) > 0 {
		return UsageErrorf(cmd, "there is no flag --%s; did you mean --%s?", name, strings.Join(near, " or --"))
	}

	return UsageErrorf(cmd, "there is no flag --%s", name)
}

// nearFlags returns the flags of the command with a similar name. Cobra
// computes suggestions for commands only, so each flag is offered to it as a
// command.
func nearFlags(cmd *cobra.Command, name string) []string {
	guess := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			guess.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})

	return guess.SuggestionsFor(name)
}

// Cobra reports a violated group of flags as a text only.
var (
	togetherPattern = regexp.MustCompile(`^if any flags in the group .* none of the others can be; \[(.*)\] were all set$`)
	neitherPattern  = regexp.MustCompile(`^at least one of the flags in the group \[(.*)\] is required$`)
)

// groupError rewrites cobra's errors about flags that exclude or need one
// another.
func groupError(cmd *cobra.Command, err error) error {
	flags := func(names, word string) string { return "--" + strings.Join(strings.Fields(names), word+"--") }

	if found := togetherPattern.FindStringSubmatch(err.Error()); found != nil {
		return UsageErrorf(cmd, "%s exclude each other", flags(found[1], " and "))
	}

	if found := neitherPattern.FindStringSubmatch(err.Error()); found != nil {
		return UsageErrorf(cmd, "%s is missing", flags(found[1], " or "))
	}

	return UsageErrorf(cmd, "%w", err)
}
