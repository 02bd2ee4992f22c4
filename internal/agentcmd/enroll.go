package agentcmd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/workers/agent"
)

// enrollCommand returns the command that gets the host's first certificate.
func enrollCommand() *cobra.Command {
	var server, pin, file string
	command := &cobra.Command{
		Use:   "enroll",
		Short: "Get this host's certificate from a server, with a token",
		Long: "Makes a key, which never leaves this host, and gets a certificate for it from the server; cyborg host enroll makes the\n" +
			"token and shows the pin. The token is read from standard input, or from a file: arguments can be read by everybody.\n" +
			"Key and certificate go into the state directory, where the agent uses them and renews the certificate. Stop the agent\n" +
			"first, if one runs.",
		Example: commandline.Examples(
			"cyborg-agent enroll --server https://cyborg.example.org:6667 --pin sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"),
		Args: commandline.Takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pin == "" {
				return commandline.UsageErrorf(cmd, "--pin is missing: cyborg host enroll shows it")
			}

			c, err := load(cmd)
			if err != nil {
				return err
			}

			token, err := readToken(cmd, file)
			if err != nil {
				return err
			}

			certificate, err := agent.Enroll(cmd.Context(), agent.Enrolling{
				Host: c.Agent.Host, StateDir: c.Agent.StateDir, TrustDomain: c.Identity.TrustDomain,
				Server: serverOf(server, c.Agent), Pin: pin, Token: token,
			})
			if err != nil {
				return err
			}

			_, err = fmt.Fprintf(cmd.OutOrStdout(), "This host is enrolled as %s, until %s; the agent renews that by itself.\n",
				certificate.URIs[0], certificate.NotAfter.UTC().Format(time.RFC3339))
			return err
		},
	}

	flags := command.Flags()
	flags.StringVar(&server, "server", "", "`URL` of an agent endpoint; by default the first of agent.endpoints")
	flags.StringVar(&pin, "pin", "", "`pin` of the authority, as cyborg host enroll shows it")
	flags.StringVar(&file, "token-file", "", "`file` that holds the token; without it, standard input does")
	return command
}

// serverOf returns the agent endpoint to ask.
func serverOf(server string, c config.Agent) string {
	if server == "" && len(c.Endpoints) > 0 {
		return c.Endpoints[0]
	}
	return server
}

// longestToken is how much is read of where a token may be.
const longestToken = 1000

// readToken reads the token: the first line of the file, or of standard input.
func readToken(cmd *cobra.Command, file string) (string, error) {
	from := cmd.InOrStdin()
	if file != "" {
		opened, err := os.Open(file)
		if err != nil {
			return "", cyborg.Errorf(cyborg.ErrInvalid, "the file of --token-file cannot be read: %w", err)
		}
		defer opened.Close()
		from = opened
	} else if terminal(from) {
		fmt.Fprint(cmd.ErrOrStderr(), "Token: ")
	}

	line, err := bufio.NewReader(io.LimitReader(from, longestToken)).ReadString('\n')
	token := strings.TrimSpace(line)
	if token == "" {
		if err != nil && !errors.Is(err, io.EOF) {
			return "", cyborg.Errorf(cyborg.ErrInvalid, "the token cannot be read: %w", err)
		}
		return "", cyborg.Errorf(cyborg.ErrInvalid, "there is no token: write it to standard input, or name a file with --token-file").
			WithHint("Make one with cyborg host enroll.")
	}
	return token, nil
}

// terminal says whether a person types.
func terminal(from io.Reader) bool {
	file, ok := from.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
