// Package cacmd is the command "ca": it makes an authority of our own, and
// certificates for agents, servers and callers. It works on files only, and
// needs neither a server nor its configuration.
package cacmd

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

const (
	// defaultDir is where the authority is kept where nobody names a directory.
	defaultDir = "/etc/cyborg/ca"
	// defaultLife is how long a certificate is valid that a person makes, and must
	// renew by hand.
	defaultLife = 90 * 24 * time.Hour
	// stdout as the value of --out writes to standard output.
	stdout = "-"
)

// Command returns the command "ca".
func Command() *cobra.Command {
	var dir string
	command := commandline.Noun("ca", "Make an authority, and certificates for agents, servers and callers", initCommand(&dir), issueCommand(&dir))
	command.PersistentFlags().StringVar(&dir, "dir", defaultDir, "`directory` of the authority")
	return command
}

// initCommand returns the verb that makes the authority.
func initCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Make the authority; one that is there stays as it is",
		Long: "Makes the directory, and in it the authority's certificate (ca.crt), which everybody may have, and its key (ca.key).\n" +
			"Whoever has the key can be everybody: keep the directory where only you can read it, and have a backup.",
		Example: commandline.Examples("cyborg ca init", "cyborg ca init --dir ~/lab-ca"),
		Args:    commandline.Takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			said := "It was there already, and stays as it is"
			_, err := pki.Open(*dir)
			if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
				said = "The authority is made"
			}

			authority, err := pki.Make(*dir)
			if err != nil {
				return err
			}

			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, valid until %s.\n",
				said, authority.CertificateFile(), authority.Certificate().NotAfter.UTC().Format(time.DateOnly))
			return err
		},
	}
}

// issue holds the flags of the verb "issue".
type issue struct {
	trustDomain, out, request string
	dns, ips                  []string
	valid                     time.Duration
}

