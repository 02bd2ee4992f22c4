package config

import "time"

// ARQs configures how long accelerator requests of OpenStack may take, and how
// long they are kept.
type ARQs struct {
	BindTimeout        time.Duration `key:"bind_timeout" default:"60s" min:"1s" max:"24h" doc:"How long a bind may take, including its wait for other operations and the time to load an image. After that, the bind fails and Cyborg undoes it. Keep this below Nova's arq_binding_timeout."`
	ForgetUnboundAfter time.Duration `key:"forget_unbound_after" default:"24h" min:"1m" doc:"Cyborg deletes requests that nobody has bound for this long. It also deletes requests that have not changed for this long if their bind to a service of a host has failed, or if their instance is on no host."`
}
