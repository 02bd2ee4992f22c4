// Package commandline is what the command lines of all binaries have in common: their exit codes, what a wrong command
// line is, how an error is told, and the release. It knows nothing of what the commands do; of ours it imports the root
// package and the configuration only.
package commandline
