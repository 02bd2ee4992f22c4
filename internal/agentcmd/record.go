package agentcmd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/capture"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

// recordCommand is the command that records this machine's PCI devices into a
// file.
func recordCommand() *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "record [FILE]",
		Short: "Record this machine's PCI devices into a .tar.gz that a pretended host can be made of",
		Long: "Records this machine's PCI devices, as the kernel shows them, into a .tar.gz: for a report of a defect, for a\n" +
			"test, or for cyborg-standalone --hosts sysfs:FILE. It holds no serial numbers and no network addresses.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && output != "" {
				return commandline.UsageErrorf(cmd, "FILE and --output name a file each: leave one out")
			}

			output = strings.Join(args, "") + output // at most one of the two is set

			c, err := load(cmd)
			if err != nil {
				return err
			}

			if output == "-" {
				return capture.Record(cmd.Context(), c.Agent.Root, cmd.OutOrStdout())
			}
			if output == "" {
				output = c.Agent.Host + ".tar.gz"
			}
			return recordTo(cmd.Context(), cmd, c.Agent.Root, output)
		},
	}

	command.Flags().StringVarP(&output, "output", "o", "", "file to write, or - for standard output (default HOST.tar.gz)")
	return command
}

// recordTo writes the recording into a temporary file next to path, and links
// it to path when it is complete. Link, unlike rename, never replaces an
// existing file.
func recordTo(ctx context.Context, cmd *cobra.Command, root, path string) (err error) {
	part, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "the recording cannot be written: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(part.Name())) }()

	if err := errors.Join(capture.Record(ctx, root, part), part.Close()); err != nil {
		return err
	}

	err = os.Link(part.Name(), path)
	if errors.Is(err, fs.ErrExist) {
		return cyborg.Errorf(cyborg.ErrInvalid, "%s exists already: name another", path)
	}
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "the recording cannot be written: %w", err)
	}

	cmd.PrintErrln("Recorded into " + path)
	return nil
}
