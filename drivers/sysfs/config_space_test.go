package sysfs_test

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// presenceOf asks a function for its presence.
func presenceOf(t *testing.T, host *sysfstest.Host, address string, wake bool) sysfs.Presence {
	t.Helper()
	f, err := tree(t, host.Root()).Function(t.Context(), sysfstest.Address(t, address))
	require.NoError(t, err)
	presence, err := tree(t, host.Root()).Presence(t.Context(), f, wake)
	require.NoError(t, err)
	return presence
}

// TestPresence looks at functions with different configuration spaces.
func TestPresence(t *testing.T) {
	t.Parallel()
	ones := strings.Repeat("\xff", 64)
	for name, c := range map[string]struct {
		header, power string
		want          bool
	}{
		"a function":                         {"\xde\x10\xb5\x20\x06\x04\x10\x00" + strings.Repeat("\x00", 56), "active", true},
		"a virtual function":                 {"\xff\xff\xff\xff\x06\x04\x10\x00" + strings.Repeat("\x00", 56), "active", true},
		"one that was pulled out":            {ones, "active", false},
		"one that cannot sleep":              {ones, "unsupported", false},
		"one that sleeps, and is left alone": {ones, "suspended", true},
		"a recording that was emptied":       {"", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := sysfstest.New(t, sysfstest.GPU(t, gpu))
			require.Equal(t, sysfs.Presence{Answers: true}, presenceOf(t, host, gpu, true), "there is no configuration space to read")

			config := path.Join("sys/bus/pci/devices", gpu, "config")
			host.Set(config, c.header+strings.Repeat("\xff", 4000))
			if c.header == "" {
				host.Set(config, "")
			}
			host.Set(path.Join("sys/bus/pci/devices", gpu, "power/runtime_status"), c.power+"\n")
			require.Equal(t, sysfs.Presence{Answers: c.want}, presenceOf(t, host, gpu, false))
			require.Equal(t, sysfs.Presence{Answers: c.header != ones}, presenceOf(t, host, gpu, true))
		})
	}
}

// TestPresenceOfWhatCannotBeRead: a kernel that refuses to tell is no card that does
// not answer, and its error says what can be done.
func TestPresenceOfWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu))
	all, err := tree(t, host.Root()).Functions(t.Context())
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(host.Root(), all[0].Path, "config"), 0o755)) // nobody can read a directory

	_, err = tree(t, host.Root()).Presence(t.Context(), all[0], true)
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "/config for "+gpu+" failed")
	require.NotEmpty(t, cyborg.AsError(err).Hint)
}

// TestSerial reads the serial number of a card that sleeps, and of one of which
// the kernel shows only a part.
func TestSerial(t *testing.T) {
	t.Parallel()
	const serial = "48-b0-2d-ff-ff-12-34-56"
	card := sysfstest.GPU(t, gpu)
	card.Serial = serial
	host := sysfstest.New(t, card)
	require.Equal(t, sysfs.Presence{Answers: true, Serial: serial}, presenceOf(t, host, gpu, false))

	host.Set(path.Join("sys/bus/pci/devices", gpu, "power/runtime_status"), "suspended\n")
	require.Equal(t, sysfs.Presence{Answers: true}, presenceOf(t, host, gpu, false), "nobody wakes it up")
	require.Equal(t, sysfs.Presence{Answers: true, Serial: serial}, presenceOf(t, host, gpu, true))

	config := path.Join("sys/bus/pci/devices", gpu, "config")
	space, err := os.ReadFile(filepath.Join(host.Root(), config))
	require.NoError(t, err)
	for _, size := range []int{64, 256, 0x148, 0x14c, 0x153} { // for everybody, without PCI Express, and cut off
		host.Set(config, string(space[:size]))
		require.Equal(t, sysfs.Presence{Answers: true}, presenceOf(t, host, gpu, true), size)
	}
}

// TestFingerprint says which card a function belongs to.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	f := sysfs.Function{Vendor: "10de", Product: "20b0", SubsystemVendor: "10de", SubsystemProduct: "134f", Revision: "a1"}
	require.Equal(t, cyborg.Fingerprint{Model: "10de:20b0 10de:134f", Serial: "s"}, f.Fingerprint("s"))
	f.SubsystemVendor, f.SubsystemProduct = "0000", "0000" // as the kernel shows that there is none
	require.Equal(t, cyborg.Fingerprint{Model: "10de:20b0"}, f.Fingerprint(""))
}

// TestFingerprintOfWhatCannotBeRead: an id that cannot be read makes no other model.
func TestFingerprintOfWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, attribute := range []string{"subsystem_vendor", "subsystem_device"} {
		host := sysfstest.New(t, sysfstest.GPU(t, gpu))
		at := path.Join("sys/bus/pci/devices", gpu)
		host.Set(path.Join(at, attribute), "\n")
		f, err := tree(t, host.Root()).Function(t.Context(), sysfstest.Address(t, gpu))
		require.NoError(t, err)
		require.Contains(t, []string{f.SubsystemVendor, f.SubsystemProduct}, "", attribute)
		require.Equal(t, cyborg.Fingerprint{Serial: "s"}, f.Fingerprint("s"))

		host.Set(path.Join(at, attribute), "")
		require.NoError(t, os.Remove(filepath.Join(host.Root(), at, attribute)))
		f, err = tree(t, host.Root()).Function(t.Context(), sysfstest.Address(t, gpu))
		require.NoError(t, err)
		require.NotEmpty(t, f.Fingerprint("").Model, "modalias has it, too")

		require.NoError(t, os.Remove(filepath.Join(host.Root(), at, "modalias")))
		f, err = tree(t, host.Root()).Function(t.Context(), sysfstest.Address(t, gpu))
		require.NoError(t, err)
		require.Equal(t, cyborg.Fingerprint{}, f.Fingerprint(""))
	}
}
