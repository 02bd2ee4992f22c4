// Package cli is the cyborg command line: nouns and verbs over REST /v1, as OpenStack clients have them. It talks to
// the API through internal/apiclient only; it must never import the server, the database or Temporal.
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

// Streams are what a command reads and writes, and what it knows of where they lead.
type Streams struct {
	Out io.Writer // results
	Err io.Writer // progress and errors
	// In is where a person answers questions; nil where nobody can be asked.
	In io.Reader
	// Secret reads one line that nobody shall see: without echo, after the prompt, from a terminal, else from standard
	// input. Nil where there is none.
	Secret func(prompt string) (string, error)
	// Env looks a variable of the environment up; empty where it is not set.
	Env func(name string) string
	// OutWidth is that of the terminal that Out is; 0 where Out is none.
	OutWidth int
	// ErrWidth is that of the terminal that Err is; 0 where Err is none on which a line can be drawn again.
	ErrWidth int
	// Screen is the size of the terminal at this moment: people resize it. Nil says that it keeps its width, and that
	// anything fits its height.
	Screen func() (columns, rows int)
}

// steers says that Out is a terminal that understands colours and a cursor.
func (s *Streams) steers() bool { return s.OutWidth > 0 && s.Env("TERM") != "dumb" }

// outWidth is the present width of the terminal that Out is; 0 where it is none.
func (s *Streams) outWidth() int {
	if s.OutWidth > 0 && s.Screen != nil {
		if columns, _ := s.Screen(); columns > 0 {
			return columns
		}
	}
	return s.OutWidth
}

// errWidth is the present width of the terminal that Err is; 0 where no line can be drawn again on it.
func (s *Streams) errWidth() int {
	if s.ErrWidth > 0 && s.Screen != nil {
		if columns, _ := s.Screen(); columns > 0 {
			return columns
		}
	}
	return s.ErrWidth
}

// System are the process's own streams.
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

// secret reads a line from standard input, without echo where that is a terminal.
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

func width(f *os.File) int {
	columns, _ := size(f)
	return columns
}

// size is 0, 0 for what is no terminal.
func size(f *os.File) (columns, rows int) {
	columns, rows, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0, 0
	}
	return columns, rows
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
		Args:    commandline.NoVerb,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetVersionTemplate("cyborg {{.Version}}\n")
	flags := root.PersistentFlags()
	s.connection.addFlags(flags)
	flags.DurationVar(&s.timeout, "timeout", 0, "give up after so long, such as 90s; 0 for never")
	flags.BoolVarP(&s.quiet, "quiet", "q", false, "no progress on standard error")
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
	showExamples(root)
	s.completes(root)
	commandline.Prepare(root)
	return root
}
