// Command cyborg-agent is the agent of one host, which manages the accelerators
// there. It must never import the database, the API or the conductor, and has
// only drivers of real hardware.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/cyborg-project/cyborg/drivers/builtin"
	"github.com/cyborg-project/cyborg/internal/agentcmd"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

func main() {
	drivers, err := builtin.Registry()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(commandline.ExitFailed)
	}

	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)

	// A second Ctrl-C ends the process at once. A second SIGTERM does not, because
	// supervisors send SIGTERM both to a process and to its group.
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt) })

	os.Exit(commandline.Execute(ctx, agentcmd.Command(drivers), os.Args[1:], os.Stdout, os.Stderr))
}
