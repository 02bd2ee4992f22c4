// Package server assembles one server process: the API, the conductor, or both,
// over a database and a Temporal client. The commands of cmd/cyborg and the
// standalone share it. It must not import a driver or an agent's package.
package server