// issueCommand returns the verb that makes a certificate.
func issueCommand(dir *string) *cobra.Command {
	var i issue
	command := &cobra.Command{
		Use:   "issue ROLE NAME --out PREFIX",
		Short: "Make a certificate for a host, a server, an admin, a member or a reader",
		Long: "Writes a new key (PREFIX.key) and its certificate (PREFIX.crt), in the place of those that are there. With --csr, the key is\n" +
			"that of a certificate request, and only the certificate is written; nothing else of the request counts. NAME is the host's\n" +
			"name (agent.host), or that of the server or caller. A server needs --dns or --ip with what is in its URL.",
		Example: commandline.Examples(
			"cyborg ca issue host compute-7 --out compute-7",
			"cyborg ca issue server conductor-1 --dns cyborg.example.org --ip 192.0.2.7 --out server",
			"cyborg ca issue admin ada --valid 720h --out ada"),
		Args: commandline.Takes("ROLE", "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error { return i.run(cmd, *dir, args[0], args[1]) },
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var words []string
			if len(args) == 0 {
				for _, role := range identity.Roles() {
					words = append(words, string(role))
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		},
	}

	flags := command.Flags()
	flags.StringVar(&i.out, "out", "", "`prefix` of the files to write; - writes everything, the key too, to standard output")
	flags.StringSliceVar(&i.dns, "dns", nil, "DNS `name` by which others reach the holder (repeatable)")
	flags.StringSliceVar(&i.ips, "ip", nil, "IP `address` by which others reach the holder (repeatable)")
	flags.DurationVar(&i.valid, "valid", defaultLife, "how long the certificate is valid, such as 720h")
	flags.StringVar(&i.request, "csr", "", "`file` of a certificate request (PEM), whose key the certificate is for")
	flags.StringVar(&i.trustDomain, "trust-domain", identity.DefaultTrustDomain, "trust `domain` of the installation (identity.trust_domain)")
	return command
}

// run makes the certificate.
func (i issue) run(cmd *cobra.Command, dir, role, name string) error {
	leaf, err := i.leaf(cmd, role, name)
	if err != nil {
		return err
	}

	authority, err := pki.Open(dir)
	if err != nil {
		return err
	}
	if err := authority.CheckTime(time.Now()); err != nil {
		return err
	}

	if sameFile(i.out+".crt", authority.CertificateFile()) {
		return commandline.UsageErrorf(cmd, "--out %s is the authority itself, whose key would be lost: name other files", i.out)
	}

	issued, key, err := i.make(authority, leaf)
	if err != nil {
		return err
	}
	certificate := pki.EncodeCertificate(issued)
	if i.out == stdout {
		_, err := cmd.OutOrStdout().Write(slices.Concat(certificate, key))
		return err
	}

	// The key comes first. A process that reads both between the two writes keeps
	// its old pair, and one that starts then says that they do not match.
	written := i.out + ".crt"
	if key != nil {
		written += " and " + i.out + ".key"
		if err := atomicfile.Write(i.out+".key", key, 0o600); err != nil {
			return cyborg.Errorf(cyborg.ErrInvalid, "the key cannot be written: %w", err)
		}
	}
	if err := atomicfile.Write(i.out+".crt", certificate, 0o644); err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "the certificate cannot be written: %w", err)
	}

	until := "valid until " + issued.NotAfter.UTC().Format(time.RFC3339)
	if issued.NotAfter.Equal(authority.Certificate().NotAfter) {
		until += ", when the authority ends"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %s.\n", written, leaf.Identity, until)
	return err
}

// sameFile reports whether both paths lead to one file that is there.
func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// leaf checks the arguments and flags.
func (i issue) leaf(cmd *cobra.Command, role, name string) (pki.Leaf, error) {
	who := identity.Identity{TrustDomain: i.trustDomain, Role: identity.Role(role), Name: name}
	if err := who.Check(); err != nil {
		return pki.Leaf{}, commandline.UsageErrorf(cmd, "%w", err)
	}
	if i.out == "" {
		return pki.Leaf{}, commandline.UsageErrorf(cmd, "--out is missing: it says which files to write")
	}
	if i.valid <= 0 {
		return pki.Leaf{}, commandline.UsageErrorf(cmd, "--valid is %s, and must be longer than 0", i.valid)
	}
	for _, one := range i.dns {
		if err := cyborg.CheckHostName(one); err != nil {
			return pki.Leaf{}, commandline.UsageErrorf(cmd, "--dns: %w", err)
		}
	}

	if who.Role == identity.Server && len(i.dns)+len(i.ips) == 0 {
		return pki.Leaf{}, commandline.UsageErrorf(cmd, "a server's certificate needs --dns or --ip, with what is in its URL: without, everybody refuses it (on one machine, --dns localhost)")
	}

	leaf := pki.Leaf{Identity: who, DNS: i.dns, Valid: i.valid}
	for _, one := range i.ips {
		ip := net.ParseIP(one)
		if ip == nil {
			return pki.Leaf{}, commandline.UsageErrorf(cmd, "--ip: %q is no IP address", one)
		}
		leaf.IPs = append(leaf.IPs, ip)
	}
	return leaf, nil
}

// make has the authority sign. The key is nil if it is that of a request.
func (i issue) make(authority *pki.Authority, leaf pki.Leaf) (certificate *x509.Certificate, key []byte, err error) {
	if i.request == "" {
		signer, key, err := pki.GenerateKey()
		if err != nil {
			return nil, nil, err
		}
		certificate, err = authority.Issue(signer.Public(), leaf)
		return certificate, key, err
	}

	text, err := os.ReadFile(i.request)
	if err != nil {
		return nil, nil, cyborg.Errorf(cyborg.ErrInvalid, "the certificate request cannot be read: %w", err)
	}

	block, _ := pem.Decode(text)
	if block == nil {
		return nil, nil, cyborg.Errorf(cyborg.ErrInvalid, "the file %s holds no certificate request in PEM format", i.request)
	}
	if block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST" { // OpenSSL has written both
		return nil, nil, cyborg.Errorf(cyborg.ErrInvalid, "the file %s holds no certificate request: it begins with %q", i.request, cyborg.Sanitize(block.Type, longestType)).
			WithHint("Make one with: openssl req -new -key KEY -subj /CN=NAME")
	}

	certificate, err = authority.IssueRequest(block.Bytes, leaf)
	return certificate, nil, err
}

// longestType is how many characters of a PEM block's type an error shows.
const longestType = 40
