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

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/agents"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// The times are those of an agent; see workers/agent.
const (
	reportWithin = 15 * time.Second       // limit of a report
	beatWithin   = 5 * time.Second        // limit of a heartbeat
	firstRetry   = 500 * time.Millisecond // first pause after a failed report
	lastRetry    = 30 * time.Second       // longest pause after a failed report
	version      = "simulated"            // the version that the agents report
)

// settings are the options of the command line.
type settings struct {
	endpoint, temporal, authority, prefix string
	hosts, devices                        int
	interval                              time.Duration
}

// Counts are numbers of messages between the agents and the conductor, since
// they were last taken.
type Counts struct {
	Reports    int64 `json:"reports"`    // acknowledged
	Heartbeats int64 `json:"heartbeats"` // answered
	Asked      int64 `json:"asked"`      // heartbeats whose answer asks for a report
	Refused    int64 `json:"refused"`    // answered with 429 or 503: sent again
	Failed     int64 `json:"failed"`     // not answered in time, or with another error: sent again
	Unreached  int64 `json:"unreached"`  // tries to reach Temporal that failed
}

// counts are Counts while the hosts add to them.
type counts struct{ reports, heartbeats, asked, refused, failed, unreached atomic.Int64 }

// take returns the counts since the last call and resets them.
func (c *counts) take() Counts {
	return Counts{
		Reports: c.reports.Swap(0), Heartbeats: c.heartbeats.Swap(0), Asked: c.asked.Swap(0),
		Refused: c.refused.Swap(0), Failed: c.failed.Swap(0), Unreached: c.unreached.Swap(0),
	}
}

// cloud holds all hosts of this process and what they share.
type cloud struct {
	options settings
	hosts   []*host
	counts  counts
	// authority signs the certificates that the hosts show to Temporal; nil without
	// Temporal.
	authority *pki.Authority
	ends      []func()   // close calls them
	mu        sync.Mutex // guards ends
}

// newCloud returns hosts that have not booted yet.
func newCloud(o settings) (*cloud, error) {
	c := &cloud{options: o}
	if o.temporal != "" {
		var err error
		if c.authority, err = pki.Open(o.authority); err != nil {
			return nil, err
		}
	}

	for i := range o.hosts {
		h := &host{
			cloud: c, number: i, name: fmt.Sprintf("%s-%05d", o.prefix, i),
			// Each host has connections of its own, like a machine. Small buffers keep
			// thousands of them in memory.
			http: &http.Client{Transport: &http.Transport{
				DialContext: (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext, DisableCompression: true,
				IdleConnTimeout: 90 * time.Second, WriteBufferSize: 1 << 10, ReadBufferSize: 1 << 10,
			}},
		}
		c.hosts = append(c.hosts, h)
	}

	return c, nil
}

// later has close call end.
func (c *cloud) later(end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = append(c.ends, end)
}

// close stops the workers, all at once, because each may take a while. No host
// starts one any more.
func (c *cloud) close() {
	var group sync.WaitGroup
	for _, end := range c.ends {
		group.Go(end)
	}
	group.Wait()
}

// host is one host with its simulated agent.
type host struct {
	cloud   *cloud
	number  int // position among the hosts, from 0
	name    string
	http    *http.Client
	beating sync.Once  // starts the heartbeats, after the first report
	sending sync.Mutex // held while a report is sent: one at a time; taken before mu

	// mu guards the fields below.
	mu       sync.Mutex
	bootID   string
	started  time.Time
	sequence int64 // of the last report
	content  agentapi.Content
	// digest and generation are those of the last acknowledged report.
	digest     string
	generation int64
}

// start boots the machine and starts its agent. As with a real agent, the
// conductor must have heard of it before it waits for steps.
func (h *host) start(ctx context.Context) error {
	h.boot()
	if err := h.report(ctx); err != nil || h.cloud.options.temporal == "" {
		return err
	}
	return h.serve(ctx)
}

// boot gives the host a new boot id, as after a boot. The first call also makes
// its devices, which stay the same at later boots.
func (h *host) boot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bootID, h.started = uuid.NewString(), time.Now().UTC()
	h.digest, h.generation = "", 0

	if len(h.content.Backends) > 0 {
		return
	}

	b := agentapi.BackendReport{
		Name: "fake", Driver: "fake", State: cyborg.BackendOK, Services: []string{"attach", "program", "usage"},
		Options: map[string]any{"park": fmt.Sprintf("%dxfpga", h.cloud.options.devices)},
	}
	for i := range h.cloud.options.devices {
		b.Devices = append(b.Devices, device(i))
	}

	h.content = agentapi.Content{Backends: []agentapi.BackendReport{b}, Attachments: []agentapi.Attachment{}}
}

