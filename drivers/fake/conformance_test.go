package fake_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/conformance"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

func TestConformance(t *testing.T) {
	t.Parallel()

	for name, options := range map[string]map[string]any{
		"one card":                {},
		"regions and functions":   {"park": "2xfpga", "deployables": 3, "handles": 2},
		"cards with one firmware": {"park": "1xgpu,1xnic,1xssd,1xqat,1xaichip", "deployables": 2},
		"a whole and its parts":   {"park": "1xfpga,1xgpu", "deployables": 2, "handles": 2, "whole": true},
		"parts for one holder":    {"park": "2xfpga", "deployables": 2, "same_holder": true},
		"prepared functions":      {"park": "2xnic", "handles": 2, "prepares": true},
		"cards with companions":   {"park": "1xgpu", "handles": 2, "whole": true, "companions": 3},
		"cards to be divided":     {"park": "1xgpu,1xfpga", "handles": 2, "companions": 1, "partition": true, "clean": "reset"},
		"regions to be divided":   {"deployables": 2, "whole": true, "partition": true},
		"cards with flash memory": {"park": "1xfpga,1xnic", "deployables": 2, "activation": "power_cycle"},
		"mediated devices":        {"park": "1xgpu", "handles": 2, "mediated": true, "prepares": true, "partition": true},
		"cards to be cleaned":     {"park": "1xssd,1xfpga", "deployables": 2, "handles": 2, "clean": "scrub"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, conformance.Subject{
				Services: []string{"discover", "install", "attach", "program", "clean", "partition", "in_use", "usage", "health", "watch"},
				New: func(t *testing.T) *conformance.Rig {
					t.Helper()
					return newRig(t, options)
				},
			})
		})
	}
}

// newRig returns a rig on a new park, with every hook of the suite.
func newRig(t *testing.T, options map[string]any) *conformance.Rig {
	t.Helper()
	p := newPark(t, options)
	images := &atomic.Int64{}

	edit := func(t *testing.T, change func(card *fake.Card)) {
		t.Helper()
		for _, identity := range p.identities(t) {
			require.NoError(t, p.bench.Edit(t.Context(), identity, change))
		}
	}
	slowable := []fake.Step{fake.StepInstall, fake.StepAttach, fake.StepDetach, fake.StepProgram, fake.StepClean, fake.StepPartition}

	return &conformance.Rig{
		Driver:  p.driver,
		Restart: p.restart,
		Snapshot: func(t *testing.T) string {
			t.Helper()
			var text strings.Builder
			for _, identity := range p.identities(t) {
				card, err := p.bench.Card(t.Context(), identity)
				require.NoError(t, err)
				for _, region := range card.Deployables {
					for _, handle := range region.Handles {
						handle.Residue = fake.Residue{} // every holder leaves some, and Left tells it
					}
				}
				encoded, err := json.Marshal(card)
				require.NoError(t, err)
				text.Write(encoded)
			}
			return text.String()
		},
		Use: func(t *testing.T, target drivers.Target, handle cyborg.HandleReport) func() {
			t.Helper()
			use := func(by string) {
				require.NoError(t, p.bench.Use(t.Context(), target.Device.Identity, handle.Identity, by))
			}
			use("a test")
			return func() { use("") }
		},
		Leave: func(t *testing.T, target drivers.Target, handle cyborg.HandleReport) {
			t.Helper()
			require.NoError(t, p.bench.Leave(t.Context(), target.Device.Identity, handle.Identity, "a test"))
		},
		Left: func(t *testing.T, target drivers.Target, handle cyborg.HandleReport) (left []cyborg.CleanMethod) {
			t.Helper()
			residue := p.residue(t, target, handle)
			if residue.Registers != "" {
				left = append(left, cyborg.CleanReset)
			}
			if residue.Stored != "" {
				left = append(left, cyborg.CleanScrub)
			}
			return left
		},
		Stick: func(t *testing.T, target drivers.Target, handle cyborg.HandleReport) {
			t.Helper()
			require.NoError(t, p.bench.Edit(t.Context(), target.Device.Identity, func(card *fake.Card) {
				for _, region := range card.Deployables {
					if h := region.Handles[handle.Identity]; h != nil {
						h.Sticks = true
					}
				}
			}))
		},
		GoodImage: func(t *testing.T, target drivers.Target) (string, cyborg.Image) {
			t.Helper()
			return stage(t, fake.MakeImage(target.Device.Type, fmt.Sprintf("aes-v%d", images.Add(1)), []byte("payload")))
		},
		BadImage: func(t *testing.T, target drivers.Target) (string, cyborg.Image) {
			t.Helper()
			other := cyborg.DeviceTypeGPU
			if target.Device.Type == cyborg.DeviceTypeGPU {
				other = cyborg.DeviceTypeFPGA
			}
			return stage(t, fake.MakeImage(other, "shader", []byte("payload")))
		},
		Fewer: func(t *testing.T, device cyborg.DeviceReport) {
			t.Helper()
			require.NoError(t, p.bench.Edit(t.Context(), device.Identity, func(card *fake.Card) { card.Fewer = fake.Always }))
		},
		FallIll: func(t *testing.T, _ drivers.Target) func() {
			t.Helper()
			say := func(conditions ...cyborg.Condition) {
				edit(t, func(card *fake.Card) {
					for _, region := range card.Deployables {
						region.Health = conditions
					}
				})
			}
			say(cyborg.Condition{Code: "too_hot", Level: cyborg.ConditionDegraded, Message: "open a window"})
			return func() { say() }
		},
		Slow: func(t *testing.T) func() {
			t.Helper()
			edit(t, func(card *fake.Card) {
				for _, step := range slowable {
					card.Latency[step] = fake.Duration(time.Hour)
				}
			})
			return func() { edit(t, func(card *fake.Card) { clear(card.Latency) }) }
		},
		Exchange: func(t *testing.T, device cyborg.DeviceReport) {
			t.Helper()
			require.NoError(t, p.bench.Exchange(t.Context(), device.Identity, "", "of another card"))
		},
		Vanish: func(t *testing.T, device cyborg.DeviceReport) func() {
			t.Helper()
			require.NoError(t, p.bench.Vanish(t.Context(), device.Identity))
			return func() { require.NoError(t, p.bench.Return(t.Context(), device.Identity)) }
		},
	}
}

