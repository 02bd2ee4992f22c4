package config

import "time"

// ARQs configures how long accelerator requests of OpenStack may take, and how
// long they are kept.
type ARQs struct {
	BindTimeout        time.Duration `key:"bind_timeout" default:"60s" min:"1s" max:"24h" doc:"How long a bind may take, with what it waits for others and with loading an image. Then it is undone and has failed. Keep it below Nova's arq_binding_timeout."`
	ForgetUnboundAfter time.Duration `key:"forget_unbound_after" default:"24h" min:"1m" doc:"Requests that nobody has bound for this long are deleted, so are those whose bind to a service of a host has failed, and those of an instance that Nova could put on no host for this long."`
}

// Rescue selects what is done about instances that lost their accelerators when
// their host booted.
type Rescue string

// RescueReport only reports the drift lost_at_boot. RescueHardReboot also has
// Nova reboot the instances.
const (
	RescueReport     Rescue = "report"
	RescueHardReboot Rescue = "hard-reboot"
)

// Nova configures the requests to OpenStack's Nova. It is used only if
// OpenStack.Enabled.
type Nova struct {
	Enabled        bool          `key:"enabled" default:"true" doc:"Tell Nova what became of accelerator requests, and ask it which instances exist. Without it Nova does not learn of binds that load an image."`
	CheckInstances time.Duration `key:"check_instances" default:"1h" min:"1m" doc:"How often Nova is asked whether an instance with accelerator requests still exists, and is as they say. The requests of one that does not are deleted; in what others differ is told as drift."`
	Rescue         Rescue        `key:"rescue_after_host_boot" default:"report" oneof:"report hard-reboot" doc:"A host that boots starts its instances again without their accelerators. They are told as drift of the class lost_at_boot (report), or Nova is also asked to reboot exactly those, once (hard-reboot)."`
	RescueTimeout  time.Duration `key:"rescue_timeout" default:"30m" min:"1m" doc:"How long such reboots may take, with the wait for the host's nova-compute, or for a Nova that is away."`
}
