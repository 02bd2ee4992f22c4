package server

import (
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/workers/conductor"
)

// hostname returns this machine's name, as the list of services and Temporal's
// UI show it; "unknown" where it has none.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// workerIdentity returns the name of a process's worker in Temporal. Each
// process has one worker, whatever its roles.
func workerIdentity(host, version, instance string) string {
	return conductor.Identity("conductor", host, version, instance)
}

// ownIdentity is what the certificates of a server must say, if anything; the name
// is any.
func ownIdentity(c *config.Config) identity.Identity {
	return identity.Identity{TrustDomain: c.Identity.TrustDomain, Role: identity.Server}
}

// checkIdentity warns of a certificate for Temporal that is somebody else's. It
// returns no error.
func checkIdentity(cmd *cobra.Command, c *config.Config) error {
	temporalclient.WarnOfIdentity(cmd.Context(), c.Temporal, ownIdentity(c), c.Log.Logger(cmd.ErrOrStderr()))
	return nil
}

// instance tells two processes of one machine apart: it is the process id.
func instance() string { return strconv.Itoa(os.Getpid()) }
