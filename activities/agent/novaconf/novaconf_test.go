package novaconf_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/novaconf"
	"github.com/cyborg-project/cyborg/internal/needtest"
)

// addresses generates PCI addresses, including domains that Nova cannot handle.
func addresses() *rapid.Generator[cyborg.PCIAddress] {
	return rapid.Custom(func(t *rapid.T) cyborg.PCIAddress {
		return cyborg.PCIAddress{
			Domain: rapid.SampledFrom([]uint32{0, 0, 1, 0xffff, 0x10000}).Draw(t, "domain"), Bus: rapid.Byte().Draw(t, "bus"),
			Device: rapid.Uint8Range(0, 31).Draw(t, "device"), Function: rapid.Uint8Range(0, 7).Draw(t, "function"),
		}
	})
}

// devices generates devices. Most are such as drivers report and people ask
// for, and some are what an attacker would try.
func devices() *rapid.Generator[novaconf.Device] {
	flag := rapid.Ptr(rapid.Bool(), true)
	text := rapid.OneOf(
		rapid.SampledFrom([]string{"", "", "physnet1", "PGPU", "CUSTOM_GPU", "HW_GPU_API_VULKAN", "a,b", "$my_ip", "x\"}\n[DEFAULT]\nhost = y", "OWNER_CYBORG"}),
		rapid.String(), rapid.StringMatching(`CUSTOM_[A-Z0-9_]{1,8}`))
	id := rapid.OneOf(rapid.StringMatching(`[0-9a-f]{4}`), rapid.SampledFrom([]string{"", "10DE", "0x10", "*"}))

	return rapid.Custom(func(t *rapid.T) novaconf.Device {
		return novaconf.Device{
			Address: addresses().Draw(t, "address"), VendorID: id.Draw(t, "vendor"), ProductID: id.Draw(t, "product"),
			Spec: cyborg.NovaSpec{
				PhysicalNetwork: text.Draw(t, "network"), ResourceClass: text.Draw(t, "class"),
				Traits:  rapid.SliceOfNDistinct(text, 0, 3, rapid.ID).Draw(t, "traits"),
				Trusted: flag.Draw(t, "trusted"), RemoteManaged: flag.Draw(t, "remote"), Managed: flag.Draw(t, "managed"), LiveMigratable: flag.Draw(t, "live"),
			},
		}
	})
}

// Nova accepts a file of devices that pass the check. It matches exactly the
// listed functions and none of their neighbours, and keeps the tags of each.
func TestNovaMatchesExactlyTheListedFunctions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var listed []novaconf.Device
		for _, d := range rapid.SliceOfNDistinct(devices(), 0, 8, func(d novaconf.Device) cyborg.PCIAddress { return d.Address }).Draw(t, "devices") {
			if d.Check() == nil {
				listed = append(listed, d)
			}
		}

		content := string(novaconf.Content("node-1", listed))
		specs, err := readNova(content)
		require.NoError(t, err)
		require.Len(t, specs, len(listed))
		require.Empty(t, novaconf.ForeignReason("node-1", []byte(content)))

		matching := func(f pciFunction) int {
			n := 0
			for _, spec := range specs {
				if spec.matches(f, false) {
					n++
				}
			}
			return n
		}

		for _, d := range listed {
			require.Equal(t, 1, matching(pciFunction{address: d.Address.String(), vendor: d.VendorID, product: d.ProductID}))
			beside := d.Address
			beside.Function ^= 1
			if !slices.ContainsFunc(listed, func(other novaconf.Device) bool { return other.Address == beside }) {
				require.Zero(t, matching(pciFunction{address: beside.String(), vendor: d.VendorID, product: d.ProductID}))
			}
			require.Zero(t, matching(pciFunction{address: d.Address.String(), vendor: d.VendorID, product: other(d.ProductID)}), "another card in its place")
		}

		for _, spec := range specs {
			i := slices.IndexFunc(listed, func(d novaconf.Device) bool {
				return d.Address.String() == fmt.Sprintf("%s:%s:%s.%s", spec.domain, spec.bus, spec.slot, spec.function)
			})

			require.Equal(t, listed[i].Spec.PhysicalNetwork, spec.tags["physical_network"])
			require.Equal(t, listed[i].Spec.ResourceClass, spec.tags["resource_class"])
			require.Equal(t, strings.Join(listed[i].Spec.Traits, ","), spec.tags["traits"])
			if managed := listed[i].Spec.Managed; managed != nil {
				require.Equal(t, *managed, spec.tags["managed"] == "yes")
			}
			if trusted := listed[i].Spec.Trusted; trusted != nil {
				require.Equal(t, fmt.Sprint(*trusted), spec.tags["trusted"])
			}
		}
	})
}

