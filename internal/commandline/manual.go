package commandline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
)

// The pages are written here and not by cobra's package doc, whose pages are
// worse in several ways; docs/development.md has the comparison.

// Manual is the command that writes the program's manual pages, of a section
// such as 1 or 8, into a directory: one page for the program and one for each
// of its nouns. The further pages are written as they are, under the names of
// their files.
func Manual(root *cobra.Command, section int, further map[string]func() string) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the manual pages into a directory",
		Long:  "Writes the manual pages into a directory, and creates it if it is missing. Read one with: man -l FILE",
		Args:  Takes("DIRECTORY"),
		RunE: func(_ *cobra.Command, args []string) error {
			pages := map[string]string{pageName(root, section): page(root, section)}

			for _, noun := range root.Commands() {
				if noun.HasAvailableSubCommands() {
					pages[pageName(noun, section)] = page(noun, section)
				}
			}

			for name, write := range further {
				pages[name] = write()
			}

			err := os.MkdirAll(args[0], 0o755)
			for name, text := range pages {
				err = errors.Join(err, os.WriteFile(filepath.Join(args[0], name), []byte(text), 0o644))
			}

			if err != nil {
				return cyborg.Errorf(cyborg.ErrInvalid, "the manual pages cannot be written: %w", err)
			}

			return nil
		},
	}
}

// pageName is the name of a page's file, such as cyborg-host.1.
func pageName(cmd *cobra.Command, section int) string {
	return fmt.Sprintf("%s.%d", strings.ReplaceAll(cmd.CommandPath(), " ", "-"), section)
}

// page is the manual page of a program, or of one of its nouns with the noun's
// verbs.
func page(cmd *cobra.Command, section int) string {
	var r roff
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	r.title(name, section, cmd.Short)

	r.macro("SH", "SYNOPSIS")
	r.linef(`\fB%s\fR [\fIVERB\fR] [\fIARGUMENT\fR...] [\fIFLAG\fR...]`, escape(cmd.CommandPath()))

	r.macro("SH", "DESCRIPTION")
	r.text(longOf(cmd))

	var nouns []string
	var verbs []*cobra.Command
	r.macro("SH", "COMMANDS")
	// Nouns are written at once and verbs after them: a noun between two verbs
	// would read as one of the first verb's flags.
	for _, sub := range cmd.Commands() {
		switch {
		case !sub.IsAvailableCommand():
		case sub.HasAvailableSubCommands() && !cmd.HasParent():
			nouns = append(nouns, strings.ReplaceAll(sub.CommandPath(), " ", "-"))
			r.macro("TP", "")
			r.linef(`\fB%s\fR`, escape(sub.Name()))
			r.text(sub.Short + ": see the page " + nouns[len(nouns)-1] + ".")
		default:
			verbs = append(verbs, sub)
		}
	}

	for _, verb := range verbs {
		r.macro("SS", verb.UseLine())
		r.text(longOf(verb))
		r.flags(verb.LocalNonPersistentFlags())
		r.examples(verb)
	}

	r.macro("SH", "FLAGS OF ALL COMMANDS")
	r.flags(cmd.Root().PersistentFlags())
	if cmd.HasParent() {
		r.flags(cmd.PersistentFlags())
	}

	r.macro("SH", "EXIT STATUS")
	for _, row := range exitTable {
		r.macro("TP", "")
		r.linef(`\fB%d\fR`, row.code)
		r.text(row.meaning)
	}

	r.macro("SH", "SEE ALSO")
	if cmd.HasParent() {
		nouns = []string{cmd.Root().Name()}
	}
	r.linef(`%s`, escape(strings.Join(append(nouns, "cyborg.yaml(5)"), ", ")))

	return r.String()
}

// longOf is the description of a command.
func longOf(cmd *cobra.Command) string {
	if cmd.Long != "" {
		return cmd.Long
	}
	return cmd.Short + "."
}

