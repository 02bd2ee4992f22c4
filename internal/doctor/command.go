package doctor

import (
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/internal/commandline"
)

// Command is the command `doctor`. It lets look collect the findings, prints
// them, and ends with FailedError where a check failed.
func Command(short, long string, look func(cmd *cobra.Command, f *Findings)) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "doctor", Short: short, Args: commandline.Takes(),
		Long: long + "\n\nEach check is a line: ok, warning or failed, what was found, and below it what to do. The exit code is 1 where a check\n" +
			"failed, and 0 where there are warnings only.",
	}

	cmd.Flags().StringVarP(&format, "format", "f", "text", "text or json")

	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if format != "text" && format != "json" {
			return commandline.UsageErrorf(cmd, "there is no format %q for findings; there are text, json", format)
		}

		var f Findings
		look(cmd, &f)

		if err := f.Write(cmd.OutOrStdout(), format == "json"); err != nil {
			return err
		}

		// An interrupted doctor has not looked at everything, so it must not end as a
		// good one.
		if err := cmd.Context().Err(); err != nil {
			return err
		}

		return f.Err()
	}

	return cmd
}
