package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/agents"
)

// How an agent behaves; see workers/agent.
const (
	reportWithin = 15 * time.Second
	beatWithin   = 5 * time.Second
	firstRetry   = 500 * time.Millisecond
	lastRetry    = 30 * time.Second
	version      = "simulated"
)

type settings struct {
	endpoint, temporal, prefix string
	hosts, devices, shared     int
	interval                   time.Duration
}

// Counts are of messages to the conductor.
type Counts struct {
	Reports    int64 `json:"reports"`    // acknowledged
	Heartbeats int64 `json:"heartbeats"` // answered
	Asked      int64 `json:"asked"`      // heartbeats whose answer asks for a report
	Refused    int64 `json:"refused"`    // answered with 429 or 503: sent again
	Failed     int64 `json:"failed"`     // not answered in time, or with another error: sent again
	Unreached  int64 `json:"unreached"`  // tries to reach Temporal that failed
}

type counts struct{ reports, heartbeats, asked, refused, failed, unreached atomic.Int64 }

// take returns what was counted since the last call.
func (c *counts) take() Counts {
	return Counts{
		Reports: c.reports.Swap(0), Heartbeats: c.heartbeats.Swap(0), Asked: c.asked.Swap(0),
		Refused: c.refused.Swap(0), Failed: c.failed.Swap(0), Unreached: c.unreached.Swap(0),
	}
}

// cloud is all hosts.
type cloud struct {
	options  settings
	hosts    []*host
	counts   counts
	temporal []func() (client.Client, error) // one for each options.shared hosts
	ends     []func()
	mu       sync.Mutex // of ends
}

func newCloud(o settings) *cloud {
	c := &cloud{options: o}
	for i := range (o.hosts + o.shared - 1) / o.shared {
		c.temporal = append(c.temporal, sync.OnceValues(func() (client.Client, error) { return c.dial(i) }))
	}
	for i := range o.hosts {
		h := &host{
			cloud: c, number: i, name: fmt.Sprintf("%s-%05d", o.prefix, i),
			http: &http.Client{Transport: &http.Transport{
				DialContext: (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext, DisableCompression: true,
				IdleConnTimeout: 90 * time.Second, WriteBufferSize: 1 << 10, ReadBufferSize: 1 << 10,
			}},
		}
		c.hosts = append(c.hosts, h)
	}
	return c
}

func (c *cloud) later(end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = append(c.ends, end)
}

func (c *cloud) close() {
	var group sync.WaitGroup
	for _, end := range c.ends {
		group.Go(end)
	}
	group.Wait()
}

// host is one agent.
type host struct {
	cloud   *cloud
	number  int
	name    string
	http    *http.Client
	beating sync.Once
	sending sync.Mutex // a report; one at a time

	mu         sync.Mutex
	bootID     string
	started    time.Time
	sequence   int64
	content    cyborg.Content
	digest     string // acknowledged,
	generation int64  // with this generation
}

// start is the start of a machine and of its agent, which takes steps once it
// was heard.
func (h *host) start(ctx context.Context) error {
	h.boot()
	if err := h.report(ctx); err != nil || h.cloud.options.temporal == "" {
		return err
	}
	return h.serve(ctx)
}

// boot makes it a host that has just booted, with new hardware where it was not
// there before.
func (h *host) boot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bootID, h.started = uuid.NewString(), time.Now().UTC()
	h.digest, h.generation = "", 0
	if len(h.content.Backends) > 0 {
		return
	}
	b := cyborg.BackendReport{
		Name: "fake", Driver: "fake", State: cyborg.BackendOK, Services: []string{"attach", "program", "usage"},
		Options: map[string]any{"park": fmt.Sprintf("%dxfpga", h.cloud.options.devices)},
	}
	for i := range h.cloud.options.devices {
		b.Devices = append(b.Devices, device(i))
	}
	h.content = cyborg.Content{Backends: []cyborg.BackendReport{b}, Attachments: []cyborg.Attachment{}}
}

