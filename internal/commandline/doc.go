// Package commandline is what the command lines of all binaries have in common:
// exit codes, usage errors, the printing of errors, manual pages, and the
// release. It knows nothing about what the commands do; of this module it
// imports the root package and the configuration only.
package commandline
