// Command cyborg-test-agent is cyborg-agent with the fake driver besides, for
// tests and demonstrations with agents in processes of their own. It is never
// installed on a host: whoever can configure its backends could have it serve
// cards that do not exist.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/cyborg-project/cyborg/drivers/builtin"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/agentcmd"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

func main() {
	drivers, err := builtin.Registry()
	if err == nil {
		err = fake.Register(drivers)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(commandline.ExitFailed)
	}

	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt) })

	os.Exit(commandline.Execute(ctx, agentcmd.Command(drivers), os.Args[1:], os.Stdout, os.Stderr))
}
