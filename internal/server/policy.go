package server

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/cyborg-project/cyborg/api/policy"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
)

// newPolicy reads the rules of /v2: the built-in ones, and those of
// policy.file.
func newPolicy(c *config.Config, log *slog.Logger) (*policy.Policy, error) {
	return policy.New(policy.Config{File: c.Policy.File, EnforceNewDefaults: c.Policy.EnforceNewDefaults, Log: log})
}

// checkPolicy returns what is wrong with the policy file; `cyborg config check`
// calls it.
func checkPolicy(cmd *cobra.Command, c *config.Config) error {
	_, err := newPolicy(c, c.Log.Logger(cmd.ErrOrStderr()))
	return err
}

// policyCommand returns the command that prints the rules in force.
func policyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "policy",
		Short: "Print the rules that decide who may do what on /v2",
		Long: "Prints the rules that are in force, the built-in ones and those of policy.file, as a file that policy.file can name.\n" +
			"What a server process has read may be older by policy.reload.",
		Args: commandline.Takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(config.LoadOptions{Flags: cmd.Flags()}) // a database is not needed
			if err != nil {
				return err
			}

			rules, err := newPolicy(c, c.Log.Logger(cmd.ErrOrStderr()))
			if err != nil {
				return err
			}

			return printRules(cmd.OutOrStdout(), rules.Rules())
		},
	}
}

// printRules writes the rules as YAML, with a comment that says what each rule
// is for, and whether policy.file sets it.
func printRules(w io.Writer, rules []policy.Rule) error {
	mapping := &yaml.Node{Kind: yaml.MappingNode}
	for i, rule := range rules {
		name, requires := &yaml.Node{}, &yaml.Node{}
		name.SetString(rule.Name)
		requires.SetString(rule.Requires)
		requires.Style = yaml.DoubleQuotedStyle
		name.HeadComment = rule.About

		if i > 0 && rule.About != "" {
			name.HeadComment = "\n" + rule.About
		}

		if rule.Overridden {
			requires.LineComment = "policy.file"
		}

		mapping.Content = append(mapping.Content, name, requires)
	}

	text, err := yaml.Marshal(mapping)
	if err != nil {
		return fmt.Errorf("the rules cannot be written: %w", err)
	}

	_, err = w.Write(text)
	return err
}
