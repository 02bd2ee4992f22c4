package cli

import (
	"bufio"
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/english"
)

// consent is the flag --yes of a command by which somebody may lose something.
type consent struct{ yes bool }

// addFlags adds --yes.
func (c *consent) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "do not ask for confirmation")
}

// errDeclined is returned when the user does not answer yes.
var errDeclined = errors.New("nothing was changed")

// agree asks the user to agree to the losses. Each is a sentence about what is
// lost. It asks nothing if nothing is lost, and refuses if nobody can be asked.
func (s *shell) agree(ctx context.Context, c consent, losses []string) error {
	if c.yes || len(losses) == 0 {
		return nil
	}
	if s.In == nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "%s", strings.Join(losses, "; ")).
			WithHint("Nobody can be asked here, so nothing was changed. To go on all the same, add --yes.")
	}

	for _, loss := range losses {
		s.sayf("%s.", english.Capital(loss))
	}

	s.write("Go on? [y/N] ")

	answer := make(chan string, 1)
	// A read from a terminal cannot be interrupted. When the context ends first,
	// this goroutine stays in its read until the process ends; the channel has room
	// for its answer, so it blocks nobody.
	go func() {
		line, err := bufio.NewReader(s.In).ReadString('\n')
		if err != nil && line == "" {
			line = "\n" // the end of the input means no
			s.write("\n")
		}
		answer <- line
	}()

	select {
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		}
		return errDeclined
	case <-ctx.Done():
		s.write("\n")
		return context.Cause(ctx)
	}
}
