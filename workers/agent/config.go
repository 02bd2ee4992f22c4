// Package agent is the worker of one host: it looks at the hardware, reports it
// to the conductor, and serves the queue agent.<host> with the activities of
// activities/agent. It never touches the database, Placement or a cloud's API.
package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	activity "github.com/cyborg-project/cyborg/activities/agent"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// Config is the operator's configuration of an agent. The zero value of an
// optional field means its default.
type Config struct {
	// Host is the machine's name as Placement and Nova know it
	// (hypervisor_hostname). Required.
	Host string
	// StateDir holds the journal, the staged images and the last inventory. One
	// agent uses it at a time. Required.
	StateDir string
	// Root is the directory that stands for "/": sysfs is Root/sys. Default "/".
	Root string

	// ImageDir is the directory with the images whose source has no scheme, or the
	// scheme "file:". Where it is empty, such images are refused.
	ImageDir string
	// NovaConfDir is the directory for Nova's whitelist (see novaconf); empty where
	// the agent writes none.
	NovaConfDir string
	// ImageMaxBytes is the size of the largest image that is accepted. Default 1
	// GiB.
	ImageMaxBytes int64
	// ImageCacheBytes limits the size of the stored images; needed ones are kept
	// even above it. Default 4 GiB.
	ImageCacheBytes int64

	// Endpoints are the URLs of the conductors' agent endpoints. Where one does not
	// answer, the next is tried. Required.
	Endpoints []string
	// TLS is used with https endpoints. Its client certificate names this host.
	TLS *pki.Client
	// Renews says that TLS has the files of EnrolledFiles, and that the agent renews
	// the certificate there.
	Renews bool
	// TrustDomain is that of the certificates. Required with Renews.
	TrustDomain string

	// HeartbeatInterval is the time between two heartbeats; each is up to a tenth
	// earlier or later. Default 10 s.
	HeartbeatInterval time.Duration
	// FullScanInterval is the time between two looks at all hardware that nothing
	// else has asked for. Default 5 min.
	FullScanInterval time.Duration
	// HealthInterval is the time between two questions to a driver how its devices are.
	// Default 30 s.
	HealthInterval time.Duration
	// ScanTimeout limits one look of one backend. Default 30 s.
	ScanTimeout time.Duration
	// UsageTimeout limits the answer to a census; deployables that did not answer
	// by then are marked. Default 5 s.
	UsageTimeout time.Duration
	// StopTimeout is how long running steps may go on after the agent was told to
	// stop. Default 30 s.
	StopTimeout time.Duration

	// Backends are the configured drivers of this host. Changes that an operator
	// made through the API are in StateDir/backends.json and override these.
	Backends []BackendConfig
	// Activities are the kinds of work that this host allows, of those in Kinds of
	// activities/agent; nil means all.
	Activities []cyborg.OperationKind
	// Slots is how many activities run at the same time. Default 64. Steps on one
	// device never overlap, whatever this is.
	Slots int
}

// BackendConfig is one named instance of a compiled-in driver.
type BackendConfig struct {
	// Name is unique on the host: letters, digits, '.', '_' and '-', at most 64.
	Name string
	// Driver is the driver's name in the registry.
	Driver string
	// Options belong to the driver, which checks them.
	Options map[string]any
	// Enabled is false for a backend that is known but must not be used.
	Enabled bool
}

// DialFunc connects with an address, as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Deps are what main gives an agent.
type Deps struct {
	// Temporal may be a lazy client, and several agents may share one. Required.
	Temporal client.Client
	// Drivers are the compiled-in drivers that this host allows. Required.
	Drivers *drivers.Registry
	// Dial connects with the conductors; nil means over the network.
	Dial DialFunc
	// Log is required.
	Log *slog.Logger
	// Version is the version of this binary, which the agent reports.
	Version string
	// BootID identifies this boot of the machine. If it is empty, it is read below
	// Root, or else from the running kernel.
	BootID string
	// Clock returns the time of day; nil means the machine's clock.
	Clock clock.Clock
	// Metrics, where set, receives the agent's metrics, with the label host.
	Metrics prometheus.Registerer
}

