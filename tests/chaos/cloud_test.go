package chaos_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg/internal/openstack/glance/glancetest"
	"github.com/cyborg-project/cyborg/internal/openstack/nova/novatest"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/internal/openstack/placement/placementtest"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// cloud is a model of the OpenStack services that Cyborg uses. They run in the
// process of the test, and fail as a schedule says. Their state survives the
// failures.
type cloud struct {
	keystone  *openstacktest.Keystone
	placement *placementtest.Placement
	nova      *novatest.Nova
	glance    *glancetest.Glance
	services  map[string]*harness.Service

	// Tokens of an administrator, of a user, and of Nova itself.
	admin, user, service string
}

// project is the project of the user and of the instances.
const project = "0a5f9c2d7e8b4c1d9f3e6a7b8c9d0e1f"

// startCloud starts the services, with a compute node for each host and tokens
// that outlive the test.
func startCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{
		keystone: openstacktest.NewKeystone(t), placement: placementtest.New(), glance: glancetest.New(), services: map[string]*harness.Service{},
	}

	c.nova = novatest.New(c.keystone.IsOwn)
	c.glance.Trust(c.keystone.IsOwn)
	for i := range hosts {
		c.placement.AddHost(hostName(i))
	}

	c.services[keystone] = harness.StartService(t, keystone, c.keystone)
	c.services[placement] = harness.StartService(t, placement, c.placement)
	c.services[nova] = harness.StartService(t, nova, c.nova)
	c.services[glance] = harness.StartService(t, glance, c.glance)

	ends := time.Now().Add(100 * time.Hour)
	c.admin = c.keystone.Issue(openstacktest.Token{
		UserID: "u-admin", User: "admin", ProjectID: uuid.NewString(), ProjectIs: "admin", Roles: []string{"admin", "member", "reader"}, Expires: ends,
	})
	c.user = c.keystone.Issue(openstacktest.Token{
		UserID: "u-demo", User: "demo", ProjectID: project, ProjectIs: "demo", Roles: []string{"member", "reader"}, Expires: ends,
	})
	c.service = c.keystone.Issue(openstacktest.Token{
		UserID: "u-nova", User: "nova", ProjectID: uuid.NewString(), ProjectIs: "service", Roles: []string{"service"}, Expires: ends,
	})

	return c
}

// env returns the settings with which a server uses the cloud. to returns the
// address of the server's link to a service.
func (c *cloud) env(to func(name, address string) string) []string {
	url := func(name string) string { return "http://" + to(name, c.services[name].Address) }
	return []string{
		"CYBORG_OPENSTACK_AUTH_URL=" + url(keystone) + "/v3", "CYBORG_OPENSTACK_USERNAME=" + openstacktest.OwnUser,
		"CYBORG_OPENSTACK_PASSWORD=" + openstacktest.OwnPassword,
		fmt.Sprintf("CYBORG_OPENSTACK_ENDPOINTS=[{service: placement, url: %q}, {service: compute, url: %q}, {service: image, url: %q}]",
			url(placement), url(nova)+"/v2.1", url(glance)),
		"CYBORG_OPENSTACK_CONNECT_TIMEOUT=2s", "CYBORG_OPENSTACK_ANSWER_TIMEOUT=5s",
		"CYBORG_KEYSTONE_ENABLED=true", "CYBORG_KEYSTONE_REVOCATION_WINDOW=1s",
		"CYBORG_PLACEMENT_ENABLED=true", "CYBORG_PLACEMENT_COMPARE_INTERVAL=10s", "CYBORG_PLACEMENT_SILENT_AFTER=5s",
		"CYBORG_ARQS_FORGET_UNBOUND_AFTER=10m", "CYBORG_NOVA_CHECK_INSTANCES=1m", "CYBORG_NOVA_RESCUE_AFTER_HOST_BOOT=hard-reboot",
	}
}

// inject makes a service fail, and returns a function that heals it.
func (c *cloud) inject(f fault) (heal func() error, err error) {
	s := c.services[f.target]
	switch f.faultKind {
	case outage:
		s.Down()
	case slow:
		s.Disturb(harness.Trouble{Slow: f.amount})
	case conflict:
		s.Disturb(harness.Trouble{Status: 409})
	case broken:
		s.Disturb(harness.Trouble{Status: 500})
	case busy:
		s.Disturb(harness.Trouble{Status: 503})
	case lost:
		s.Disturb(harness.Trouble{Lost: true})
	default:
		return nil, fmt.Errorf("%s is not a fault of a service", f.faultKind)
	}

	return func() error { return healService(s) }, nil
}

// healService ends a service's trouble and makes it reachable.
func healService(s *harness.Service) error {
	s.Disturb(harness.Trouble{})
	return s.Up()
}

// healAll heals all services.
func (c *cloud) healAll() error {
	for _, s := range c.services {
		if err := healService(s); err != nil {
			return err
		}
	}
	return nil
}
