package agent_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// Usage tells of each deployable who uses its handles and what its sensors
// measure. What fails for one deployable is an error of that one only.
func TestUsage(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))

	var usage cyborg.HostUsage
	h.must(workflows.UsageActivity, workflows.UsageInput{Host: hostName}, &usage)
	require.Equal(t, hostName, usage.Host)
	require.WithinDuration(t, time.Now(), usage.At, time.Minute)
	require.Empty(t, usage.Error)
	require.Len(t, usage.Deployables, 2)

	first := usage.Deployables[0]
	require.Equal(t, region, first.Deployable)
	require.Equal(t, []cyborg.HandleUsage{
		{Handle: handle, Attached: true, InUse: true, By: "qemu"}, {Handle: second},
	}, first.Handles)
	require.InDelta(t, 60, first.Metrics["temperature_celsius"], 0.1)
	require.Empty(t, first.Error)

	h.must(workflows.UsageActivity, workflows.UsageInput{Deployables: []string{other, "nothing"}}, &usage)
	require.Len(t, usage.Deployables, 2)
	require.Equal(t, other, usage.Deployables[0].Deployable)
	require.Contains(t, usage.Deployables[1].Error, "no such deployable")

	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepUsage] = fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.Before, Message: "no sensor"}
	})
	h.must(workflows.UsageActivity, workflows.UsageInput{Deployables: []string{region}}, &usage)
	require.Contains(t, usage.Deployables[0].Error, "no sensor")
	require.Len(t, usage.Deployables[0].Handles, 2, "the handles are listed even so")
}

// A card that does not answer does not hold the answer up for ever.
func TestUsageHasADeadline(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.usageTimeout = time.Second
	h.start()
	h.inventory.Scan(t.Context())
	h.edit(func(c *fake.Card) { c.Latency[fake.StepUsage] = fake.Duration(time.Hour) })

	var usage cyborg.HostUsage
	h.must(workflows.UsageActivity, workflows.UsageInput{Host: hostName}, &usage)
	require.NotEmpty(t, usage.Deployables[0].Error)
}

// The deployables of a backend that has failed are listed with the reason.
func TestUsageOfAFailedBackend(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())

	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepDiscover] = fake.Failure{Times: fake.Always, Kind: cyborg.ErrHardware, When: fake.Before, Message: "the bus is stuck"}
	})
	h.inventory.Scan(t.Context())

	var usage cyborg.HostUsage
	h.must(workflows.UsageActivity, workflows.UsageInput{Host: hostName}, &usage)
	require.Contains(t, usage.Error, "the bus is stuck")
	require.Len(t, usage.Deployables, 2)
	require.Contains(t, usage.Deployables[0].Error, "the bus is stuck")
}

// A discover scans the host and reports it to the conductor, which knows the
// result when the activity ends.
func TestDiscover(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())
	require.NoError(t, h.bench.Vanish(t.Context(), card))

	var result workflows.DiscoverResult
	h.must(workflows.DiscoverActivity, workflows.DiscoverInput{Host: hostName}, &result)
	require.Equal(t, map[string]int{backend: 0}, result.Devices)
	require.Equal(t, int64(1), result.Generation)
	require.Empty(t, result.Errors)
	require.Len(t, h.reporter.reports, 1)
	require.Equal(t, h.reporter.reports[0].Sequence, result.Sequence)
	require.Empty(t, h.reporter.reports[0].Content.Backends[0].Devices)

	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepDiscover] = fake.Failure{Times: fake.Always, Kind: cyborg.ErrHardware, When: fake.Before, Message: "the bus is stuck"}
	})
	h.must(workflows.DiscoverActivity, workflows.DiscoverInput{Host: hostName}, &result)
	require.Equal(t, []string{"backend fake: the bus is stuck"}, result.Errors)

	h.reporter.failure = cyborg.Errorf(cyborg.ErrUnavailable, "the conductor is away")
	h.refused(cyborg.ErrUnavailable, workflows.DiscoverActivity, workflows.DiscoverInput{Host: hostName})
	h.refused(cyborg.ErrInvalid, workflows.DiscoverActivity, workflows.DiscoverInput{Host: "node-2"})
}
