package config

import "time"

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
	Enabled        bool          `key:"enabled" default:"true" doc:"Tell Nova the outcome of accelerator requests, and ask Nova which instances exist. If this is false, Nova does not learn how a bind that loads an image has ended, because its request was answered before that. The answer has the outcome of all other binds."`
	CheckInstances time.Duration `key:"check_instances" default:"1h" min:"1m" doc:"How often Cyborg asks Nova whether an instance with accelerator requests still exists and is as the requests say. Cyborg deletes the requests of an instance that does not exist any more, and reports other differences as drift."`
	Rescue         Rescue        `key:"rescue_after_host_boot" default:"report" oneof:"report hard-reboot" doc:"What Cyborg does when a host boots and starts its instances again without their accelerators. Cyborg reports these instances as drift of the class lost_at_boot (report), or also asks Nova to reboot exactly these instances, once (hard-reboot)."`
	RescueTimeout  time.Duration `key:"rescue_timeout" default:"30m" min:"1m" doc:"How long the reboots of a rescue may take, including the wait for the host's nova-compute, or for a Nova that does not answer."`
}
