package config

// Audit says what becomes of the lines about who was refused and who changed something.
type Audit struct {
	Enabled bool   `key:"enabled" default:"true" doc:"Whether there is a line, in the CADF format, for each request of the API that was refused or changes something."`
	File    string `key:"file" check:"path" example:"/var/log/cyborg/audit.jsonl" doc:"File to which they are added, as lines of JSON; it may be rotated. Empty puts them into the log, whatever its level."`
}
