// Command cyborg is the client of the accelerator manager, and the manager's server.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/cyborg-project/cyborg/internal/cli"
	"github.com/cyborg-project/cyborg/internal/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(cli.Execute(ctx, os.Args[1:], cli.System(), server.Commands()...))
}
