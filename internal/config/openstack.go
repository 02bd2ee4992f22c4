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
	AuthURL               string `key:"auth_url" check:"url" example:"https://keystone.example.org:5000/v3" doc:"URL of Keystone. If this and cloud are both empty, Cyborg runs without OpenStack and ignores the sections about it."`
	Cloud                 string `key:"cloud" example:"cyborg" doc:"Name of an entry in clouds.yaml that has the URL, the user and the region. Set it instead of auth_url, the user and the region here. Cyborg reads the file as OpenStack's own clients do."`
	CloudsFile            string `key:"clouds_file" check:"file" example:"/etc/cyborg/clouds.yaml" doc:"Path of clouds.yaml. Cyborg also reads a secure.yaml in the same directory, and both only at its start, with the files that they name. If this is empty, Cyborg takes the first clouds.yaml that it finds in the working directory, in ~/.config/openstack and in /etc/openstack."`
	Username              string `key:"username" default:"cyborg" doc:"Name of the server's own user."`
	Password              Secret `key:"password" doc:"Password of the server's own user."`
	PasswordFile          string `key:"password_file" check:"file" example:"/etc/cyborg/openstack-password" doc:"A file that holds the password. Set it instead of password."`
	ApplicationCredential string `key:"application_credential_id" doc:"Id of an application credential of the user, for the project in which the user has its role. Set it instead of username, password, project and domains."`
	ApplicationSecret     Secret `key:"application_credential_secret" doc:"Secret of the application credential."`
	ApplicationSecretFile string `key:"application_credential_secret_file" check:"file" example:"/etc/cyborg/openstack-secret" doc:"A file that holds the secret. Set it instead of application_credential_secret."`

	// The user needs a role in the project that may validate tokens and change
	// Placement: service, or admin on older clouds.
	UserDomain    string `key:"user_domain_name" default:"Default" doc:"The user's domain."`
	Project       string `key:"project_name" default:"service" doc:"The project in which the user has the role service (or admin, if the cloud is older than the role service)."`
	ProjectDomain string `key:"project_domain_name" default:"Default" doc:"The project's domain."`

	// How the endpoints of services are found and reached.
	Region    string            `key:"region" example:"RegionOne" doc:"Region of the services in the catalog. If this is empty, Cyborg takes the first one there."`
	Interface EndpointInterface `key:"interface" default:"internal" oneof:"public internal admin" doc:"Which of a service's endpoints in the catalog Cyborg uses."`
	Endpoints []ServiceEndpoint `key:"endpoints" doc:"Endpoints that Cyborg uses instead of those in the catalog."`
	CAFile    string            `key:"ca_file" check:"file" example:"/etc/cyborg/openstack-ca.crt" doc:"PEM file of the certificate authorities that Cyborg trusts for the services' certificates, instead of the system's."`
	Insecure  bool              `key:"insecure" default:"false" doc:"Accept any certificate. Use this for a first try only: anybody between Cyborg and the service can take the password."`
	Connect   time.Duration     `key:"connect_timeout" default:"5s" max:"5m" doc:"How long connecting to a service may take."`
	Answer    time.Duration     `key:"answer_timeout" default:"30s" max:"1h" doc:"How long a service may stay silent while Cyborg waits for its answer, or for more of the answer."`
}

// EndpointInterface selects one of the endpoints that Keystone's catalog lists
// for a service: public, internal or admin.
type EndpointInterface string

// ServiceEndpoint is the address of a service, which replaces the catalog's.
type ServiceEndpoint struct {
	Service string `key:"service" doc:"Type of the service, as in the catalog: placement, compute, image."`
	URL     string `key:"url" check:"url" doc:"URL of the service, as it would be in the catalog."`
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
