package server

import (
	"os"
	"strconv"

	"github.com/cyborg-project/cyborg/workers/conductor"
)

// hostname is this machine's name, as the list of services and Temporal's UI show it.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// workerIdentity is what the worker of a process is called in Temporal. Each process has one, whatever its roles.
func workerIdentity(host, version, instance string) string {
	return conductor.Identity("conductor", host, version, instance)
}

// instance tells two processes of one machine apart.
func instance() string { return strconv.Itoa(os.Getpid()) }