// other returns an id that differs from this one.
func other(id string) string {
	if id == "0001" {
		return "0002"
	}
	return "0001"
}

// Listing a physical function does not give away its virtual functions, which
// have a product id of their own.
func TestVirtualFunctionsAreNotTheirParent(t *testing.T) {
	t.Parallel()
	pf := cyborg.PCIAddress{Bus: 0x3b}
	specs, err := readNova(string(novaconf.Content("node-1", []novaconf.Device{{Address: pf, VendorID: "15b3", ProductID: "1017"}})))
	require.NoError(t, err)
	require.True(t, specs[0].matches(pciFunction{address: pf.String(), vendor: "15b3", product: "1017"}, true))
	require.False(t, specs[0].matches(pciFunction{address: "0000:3b:00.1", vendor: "15b3", product: "1018", parent: pf.String()}, true))
}

// A device is refused if Nova would reject its entry, or would match or tag it
// in another way than it was meant.
func TestCheckRefusesWhatNovaRejects(t *testing.T) {
	t.Parallel()
	good := novaconf.Device{VendorID: "10de", ProductID: "1db4"}
	require.NoError(t, good.Check())

	for name, spoil := range map[string]func(d *novaconf.Device){
		"a VMD domain":     func(d *novaconf.Device) { d.Address.Domain = 0x10000 },
		"no id":            func(d *novaconf.Device) { d.VendorID = "" },
		"a wildcard":       func(d *novaconf.Device) { d.ProductID = "*" },
		"a class":          func(d *novaconf.Device) { d.Spec.ResourceClass = "gpu" },
		"a nameless class": func(d *novaconf.Device) { d.Spec.ResourceClass = "CUSTOM_" },
		"VCPU":             func(d *novaconf.Device) { d.Spec.ResourceClass = "VCPU" },
		"a long class":     func(d *novaconf.Device) { d.Spec.ResourceClass = "CUSTOM_" + strings.Repeat("A", 249) },
		"a trait":          func(d *novaconf.Device) { d.Spec.Traits = []string{"HW_A,HW_B"} },
		"a trait of ours":  func(d *novaconf.Device) { d.Spec.Traits = []string{"OWNER_CYBORG"} },
		"a trait twice":    func(d *novaconf.Device) { d.Spec.Traits = []string{"HW_A", "HW_A"} },
		"a reference":      func(d *novaconf.Device) { d.Spec.PhysicalNetwork = "$my_ip" },
		"a line":           func(d *novaconf.Device) { d.Spec.PhysicalNetwork = "a\nb" },
	} {
		bad := good
		spoil(&bad)
		require.Error(t, bad.Check(), name)
	}
}

