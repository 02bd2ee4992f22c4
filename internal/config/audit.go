package config

// Audit configures the audit trail: one line for each API request that was
// refused or that changes something.
type Audit struct {
	Enabled bool   `key:"enabled" default:"true" doc:"Whether there is a line, in the CADF format, for each request of the API that was refused or changes something."`
	File    string `key:"file" check:"path" example:"/var/log/cyborg/audit.jsonl" doc:"File to which they are added, as lines of JSON; it may be rotated. Empty puts them into the log, whatever its level."`
}
