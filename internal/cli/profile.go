package cli

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/profile"
)

// profileCommand is the noun `profile`.
func (s *shell) profileCommand() *cobra.Command {
	return noun("profile", "The APIs that you work with, each with a name", []verb{
		{use: listVerb, short: "List profiles", examples: []string{"cyborg profile list"}, build: s.profileList},
		{use: "show [PROFILE]", short: "Show one profile, or the one in use; never its token", build: s.profileShow},
		{
			use: "set PROFILE [--url URL]", short: "Create or change a profile",
			long: "Saves --url, --token-file, --cacert, --cert and --key under the name; what you leave out stays as it is. With\n" +
				"--token-stdin it asks for the token, or reads it from standard input, because other users of a host can read its\n" +
				"command lines. The first profile is in use at once.",
			examples: []string{
				"cyborg profile set lab --url https://cyborg.lab.example.org:6666 --token-stdin",
				"cyborg profile set lab --url https://cyborg.lab.example.org:6666 --cacert /etc/cyborg/lab.pem",
			},
			build: s.profileSet,
		},
		{
			use: "use PROFILE", short: "Make a profile the one in use",
			examples: []string{"cyborg profile use lab"},
			build: s.profileChange(func(book *profile.Book, name string) error {
				_, err := book.Get(name)
				if err == nil {
					book.Current = name
				}
				return err
			}),
		},
		{use: "delete PROFILE", short: "Delete a profile", build: s.profileChange((*profile.Book).Delete)},
	}, "profiles")
}

// profileView is a profile as it is printed, without its token.
type profileView struct {
	Name      string `json:"name"`
	Current   bool   `json:"current"`
	URL       string `json:"url"`
	Token     string `json:"token,omitempty"`
	TokenFile string `json:"token_file,omitempty"`
	CACert    string `json:"cacert,omitempty"`
	Cert      string `json:"cert,omitempty"`
	Key       string `json:"key,omitempty"`
}

// viewProfile converts a profile for printing.
func viewProfile(book *profile.Book, name string) profileView {
	p := book.Profiles[name]
	view := profileView{
		Name: name, Current: name == book.Current, URL: p.URL,
		TokenFile: p.TokenFile, CACert: p.CACert, Cert: p.Cert, Key: p.Key,
	}

	if p.Token != "" {
		view.Token = "(hidden)"
	}

	return view
}

// credential names what a profile authenticates with.
func (v profileView) credential() string {
	var have []string

	if v.Token != "" || v.TokenFile != "" {
		have = append(have, "token")
	}

	if v.Cert != "" {
		have = append(have, "certificate")
	}

	return strings.Join(have, ", ")
}

// profileList is `profile list`.
func (s *shell) profileList(cmd *cobra.Command) {
	p := s.printer(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		book, err := s.profiles()
		if err != nil {
			return err
		}

		views := []profileView{}
		for _, name := range book.Names() {
			views = append(views, viewProfile(book, name))
		}

		type v = profileView
		return printList(p, views, []column[v]{
			{title: nameTitle, key: nameKey, value: func(x v) any { return x.Name }},
			{title: "Current", key: "current", value: func(x v) any { return x.Current }},
			{title: "URL", key: "url", value: func(x v) any { return x.URL }},
			{title: "Credential", key: "credential", value: func(x v) any { return x.credential() }},
		}, false)
	}
}

// profileShow is `profile show`.
func (s *shell) profileShow(cmd *cobra.Command) {
	p := s.printer(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		book, err := s.profiles()
		if err != nil {
			return err
		}

		name := book.Current
		if len(args) > 0 {
			name = args[0]
		}

		if name == "" {
			return cyborg.Errorf(cyborg.ErrNotFound, "no profile is in use").WithHint("Choose one with: cyborg profile use PROFILE")
		}

		if _, err := book.Get(name); err != nil {
			return err
		}

		return printShow(p, viewProfile(book, name), []string{nameKey, "current", "url"}, nil)
	}
}

