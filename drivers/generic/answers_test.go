package generic_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/passthrough/passthroughtest"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// identities lists the devices that a driver discovers.
func identities(t *testing.T, driver drivers.Driver) []string {
	t.Helper()
	devices, err := driver.Discover(t.Context())
	require.NoError(t, err)
	list := []string{}
	for _, device := range devices {
		list = append(list, device.Identity)
	}
	return list
}

// configuration is the file with the configuration space of a function.
func configuration(address string) string { return "sys/bus/pci/devices/" + address + "/config" }

// TestDiscoverLeavesOutSilentCards pulls a card out of which the kernel is not
// told, with and without virtual functions.
func TestDiscoverLeavesOutSilentCards(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, sysfstest.GPU(t, gpu), sysfstest.QAT(t, qat))
	b := newBench(t, host, gpu)
	require.Equal(t, []string{gpu, qat, passthroughtest.Disk}, identities(t, b.driver))

	host.Set(configuration(gpu), strings.Repeat("\xff", 256))
	host.Set(configuration(qat), "\x86\x80\x40\x49")
	require.Equal(t, []string{qat, passthroughtest.Disk}, identities(t, b.driver))

	err := b.attach(t)
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, gpu+" does not answer on its bus")
	require.Empty(t, b.notes, "nothing was begun")

	host.SetVFs(qat, "2")
	host.Set(configuration(qat), strings.Repeat("\xff", 256))
	require.Equal(t, []string{passthroughtest.Disk}, identities(t, b.driver))

	host.Set(configuration(gpu), "\xde\x10\xb5\x20")
	require.Equal(t, []string{gpu, passthroughtest.Disk}, identities(t, b.driver))
	require.NoError(t, b.attach(t))
}

// TestDiscoverWaitsForNoCard has the kernel not answer for a card: reading from a
// pipe sleeps until somebody writes. Nothing speaks against the card then.
func TestDiscoverWaitsForNoCard(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, sysfstest.GPU(t, gpu))
	pipe := filepath.Join(host.Root(), configuration(gpu))
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	driver, err := generic.New(environment(t, host), map[string]any{"device_spec": "*", "simulate": true})
	require.NoError(t, err)
	require.Equal(t, []string{gpu, passthroughtest.Disk}, identities(t, driver))
	require.Equal(t, []string{gpu, passthroughtest.Disk}, identities(t, driver))
	require.Equal(t, 1, asking(t, host), "the second discovery waits for the answer to the first")
	require.NoError(t, os.WriteFile(pipe, []byte("\xde\x10\xb5\x20"), 0))
}

// TestDiscoverWaitsOnceForAllRounds: the kernel answers neither for a card nor for
// function 0 of another one, which is asked only after that. A discovery waits once
// for both.
func TestDiscoverWaitsOnceForAllRounds(t *testing.T) {
	t.Parallel()
	const silent, audio = "0000:3c:00.0", "0000:3b:00.1"
	host := passthroughtest.NewHost(t, sysfstest.GPU(t, gpu), sysfstest.FPGA(t, audio), sysfstest.FPGA(t, silent))
	for _, address := range []string{gpu, silent} {
		pipe := filepath.Join(host.Root(), configuration(address))
		require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	}
	driver, err := generic.NewWithKernel(host.Simulator, environment(t, host), map[string]any{"device_spec": `{"vendor_id": "10ee"}`, "deadline": "2s"})
	require.NoError(t, err)
	require.Empty(t, unwell(t, driver, ""))

	const limit = 15 * time.Second // so long that a busy machine is not taken for another wait
	begin := time.Now()
	require.Equal(t, []string{audio, silent}, identities(t, driver.WithAnswerLimit(limit)))
	require.Less(t, time.Since(begin), 2*limit)
	require.Eventually(t, func() bool { return slices.Equal([]string{silent}, unwell(t, driver, " is there")) }, time.Minute, 10*time.Millisecond)
	require.NoError(t, os.WriteFile(filepath.Join(host.Root(), configuration(silent)), []byte("\xee\x10\x04\x50"), 0))
	require.Eventually(t, func() bool { return len(unwell(t, driver, "")) == 0 }, time.Minute, 10*time.Millisecond)
}

