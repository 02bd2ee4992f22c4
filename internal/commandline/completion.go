package commandline

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cyborg-project/cyborg"
)

// shell is a shell whose command lines can be completed.
type shell struct {
	name string
	// load is the command that loads the completion into this session; %s is the
	// program's name.
	load string
	// install is the command that loads it into every session.
	install string
	// write writes the shell's script.
	write func(root *cobra.Command, cmd *cobra.Command) error
}

// shells are the shells for which a completion can be written.
func shells() []shell {
	return []shell{
		{
			"bash", "source <(%s completion bash)    # needs the package bash-completion", "%s completion bash > /etc/bash_completion.d/%[1]s",
			func(root, cmd *cobra.Command) error { return root.GenBashCompletionV2(cmd.OutOrStdout(), true) },
		},
		{
			"zsh", "source <(%s completion zsh)", "%s completion zsh > \"${fpath[1]}/_%[1]s\"",
			func(root, cmd *cobra.Command) error { return root.GenZshCompletion(cmd.OutOrStdout()) },
		},
		{
			"fish", "%s completion fish | source", "%s completion fish > ~/.config/fish/completions/%[1]s.fish",
			func(root, cmd *cobra.Command) error { return root.GenFishCompletion(cmd.OutOrStdout(), true) },
		},
	}
}

// Completion is the command that writes the script by which a shell completes
// command lines of root.
func Completion(root *cobra.Command) *cobra.Command {
	// Cobra's own command succeeds even for a shell that it does not know.
	root.CompletionOptions.DisableDefaultCmd = true

	completion := Noun("completion", "Write a shell's completion script for the Tab key")

	for _, sh := range shells() {
		completion.AddCommand(&cobra.Command{
			Use:   sh.name,
			Short: "Write the completion for " + sh.name,
			Long: fmt.Sprintf("Writes the completion for %s. To load it into this session:\n\n    %s\n\nTo load it in every session, once:\n\n    %s",
				sh.name, fmt.Sprintf(sh.load, root.Name()), fmt.Sprintf(sh.install, root.Name())),
			Args: Takes(),
			RunE: func(cmd *cobra.Command, _ []string) error {
				if err := sh.write(root, cmd); err != nil {
					return cyborg.Errorf(cyborg.ErrUnavailable, "the completion cannot be written: %w", err)
				}
				return nil
			},
		})
	}

	return completion
}

// completeWords completes the flags whose values come from a fixed list of
// words.
func completeWords(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		list, ok := f.Value.(interface{ Words() []string })
		if _, registered := cmd.GetFlagCompletionFunc(f.Name); !ok || registered || len(list.Words()) == 0 {
			return
		}

		// This fails only for a flag that does not exist or has a completion already;
		// both were checked.
		_ = cmd.RegisterFlagCompletionFunc(f.Name, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return list.Words(), cobra.ShellCompDirectiveNoFileComp
		})
	})
}
