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

// These files are looked for below the root: the id of the present boot (Linux,
// random(4)), and the seconds since that boot (proc(5)).
const (
	bootIDFile = "/proc/sys/kernel/random/boot_id"
	uptimeFile = "/proc/uptime"
)

// readBootID returns the boot id of the machine with that root; drivers take it
// from there, too. A root without one, such as a container in which only sysfs
// is mounted, boots with this machine.
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
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "the boot id of this machine, in %s, is not a UUID: %w", path, err)
	}

	return id.String(), nil
}

// readUptime returns how long the machine with that root has been running since
// the boot of readBootID; 0 where that is unknown. It takes both files from the
// same machine, and ignores what cannot be true.
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
