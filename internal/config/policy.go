package config

import "time"

// Policy configures who may do what on /v2.
type Policy struct {
	File               string        `key:"file" check:"file" example:"/etc/cyborg/policy.yaml" doc:"YAML file of rules that replace the built-in ones, in the syntax of oslo.policy. cyborg server policy prints all rules that are in force."`
	EnforceNewDefaults bool          `key:"enforce_new_defaults" default:"true" doc:"Whether the built-in rules are the strict ones. False adds OpenStack Cyborg's old ones, by which every project sees the whole inventory."`
	Reload             time.Duration `key:"reload" default:"10s" min:"100ms" max:"24h" doc:"How often the file is looked at for changes. One that has a mistake is logged, and the rules stay as they were."`
}
