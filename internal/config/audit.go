package config

// Audit configures the audit trail: one line for each API request that was
// refused or that changes something.
type Audit struct {
	Enabled bool   `key:"enabled" default:"true" doc:"Write a line, in the CADF format, for each API request that was refused or changes something."`
	File    string `key:"file" check:"path" example:"/var/log/cyborg/audit.jsonl" doc:"File that the server adds these lines to, as lines of JSON. You may rotate it. If this is empty, the server writes the lines into the log, whatever the log's level."`
}