// The file's text is part of the contract, and a change of any byte shows that
// the file is no longer ours.
func TestContent(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	content := novaconf.Content("node-1", []novaconf.Device{
		{Address: cyborg.PCIAddress{Bus: 0x5e}, VendorID: "10de", ProductID: "1db4", Spec: cyborg.NovaSpec{ResourceClass: "PGPU", Traits: []string{"HW_A", "CUSTOM_B"}, Managed: &no}},
		{Address: cyborg.PCIAddress{Bus: 0x3b, Function: 2}, VendorID: "15b3", ProductID: "1018", Spec: cyborg.NovaSpec{PhysicalNetwork: "physnet1", Trusted: &yes}},
	})

	require.Equal(t, "# Written by cyborg-agent for host node-1. Change it with `cyborg host whitelist`, not by hand.\n"+
		"# sha256 of the other lines: 54e3\n[pci]\n"+
		`device_spec = {"vendor_id":"15b3","product_id":"1018","address":"0000:3b:00.2","physical_network":"physnet1","trusted":"true"}`+"\n"+
		`device_spec = {"vendor_id":"10de","product_id":"1db4","address":"0000:5e:00.0","resource_class":"PGPU","traits":"HW_A,CUSTOM_B","managed":"no"}`+"\n",
		strings.Replace(string(content), string(content)[strings.Index(string(content), "lines: ")+7:strings.Index(string(content), "\n[pci]")], "54e3", 1))

	require.Empty(t, novaconf.Content("node-1", nil))
	require.NotEmpty(t, novaconf.ForeignReason("node-2", content))

	for i := range content {
		changed := slices.Clone(content)
		changed[i] ^= 4
		require.NotEmpty(t, novaconf.ForeignReason("node-1", changed), "byte %d", i)
	}
}

// Applying a diff the way patch does turns the old content into the new one.
func TestDiff(t *testing.T) {
	t.Parallel()
	require.Empty(t, novaconf.Diff("f", []byte("a\n"), []byte("a\n")))
	require.Equal(t, "--- f\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n", novaconf.Diff("f", []byte("a\nb\n"), nil))

	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 1, 30)
		text := func(lines []string) string { return strings.Join(lines, "\n") + "\n" }

		before := lines.Draw(t, "before")
		after := slices.Clone(before)
		for range rapid.IntRange(0, 4).Draw(t, "changes") {
			at := rapid.IntRange(0, len(after)-1).Draw(t, "at")
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				after[at] = "x"
			case 1:
				after = slices.Insert(after, at, "new")
			default:
				if len(after) > 1 {
					after = slices.Delete(after, at, at+1)
				}
			}
		}

		require.Equal(t, text(after), patch(t, text(before), novaconf.Diff("f", []byte(text(before)), []byte(text(after)))))
	})
}

// patch applies a diff to a text, and requires that the lines of context match.
func patch(t *rapid.T, text, diff string) string {
	if diff == "" {
		return text
	}

	old := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	var out []string
	at := 0

	for _, line := range strings.Split(strings.TrimSuffix(diff, "\n"), "\n")[2:] {
		if strings.HasPrefix(line, "@@") {
			var from, count, to, added int
			_, err := fmt.Sscanf(line, "@@ -%d,%d +%d,%d @@", &from, &count, &to, &added)
			require.NoError(t, err)
			if count == 0 {
				from++
			}
			out = append(out, old[at:from-1]...)
			at = from - 1
			continue
		}

		if line[0] != '+' {
			require.Equal(t, old[at], line[1:])
			at++
		}
		if line[0] != '-' {
			out = append(out, line[1:])
		}
	}

	return strings.Join(append(out, old[at:]...), "\n") + "\n"
}

func TestDiffShowsNoControlCharacters(t *testing.T) {
	t.Parallel()
	require.NotContains(t, novaconf.Diff("f", []byte("\x1b[31mred\xff\n"), []byte("a\n")), "\x1b")
}

