package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/transcript"
	"github.com/cyborg-project/cyborg/workers/agent"
	"github.com/cyborg-project/cyborg/workflows"
)

// cake is a card that can be divided, with its driver.
type cake struct {
	mu     sync.Mutex
	layout cyborg.Layout
	// failure is what the driver answers instead of dividing it; nil where it divides it.
	failure error
	// gone says that it is not there.
	gone bool
}

func (c *cake) Discover(context.Context) ([]cyborg.DeviceReport, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return nil, nil
	}
	report := cyborg.DeviceReport{Identity: "cake", Partitioning: &cyborg.Partitioning{
		Parts: []cyborg.PartKind{{Name: "slice", Most: 8}}, Layout: maps.Clone(c.layout),
	}}
	if len(c.layout) == 0 {
		report.Deployables = []cyborg.DeployableReport{{Name: "whole", Handles: []cyborg.HandleReport{{Kind: cyborg.HandleDEV, Identity: "/dev/cake"}}}}
	}
	for n := range c.layout["slice"] {
		report.Deployables = append(report.Deployables, cyborg.DeployableReport{
			Name: fmt.Sprintf("slice%d", n), Handles: []cyborg.HandleReport{{Kind: cyborg.HandleDEV, Identity: fmt.Sprintf("/dev/slice%d", n)}},
		})
	}
	return []cyborg.DeviceReport{report}, nil
}

func (c *cake) CheckLayout(context.Context, cyborg.DeviceReport, cyborg.Layout) error { return nil }

func (c *cake) Partition(_ context.Context, request drivers.PartitionRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		return c.failure
	}
	c.layout = request.Layout
	return nil
}

// boots makes the card whole.
func (c *cake) boots(failure error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.layout, c.failure = nil, failure
}

// pulled says whether the card is not there.
func (c *cake) pulled(gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = gone
}

// dividedAs is how a report says that the card is divided.
func dividedAs(report agentapi.Report) string {
	return report.Content.Backends[0].Devices[0].Partitioning.Layout.String()
}

// TestABootOfADividedCard: after a boot, the card is divided again before the first report.
// Where that fails, the agent starts all the same, and the report and the log say so.
func TestABootOfADividedCard(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	said, card := &transcript.Text{}, &cake{}
	h.deps.Log = slog.New(slog.NewTextHandler(said, nil))
	require.NoError(t, h.deps.Drivers.Register("cake", func(drivers.Environment, map[string]any) (drivers.Driver, error) { return card, nil }))
	h.config.Backends = []agent.BackendConfig{{Name: "cake", Driver: "cake", Enabled: true}}
	h.temporal.start()

	_, stop := h.run()
	h.acknowledged()
	in := workflows.PartitionInput{
		Operation: uuid.New(), Device: cyborg.DeviceTarget{Backend: "cake", Identity: "cake", Deployables: []string{"whole"}}, Layout: cyborg.Layout{"slice": 3},
	}
	require.Nil(t, h.temporal.run(workflows.PartitionActivity, in, nil))
	stop()

	first := func(boot string) agentapi.Report {
		h.deps.BootID = boot
		told := len(h.conductor.reported())
		a, stop := h.run()
		defer stop()
		<-a.Ready()
		return h.reports(told + 1)[told]
	}

	card.boots(nil)
	report := first("boot-2")
	require.Equal(t, "boot-2", report.BootID)
	require.Equal(t, "slice=3", dividedAs(report))
	require.Contains(t, said.String(), "a device is divided again as before the boot")

	card.boots(cyborg.Errorf(cyborg.ErrHardware, "it smoked"))
	report = first("boot-3")
	require.Equal(t, "boot-3", report.BootID)
	require.Equal(t, "whole", dividedAs(report))
	require.Contains(t, said.String(), "a device cannot be divided again after a boot; it is reported as it is")
	require.Contains(t, said.String(), "it smoked")
	require.Equal(t, 1, strings.Count(said.String(), "is not divided like that again by itself"))

	card.boots(nil)
	require.Equal(t, "whole", dividedAs(first("boot-4")), "the records may have given it away since")
}

// TestACardThatAppearsAfterABoot: a card that is not there when the agent looks first after a
// boot is never reported as the boot has left it.
func TestACardThatAppearsAfterABoot(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	card := &cake{}
	require.NoError(t, h.deps.Drivers.Register("cake", func(drivers.Environment, map[string]any) (drivers.Driver, error) { return card, nil }))
	h.config.Backends = []agent.BackendConfig{{Name: "cake", Driver: "cake", Enabled: true}}
	h.temporal.start()

	_, stop := h.run()
	h.acknowledged()
	in := workflows.PartitionInput{
		Operation: uuid.New(), Device: cyborg.DeviceTarget{Backend: "cake", Identity: "cake", Deployables: []string{"whole"}}, Layout: cyborg.Layout{"slice": 3},
	}
	require.Nil(t, h.temporal.run(workflows.PartitionActivity, in, nil))
	stop()

	card.boots(nil)
	card.pulled(true)
	h.deps.BootID = "boot-2"
	told := len(h.conductor.reported())
	a, stop := h.run()
	defer stop()
	<-a.Ready()
	h.reports(told + 1)
	card.pulled(false)
	for there := false; !there; {
		require.Nil(t, h.temporal.run(workflows.DiscoverActivity, workflows.DiscoverInput{Host: h.config.Host}, nil))
		for _, report := range h.conductor.reported()[told:] {
			if len(report.Content.Backends) > 0 && len(report.Content.Backends[0].Devices) > 0 {
				there = true
				require.Equal(t, "slice=3", dividedAs(report))
			}
		}
	}
}
