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
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends the process at once. A second SIGTERM does not: supervisors send it to a process and to its group.
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt) })
	os.Exit(cli.Execute(ctx, os.Args[1:], cli.System(), server.Commands()...))
}
