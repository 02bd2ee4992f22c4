// Command server is a Temporal server of an operator's own that obeys only
// Cyborg. It reads Temporal's usual configuration from the directory in its first
// argument, where the frontend must demand and verify certificates of its clients
// (global.tls.frontend.server.requireClientAuth), and the key that seals the
// tokens of steps from the file in its second one: 32 bytes that only this server
// knows, the same ones after a restart and on each frontend.
package main

import (
	"crypto/sha256"
	"crypto/tls"
	"log/slog"
	"os"

	"go.temporal.io/server/common/config"
	"go.temporal.io/server/temporal"

	"github.com/cyborg-project/cyborg/deploy/standalone/temporalauth"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		slog.Error("Temporal has ended", "error", err)
		os.Exit(1)
	}
}

func run(dir, sealKey string) error {
	settings, err := config.Load(config.WithConfigDir(dir))
	if err != nil {
		return err
	}

	key, err := os.ReadFile(sealKey)
	if err != nil {
		return err
	}

	// Temporal's own workers are clients of the frontend, too, and may do everything.
	worker := settings.Global.TLS.SystemWorker
	pair, err := tls.LoadX509KeyPair(worker.CertFile, worker.KeyFile)
	if err != nil {
		return err
	}

	guard, err := temporalauth.New(temporalauth.Config{
		TrustDomain: "cyborg", Namespace: "cyborg", SealKey: key, Self: sha256.Sum256(pair.Certificate[0]), Log: slog.Default(),
	})
	if err != nil {
		return err
	}

	server, err := guard.NewServer(
		temporal.ForServices(temporal.DefaultServices), temporal.WithConfig(settings), temporal.InterruptOn(temporal.InterruptCh()))
	if err != nil {
		return err
	}
	return server.Start()
}
