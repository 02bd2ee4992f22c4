// Agents plays many agents in one process, for benchmarks: each reports its
// inventory, gives signs of life and waits for steps as cyborg-agent does, with
// connections of its own, and has no hardware, no state and no driver.
//
// It reads commands from its standard input, a line each, and answers each with
// a line of JSON (Answer) when it is done:
//
//	start    every host boots, all at once: it reports all it has and, with -temporal, waits for steps on its queue
//	change   every host changes one of its devices and reports that, all at once
//	count    what was sent and answered since the last answer
//
// It ends when its standard input does.
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

// Answer is what a command did.
type Answer struct {
	// Took is how long it took until the last host had done it, in milliseconds.
	Took float64 `json:"took_ms"`
	// P50 and P99 are of the hosts: how long each took until it had its
	// acknowledgement, repeats and pauses included.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
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

func run(ctx context.Context) error {
	var options settings
	flag.StringVar(&options.endpoint, "endpoint", "http://127.0.0.1:6667", "URL of the agent endpoint")
	flag.StringVar(&options.temporal, "temporal", "", "address of Temporal; empty for hosts that take no steps")
	flag.IntVar(&options.hosts, "hosts", 1000, "how many hosts")
	flag.IntVar(&options.devices, "devices", 8, "devices of each host, with two handles each")
	flag.IntVar(&options.shared, "shared", 1, "how many hosts share a connection to Temporal; really each has one")
	flag.StringVar(&options.prefix, "prefix", "sim", "what the hosts' names begin with")
	flag.DurationVar(&options.interval, "heartbeat", 10*time.Second, "time between two heartbeats; 0 for none")
	flag.Parse()
	if flag.NArg() > 0 {
		return errors.New("it takes options, and commands on its standard input")
	}
	c := newCloud(options)
	defer c.close()
	commands := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
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

// all has every host do something, all at once.
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

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
