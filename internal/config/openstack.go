package config

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// OpenStack configures the cloud that the server belongs to, and the server's
// own user in it. The credential is one of three: an entry of clouds.yaml, an
// application credential, or a user with a password.
type OpenStack struct {
	AuthURL               string `key:"auth_url" check:"url" example:"https://keystone.example.org:5000/v3" doc:"URL of Keystone. Where this and cloud are empty there is no OpenStack, and nothing of these sections is used."`
	Cloud                 string `key:"cloud" example:"cyborg" doc:"Instead of auth_url, the user and the region here: the name of an entry in clouds.yaml that has them, as OpenStack's own clients read it."`
	CloudsFile            string `key:"clouds_file" check:"file" example:"/etc/cyborg/clouds.yaml" doc:"That file; a secure.yaml beside it is read as well. Empty means the first of clouds.yaml in the working directory, in ~/.config/openstack and in /etc/openstack."`
	Username              string `key:"username" default:"cyborg" doc:"The server's own user."`
	Password              Secret `key:"password" doc:"Its password."`
	PasswordFile          string `key:"password_file" check:"file" example:"/etc/cyborg/openstack-password" doc:"A file that holds it instead."`
	ApplicationCredential string `key:"application_credential_id" doc:"Instead of username, password, project and domains: the id of an application credential of the user, for the project in which it has its role."`
	ApplicationSecret     Secret `key:"application_credential_secret" doc:"Its secret."`
	ApplicationSecretFile string `key:"application_credential_secret_file" check:"file" example:"/etc/cyborg/openstack-secret" doc:"A file that holds it instead."`

	// The user needs a role in the project that may validate tokens and change
	// Placement: service, or admin on older clouds.
	UserDomain    string `key:"user_domain_name" default:"Default" doc:"The user's domain."`
	Project       string `key:"project_name" default:"service" doc:"The project in which the user has the role service (or admin, where the cloud is older than that role)."`
	ProjectDomain string `key:"project_domain_name" default:"Default" doc:"The project's domain."`

	// How the endpoints of services are found and reached.
	Region    string            `key:"region" example:"RegionOne" doc:"Region of the services in the catalog; empty takes the first that is there."`
	Interface EndpointInterface `key:"interface" default:"internal" oneof:"public internal admin" doc:"Which of a service's endpoints in the catalog is used."`
	Endpoints []ServiceEndpoint `key:"endpoints" doc:"Endpoints that are used instead of those in the catalog."`
	CAFile    string            `key:"ca_file" check:"file" example:"/etc/cyborg/openstack-ca.crt" doc:"PEM file of the authorities that may have signed the services' certificates, instead of the system's."`
	Insecure  bool              `key:"insecure" default:"false" doc:"Accept any certificate. For a first try only: whoever is between can take the password."`
	Connect   time.Duration     `key:"connect_timeout" default:"5s" max:"5m" doc:"How long connecting to a service may take."`
	Answer    time.Duration     `key:"answer_timeout" default:"30s" max:"1h" doc:"How long a service may stay silent while we wait for its answer, or for more of it."`
}

// EndpointInterface selects one of the endpoints that Keystone's catalog lists
// for a service: public, internal or admin.
type EndpointInterface string

// ServiceEndpoint is the address of a service, which replaces the catalog's.
type ServiceEndpoint struct {
	Service string `key:"service" doc:"Type of the service, as the catalog has it: placement, compute, image."`
	URL     string `key:"url" check:"url" doc:"Its URL, as it would stand in the catalog."`
}

// Enabled reports whether an OpenStack cloud is configured. Where it is not,
// the other sections about OpenStack are not used either.
func (o OpenStack) Enabled() bool { return o.AuthURL != "" || o.Cloud != "" }

// validateOpenStack checks the endpoints, and whether one whole credential is
// there. It also reads secrets from their files.
func (d *decoder) validateOpenStack(c *Config, process Process) {
	o := &c.OpenStack
	taken := map[string]int{}

	for i, endpoint := range o.Endpoints {
		key := fmt.Sprintf("openstack.endpoints[%d]", i)
		if d.failed(key) {
			continue
		}

		switch first, double := taken[endpoint.Service]; {
		case endpoint.Service == "" || endpoint.URL == "":
			d.item(c, "openstack.endpoints", i, Problem{Key: key, Message: "expected service and url"})
		case double:
			d.item(c, "openstack.endpoints", i, Problem{
				Key: key + ".service", Value: endpoint.Service,
				Message: fmt.Sprintf("expected another service than that of openstack.endpoints[%d]", first),
			})
		}

		taken[endpoint.Service] = i
	}

	// Only a process that uses OpenStack needs the credential.
	if !o.Enabled() || !process.uses("openstack") {
		return
	}

	switch {
	case o.Cloud != "":
		if o.AuthURL != "" {
			d.wrongf(c, "openstack.cloud", o.Cloud, "expected either openstack.auth_url or this")
		}

	case o.ApplicationCredential != "":
		d.secretOf(c, "openstack.application_credential_secret", &o.ApplicationSecret, o.ApplicationSecretFile)
		if o.ApplicationSecret == "" && !d.failed("openstack.application_credential_secret") && !d.failed("openstack.application_credential_secret_file") {
			d.missingf("openstack.application_credential_secret",
				"expected the secret of the application credential; set openstack.application_credential_secret_file, or give")
		}

	default:
		if o.Username == "" {
			d.missingf("openstack.username", "expected the name of the server's own user; set")
		}
		d.secretOf(c, "openstack.password", &o.Password, o.PasswordFile)
		if o.Password == "" && !d.failed("openstack.password") && !d.failed("openstack.password_file") {
			d.missingf("openstack.password", "expected the password of the server's own user; set openstack.password_file, or give")
		}
	}
}

// secretOf sets the secret from its file. The key is that of the secret; the
// key of the file is the same with _file at its end. Only one of the two may be
// set.
func (d *decoder) secretOf(c *Config, key string, secret *Secret, file string) {
	if file == "" || d.failed(key+"_file") {
		return
	}

	if *secret != "" {
		d.wrongf(c, key+"_file", file, "expected either %s or this", key)
		return
	}

	text, err := os.ReadFile(file)
	if err != nil {
		d.wrongf(c, key+"_file", file, "cannot be read: %v", err)
		return
	}

	*secret = Secret(strings.TrimSpace(string(text)))
}
