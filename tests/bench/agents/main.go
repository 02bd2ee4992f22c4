// Agents simulates many agents in one process, for benchmarks. Each agent
// reports its inventory, sends heartbeats and waits for steps like
// cyborg-agent, over connections of its own. It has no hardware, no state and
// no driver.
//
// The program reads commands from its standard input, one a line. When a
// command is done, the program answers with a line of JSON (Answer):
//
//	start    all hosts boot at once: each reports its devices and, with -temporal, waits for steps on its queue
//	change   all hosts at once change one of their devices and report that
//	count    nothing is done: the answer has the counts since the last one
//
// The program ends at the end of its standard input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Answer is the result of a command.
type Answer struct {
	// Took is the time until the last host was done, in milliseconds.
	Took float64 `json:"took_ms"`
	// P50 and P99 are percentiles over the hosts, in milliseconds: the time from
	// the command until the host was done, including repeats and pauses.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	// Counts are the counts since the last answer.
	Counts
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "agents:", err)
		os.Exit(1) //nolint:gocritic,forbidigo // this is main; the signal handler ends with the process
	}
}

// run does the commands one after the other, until the input or the context
// ends.
func run(ctx context.Context) error {
	var options settings
	flag.StringVar(&options.endpoint, "endpoint", "http://127.0.0.1:6667", "URL of the agent endpoint")
	flag.StringVar(&options.temporal, "temporal", "", "address of Temporal; empty for hosts that take no steps")
	flag.IntVar(&options.hosts, "hosts", 1000, "how many hosts")
	flag.IntVar(&options.devices, "devices", 8, "devices of each host, with two handles each")
	flag.StringVar(&options.authority, "authority", "", "directory of the authority that signs the hosts' certificates for Temporal")
	flag.StringVar(&options.prefix, "prefix", "sim", "what the hosts' names begin with")
	flag.DurationVar(&options.interval, "heartbeat", 10*time.Second, "time between two heartbeats; 0 for none")
	flag.Parse()
	if flag.NArg() > 0 {
		return errors.New("it takes options, and commands on its standard input")
	}

	c, err := newCloud(options)
	if err != nil {
		return err
	}
	defer c.close()

	commands := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	// A read of the standard input cannot be interrupted. The goroutine that reads
	// ends with the process, and run itself reacts to the context.
	lines := make(chan string)
	go func() {
		defer close(lines)
		for commands.Scan() {
			lines <- commands.Text()
		}
	}()

	for {
		select {
		case <-ctx.Done():
			return nil
		case line, more := <-lines:
			if !more {
				return commands.Err()
			}

			answer, err := c.do(ctx, line)
			if err != nil {
				return err
			}

			if err := answers.Encode(answer); err != nil {
				return err
			}
		}
	}
}

// do does one command.
func (c *cloud) do(ctx context.Context, command string) (Answer, error) {
	switch command {
	case "start":
		return c.all(func(h *host) error { return h.start(ctx) })
	case "change":
		return c.all(func(h *host) error { h.change(); return h.report(ctx) })
	case "count":
		return Answer{Counts: c.counts.take()}, nil
	}
	return Answer{}, fmt.Errorf("%q is no command: start, change, count", command)
}

// all calls do for every host at once, and returns when all are done, with the
// errors of all hosts. Every time is measured from the common start, so that it
// includes the wait for this process itself.
func (c *cloud) all(do func(h *host) error) (Answer, error) {
	var (
		began  = time.Now()
		taken  = make([]float64, len(c.hosts))
		failed = make([]error, len(c.hosts))
		group  sync.WaitGroup
	)

	for i, h := range c.hosts {
		group.Go(func() {
			failed[i] = do(h)
			taken[i] = milliseconds(time.Since(began))
		})
	}
	group.Wait()

	answer := Answer{Took: milliseconds(time.Since(began)), Counts: c.counts.take()}
	slices.Sort(taken)
	answer.P50, answer.P99 = taken[len(taken)/2], taken[len(taken)*99/100]
	return answer, errors.Join(failed...)
}

// milliseconds converts a duration, to microseconds' precision.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