// A write replaces the file as a whole and leaves nothing beside it. Anything
// but a plain file of moderate size is refused.
func TestFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := novaconf.File{Host: "node-1", Dir: dir}
	content, err := f.Read()
	require.NoError(t, err)
	require.Empty(t, content)

	require.NoError(t, f.Write(nil))
	require.NoError(t, f.Write([]byte("one\n")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "."+novaconf.Name+".new"), []byte("half"), 0o600), "a file that a killed agent has left")
	require.NoError(t, f.Write([]byte("two\n")))

	content, err = f.Read()
	require.NoError(t, err)
	require.Equal(t, "two\n", string(content))
	there, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, there, 1)
	info, err := os.Stat(f.Path())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())

	require.NoError(t, f.Write(nil))
	require.NoFileExists(t, f.Path())

	require.NoError(t, os.Mkdir(f.Path(), 0o755))
	_, err = f.Read()
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err))
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(f.Write([]byte("three\n"))))

	require.NoError(t, os.Remove(f.Path()))
	require.NoError(t, syscall.Mkfifo(f.Path(), 0o600))
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(f.Write([]byte("three\n"))), "the write does not wait for the pipe's other end")
	require.NoError(t, os.Remove(f.Path()))

	require.NoError(t, os.WriteFile(f.Path(), make([]byte, 1<<20+1), 0o600))
	_, err = f.Read()
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err))

	for _, dir := range []string{"", filepath.Join(dir, "nowhere"), f.Path()} {
		_, err := novaconf.File{Host: "node-1", Dir: dir}.Read()
		require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err), dir)
		require.NotEmpty(t, cyborg.AsError(err).Hint)
	}
}

// If the disk is full, the file stays as it was and nothing is left beside it.
func TestFileOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()

	ended := make(chan error)
	go func() { // the thread ends with the goroutine, and so does the disk
		runtime.LockOSThread()
		ended <- onASmallDisk(dir, func() error {
			f := novaconf.File{Host: "node-1", Dir: dir}
			if err := f.Write([]byte("one\n")); err != nil {
				return err
			}

			large := bytes.Repeat([]byte("two\n"), os.Getpagesize())
			err := f.Write(large)
			if cyborg.ErrorKindOf(err) != cyborg.ErrUnavailable || !errors.Is(err, syscall.ENOSPC) {
				return fmt.Errorf("written to a full disk: %w", err)
			}

			there, err := os.ReadDir(dir)
			if err != nil || len(there) != 1 {
				return fmt.Errorf("it lies beside %v: %w", there, err)
			}
			if content, err := f.Read(); err != nil || string(content) != "one\n" {
				return fmt.Errorf("it is %q: %w", content, err)
			}
			return f.Write([]byte("three\n"))
		})
	}()

	err := <-ended
	needtest.That(t, !errors.Is(err, syscall.EPERM), "this user may not mount a small disk")
	require.NoError(t, err)
}

// onASmallDisk runs do on a thread that sees a disk of three pages at a
// directory. Nobody else sees that disk.
func onASmallDisk(dir string, do func() error) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", 3*os.Getpagesize())); err != nil {
		return err
	}
	return do()
}

// What is in the place of a file of Nova and is none, such as a FIFO, which
// nobody writes, does not stop the agent.
func TestNeighboursThatAreNoFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "nova.conf.d")
	require.NoError(t, os.Mkdir(dir, 0o750))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "a.conf"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "b.conf"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "c.conf"), []byte("[pci]\ndevice_spec = {}\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(dir), "real.conf"), []byte("[pci]\ndevice_spec = {}\n"), 0o600))
	require.NoError(t, os.Symlink("real.conf", filepath.Join(filepath.Dir(dir), "nova.conf")))

	found := make(chan []string, 1)
	go func() {
		places, err := novaconf.File{Host: "h", Dir: dir}.Neighbours()
		if err != nil {
			t.Error(err)
		}
		found <- places
	}()

	select {
	case places := <-found:
		require.Equal(t, []string{filepath.Join(filepath.Dir(dir), "nova.conf") + ":2", filepath.Join(dir, "c.conf") + ":2"}, places)
	case <-time.After(time.Minute):
		require.Fail(t, "it hangs")
	}
}

// A file of Nova's that is too large to be read does not take the agent's
// memory. The file of this test takes no room on the disk.
func TestNeighbourThatIsTooLarge(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "nova.conf.d")
	require.NoError(t, os.Mkdir(dir, 0o750))
	path := filepath.Join(dir, "a.conf")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 1<<40))

	_, err := novaconf.File{Host: "h", Dir: dir}.Neighbours()
	require.ErrorContains(t, err, path+" is larger than")
}