// device is a card with one deployable and two handles, as the fake driver has
// them.
func device(i int) cyborg.DeviceReport {
	name := fmt.Sprintf("fpga%d", i)
	d := cyborg.DeployableReport{
		Name: name, ProgramSet: name,
		Specs: cyborg.Specs{
			Num: 2, DeviceType: cyborg.DeviceTypeFPGA, Type: "crypto", VendorID: "1234", ProductID: "0001",
			Capability: cyborg.JSONObject{"functions": []any{"aes", "sha256"}, "regions": map[string]any{"count": 1}},
		},
		Attributes: []cyborg.Attribute{{Key: "rc", Value: "FPGA"}, {Key: "trait1", Value: "CUSTOM_FPGA_ACME"}},
	}
	for n := range 2 {
		address := fmt.Sprintf("0000:%02x:00.%d", i+1, n)
		d.Handles = append(d.Handles, cyborg.HandleReport{
			Kind: cyborg.HandleTestPCI, Identity: address,
			Info: map[string]string{"domain": "0000", "bus": fmt.Sprintf("%02x", i+1), "device": "00", "function": strconv.Itoa(n)},
		})
	}
	return cyborg.DeviceReport{
		Identity: name, Type: cyborg.DeviceTypeFPGA, VendorID: "1234", ProductID: "0001", Vendor: "Acme", Model: "F1",
		BoardInfo:   cyborg.JSONObject{"serial": fmt.Sprintf("A%04d", i)},
		ControlPath: cyborg.ControlPath{Kind: "PCI", Info: map[string]string{"address": fmt.Sprintf("0000:%02x:00.0", i+1)}},
		Deployables: []cyborg.DeployableReport{d},
	}
}

// change loads other firmware into one of its devices.
func (h *host) change() {
	h.mu.Lock()
	defer h.mu.Unlock()
	devices := h.content.Backends[0].Devices
	devices[h.number%len(devices)].Deployables[0].BitstreamID = uuid.NewString()
}

// next is the report that it would send now.
func (h *host) next() (cyborg.Report, []byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sequence = max(h.sequence+1, time.Now().UnixMicro())
	report := cyborg.Report{
		Host: h.name, BootID: h.bootID, AgentVersion: version, Sequence: h.sequence, Digest: h.content.Digest(), Content: h.content,
	}
	text, err := json.Marshal(report)
	return report, text, err
}

// report sends what it has until that is acknowledged. From then on it gives
// signs of life.
func (h *host) report(ctx context.Context) error {
	h.sending.Lock()
	defer h.sending.Unlock()
	report, text, err := h.next()
	if err != nil {
		return err
	}
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		var reply cyborg.ReportReply
		pause, err := h.post(ctx, agents.ReportsPath, reportWithin, text, &reply)
		if err == nil {
			if !reply.Accepted {
				return fmt.Errorf("report %d of host %s is older than what is recorded", report.Sequence, h.name)
			}
			h.cloud.counts.reports.Add(1)
			h.mu.Lock()
			h.digest, h.generation = report.Digest, reply.Generation
			h.mu.Unlock()
			break
		}
		if !wait(ctx, spread(max(pause, retry))) {
			return ctx.Err()
		}
	}
	if h.cloud.options.interval > 0 {
		h.beating.Do(func() { go h.heartbeats(ctx) })
	}
	return nil
}

// heartbeats come at intervals. The first waits for a part of one, so that the
// hosts of this process do not come at once.
func (h *host) heartbeats(ctx context.Context) {
	pause := time.Duration(rand.Int64N(int64(h.cloud.options.interval))) //nolint:gosec // it spreads load
	for wait(ctx, pause) {
		h.mu.Lock()
		beat := cyborg.Heartbeat{
			Host: h.name, BootID: h.bootID, AgentVersion: version, StartedAt: h.started, Digest: h.digest, Generation: h.generation,
			SentAt: time.Now().UTC(),
		}
		h.mu.Unlock()
		text, err := json.Marshal(beat)
		if err != nil {
			panic(err) // strings and numbers always marshal
		}
		var reply cyborg.HeartbeatReply
		if _, err = h.post(ctx, agents.HeartbeatsPath, beatWithin, text, &reply); err == nil {
			h.cloud.counts.heartbeats.Add(1)
		}
		if reply.Report {
			h.cloud.counts.asked.Add(1)
			if err := h.report(ctx); err != nil {
				h.cloud.counts.failed.Add(1)
			}
		}
		pause = spread(h.cloud.options.interval)
	}
}

// post sends a message, and returns how long the conductor asks to wait where
// it refuses it.
func (h *host) post(ctx context.Context, path string, within time.Duration, text []byte, answer any) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.cloud.options.endpoint+path, bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header["Idempotency-Key"] = nil // as an agent does, see workers/agent
	response, err := h.http.Do(request)
	if err != nil {
		h.cloud.counts.failed.Add(1)
		return 0, err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	body, err := io.ReadAll(response.Body)
	if err != nil {
		h.cloud.counts.failed.Add(1)
		return 0, err
	}
	switch response.StatusCode {
	case http.StatusOK:
		return 0, json.Unmarshal(body, answer)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.cloud.counts.refused.Add(1)
	default:
		h.cloud.counts.failed.Add(1)
	}
	seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // where there is none, 0
	return time.Duration(seconds) * time.Second, fmt.Errorf("%s: %s: %s", path, response.Status, body)
}

func wait(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// spread is a duration up to a tenth shorter or longer.
func spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64())) //nolint:gosec // it spreads load
}
