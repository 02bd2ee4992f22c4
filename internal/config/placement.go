package config

import "time"

// Placement configures how the records are copied to OpenStack Placement.
type Placement struct {
	Enabled      bool          `key:"enabled" default:"false" doc:"Keep the accelerators' resource providers in OpenStack Placement as the records say. This needs openstack.auth_url or openstack.cloud. Set it to the same value for all servers."`
	CompareEvery time.Duration `key:"compare_interval" default:"1h" min:"1s" doc:"How often Cyborg compares a host's whole tree in Placement with the records, and repairs it. Cyborg spreads the hosts over this time. Each host costs Placement three requests, one more for each accelerator that is allocated, and three more for each accelerator that was changed. Every 24th time, Cyborg asks for everything."`
	SilentAfter  time.Duration `key:"silent_after" default:"2m" min:"1s" doc:"How long the agent of a host may be silent. After that, nothing on the host may be scheduled until the agent is heard again."`
	HostsAtOnce  int           `key:"hosts_at_once" default:"8" min:"1" max:"1000" doc:"The most hosts whose trees in Placement one server changes or compares at once."`
}

// validatePlacement requires an OpenStack cloud where Placement is enabled.
func (d *decoder) validatePlacement(c *Config) {
	if c.Placement.Enabled && !c.OpenStack.Enabled() && !d.failed("openstack.auth_url") {
		d.wrongf(c, "placement.enabled", "true", "expected openstack.auth_url beside it")
	}
}
