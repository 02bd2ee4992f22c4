package cli

import (
	"cmp"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/profile"
)

// connection holds the flags that say how the API is reached. There is no flag
// for the token itself: the command line of a process is public on its host.
type connection struct {
	profile.Profile

	named string // --profile
}

// addFlags adds the flags of the connection.
func (c *connection) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.named, "profile", "", "profile to use (CYBORG_PROFILE; default: the one in use)")
	flags.StringVar(&c.URL, "url", "", "URL of the API (CYBORG_URL; default: "+apiclient.DefaultURL+")")
	flags.StringVar(&c.TokenFile, "token-file", "", "file with the bearer token (CYBORG_TOKEN_FILE, or the token itself in CYBORG_TOKEN)")
	flags.StringVar(&c.CACert, "cacert", "", "PEM file of the certificate authorities to trust (CYBORG_CACERT)")
	flags.StringVar(&c.Cert, "cert", "", "PEM file of the client certificate (CYBORG_CERT)")
	flags.StringVar(&c.Key, "key", "", "PEM file of the client certificate's key (CYBORG_KEY)")
}

// connect returns the client of this invocation, which all its requests share.
func (s *shell) connect() (*apiclient.Client, error) {
	if s.client != nil {
		return s.client, nil
	}

	where, err := s.where()
	if err != nil {
		return nil, err
	}

	token, err := tokenOf(where)
	if err != nil {
		return nil, err
	}

	s.client, err = apiclient.New(apiclient.Options{
		URL: where.URL, Token: token, CACert: where.CACert, Cert: where.Cert, Key: where.Key,
		UserAgent: "cyborg/" + cyborg.Version,
	})

	return s.client, err
}

// where resolves how the API is reached. Flags win over environment variables,
// and these over the profile in use; --profile is a flag, and so wins over all
// variables. A profile's credentials are for the profile's own URL only: where
// the URL comes from elsewhere, they are not sent.
func (s *shell) where() (profile.Profile, error) {
	flags := s.connection
	if flags.named != "" {
		chosen, err := s.profileNamed(flags.named)
		if err != nil {
			return chosen, err
		}

		if flags.URL != "" && flags.URL != chosen.URL {
			return chosen, cyborg.Errorf(cyborg.ErrInvalid, "the profile %s is for %s, not for %s", flags.named, chosen.URL, flags.URL).
				WithHint("Leave --url or --profile out.")
		}

		return over(chosen, flags.Profile), nil
	}

	// Without --profile, the flags and variables come first, since they decide
	// whether the profile in use applies at all.
	variables := profile.Profile{
		URL: s.Env("CYBORG_URL"), Token: s.Env("CYBORG_TOKEN"), TokenFile: s.Env("CYBORG_TOKEN_FILE"),
		CACert: s.Env("CYBORG_CACERT"), Cert: s.Env("CYBORG_CERT"), Key: s.Env("CYBORG_KEY"),
	}
	given := over(variables, flags.Profile)

	chosen, err := s.profileInUse(given.URL != "")
	if err != nil {
		return given, err
	}

	if given.URL != "" && given.URL != chosen.URL {
		return given, nil
	}

	return over(chosen, given), nil
}

// over lays the settings of one profile over those of another. A token and its
// file replace each other, and a certificate and its key belong together, so
// each pair comes from one of the two.
func over(base, top profile.Profile) profile.Profile {
	base.URL = cmp.Or(top.URL, base.URL)
	if top.Token != "" || top.TokenFile != "" {
		base.Token, base.TokenFile = top.Token, top.TokenFile
	}

	base.CACert = cmp.Or(top.CACert, base.CACert)
	if top.Cert != "" || top.Key != "" {
		base.Cert, base.Key = top.Cert, top.Key
	}

	return base
}

// profiles reads the user's profiles.
func (s *shell) profiles() (*profile.Book, error) {
	path, err := profile.Path(s.Env)
	if err != nil {
		return nil, err
	}
	return profile.Open(path)
}

// profileNamed reads one profile.
func (s *shell) profileNamed(name string) (profile.Profile, error) {
	book, err := s.profiles()
	if err != nil {
		return profile.Profile{}, err
	}
	return book.Get(name)
}

// profileInUse returns the profile that CYBORG_PROFILE or `cyborg profile use`
// chose, or an empty one. An unreadable file of profiles is an error only where
// the profile is needed, which it is not (dispensable) where the URL is known
// already.
func (s *shell) profileInUse(dispensable bool) (profile.Profile, error) {
	if name := s.Env("CYBORG_PROFILE"); name != "" {
		return s.profileNamed(name)
	}

	if _, err := profile.Path(s.Env); err != nil {
		return profile.Profile{}, nil //nolint:nilerr // without a home there are no profiles
	}

	book, err := s.profiles()
	if err != nil && dispensable {
		return profile.Profile{}, nil
	}
	if err != nil || book.Current == "" {
		return profile.Profile{}, err
	}

	return book.Get(book.Current)
}

// tokenOf returns a profile's token, from its file where the profile has no
// token itself.
func tokenOf(p profile.Profile) (string, error) {
	if p.TokenFile == "" || p.Token != "" {
		return p.Token, nil
	}
	content, err := os.ReadFile(p.TokenFile)
	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrInvalid, "cannot read the token: %w", err)
	}

	return oneToken(string(content), p.TokenFile)
}

// oneToken checks that a text is a single token. The source is for the error's
// text.
func oneToken(text, from string) (string, error) {
	token := strings.TrimSpace(text)
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", cyborg.Errorf(cyborg.ErrInvalid, "%s does not hold one token", from)
	}
	return token, nil
}
