package cli

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

// takes demands exactly the named arguments. It rejects empty arguments and
// flags: an empty text usually comes from an unset variable of a script, and
// its meaning for the API ("any host", "any holder") is not what the script
// meant.
func takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > len(names) && isWatchInterval(cmd, args[len(names)]) {
			return usageErrorf(cmd, "%q is one argument too many; use --watch=%s", args[len(names)], args[len(names)])
		}

		err := commandline.Takes(names...)(cmd, args)
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if err == nil && f.Annotations[mayBeEmpty] == nil && emptyFlag(f) {
				err = usageErrorf(cmd, "--%s is empty", f.Name)
			}
		})

		return err
	}
}

// argument is one of the arguments in a use line: HOST, [PROFILE] or
// [ACCELERATOR...].
type argument struct {
	name              string
	optional, repeats bool
}

// argumentPattern matches an argument of a use line.
var argumentPattern = regexp.MustCompile(`^(\[?)([A-Z]+)(\.\.\.)?\]?$`)

// argumentsOf returns the arguments in a use line, without those of its flags.
func argumentsOf(use string) []argument {
	var arguments []argument
	for _, word := range strings.Fields(use)[1:] {
		if strings.HasPrefix(strings.TrimPrefix(word, "["), "-") {
			break
		}
		if found := argumentPattern.FindStringSubmatch(word); found != nil {
			arguments = append(arguments, argument{name: found[2], optional: found[1] != "", repeats: found[3] != ""})
		}
	}

	return arguments
}

// takesArguments demands the arguments of a use line.
func takesArguments(arguments []argument) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		var names []string
		for _, argument := range arguments {
			if !argument.optional || len(names) < len(args) {
				names = append(names, argument.name)
			}
			for argument.repeats && len(names) < len(args) {
				names = append(names, argument.name)
			}
		}

		return takes(names...)(cmd, args)
	}
}

// isWatchInterval reports whether a surplus argument was meant as the value of
// -w. That value is optional, and therefore must be joined to the flag.
func isWatchInterval(cmd *cobra.Command, arg string) bool {
	_, err := time.ParseDuration(arg)
	return err == nil && cmd.Flags().Changed("watch")
}

// mayBeEmpty annotates a flag whose empty text has a meaning of its own.
const mayBeEmpty = "cyborg_may_be_empty"

// allowEmpty exempts flags from the check of takes: their empty text has a
// meaning.
func allowEmpty(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		flags.Lookup(name).Annotations = map[string][]string{mayBeEmpty: {}}
	}
}

// emptyFlag reports whether a flag's value is empty, or has an empty item.
func emptyFlag(f *pflag.Flag) bool {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		values := list.GetSlice()
		return len(values) == 0 || slices.Contains(values, "")
	}
	return f.Value.String() == ""
}

// pciID reads a flag that is a PCI vendor or product id, with or without 0x, in
// upper or lower case.
func pciID(cmd *cobra.Command, flag, text string) (*string, error) {
	id := cyborg.PCIID(text)
	if !cyborg.IsPCIID(id) {
		return nil, usageErrorf(cmd, "--%s %q is no PCI id; those are four hexadecimal digits, such as 10de or 0x10DE", flag, text)
	}
	return &id, nil
}

// parseTree makes a tree of KEY=VALUE settings. Dots in a key separate the
// levels. A value is decoded as JSON where it is valid JSON (4, true, [1,2]),
// and is text otherwise.
func parseTree(cmd *cobra.Command, flag string, settings []string) (cyborg.JSONObject, error) {
	tree := cyborg.JSONObject{}
	for _, setting := range settings {
		key, text, ok := strings.Cut(setting, "=")
		if !ok || key == "" {
			return nil, usageErrorf(cmd, "--%s %q is not KEY=VALUE", flag, setting)
		}

		var value any
		if json.Unmarshal([]byte(text), &value) != nil {
			value = text
		}

		if !setPath(tree, strings.Split(key, "."), value) {
			return nil, usageErrorf(cmd, "--%s %q: part of %q is a value, not a tree", flag, setting, key)
		}
	}

	return tree, nil
}

// parseParameters reads NAME=VALUE settings, each name once.
func parseParameters(cmd *cobra.Command, flag string, settings []string) (map[string]string, error) {
	parameters := map[string]string{}
	for _, setting := range settings {
		name, value, ok := strings.Cut(setting, "=")
		if !ok || name == "" {
			return nil, usageErrorf(cmd, "--%s %q is not NAME=VALUE", flag, setting)
		}
		if _, twice := parameters[name]; twice {
			return nil, usageErrorf(cmd, "--%s %s is given twice", flag, name)
		}
		parameters[name] = value
	}

	return parameters, nil
}

// setPath sets a value in a tree, and reports false where a part of the path is
// a value and not a tree.
func setPath(tree map[string]any, path []string, value any) bool {
	for _, name := range path[:len(path)-1] {
		if tree[name] == nil {
			tree[name] = map[string]any{}
		}
		branch, ok := tree[name].(map[string]any)
		if !ok {
			return false
		}
		tree = branch
	}

	tree[path[len(path)-1]] = value
	return true
}

// hideFlags leaves flags without effect on these commands out of their help.
// The flags are persistent flags of the root, so they are hidden only while
// such a help is written.
func hideFlags(commands []*cobra.Command, flags *pflag.FlagSet) {
	for _, command := range commands {
		command.SetUsageFunc(func(cmd *cobra.Command) error {
			setHidden := func(hidden bool) { flags.VisitAll(func(f *pflag.Flag) { f.Hidden = hidden }) }
			setHidden(true)
			defer setHidden(false)
			return cmd.Root().UsageFunc()(cmd)
		})
	}
}