// device returns a card with one deployable and two handles, similar to the
// reports of the fake driver.
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

// change gives one of the host's devices another bitstream, so that its content
// has a new digest.
func (h *host) change() {
	h.mu.Lock()
	defer h.mu.Unlock()
	devices := h.content.Backends[0].Devices
	devices[h.number%len(devices)].Deployables[0].BitstreamID = uuid.NewString()
}

// next returns the next report and its JSON. Its sequence number is greater
// than all before, also those of an earlier process: that is why it follows the
// clock.
func (h *host) next() (agentapi.Report, []byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sequence = max(h.sequence+1, time.Now().UnixMilli())
	report := agentapi.Report{
		Host: h.name, BootID: h.bootID, Instance: h.name, AgentVersion: version, Sequence: h.sequence, Digest: h.content.Digest(), Content: h.content,
	}
	text, err := json.Marshal(report)
	return report, text, err
}

// report sends the content of the host again and again until the conductor
// acknowledges it. The first acknowledgement starts the heartbeats.
func (h *host) report(ctx context.Context) error {
	h.sending.Lock()
	defer h.sending.Unlock()

	report, text, err := h.next()
	if err != nil {
		return err
	}

	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		var reply agentapi.ReportReply
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

		if clock.Sleep(ctx, spread(max(pause, retry))) != nil {
			return ctx.Err()
		}
	}

	if h.cloud.options.interval > 0 {
		h.beating.Do(func() { go h.heartbeats(ctx) })
	}
	return nil
}

// heartbeats sends heartbeats at intervals, until the context ends. The first
// one waits for a random part of the interval, so that the heartbeats of all
// hosts do not arrive at once.
func (h *host) heartbeats(ctx context.Context) {
	pause := time.Duration(rand.Int64N(int64(h.cloud.options.interval))) //nolint:gosec // it spreads load
	for clock.Sleep(ctx, pause) == nil {
		h.mu.Lock()
		beat := agentapi.Heartbeat{
			Host: h.name, BootID: h.bootID, Instance: h.name, AgentVersion: version, StartedAt: h.started,
			Digest: h.digest, Present: h.digest, Generation: h.generation, SentAt: time.Now().UTC(),
		}
		h.mu.Unlock()

		text, err := json.Marshal(beat)
		if err != nil {
			panic(err) // strings and numbers always marshal
		}

		var reply agentapi.HeartbeatReply
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

// post sends a message, and reads the answer into answer. Where the conductor
// refuses the message, post returns an error and how long the conductor asks to
// wait.
func (h *host) post(ctx context.Context, path string, within time.Duration, text []byte, answer any) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.cloud.options.endpoint+path, bytes.NewReader(text))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header["Idempotency-Key"] = nil // net/http may send it again, as for an agent: see workers/agent

	response, err := h.http.Do(request)
	if err != nil {
		h.cloud.counts.failed.Add(1)
		return 0, err
	}
	defer func() { _ = response.Body.Close() }() // nothing was written

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

	seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // 0 where there is none
	return time.Duration(seconds) * time.Second, fmt.Errorf("%s: %s: %s", path, response.Status, body)
}

// spread makes a duration up to a tenth shorter or longer at random, so that
// hosts that began together do not stay in step.
func spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64())) //nolint:gosec // it spreads load
}
