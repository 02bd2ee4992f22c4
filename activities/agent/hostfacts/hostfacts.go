// Package hostfacts finds out the facts of a host: its NUMA nodes, its memory, and what
// the machine is. It reads them by ghw, whose results it checks: ghw ends at the first
// NUMA node that it cannot read, without an error, and its panics become errors here.
//
// It imports the root package, ghw and the standard library.
package hostfacts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jaypipes/ghw"

	"github.com/cyborg-project/cyborg"
)

// longest is how many characters a text of the firmware may have.
const longest = 255

// Read returns the facts of the host below root, the directory that stands for "/"; nil
// where nothing could be found out. What cannot be read is left out, and the log says
// why. It waits no longer than the limit: a file that hangs then costs the facts, and no
// more.
func Read(ctx context.Context, root string, limit time.Duration, log *slog.Logger) *cyborg.HostFacts {
	type result struct {
		facts cyborg.HostFacts
		err   error
	}

	done := make(chan result, 1) // with room, so that a late reading ends, too
	go func() {
		facts, err := read(ctx, root)
		done <- result{facts, err}
	}()

	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case r := <-done:
		if r.err != nil {
			log.InfoContext(ctx, "some facts of this host cannot be read, and are left out", "error", r.err)
		}
		if r.facts.Memory == 0 && r.facts.Product == (cyborg.HostProduct{}) && len(r.facts.NUMANodes) == 0 {
			return nil
		}
		return &r.facts
	case <-late.C:
		log.WarnContext(ctx, "the facts of this host could not be read in time, and are left out until the agent starts again", "limit", limit)
	case <-ctx.Done():
	}
	return nil
}

// read reads each part of the facts on its own, so that one that cannot be read costs
// none of the others.
func read(ctx context.Context, root string) (facts cyborg.HostFacts, err error) {
	for _, part := range []struct {
		what string
		read func(ctx context.Context, facts *cyborg.HostFacts) error
	}{
		{"memory", readMemory}, {"product", readProduct}, {"NUMA nodes", readNUMANodes},
	} {
		var warned warnings
		more := facts
		wrong := guard(func() error { return part.read(options(ctx, root, &warned), &more) })
		if wrong == nil {
			wrong = more.Check()
		}

		if wrong == nil {
			facts = more
		} else { // the warning is often the only one that says what is wrong
			err = errors.Join(err, fmt.Errorf("%s: %w", part.what, errors.Join(wrong, warned.first())))
		}
	}
	return facts, err
}

// guard makes a panic an error.
func guard(read func() error) (err error) {
	defer func() {
		if damage := recover(); damage != nil {
			err = fmt.Errorf("ghw cannot stand what it has read: %v", damage)
		}
	}()
	return read()
}

func readMemory(ctx context.Context, facts *cyborg.HostFacts) error {
	info, err := ghw.Memory(ctx)
	if err == nil {
		facts.Memory = info.TotalUsableBytes
	}
	return err
}

func readProduct(ctx context.Context, facts *cyborg.HostFacts) error {
	info, err := ghw.Product(ctx)
	if err == nil {
		facts.Product = cyborg.HostProduct{Vendor: known(info.Vendor), Name: known(info.Name), Family: known(info.Family)}
	}
	return err
}

// readNUMANodes reads the NUMA nodes in the order of their ids: in that order the kernel
// writes the distances. ghw has them in the order of their names.
func readNUMANodes(ctx context.Context, facts *cyborg.HostFacts) error {
	info, err := ghw.Topology(ctx)
	if err != nil {
		return err
	}

	nodes := make([]cyborg.NUMANode, 0, len(info.Nodes))
	for _, n := range info.Nodes {
		// The cores of ghw are no fact: it takes those of two sockets in one node for the same.
		var cpus []int
		for _, core := range n.Cores {
			cpus = append(cpus, core.LogicalProcessors...)
		}
		nodes = append(nodes, cyborg.NUMANode{
			ID: n.ID, CPUs: len(cpus), CPUList: cpuList(cpus), Memory: n.Memory.TotalUsableBytes, Distances: n.Distances,
		})
	}

	if len(nodes) == 0 {
		return errors.New("ghw has found none")
	}
	for _, node := range nodes {
		// The kernel tells the distances to all nodes.
		if len(node.Distances) != len(nodes) {
			return fmt.Errorf("ghw has found %d of %d", len(nodes), len(node.Distances))
		}
	}

	slices.SortFunc(nodes, func(a, b cyborg.NUMANode) int { return cmp.Compare(a.ID, b.ID) })
	facts.NUMANodes = nodes
	return nil
}

// options are those of one call of ghw. A context takes the place of what ghw would
// take from the environment.
func options(ctx context.Context, root string, warned *warnings) context.Context {
	ctx = ghw.WithChroot(root)(ctx)
	ctx = ghw.WithDisableTools()(ctx)
	ctx = ghw.WithLogger(slog.New(warned))(ctx)
	// Where the kernel does not say how large a block of memory is, ghw would look for that
	// in all of the host's old logs, of which nobody knows how large they are. We don't use
	// what it looks for.
	return ghw.WithPathOverrides(map[string]string{"/var": "/proc/no-logs"})(ctx)
}

// cpuList writes CPUs as the kernel does: 0-15,32-47.
func cpuList(cpus []int) string {
	slices.Sort(cpus)
	var ranges []string
	first := 0
	for i, cpu := range cpus {
		if i+1 < len(cpus) && cpus[i+1] == cpu+1 {
			continue // the range goes on
		}

		text := strconv.Itoa(cpu)
		if first < i {
			text = strconv.Itoa(cpus[first]) + "-" + text
		}
		ranges, first = append(ranges, text), i+1
	}
	return strings.Join(ranges, ",")
}

// known returns a text of the firmware; empty where ghw knows none.
func known(text string) string {
	if text == "unknown" {
		return ""
	}
	return strings.TrimSpace(cyborg.Sanitize(text, longest))
}

// warnings is a handler that keeps the first warning, and writes none.
type warnings struct {
	mu   sync.Mutex
	text string
}

// first returns the first warning as an error; nil where there was none.
func (w *warnings) first() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.text == "" {
		return nil
	}
	return errors.New(cyborg.Sanitize(w.text, longest))
}

// Enabled takes warnings and errors.
func (w *warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle keeps the record if it is the first one.
func (w *warnings) Handle(_ context.Context, record slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.text == "" {
		w.text = record.Message
	}
	return nil
}

// WithAttrs returns the same handler: ghw has all in the message.
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler { return w }

// WithGroup returns the same handler.
func (w *warnings) WithGroup(string) slog.Handler { return w }
