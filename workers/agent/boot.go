package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Both are below the root: what tells one boot from the next (Linux, random(4)), and how many seconds ago that was (proc(5)).
const (
	bootIDFile = "/proc/sys/kernel/random/boot_id"
	uptimeFile = "/proc/uptime"
)

// readBootID reads the boot id of the machine whose root that is: drivers take it from there, too. A root without one,
// such as sysfs alone mounted into a container, boots with this machine.
func readBootID(root string) (string, error) {
	path := filepath.Join(root, bootIDFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		path = bootIDFile
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "the boot id of this machine cannot be read: %w", err)
	}
	id, err := uuid.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "the boot id of this machine, in %s, is not one: %w", path, err)
	}
	return id.String(), nil
}

// readUptime is how long the machine whose root that is has been running since the boot of readBootID; 0 where it does not say.
func readUptime(root string) time.Duration {
	path := filepath.Join(root, uptimeFile)
	if _, err := os.Stat(filepath.Join(root, bootIDFile)); errors.Is(err, fs.ErrNotExist) {
		path = uptimeFile
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	since, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	seconds, err := strconv.ParseFloat(since, 64)
	if err != nil || seconds < 0 || seconds > (100*365*24*time.Hour).Seconds() {
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}
