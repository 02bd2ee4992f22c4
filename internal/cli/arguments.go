package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

// takes demands exactly the named arguments. An argument or a flag that is empty is refused: it comes from a variable of a
// script that is not set, and what stands for "not given" (anybody, anywhere) is not what the script meant.
func takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > len(names) && isWatchInterval(cmd, args[len(names)]) {
			return usageErrorf(cmd, "%q is one argument too many; say --watch=%s", args[len(names)], args[len(names)])
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

// takesMore demands the named arguments, and takes any number of more.
func takesMore(more string, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for len(names) < len(args) {
			names = append(names, more)
		}
		return takes(names...)(cmd, args)
	}
}

// takesAtMost takes the named arguments, or fewer.
func takesAtMost(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		return takes(names[:min(len(args), len(names))]...)(cmd, args)
	}
}

// isWatchInterval says that the argument was meant for -w, whose value is optional and so has to be joined to it.
func isWatchInterval(cmd *cobra.Command, arg string) bool {
	_, err := time.ParseDuration(arg)
	return err == nil && cmd.Flags().Changed("watch")
}

// mayBeEmpty annotates a flag whose empty text means something.
const mayBeEmpty = "cyborg_may_be_empty"

// allowEmpty says of flags that their empty text means something.
func allowEmpty(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		flags.Lookup(name).Annotations = map[string][]string{mayBeEmpty: {}}
	}
}

func emptyFlag(f *pflag.Flag) bool {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		values := list.GetSlice()
		return len(values) == 0 || slices.Contains(values, "")
	}
	return f.Value.String() == ""
}

// pciID reads a flag that is a PCI vendor's or product's id, with 0x or without, in capitals or not.
func pciID(cmd *cobra.Command, flag, text string) (*string, error) {
	id := cyborg.PCIID(text)
	if !cyborg.IsPCIID(id) {
		return nil, usageErrorf(cmd, "--%s %q is no PCI id; those are four hexadecimal digits, such as 10de or 0x10DE", flag, text)
	}
	return &id, nil
}

// parseTree makes a tree of KEY=VALUE settings: dots in the key go deeper, and the value is JSON where it can be read
// as such (4, true, [1,2]), else text.
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
		if !plant(tree, strings.Split(key, "."), value) {
			return nil, usageErrorf(cmd, "--%s %q: part of %q is a value, not a tree", flag, setting, key)
		}
	}
	return tree, nil
}

func plant(tree map[string]any, path []string, value any) bool {
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

// hideFlags leaves flags that do nothing for these commands out of their help.
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