const (
	defaultImageMaxBytes   = 1 << 30
	defaultImageCacheBytes = 4 << 30
	defaultSlots           = 64
)

// withDefaults returns the configuration with every optional field set.
func (c Config) withDefaults() Config {
	c.Root = cmp.Or(c.Root, "/")
	c.ImageMaxBytes = cmp.Or(c.ImageMaxBytes, defaultImageMaxBytes)
	c.ImageCacheBytes = cmp.Or(c.ImageCacheBytes, defaultImageCacheBytes)
	c.HeartbeatInterval = cmp.Or(c.HeartbeatInterval, 10*time.Second)
	c.FullScanInterval = cmp.Or(c.FullScanInterval, 5*time.Minute)
	c.HealthInterval = cmp.Or(c.HealthInterval, 30*time.Second)
	c.ScanTimeout = cmp.Or(c.ScanTimeout, 30*time.Second)
	c.UsageTimeout = cmp.Or(c.UsageTimeout, 5*time.Second)
	c.StopTimeout = cmp.Or(c.StopTimeout, 30*time.Second)
	c.Slots = cmp.Or(c.Slots, defaultSlots)
	return c
}

// Validate returns everything that is wrong with the configuration, each as an
// error of kind ErrInvalid.
func (c Config) Validate() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, cyborg.Errorf(cyborg.ErrInvalid, format, args...)) }

	c = c.withDefaults()
	if err := cyborg.CheckHostName(c.Host); err != nil {
		all = append(all, err)
	}

	if !filepath.IsAbs(c.StateDir) {
		bad("the agent's state directory %q must be an absolute path", c.StateDir)
	}
	if !filepath.IsAbs(c.Root) {
		bad("the root %q must be an absolute path", c.Root)
	}
	if c.ImageDir != "" && !filepath.IsAbs(c.ImageDir) {
		bad("the image directory %q must be an absolute path", c.ImageDir)
	}
	if c.NovaConfDir != "" && !filepath.IsAbs(c.NovaConfDir) {
		bad("Nova's configuration directory %q must be an absolute path", c.NovaConfDir)
	}
	if c.ImageMaxBytes < 0 || c.ImageCacheBytes < 0 {
		bad("the limits on images must not be negative (largest image %d, cache %d)", c.ImageMaxBytes, c.ImageCacheBytes)
	}

	if len(c.Endpoints) == 0 {
		bad("the agent of host %q has no conductor endpoint: name at least one, such as http://127.0.0.1:6667", c.Host)
	}
	for _, endpoint := range c.Endpoints {
		if u, err := url.Parse(endpoint); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			bad("%q is not the URL of a conductor endpoint: write it as https://conductor.example:6667", endpoint)
		}
	}

	for name, value := range map[string]time.Duration{
		"heartbeat interval": c.HeartbeatInterval, "full scan interval": c.FullScanInterval, "health interval": c.HealthInterval, "scan timeout": c.ScanTimeout,
		"usage timeout": c.UsageTimeout, "stop timeout": c.StopTimeout,
	} {
		if value < 0 {
			bad("the agent's %s must not be negative (it is %s)", name, value)
		}
	}
	if c.Slots < 0 {
		bad("the agent's number of slots must not be negative (it is %d)", c.Slots)
	}

	for _, kind := range c.Activities {
		if !slices.Contains(activity.Kinds(), kind) {
			bad("the agent can allow no activities of kind %q; there are: %v", kind, activity.Kinds())
		}
	}

	all = append(all, c.validateBackends()...)
	return errors.Join(all...)
}

// validateBackends checks the names of the backends and their drivers. The
// drivers check their options themselves, when they are made.
func (c Config) validateBackends() []error {
	var all []error
	seen := map[string]bool{}
	for _, b := range c.Backends {
		if err := inventory.CheckName(b.Name); err != nil {
			all = append(all, err)
		}

		if seen[b.Name] {
			all = append(all, cyborg.Errorf(cyborg.ErrInvalid, "the backend %q is configured twice", b.Name))
		}
		seen[b.Name] = true

		if strings.TrimSpace(b.Driver) == "" {
			all = append(all, cyborg.Errorf(cyborg.ErrInvalid, "the backend %q names no driver", b.Name))
		}
	}

	return all
}
