// Package docs_test runs every command that the documentation shows, page by
// page, as a reader would.
package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// command is one command of a page.
type command struct {
	line    int // on the page
	text    string
	code    int      // the expected exit code
	endless bool     // it runs until Ctrl-C
	example bool     // the output on the page is one of many possible ones
	output  []string // the lines of output that the page shows
}

var (
	fence    = regexp.MustCompile("^```([a-z]*)$")
	exitCode = regexp.MustCompile(`exit code (\d+)`)
)

// commands returns the commands of a page:
//
//   - all lines of an "sh" block;
//   - the lines of a "console" block that begin with "$ ", with the output below;
//   - the lines of a comment that begins with "<!-- setup", which readers do not
//     see.
//
// A backslash or a pipe at the end of a line continues the command. A comment
// behind a command can say "exit code 4", "until Ctrl-C", or "for example"
// where the output is one of many possible ones.
func commands(t *testing.T, path string) []command {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)

	var found []command
	block, indent := "", "" // a block in a list is indented like the list

	for i, line := range strings.Split(string(text), "\n") {
		if block == "" && strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
			indent, _, _ = strings.Cut(line, "`")
		}

		line = strings.TrimPrefix(line, indent)

		switch {
		case block == "" && strings.HasPrefix(line, "<!-- setup"):
			block = "setup"
			continue
		case block == "" && fence.MatchString(line):
			if block = fence.FindStringSubmatch(line)[1]; block == "" {
				block = "text"
			}
			continue
		case block == "setup" && strings.HasPrefix(line, "-->"), block != "" && block != "setup" && line == "```":
			block, indent = "", ""
			continue
		}

		last := len(found) - 1
		prompt, isCommand := strings.CutPrefix(line, "$ ")

		switch {
		case block != "sh" && block != "setup" && block != "console", strings.TrimSpace(line) == "":
		case last >= 0 && (strings.HasSuffix(found[last].text, `\`) || strings.HasSuffix(found[last].text, "|")):
			found[last].text += "\n" + line
		case block == "console" && isCommand:
			found = append(found, command{line: i + 1, text: prompt})
		case block == "console":
			require.GreaterOrEqual(t, last, 0, "%s:%d: output before any command", path, i+1)
			found[last].output = append(found[last].output, line)
		default:
			found = append(found, command{line: i + 1, text: line})
		}
	}

	for i := range found {
		c := &found[i]
		_, comment, _ := strings.Cut(c.text, " # ")
		c.endless, c.example = strings.Contains(comment, "until Ctrl-C"), strings.Contains(comment, "for example")

		if code := exitCode.FindStringSubmatch(comment); code != nil {
			c.code, err = strconv.Atoi(code[1])
			require.NoError(t, err)
		}
	}

	return found
}

// outcome is the result of a command.
type outcome struct {
	ran    bool
	code   int
	output string
}

// mark separates the outputs of the commands in the output of the shell.
const mark = "@@ docs @@"

// script returns one shell script of all commands, so that a variable that one
// sets exists for the next.
func script(all []command, skip func(c command) bool) string {
	var b strings.Builder
	b.WriteString("exec 2>&1 </dev/null\n")
	for i, c := range all {
		if skip(c) {
			continue
		}

		fmt.Fprintf(&b, "echo '%s %d'\n", mark, i)
		if c.endless {
			fmt.Fprintf(&b, "timeout --signal=INT 10 bash -c %s || [ $? = 124 ]\n", quote(c.text))
		} else {
			b.WriteString(c.text + "\n")
		}

		fmt.Fprintf(&b, "echo \"%s $?\"\n", mark)
	}

	return b.String()
}

// quote quotes a text for the shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// outcomes reads the outcome of each command from the output of the script.
func outcomes(t *testing.T, all []command, output string) []outcome {
	t.Helper()

	found := make([]outcome, len(all))
	parts := strings.Split(output, mark+" ")
	for i := 1; i+1 < len(parts); i += 2 {
		head, body, _ := strings.Cut(parts[i], "\n")
		n, err := strconv.Atoi(head)
		require.NoError(t, err, output)

		tail, _, _ := strings.Cut(parts[i+1], "\n")
		code, err := strconv.Atoi(tail)
		require.NoError(t, err, output)

		found[n] = outcome{ran: true, code: code, output: body}
	}
	return found
}

// varying matches what differs from run to run: UUIDs, times, durations,
// spaces, rules.
var varying = regexp.MustCompile(
	`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{8}\b|\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d+)?Z?|\d+(\.\d+)?(ms|s|µs)\b| +|[-+]{2,}`)

// steady returns a line without what varies.
func steady(line string) string { return strings.TrimSpace(varying.ReplaceAllString(line, " ~ ")) }

// unshown returns the first line that a page shows and that does not follow in
// the output, or "".
func unshown(c command, answer string) string {
	if c.example {
		return ""
	}

	rest := strings.Split(answer, "\n")
	for _, line := range c.output {
		at := -1
		for i := range rest {
			if steady(rest[i]) == steady(line) {
				at = i
				break
			}
		}

		if at < 0 {
			return line
		}

		rest = rest[at+1:]
	}
	return ""
}
