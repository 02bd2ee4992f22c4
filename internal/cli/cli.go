// Package cli is the cyborg command line: nouns and verbs over REST /v1, in the
// manner of the OpenStack clients. It reaches the API through
// internal/apiclient only; it must never import the server, the database or
// Temporal.
package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

// Streams are the inputs and outputs of a command, and what it knows about the
// terminal.
type Streams struct {
	Out io.Writer // results
	Err io.Writer // progress and errors

	// In answers the questions of a command; it is nil where nobody can be asked.
	In io.Reader
	// Secret reads one line that must not be shown: from a terminal without echo,
	// after the prompt, or else from standard input. It is nil where there is no
	// input.
	Secret func(prompt string) (string, error)

	// Env looks up an environment variable; it returns "" where it is not set.
	Env func(name string) string

	// OutWidth is the width of the terminal that Out writes to; 0 where Out is no
	// terminal.
	OutWidth int
	// ErrWidth is the width of the terminal that Err writes to; 0 where a line
	// cannot be redrawn there.
	ErrWidth int
	// Screen returns the present size of the terminal, which changes when it is
	// resized. Where it is nil, the width stays as it is and the height is not
	// limited.
	Screen func() (columns, rows int)
}

// steers reports whether Out is a terminal that understands colours and cursor
// movements.
func (s *Streams) steers() bool { return s.OutWidth > 0 && s.Env("TERM") != "dumb" }

// outWidth is the present width of the terminal that Out writes to; 0 if Out is
// no terminal.
func (s *Streams) outWidth() int {
	if s.OutWidth > 0 && s.Screen != nil {
		if columns, _ := s.Screen(); columns > 0 {
			return columns
		}
	}
	return s.OutWidth
}

// errWidth is the present width of the terminal that Err writes to; 0 where a
// line cannot be redrawn there.
func (s *Streams) errWidth() int {
	if s.ErrWidth > 0 && s.Screen != nil {
		if columns, _ := s.Screen(); columns > 0 {
			return columns
		}
	}
	return s.ErrWidth
}

// System returns the streams of this process. Where the variable CI is set,
// there are neither questions nor an animated progress, even on a terminal.
func System() Streams {
	s := Streams{Out: os.Stdout, Err: os.Stderr, Env: os.Getenv, OutWidth: width(os.Stdout)}

	if os.Getenv("CI") == "" && width(os.Stdin) > 0 && width(os.Stderr) > 0 {
		s.In = os.Stdin
	}

	if os.Getenv("TERM") != "dumb" && os.Getenv("CI") == "" {
		s.ErrWidth = width(os.Stderr)
	}

	s.Secret = secret

	s.Screen = func() (columns, rows int) {
		if s.OutWidth > 0 {
			return size(os.Stdout)
		}
		return size(os.Stderr)
	}

	return s
}

// secret reads a line from standard input, without echo where that is a
// terminal. A last line without a newline counts.
func secret(prompt string) (string, error) {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		line, err := bufio.NewReader(os.Stdin).ReadString('\n')
		if errors.Is(err, io.EOF) && line != "" {
			err = nil
		}
		return line, err
	}

	fmt.Fprint(os.Stderr, prompt)
	defer fmt.Fprintln(os.Stderr)

	text, err := term.ReadPassword(int(os.Stdin.Fd()))
	return string(text), err
}

// width is the width of a terminal, or 0.
func width(f *os.File) int {
	columns, _ := size(f)
	return columns
}

// size returns the columns and rows of a terminal, and 0, 0 for anything else.
func size(f *os.File) (columns, rows int) {
	columns, rows, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0, 0
	}
	return columns, rows
}

// shell is the state of one invocation.
type shell struct {
	Streams

	connection connection
	timeout    time.Duration
	quiet      bool
	// client is made by the first connect.
	client *apiclient.Client
	// release frees the timer of --timeout.
	release func()
}

// Execute runs one command line (without the program's name) and returns the
// exit code, as docs/cli.md lists them. The end of ctx means Ctrl-C. The local
// commands are those that do not talk to the API, such as the server itself.
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

// The groups of commands in the help of the root.
const (
	hardwareGroup = "hardware"
	systemGroup   = "system"
	serverGroup   = "server"
)

// root builds the whole tree of commands.
func (s *shell) root(local []*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:     "cyborg",
		Short:   "Manage the life of accelerators",
		Long:    "cyborg finds accelerators, takes them into service, programs them, hands them out and takes them back.",
		Version: cyborg.Version,
		Args:    commandline.NoVerb,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}

	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetVersionTemplate("cyborg {{.Version}}\n")

	flags := root.PersistentFlags()
	s.connection.addFlags(flags)
	flags.DurationVar(&s.timeout, "timeout", 0, "give up after this time, such as 90s; 0 means never")
	flags.BoolVarP(&s.quiet, "quiet", "q", false, "do not show progress on standard error")

	// --timeout bounds the whole command, so it is a deadline of the command's
	// context.
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
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

	add(hardwareGroup, s.acceleratorCommand(), s.deviceCommand(), s.deployableCommand(), s.hostCommand(), s.driverCommand(),
		s.attachInstance(), s.detachInstance(), s.discoverCommand(), s.usageCommand())

	add(systemGroup, s.operationCommand(), s.eventsCommand(), s.driftCommand(), s.serviceCommand(), s.doctorCommand(), s.profileCommand(),
		commandline.Completion(root), commandline.Manual(root, 1, map[string]func() string{"cyborg.yaml.5": commandline.ConfigurationPage}), s.versionCommand())

	if len(local) > 0 {
		root.AddGroup(&cobra.Group{ID: serverGroup, Title: "Running a server:"})
		hideFlags(local, flags)
		add(serverGroup, local...)
	}

	root.SetHelpCommandGroupID(systemGroup)
	// These walk the finished tree, so every command must have been added before.
	s.completes(root)
	commandline.Prepare(root)

	return root
}
