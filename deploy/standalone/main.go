// Command cyborg-standalone is the whole of Cyborg in one process: API, conductor and agents, with an embedded Temporal
// server and a private PostgreSQL that it starts itself. It is the default for a newcomer, a laptop, a single rack and
// the tests; the same parts run apart with cyborg server and cyborg-agent.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/cyborg-project/cyborg/internal/commandline"
)

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, _ := signal.NotifyContext(context.Background(), signals...)
	// A second Ctrl-C ends the process at once. A second SIGTERM does not: supervisors send it to a process and to its group.
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt) })
	os.Exit(commandline.Execute(ctx, command(), os.Args[1:], os.Stdout, os.Stderr))
}
