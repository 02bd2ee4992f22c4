// Package cyborg holds the words of the accelerator life cycle: hosts, devices, deployables, attach handles,
// operations, their state machines, and the one table of error kinds.
//
// Every other package speaks in these types. This one imports only the standard library and google/uuid; it must
// never import the database, Temporal, HTTP or a driver.
package cyborg

// Version is the release of every binary built from this tree; the build sets it with -ldflags.
var Version = "0.1.0-dev"
