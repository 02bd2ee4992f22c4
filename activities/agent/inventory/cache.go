package inventory

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
)

// Acknowledged describes the newest report that the conductor has acknowledged;
// the zero value means none.
type Acknowledged struct {
	Digest       string `json:"digest"`
	Generation   int64  `json:"generation"`
	BootID       string `json:"boot_id"`
	AgentVersion string `json:"agent_version"`
	// Sequence is the sequence number of that report.
	Sequence int64 `json:"sequence,omitempty"`
}

// cacheFile is inventory.json. Losing it costs nothing but one report that the
// conductor does not need.
type cacheFile struct {
	Format       int            `json:"format"`
	Acknowledged Acknowledged   `json:"acknowledged"`
	Backends     []cacheBackend `json:"backends"`
}

// cacheBackend is one backend in inventory.json: the devices that were seen
// under that setting.
type cacheBackend struct {
	Setting Setting               `json:"setting"`
	Devices []cyborg.DeviceReport `json:"devices"`
}

func (i *Inventory) cachePath() string { return filepath.Join(i.config.StateDir, "inventory.json") }

// readCache fills the backends with what an earlier process saw, for callers
// who ask before the first look has ended. A backend that is configured
// differently now starts empty, since its options decide what it sees.
func (i *Inventory) readCache() {
	text, err := os.ReadFile(i.cachePath())
	if errors.Is(err, os.ErrNotExist) {
		return
	}

	var file cacheFile
	if err == nil {
		err = json.Unmarshal(text, &file)
	}

	if err != nil || file.Format != 1 {
		i.log.Warn("the last inventory cannot be read; the agent scans the hardware and reports all of it", "path", i.cachePath(), "error", err)
		return
	}

	i.acked = file.Acknowledged

	for _, cached := range file.Backends {
		if b, ok := i.backends[cached.Setting.Name]; ok && sameSetting(b.setting, cached.Setting) {
			b.devices = map[string]seen{}
			for _, device := range cached.Devices {
				b.devices[device.Identity] = newSeen(0, device)
			}
		}
	}
}

// Acknowledged returns what the conductor has acknowledged last, also to an
// earlier process.
func (i *Inventory) Acknowledged() Acknowledged {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.acked
}

// Acknowledge records what the conductor has acknowledged. It stays in memory
// until Save writes it. The acknowledged report becomes the base of the next
// difference, unless a newer report was made meanwhile: nobody knows any more
// what the acknowledged one said.
func (i *Inventory) Acknowledge(acked Acknowledged) {
	i.mu.Lock()
	defer i.mu.Unlock()

	i.acked = acked
	i.base = view{}
	if i.reported.sequence == acked.Sequence {
		i.base = i.reported
	}
}

// Save writes what is known now, and what the conductor has acknowledged, to
// disk for the next process. The file is written without mu: a slow disk must
// not hold up the drivers' looks.
func (i *Inventory) Save() error {
	i.mu.Lock()
	file := cacheFile{Format: 1, Acknowledged: i.acked}
	for _, b := range i.backends {
		file.Backends = append(file.Backends, cacheBackend{Setting: b.setting, Devices: b.sorted()})
	}
	i.mu.Unlock()

	text, err := json.Marshal(file)
	if err == nil {
		err = atomicfile.Write(i.cachePath(), text, 0o600)
	}

	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the inventory cannot be kept for the next start: %w", err)
	}

	return nil
}
