package cli

import (
	"cmp"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// connection says where the API is. What a flag does not say comes from the environment. A token is never a flag: the
// command line of a process is public on its host.
type connection struct {
	url, tokenFile, caCert, cert, key string
}

func (c *connection) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.url, "url", "", "the API (CYBORG_URL; default "+apiclient.DefaultURL+")")
	flags.StringVar(&c.tokenFile, "token-file", "", "file with the bearer token (CYBORG_TOKEN_FILE, or the token itself in CYBORG_TOKEN)")
	flags.StringVar(&c.caCert, "cacert", "", "PEM file of the authorities to trust (CYBORG_CACERT)")
	flags.StringVar(&c.cert, "cert", "", "PEM file of the client certificate (CYBORG_CERT)")
	flags.StringVar(&c.key, "key", "", "PEM file of the client certificate's key (CYBORG_KEY)")
}

// connect returns the client of this invocation.
func (s *shell) connect() (*apiclient.Client, error) {
	if s.client != nil {
		return s.client, nil
	}
	token, err := s.token()
	if err != nil {
		return nil, err
	}
	s.client, err = apiclient.New(apiclient.Options{
		URL:       cmp.Or(s.connection.url, s.Env("CYBORG_URL")),
		Token:     token,
		CACert:    cmp.Or(s.connection.caCert, s.Env("CYBORG_CACERT")),
		Cert:      cmp.Or(s.connection.cert, s.Env("CYBORG_CERT")),
		Key:       cmp.Or(s.connection.key, s.Env("CYBORG_KEY")),
		UserAgent: "cyborg/" + cyborg.Version,
	})
	return s.client, err
}

// token is the flag's file, else the variable, else the variable's file.
func (s *shell) token() (string, error) {
	token := s.Env("CYBORG_TOKEN")
	file := s.connection.tokenFile
	if file == "" && token == "" {
		file = s.Env("CYBORG_TOKEN_FILE")
	}
	if file == "" {
		return token, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", cyborg.Errorf(cyborg.Invalid, "cannot read the token: %w", err)
	}
	token = strings.TrimSpace(string(content))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", cyborg.Errorf(cyborg.Invalid, "%s does not hold one token", file)
	}
	return token, nil
}
