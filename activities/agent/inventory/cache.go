package inventory

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/cyborg-project/cyborg"
)

// Acknowledged is what the conductor has acknowledged last; the zero value is nothing.
type Acknowledged struct {
	Digest       string `json:"digest"`
	Generation   int64  `json:"generation"`
	BootID       string `json:"boot_id"`
	AgentVersion string `json:"agent_version"`
	Sequence     int64  `json:"sequence,omitempty"` // of the report
}

// cacheFile is inventory.json: nothing is lost where it is, but the agent then reports although nothing has changed.
type cacheFile struct {
	Format       int            `json:"format"`
	Acknowledged Acknowledged   `json:"acknowledged"`
	Backends     []cacheBackend `json:"backends"`
}

type cacheBackend struct {
	Setting Setting               `json:"setting"`
	Devices []cyborg.DeviceReport `json:"devices"`
}

func (i *Inventory) cachePath() string { return filepath.Join(i.config.StateDir, "inventory.json") }

// readCache fills the backends with what an earlier process saw, for whoever asks before the first look ends.
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
		i.log.Warn("the last inventory cannot be read; the agent looks and reports anew", "path", i.cachePath(), "error", err)
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

// Acknowledged is what the conductor has acknowledged last, also to an earlier process.
func (i *Inventory) Acknowledged() Acknowledged {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.acked
}

// Acknowledge takes down what the conductor has acknowledged. Save keeps it.
func (i *Inventory) Acknowledge(acked Acknowledged) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.acked = acked
	if i.base = (view{}); i.told.sequence == acked.Sequence {
		i.base = i.told
	}
}

// Save keeps what is known now, and what the conductor has acknowledged, for the next process.
func (i *Inventory) Save() error {
	i.mu.Lock()
	file := cacheFile{Format: 1, Acknowledged: i.acked}
	for _, b := range i.backends {
		file.Backends = append(file.Backends, cacheBackend{Setting: b.setting, Devices: b.sorted()})
	}
	i.mu.Unlock()
	text, err := json.Marshal(file)
	if err == nil {
		err = writeFile(i.cachePath(), text)
	}
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the inventory cannot be kept for the next start: %w", err)
	}
	return nil
}