// profileSet is `profile set`.
func (s *shell) profileSet(cmd *cobra.Command) {
	var token bool
	var unset []string
	cmd.Flags().BoolVar(&token, "token-stdin", false, "ask for the token, or read it from standard input")
	cmd.Flags().StringSliceVar(&unset, "unset", nil, "remove this setting: token, token-file, cacert, cert, key; repeatable")

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		given, err := s.profileGiven(cmd, token)
		if err != nil {
			return err
		}

		if given == (profile.Profile{}) && len(unset) == 0 {
			return usageErrorf(cmd, "nothing to set: give --url, or another of the flags of the connection")
		}

		// The names are checked before the file is locked and read.
		for _, setting := range unset {
			if !forget(&profile.Profile{}, setting) {
				return usageErrorf(cmd, "--unset %q: there are token, token-file, cacert, cert, key", setting)
			}
		}

		return s.changeProfiles(func(book *profile.Book) error {
			changed := book.Profiles[args[0]]
			for _, setting := range unset {
				forget(&changed, setting)
			}

			changed = over(changed, given)
			if err := usable(cmd, changed); err != nil {
				return err
			}

			// The first profile is used at once, by book.Set.
			first := len(book.Profiles) == 0
			if err := book.Set(args[0], changed); err != nil {
				return err
			}

			if first {
				s.sayf("Profile %s is in use now.", args[0])
			}

			return nil
		})
	}
}

// profileGiven returns what the flags say about a profile, with the token where
// --token-stdin asks for it.
func (s *shell) profileGiven(cmd *cobra.Command, token bool) (profile.Profile, error) {
	given, err := s.connection.absolute()
	switch {
	case err != nil:
		return given, err
	case s.connection.named != "":
		return given, usageErrorf(cmd, "--profile chooses a profile; the one to set is an argument")
	case token && given.TokenFile != "":
		return given, usageErrorf(cmd, "--token-file and --token-stdin exclude each other")
	case token:
		given.Token, err = s.askToken()
	}

	return given, err
}

// absolute returns the settings of the flags with absolute paths: the profile
// is used from other directories later.
func (c *connection) absolute() (profile.Profile, error) {
	given := c.Profile
	for _, path := range []*string{&given.TokenFile, &given.CACert, &given.Cert, &given.Key} {
		if *path == "" {
			continue
		}

		whole, err := filepath.Abs(*path)
		if err != nil {
			return given, cyborg.Errorf(cyborg.ErrInvalid, "%s cannot be made an absolute path: %w", *path, err)
		}

		*path = whole
	}

	return given, nil
}

// forget empties one setting of a profile, and reports whether there is such a
// setting.
func forget(p *profile.Profile, setting string) bool {
	fields := map[string]*string{"token": &p.Token, "token-file": &p.TokenFile, "cacert": &p.CACert, "cert": &p.Cert, "key": &p.Key}
	field, ok := fields[setting]

	if ok {
		*field = ""
	}
	return ok
}

// usable checks a profile before it is saved, by making a client of it.
func usable(cmd *cobra.Command, p profile.Profile) error {
	if p.URL == "" {
		return usageErrorf(cmd, "--url is missing: a new profile needs one")
	}

	token, err := tokenOf(p)
	if err != nil {
		return err
	}

	client, err := apiclient.New(apiclient.Options{URL: p.URL, Token: token, CACert: p.CACert, Cert: p.Cert, Key: p.Key})
	if err != nil {
		return err
	}

	client.Close()
	return nil
}

// askToken reads the token from the user or from standard input.
func (s *shell) askToken() (string, error) {
	if s.Secret == nil {
		return "", cyborg.Errorf(cyborg.ErrInvalid, "there is no standard input to read the token from")
	}
	text, err := s.Secret("Token: ")
	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrInvalid, "the token cannot be read: %w", err)
	}

	return oneToken(text, "standard input")
}

// profileChange builds a verb that changes the user's file of profiles in a way
// that the name of a profile is enough for.
func (s *shell) profileChange(change func(book *profile.Book, name string) error) func(cmd *cobra.Command) {
	return func(cmd *cobra.Command) {
		cmd.RunE = func(_ *cobra.Command, args []string) error {
			return s.changeProfiles(func(book *profile.Book) error { return change(book, args[0]) })
		}
	}
}

// changeProfiles changes the user's file of profiles.
func (s *shell) changeProfiles(change func(*profile.Book) error) error {
	path, err := profile.Path(s.Env)
	if err != nil {
		return err
	}
	return profile.Change(path, change)
}
