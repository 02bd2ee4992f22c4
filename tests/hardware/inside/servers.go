// Package inside has the tests that run in a machine of tests/hardware: what an
// agent does on a real kernel. The servers run outside, on the machine that has
// started this one. Outside such a machine the tests are skipped.
package inside

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// Host is the name of the machine's host.
const Host = "rack1"

// shared is the directory that both machines see.
const shared = "/out"

// These are files in the directory that both machines see. The certificate is
// the agent's.
const (
	serversFile = "servers.json"
	Certificate = "agent.crt"
	Key         = "agent.key"
	Authorities = "ca.crt"
)

// Servers are the addresses of the servers, such as 127.0.0.1:6666. They are the
// same in the machine.
type Servers struct {
	API      string `json:"api"`
	Agents   string `json:"agents"`
	Temporal string `json:"temporal"`
}

// Write writes the addresses into the directory that both machines see.
func (s Servers) Write(dir string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, serversFile), text, 0o600)
}

// read returns what Write has written. The error is os.ErrNotExist outside such
// a machine.
func read() (Servers, error) {
	var s Servers
	text, err := os.ReadFile(filepath.Join(shared, serversFile))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}
