package cli

import (
	"bufio"
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
)

// consent is --yes of a verb by which somebody may lose something.
type consent struct{ yes bool }

func (c *consent) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "do not ask, whatever is lost")
}

// errDeclined is an answer other than yes.
var errDeclined = errors.New("nothing was changed")

// agree asks whether these losses are meant; each says what is lost and to whom. Nothing is asked where nothing is lost.
// Where nobody can be asked, it refuses.
func (s *shell) agree(ctx context.Context, c consent, losses []string) error {
	if c.yes || len(losses) == 0 {
		return nil
	}
	if s.In == nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "%s", strings.Join(losses, "; ")).
			WithHint("Nobody can be asked here, so nothing was changed. If this is meant, say --yes.")
	}
	for _, loss := range losses {
		s.sayf("%s.", capital(loss))
	}
	s.write("Go on? [y/N] ")
	answer := make(chan string, 1)
	go func() { // a read from a terminal cannot be interrupted; one that is left ends with the process
		line, err := bufio.NewReader(s.In).ReadString('\n')
		if err != nil && line == "" {
			line = "\n" // the end of the input is no yes
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

func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// some names a few of many.
func some(names []string) string {
	const few = 3
	if len(names) <= few+1 {
		return enumerate(names)
	}
	return strings.Join(names[:few], ", ") + " and " + count(len(names)-few, "other")
}

// enumerate is "a", "a and b", "a, b and c".
func enumerate(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// count is "1 accelerator" or "2 accelerators".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