// park is a fake park in a directory of its own.
type park struct {
	dir     string
	bench   fake.Bench
	driver  drivers.Driver
	restart func(t *testing.T) drivers.Driver
}

// newPark returns a new park with a driver that has these options.
func newPark(t *testing.T, options map[string]any) *park {
	t.Helper()
	p := &park{dir: t.TempDir()}
	p.bench = fake.NewBench(p.dir)

	p.restart = func(t *testing.T) drivers.Driver {
		t.Helper()
		driver, err := fake.New(p.environment(), options)
		require.NoError(t, err)
		return driver
	}

	p.driver = p.restart(t)
	return p
}

// environment is what an agent gives to a backend whose state is the park's
// directory.
func (p *park) environment() drivers.Environment {
	return drivers.Environment{Host: "compute-1", Backend: "fake", Root: "/", StateDir: p.dir}
}

// residue returns what is left on a handle.
func (p *park) residue(t *testing.T, target drivers.Target, handle cyborg.HandleReport) fake.Residue {
	t.Helper()
	card, err := p.bench.Card(t.Context(), target.Device.Identity)
	require.NoError(t, err)
	for _, region := range card.Deployables {
		if h := region.Handles[handle.Identity]; h != nil {
			return h.Residue
		}
	}
	require.Failf(t, "not found", "card %s has no handle %s", target.Device.Identity, handle.Identity)
	return fake.Residue{}
}

// identities lists the cards that have a file, in the order of their addresses.
func (p *park) identities(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(p.dir, "*.json"))
	require.NoError(t, err)
	for i := range files {
		files[i] = strings.TrimSuffix(filepath.Base(files[i]), ".json")
	}
	require.NotEmpty(t, files)
	return files
}

// stage stages an image as an agent does. The image has no id, so its checksum
// is recorded.
func stage(t *testing.T, content []byte) (string, cyborg.Image) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	sum := sha256.Sum256(content)
	return path, cyborg.Image{Source: "image", SHA256: hex.EncodeToString(sum[:])}
}