// TestNextDriverKnowsWhatDoesNotAnswer: the next driver says at once of which card the
// kernel has not answered since before, and asks no second time meanwhile.
func TestNextDriverKnowsWhatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, sysfstest.GPU(t, gpu))
	pipe := filepath.Join(host.Root(), configuration(gpu))
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	env := environment(t, host)
	env.StateDir = t.TempDir()
	start := func() drivers.Driver {
		driver, err := generic.NewWithKernel(host.Simulator, env, map[string]any{"device_spec": "*", "deadline": "1s"})
		require.NoError(t, err)
		return driver
	}

	before := start()
	require.Equal(t, []string{gpu, passthroughtest.Disk}, identities(t, before))
	require.Equal(t, []string{gpu}, unwell(t, before, " is there"))

	next := start()
	require.Equal(t, []string{gpu}, unwell(t, next, " is there"))
	require.Equal(t, []string{gpu, passthroughtest.Disk}, identities(t, next))
	require.Equal(t, 1, asking(t, host))
	require.Equal(t, []string{gpu}, unwell(t, next, " is there"))

	require.NoError(t, os.WriteFile(pipe, []byte("\xde\x10\xb5\x20"), 0))
	require.Eventually(t, func() bool { return len(unwell(t, next, "")) == 0 }, time.Minute, 10*time.Millisecond)
	require.Empty(t, unwell(t, start(), ""))
}

// asking counts the processes that ask the kernel of the host for something.
func asking(t *testing.T, host *sysfstest.Host) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	count := 0
	for _, line := range lines {
		if text, err := os.ReadFile(line); err == nil && strings.Contains(string(text), host.Root()) {
			count++
		}
	}
	return count
}

// unwell lists the functions with which the kernel hangs, as a health check says with
// this text; or what else it says.
func unwell(t *testing.T, driver drivers.Driver, text string) []string {
	t.Helper()
	said, err := driver.(drivers.HealthChecker).Health(t.Context())
	if err != nil {
		return []string{err.Error()}
	}

	for _, conditions := range said {
		c := conditions[0]
		if len(conditions) > 1 || c.Code != "kernel_hangs" || c.Level != cyborg.ConditionUnready || !strings.Contains(c.Message, text) {
			return []string{fmt.Sprint(conditions)}
		}
	}
	return slices.Sorted(maps.Keys(said))
}

// TestSurpriseRemovalOnKernel pulls cards out on the kernel of a machine of
// tests/hardware: one that nobody has, and one that is attached.
func TestSurpriseRemovalOnKernel(t *testing.T) {
	t.Parallel()
	fakebus.Need(t)
	card := fakebus.Plug(t, fakebus.GPU())
	address := card.At("00.0")
	driver := live(t, card)
	devices, err := driver.Discover(t.Context())
	require.NoError(t, err)
	target, handle := passthroughtest.Choose(address)(t, devices)
	var note json.RawMessage
	attach := drivers.AttachRequest{Target: target, Handle: handle, Note: func(n json.RawMessage) error { note = n; return nil }}

	card.Yank()
	require.Empty(t, identities(t, driver))
	err = driver.Attach(t.Context(), attach)
	require.ErrorContains(t, err, address+" does not answer on its bus")
	require.Equal(t, "nvidia", fakebus.DriverOf(t, address))

	card.Unyank()
	require.Equal(t, []string{address}, identities(t, driver))
	require.NoError(t, driver.Attach(t.Context(), attach))
	card.Yank()
	require.Empty(t, identities(t, driver))
	card.Unyank()
	require.Equal(t, []string{address}, identities(t, driver))
	require.NoError(t, driver.Detach(t.Context(), drivers.DetachRequest{Target: target, Handle: handle, Prior: note}))
	require.Equal(t, "nvidia", fakebus.DriverOf(t, address))

	card.SetVFs(2)
	require.Equal(t, []string{address}, identities(t, driver))
	card.Yank()
	require.Empty(t, identities(t, driver), "its virtual functions went with it")
	card.Unyank()
}
