package config

import "time"

// Policy configures who may do what on /v2.
type Policy struct {
	File               string        `key:"file" check:"file" example:"/etc/cyborg/policy.yaml" doc:"YAML file of rules that replace the built-in ones, in the syntax of oslo.policy. The command cyborg server policy prints all rules that are in force."`
	EnforceNewDefaults bool          `key:"enforce_new_defaults" default:"true" doc:"Whether only the strict built-in rules apply. If this is false, Cyborg adds OpenStack Cyborg's old rules, which let every project see the whole inventory."`
	Reload             time.Duration `key:"reload" default:"10s" min:"100ms" max:"24h" doc:"How often the server looks for changes in the file. If the file has a mistake, the server logs it and keeps the rules as they were."`
}
