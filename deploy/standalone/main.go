// Command cyborg-standalone runs all of Cyborg in one process: API, conductor
// and agents, with an embedded Temporal server and a private PostgreSQL that it
// starts itself. It is meant for first steps, a laptop, a single rack and the
// tests. In larger installations the same parts run as processes of their own,
// with cyborg server and cyborg-agent.
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
	// nohup has the signal ignored. To handle it would undo that.
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}

	ctx, _ := signal.NotifyContext(context.Background(), signals...)
	// A second Ctrl-C ends the process at once. A second SIGTERM does not, because
	// supervisors send it both to a process and to its group.
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt) })

	os.Exit(commandline.Execute(ctx, command(), os.Args[1:], os.Stdout, os.Stderr))
}
