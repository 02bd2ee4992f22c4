// Command cyborg-agent is the agent of one host: it looks after the accelerators there. It must never import the
// database, the API or the conductor.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
