// Package cyborg defines the types of the accelerator life cycle: hosts,
// devices, accelerators, attach handles and operations, their state machines,
// and the one table of error kinds.
//
// Every other package uses these types. This package imports only the standard
// library and google/uuid; it must never import the database, Temporal, an HTTP
// client or server, or a driver.
package cyborg

// Version is the release of every binary built from this tree. The Makefile
// sets it with -ldflags; this value is for what is built by go build alone.
var Version = "0.1.0"
