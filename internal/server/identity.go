package server

import (
	"os"
	"strconv"
)

// hostname is this machine's name, as the list of services and Temporal's UI show it.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// instance tells two processes of one machine apart.
func instance() string { return strconv.Itoa(os.Getpid()) }
