package agentcmd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

// forgetCommand returns the command by which an agent gives up its journal.
func forgetCommand() *cobra.Command {
	var yes bool
	command := &cobra.Command{
		Use:   "forget-journal",
		Short: "Give up the journal of this host's agent, which is damaged or of another installation",
		Long: "Says what the journal in the state directory has, asks, and moves it aside. The agent that starts next begins a new one.\n" +
			"It takes no step before a server has told it which assignment numbers count, and Reconcile compares the records with\n" +
			"the hardware. Nothing on the hardware changes. Stop the agent first.",
		Example: commandline.Examples("cyborg-agent forget-journal --state-dir /var/lib/cyborg"),
		Args:    commandline.Takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd)
			if err != nil {
				return err
			}
			return forgetJournal(cmd, c.Agent.StateDir, yes)
		},
	}

	command.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return command
}

// forgetJournal says what the journal has, asks, and moves it aside.
func forgetJournal(cmd *cobra.Command, path string, yes bool) (err error) {
	// Opening a directory that is not there would make it.
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return cyborg.Errorf(cyborg.ErrNotFound, "there is no state directory %s", path)
	}

	// The lock is that of a running agent, so none starts meanwhile either.
	dir, err := statedir.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()

	content, err := journal.Inspect(dir.Path())
	if err != nil {
		return err
	}
	if err := describe(cmd.ErrOrStderr(), content); err != nil {
		return err
	}

	if !yes {
		if err := agree(cmd); err != nil {
			return err
		}
	}

	kept, err := journal.Forget(dir.Path(), time.Now())
	if err != nil {
		return err
	}

	_, err = fmt.Fprintf(cmd.OutOrStdout(), "The journal is forgotten, and kept as %s, which nothing reads. Start the agent.\n", kept)
	return err
}

// agree asks a person at a terminal, and refuses where there is none.
func agree(cmd *cobra.Command) error {
	in := cmd.InOrStdin()
	if !terminal(in) {
		return cyborg.Errorf(cyborg.ErrInvalid, "nobody can be asked here, so nothing was changed").WithHint("To go on all the same, add --yes.")
	}

	if _, err := fmt.Fprint(cmd.ErrOrStderr(), "Go on? [y/N] "); err != nil {
		return err
	}

	line, err := bufio.NewReader(io.LimitReader(in, longestAnswer)).ReadString('\n')
	// An answer may also be ended by the end of the input.
	answer := strings.ToLower(strings.TrimSpace(line))
	if yes := answer == "y" || answer == "yes"; yes && (err == nil || errors.Is(err, io.EOF)) {
		return nil
	}
	return errors.New("nothing was changed")
}

// longestAnswer is how much is read of what may be a yes.
const longestAnswer = 100

// describe says what the agent would no longer know.
func describe(out io.Writer, content journal.Content) error {
	var text strings.Builder

	if content.Damage != "" {
		fmt.Fprintf(&text, "The journal cannot be read: %s.\n", content.Damage)
	} else {
		fmt.Fprintf(&text, "The journal has %d attachments, %d unfinished cleans, %d divided devices, %d loaded images and %d unfinished steps; its highest assignment number is %d.\n",
			len(content.Attachments), len(content.Cleanings), len(content.Layouts), len(content.Loaded), len(content.Unfinished), content.Assignment)
	}

	for _, a := range content.Attachments {
		fmt.Fprintf(&text, "  %s %s of %s, for %s %s\n", a.State, a.Handle, a.Deployable, a.HolderKind, a.HolderID)
	}
	for _, c := range content.Cleanings {
		fmt.Fprintf(&text, "  unfinished clean (%s) of %s of %s, since operation %s\n", c.Method, c.Handle, c.Deployable, c.Operation)
	}
	for _, l := range content.Layouts {
		fmt.Fprintf(&text, "  device %s of %s, since operation %s: %s\n", l.Device, l.Backend, l.Operation, wanted(l))
	}
	for _, loaded := range content.Loaded {
		fmt.Fprintf(&text, "  loaded %s into %s\n", loaded.SHA256, loaded.Deployable)
	}
	for _, step := range content.Unfinished {
		fmt.Fprintf(&text, "  unfinished %s of operation %s\n", step.Name, step.Operation)
	}

	text.WriteString("Without it, the agent knows of none of them, and Reconcile goes by the records and the hardware.\n")
	_, err := io.WriteString(out, text.String())
	return err
}

// wanted says how a boot has to leave a device.
func wanted(layout journal.Layout) string {
	if layout.Wanted == nil {
		return "as its hardware has it"
	}
	return cyborg.Layout(layout.Wanted).String()
}
