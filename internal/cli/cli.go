// Package cli is the cyborg command line: nouns and verbs over REST /v1, as OpenStack clients have them. It talks to
// the API through internal/apiclient only; it must never import the server, the database or Temporal.
package cli

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// Streams are what a command reads and writes, and what it knows of where they lead.
type Streams struct {
	Out io.Writer // results
	Err io.Writer // progress and errors
	// Env looks a variable of the environment up; empty where it is not set.
	Env func(name string) string
	// OutWidth is that of the terminal that Out is; 0 where Out is none.
	OutWidth int
	// ErrWidth is that of the terminal that Err is; 0 where Err is none on which a line can be drawn again.
	ErrWidth int
}

// System are the process's own streams.
func System() Streams {
	s := Streams{Out: os.Stdout, Err: os.Stderr, Env: os.Getenv, OutWidth: width(os.Stdout)}
	if os.Getenv("TERM") != "dumb" && os.Getenv("CI") == "" {
		s.ErrWidth = width(os.Stderr)
	}
	return s
}

func width(f *os.File) int {
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil { // it is no terminal
		return 0
	}
	return columns
}

// shell is one invocation.
type shell struct {
	Streams

	connection connection
	timeout    time.Duration
	quiet      bool
	client     *apiclient.Client // made by connect
	release    func()            // ends what --timeout started
}

// Execute runs one command line (without the program's name) and returns the exit code; see docs/cli.md. The ctx's end
// stands for Ctrl-C. Local are commands that do not talk to the API, such as the server itself.
func Execute(ctx context.Context, args []string, streams Streams, local ...*cobra.Command) int {
	s := &shell{Streams: streams, release: func() {}}
	root := s.root(local)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	s.release()
	if s.client != nil {
		s.client.Close()
	}
	return s.conclude(ctx, err)
}

const (
	hardwareGroup = "hardware"
	systemGroup   = "system"
	serverGroup   = "server"
)

func (s *shell) root(local []*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:     "cyborg",
		Short:   "Manage the life of accelerators",
		Long:    "cyborg finds accelerators, takes them into service, programs them, hands them out and takes them back.",
		Version: cyborg.Version,
		Args:    cobra.ArbitraryArgs,
		RunE:    s.group,
		// Errors are told in one place, with their hint and exit code.
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetVersionTemplate("cyborg {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageErrorf(cmd, "%w", err) })
	flags := root.PersistentFlags()
	s.connection.addFlags(flags)
	flags.DurationVar(&s.timeout, "timeout", 0, "give up after so long, such as 90s; 0 for never")
	flags.BoolVarP(&s.quiet, "quiet", "q", false, "no progress on standard error")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := cmd.ValidateFlagGroups(); err != nil {
			return usageErrorf(cmd, "%w", err)
		}
		if s.timeout < 0 {
			return usageErrorf(cmd, "--timeout %s is negative", s.timeout)
		}
		if s.timeout > 0 {
			ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
			s.release = cancel
			cmd.SetContext(ctx)
		}
		return nil
	}

	root.AddGroup(
		&cobra.Group{ID: hardwareGroup, Title: "Hardware:"},
		&cobra.Group{ID: systemGroup, Title: "The system:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, command := range commands {
			command.GroupID = group
			root.AddCommand(command)
		}
	}
	add(hardwareGroup, s.acceleratorCommand(), s.deviceCommand(), s.hostCommand(), s.driverCommand(), s.discoverCommand(), s.usageCommand())
	add(systemGroup, s.operationCommand(), s.eventsCommand(), s.serviceCommand(), s.versionCommand())
	if len(local) > 0 {
		root.AddGroup(&cobra.Group{ID: serverGroup, Title: "Running a server:"})
		hideFlags(local, flags)
		usageArguments(local)
		add(serverGroup, local...)
	}
	root.SetHelpCommandGroupID(systemGroup)
	root.SetCompletionCommandGroupID(systemGroup)
	return root
}
