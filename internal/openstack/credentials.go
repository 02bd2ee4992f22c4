package openstack

import (
	"cmp"
	"crypto/tls"
	"fmt"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
)

// credentials is the identity of our own user in the cloud, and the address of
// Keystone.
type credentials struct {
	authURL string
	region  string // empty: any
	login   gophercloud.AuthOptions
	who     string // the user or application credential in words, for logs and errors
	tls     *tls.Config
}

// credentialsOf reads the credentials from the configuration, or from the
// clouds.yaml that it names. The error is of kind ErrInvalid.
func credentialsOf(c config.OpenStack) (credentials, error) {
	if c.Cloud != "" {
		return fromClouds(c)
	}

	roots, err := c.Authorities()
	if err != nil {
		return credentials{}, err
	}

	out := credentials{
		authURL: c.AuthURL, region: c.Region,
		tls: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, InsecureSkipVerify: c.Insecure}, //nolint:gosec // only where the operator asks for it, with a warning
	}

	if c.ApplicationCredential != "" {
		out.login = gophercloud.AuthOptions{
			ApplicationCredentialID: c.ApplicationCredential, ApplicationCredentialSecret: c.ApplicationSecret.Reveal(),
		}
		out.who = "application credential " + c.ApplicationCredential

		return out, nil
	}

	out.login = gophercloud.AuthOptions{
		Username: c.Username, Password: c.Password.Reveal(), DomainName: c.UserDomain,
		Scope: &gophercloud.AuthScope{ProjectName: c.Project, DomainName: c.ProjectDomain},
	}

	out.who = fmt.Sprintf("user %s of the domain %s, for the project %s", c.Username, c.UserDomain, c.Project)
	return out, nil
}

// fromClouds reads an entry of clouds.yaml, and of secure.yaml beside it, as
// OpenStack's own clients do. CAFile and Insecure of the configuration take
// precedence over the entry. The error is of kind ErrInvalid.
func fromClouds(c config.OpenStack) (credentials, error) {
	options := []clouds.ParseOption{clouds.WithCloudName(c.Cloud)}
	if c.CloudsFile != "" {
		options = append(options, clouds.WithLocations(c.CloudsFile))
	}

	if c.CAFile != "" {
		options = append(options, clouds.WithCACertPath(c.CAFile))
	}

	if c.Insecure {
		options = append(options, clouds.WithInsecure(true))
	}

	login, endpoint, certificates, err := clouds.Parse(options...)
	if err != nil {
		return credentials{}, cyborg.Errorf(cyborg.ErrInvalid, "openstack.cloud %q cannot be used: %w", c.Cloud, err).
			WithHint("Correct openstack.cloud and openstack.clouds_file, or that file.")
	}

	if login.TokenID != "" || login.Password == "" && login.ApplicationCredentialSecret == "" {
		return credentials{}, cyborg.Errorf(cyborg.ErrInvalid, "openstack.cloud %q has neither a password nor an application credential with its secret",
			c.Cloud).WithHint("A server logs in again and again, so it can use neither a token nor a login that asks a person.")
	}

	who := "user " + cmp.Or(login.Username, login.UserID)

	// An application credential already implies its project; Keystone rejects a
	// login that also names one.
	if login.ApplicationCredentialSecret != "" {
		login.Password, login.Scope, login.TenantID, login.TenantName = "", nil, "", ""
		who = "application credential " + cmp.Or(login.ApplicationCredentialID, login.ApplicationCredentialName)
	}

	certificates.MinVersion = tls.VersionTLS12
	return credentials{
		authURL: login.IdentityEndpoint, region: cmp.Or(endpoint.Region, c.Region), login: login,
		who: fmt.Sprintf("%s (of the cloud %s)", who, c.Cloud), tls: certificates,
	}, nil
}
