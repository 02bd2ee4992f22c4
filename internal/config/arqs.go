package config

import "time"

// ARQs configures how long accelerator requests of OpenStack may take, and how
// long they are kept.
type ARQs struct {
	BindTimeout        time.Duration `key:"bind_timeout" default:"60s" min:"1s" max:"24h" doc:"How long a bind may take, including its wait for other operations and the time to load an image. After that, the bind fails and Cyborg undoes it. Keep this below Nova's arq_binding_timeout."`
	MaxUnbound         int           `key:"max_unbound" default:"1000" min:"0" doc:"How many accelerator requests that are not bound one project may have. Beyond that, a new request is refused with 403, and Nova gives up building the instance. Nova binds a request moments after it has made it, so this limits how many accelerators a project can ask for at the same time. 0 means no limit."`
	ForgetUnboundAfter time.Duration `key:"forget_unbound_after" default:"24h" min:"1m" doc:"Cyborg deletes requests that nobody has bound for this long. It also deletes requests that have not changed for this long if their bind to a service of a host has failed, or if their instance is on no host."`
}
