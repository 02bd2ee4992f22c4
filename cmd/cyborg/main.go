// Command cyborg is the command line of the accelerator manager, and its
// server.
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

	// A second Ctrl-C ends the process at once. A second SIGTERM does not, because
	// supervisors send SIGTERM both to a process and to its group.
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt) })

	os.Exit(cli.Execute(ctx, os.Args[1:], cli.System(), server.Commands()...))
}