// ConfigurationPage is the manual page of the configuration file, made from the
// documentation of the options.
func ConfigurationPage() string {
	var r roff
	r.title("cyborg.yaml", 5, "configuration of Cyborg's processes")
	r.macro("SH", "DESCRIPTION")
	r.text("A YAML file that cyborg server, cyborg-agent and cyborg-standalone read: the one that --config names, else the one " +
		"that " + config.FileVariable + " names, else " + config.DefaultFile + " where it exists.\n\n" +
		"Each option can be given in the environment, too: " + config.EnvPrefix + " and the key in capitals with _ for each dot, as in " +
		config.EnvPrefix + "API_LISTEN for api.listen. Flags go before variables, variables before the file. " +
		"Durations are written as 500ms, 10s, 5m or 2160h, sizes as 64KiB, 64MiB or 4GiB.")

	section := ""
	for _, option := range config.Document() {
		if first, _, _ := strings.Cut(option.Key, "."); first != section {
			section = first
			r.macro("SH", strings.ToUpper(section))
		}

		r.macro("TP", "")
		r.linef(`\fB%s\fR`, escape(option.Key))

		text := option.Text
		if option.Default != "" {
			text += " Default: " + option.Default + "."
		}
		r.text(text)
	}

	r.macro("SH", "SEE ALSO")
	r.linef("cyborg(1), cyborg\\-agent(8), cyborg\\-standalone(8)")
	return r.String()
}

// roff builds a manual page in the language of man(7).
type roff struct{ strings.Builder }

// title begins the page.
func (r *roff) title(name string, section int, what string) {
	fmt.Fprintf(r, ".TH \"%s\" \"%d\" \"\" \"Cyborg %s\" \"Cyborg\"\n", escape(strings.ToUpper(name)), section, escape(cyborg.Version))
	r.macro("SH", "NAME")
	r.linef(`%s \- %s`, escape(name), escape(what))
}

// macro writes a request such as .SH with an argument.
func (r *roff) macro(name, argument string) {
	r.WriteString("." + name)
	if argument != "" {
		r.WriteString(` "` + strings.ReplaceAll(escape(argument), `"`, `\(dq`) + `"`)
	}
	r.WriteString("\n")
}

// linef writes a line. The caller has escaped the arguments.
func (r *roff) linef(format string, args ...any) { fmt.Fprintf(r, format+"\n", args...) }

// text writes paragraphs. A paragraph that is indented by four spaces keeps its
// lines.
func (r *roff) text(text string) {
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			r.macro("PP", "")
		}

		verbatim := strings.HasPrefix(paragraph, "    ")
		if verbatim {
			r.macro("nf", "")
		}

		for line := range strings.SplitSeq(paragraph, "\n") {
			r.linef("%s", escape(strings.TrimRight(line, " ")))
		}

		if verbatim {
			r.macro("fi", "")
		}
	}
}

// examples writes the examples of a command.
func (r *roff) examples(cmd *cobra.Command) {
	if !cmd.HasExample() {
		return
	}

	r.macro("PP", "")
	r.linef("Examples:")
	r.macro("PP", "")
	r.macro("nf", "")

	for line := range strings.SplitSeq(cmd.Example, "\n") {
		r.linef("%s", escape(line))
	}

	r.macro("fi", "")
}

// flags writes a paragraph for each flag that is not hidden.
func (r *roff) flags(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}

		r.macro("TP", "")
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}

		kind, usage := pflag.UnquoteUsage(f)
		if kind == "" {
			r.linef(`\fB%s\fR`, escape(name))
		} else {
			r.linef(`\fB%s\fR \fI%s\fR`, escape(name), escape(kind))
		}

		// Defaults that mean "not set" are left out.
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" && f.DefValue != "0s" {
			usage += " (default " + f.DefValue + ")"
		}

		r.text(usage)
	})
}

// escape protects the characters and line beginnings that have a meaning in
// roff.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", `\&...`, "–", `\(en`, "→", "->").Replace(text)

	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}

	return text
}
