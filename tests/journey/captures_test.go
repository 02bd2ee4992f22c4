package journey_test

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestCapturesAsHosts runs a standalone with a host for each capture of a real
// machine that ghw ships, and for a recording by our own recorder. The API
// shows the inventory that the PCI tree of the archive holds. The test reads
// the archive by itself, without code of Cyborg. Operations on a recording are
// refused.
func TestCapturesAsHosts(t *testing.T) {
	t.Parallel()
	archives := captures(t)

	var values []string
	for _, host := range slices.Sorted(maps.Keys(archives)) {
		values = append(values, host+"=sysfs:"+archives[host])
	}

	s := harness.Start(t, harness.Options{Hosts: values})
	devices, accelerators := inventories(t, s)

	functions, bridges := 0, 0
	for host, archive := range archives {
		tree := readPCI(t, archive)
		wantDevices, wantAccelerators := tree.inventory()
		require.Equal(t, wantDevices, facts(devices[host]), "devices of %s (%s)", host, archive)
		require.Equal(t, wantAccelerators, parts(t, host, devices[host], accelerators[host]), "accelerators of %s (%s)", host, archive)

		functions += len(tree)
		for address, f := range tree {
			if strings.HasPrefix(f.class, "06") { // bridges: PCI Code and ID Assignment Specification
				bridges++
				require.NotEmpty(t, accelerators[host][address].Protected, "%s is a bridge of %s", address, host)
			}
		}

		shown, err := s.API.Host(t.Context(), host)
		require.NoError(t, err)
		require.Equal(t, len(wantDevices), shown.Devices)
	}

	require.Greater(t, functions, 200, "the captures hold real machines")
	require.Greater(t, bridges, 50)

	for host, all := range accelerators {
		requireRefused(t, s, host, slices.Collect(maps.Values(all)))
	}
	harness.RequireSound(t, s)
}

// captures returns the path of each archive, by the name of its host.
func captures(t *testing.T) map[string]string {
	t.Helper()
	archives := map[string]string{"virtual-functions": recordVirtualFunctions(t)}

	for i, archive := range sysfstest.Recordings(t) {
		archives[fmt.Sprintf("machine-%d", i)] = archive
	}

	return archives
}

// recordVirtualFunctions records a simulated machine that has virtual
// functions, with "cyborg-agent record", and returns the path of the archive.
func recordVirtualFunctions(t *testing.T) string {
	t.Helper()

	bridge := sysfstest.Bridge(t, "0000:16:00.0")
	host := sysfstest.New(t, bridge, sysfstest.Under(bridge, sysfstest.QAT(t, "0000:17:00.0")),
		sysfstest.NIC(t, "0000:3b:00.0", "eth0"), sysfstest.FPGA(t, "0000:5e:00.0"), sysfstest.GPU(t, "0000:af:00.0"))

	host.SetVFs("0000:17:00.0", "5")
	host.SetVFs("0000:3b:00.0", "2")

	archive := filepath.Join(t.TempDir(), "recorded.tar.gz")
	record := exec.CommandContext(t.Context(), harness.Binary(t, "cyborg-agent"), "record", "--root", host.Root(), "--output", archive)
	record.Env = harness.Environ(t.TempDir())

	out, err := record.CombinedOutput()
	require.NoError(t, err, "%s", out)

	return archive
}

// requireRefused asserts that an accelerator of a recording can be neither
// taken into service nor attached: the answer says why, and the state stays.
func requireRefused(t *testing.T, s *harness.Standalone, host string, all []apiclient.Accelerator) {
	t.Helper()
	free := slices.IndexFunc(all, func(a apiclient.Accelerator) bool { return a.Protected == "" })
	protected := slices.IndexFunc(all, func(a apiclient.Accelerator) bool { return a.Protected != "" })

	for i, want := range map[int]struct {
		status       int
		kind, detail string
	}{
		free:      {http.StatusUnprocessableEntity, "unsupported", "recorded"},
		protected: {http.StatusConflict, "protected", ""},
	} {
		if i < 0 {
			continue
		}

		at := "/v1/accelerators/" + all[i].UUID.String()
		status, _, problem := request(t, s, http.MethodPost, at+"/ready", nil)
		require.Equal(t, want.status, status, "%s of %s: %v", all[i].Name, host, problem)
		require.Equal(t, want.kind, problem["kind"])
		require.Contains(t, problem["detail"], want.detail)
		if all[i].Protected != "" {
			require.Contains(t, problem["detail"], all[i].Protected)
		}

		status, _, problem = request(t, s, http.MethodPut, at, map[string]any{})
		require.Equal(t, http.StatusConflict, status, problem)

		_, _, one := request(t, s, http.MethodGet, at, nil)
		require.Equal(t, "inactive", one["status"])
	}
}

// inventories returns the devices and the accelerators that the API shows, by
// host and PCI address.
func inventories(t *testing.T, s *harness.Standalone) (map[string]map[string]apiclient.Device, map[string]map[string]apiclient.Accelerator) {
	t.Helper()
	devices := map[string]map[string]apiclient.Device{}

	for device, err := range s.API.Devices(t.Context(), apiclient.DeviceFilter{}, apiclient.Page{}) {
		require.NoError(t, err)
		if devices[device.Host] == nil {
			devices[device.Host] = map[string]apiclient.Device{}
		}

		require.NotContains(t, devices[device.Host], device.Identity)
		devices[device.Host][device.Identity] = device
	}

	accelerators := map[string]map[string]apiclient.Accelerator{}
	for _, a := range s.Accelerators(t) {
		if accelerators[a.Host] == nil {
			accelerators[a.Host] = map[string]apiclient.Accelerator{}
		}

		require.Len(t, a.Handles, 1, a.Name)
		accelerators[a.Host][a.Handles[0].Identity] = a
	}

	return devices, accelerators
}

// fact is the description of a card on which an archive and the API must agree.
type fact struct {
	vendor, product, class, group string
	numa                          int    // NUMA node; -1 if it is unknown
	kind                          string // device type; "" where the class does not determine it
}

// part is the same for a function that can be handed out: card and physical are
// the addresses of its card and of its physical function, if it has one.
type part struct{ vendor, product, card, physical string }

// facts converts the devices of the API.
func facts(devices map[string]apiclient.Device) map[string]fact {
	out := map[string]fact{}

	for address, device := range devices {
		f := fact{vendor: device.VendorID, product: device.ProductID, numa: -1}
		f.class, _ = device.BoardInfo["pci_class"].(string)
		f.group, _ = device.BoardInfo["iommu_group"].(string)

		if device.NUMANode != nil {
			f.numa = *device.NUMANode
		}

		if kindOf(f.class) != "" {
			f.kind = string(device.Type)
		}

		out[address] = f
	}

	return out
}

// parts converts the accelerators of the API. It also asserts that the name and
// the handle of each follow from its PCI address.
func parts(t *testing.T, host string, devices map[string]apiclient.Device, accelerators map[string]apiclient.Accelerator) map[string]part {
	t.Helper()
	out := map[string]part{}

	cards := map[uuid.UUID]string{}

	for address, device := range devices {
		cards[device.UUID] = address
	}

	for address, a := range accelerators {
		require.Equal(t, host+"_"+address, a.Name)
		handle := a.Handles[0]
		require.EqualValues(t, "PCI", handle.Kind)
		require.Equal(t, address, fmt.Sprintf("%s:%s:%s.%s",
			handle.Info["domain"], handle.Info["bus"], handle.Info["device"], handle.Info["function"]))

		p := part{vendor: a.Specs.VendorID, product: a.Specs.ProductID, card: cards[a.DeviceUUID]}
		p.physical, _ = a.Specs.Capability["physical_function"].(string)
		out[address] = p
	}

	return out
}

// kindOf returns the device type that follows from a PCI class code, or "".
func kindOf(class string) string {
	switch {
	case strings.HasPrefix(class, "03"):
		return "GPU"
	case strings.HasPrefix(class, "02"):
		return "NIC"
	case strings.HasPrefix(class, "0108"):
		return "SSD"
	case strings.HasPrefix(class, "06"), strings.HasPrefix(class, "0c03"):
		return "PCI"
	}
	return ""
}

// pciTree holds the PCI functions of an archive, by address.
type pciTree map[string]pciFunction

// pciFunction is a function as sysfs describes it. Where it is a virtual one,
// physical is the address of its physical function; virtual are the addresses
// of its own virtual functions.
type pciFunction struct {
	vendor, product, class, group, physical string
	numa                                    int
	virtual                                 []string
}

// inventory returns the cards and accelerators that the API should show. A
// function without a physical function is a card. A function without virtual
// ones can be handed out.
func (tree pciTree) inventory() (map[string]fact, map[string]part) {
	cards, all := map[string]fact{}, map[string]part{}

	for address, f := range tree {
		if f.physical == "" {
			cards[address] = fact{f.vendor, f.product, f.class, f.group, f.numa, kindOf(f.class)}
		}

		if len(f.virtual) == 0 {
			p := part{vendor: f.vendor, product: f.product, card: address, physical: f.physical}
			if f.physical != "" {
				p.card = f.physical
			}
			all[address] = p
		}
	}

	return cards, all
}

// readPCI returns the PCI functions of an archive.
func readPCI(t *testing.T, archive string) pciTree {
	t.Helper()
	const bus = "sys/bus/pci/devices"
	texts, links := readArchive(t, archive)

	tree := pciTree{}

	for name, target := range links {
		if path.Dir(name) != bus {
			continue
		}

		dir := path.Join(bus, target)

		hexadecimal := func(attribute string) string {
			return strings.ToLower(strings.TrimPrefix(strings.TrimSpace(texts[path.Join(dir, attribute)]), "0x"))
		}

		f := pciFunction{vendor: hexadecimal("vendor"), product: hexadecimal("device"), class: hexadecimal("class"), numa: -1}

		if node, err := strconv.Atoi(strings.TrimSpace(texts[path.Join(dir, "numa_node")])); err == nil {
			f.numa = node
		}

		if group, ok := links[path.Join(dir, "iommu_group")]; ok {
			f.group = path.Base(group)
		}

		if physical, ok := links[path.Join(dir, "physfn")]; ok {
			f.physical = path.Base(physical)
		}

		for i := 0; ; i++ {
			virtual, ok := links[path.Join(dir, fmt.Sprintf("virtfn%d", i))]
			if !ok {
				break
			}
			f.virtual = append(f.virtual, path.Base(virtual))
		}

		require.Len(t, f.vendor, 4, "%s in %s", name, archive)
		tree[path.Base(name)] = f
	}
	return tree
}

// readArchive returns the content of the regular files of an archive and the
// targets of its symbolic links, by path.
func readArchive(t *testing.T, archive string) (texts, links map[string]string) {
	t.Helper()
	file, err := os.Open(archive)
	require.NoError(t, err)
	defer file.Close()

	compressed, err := gzip.NewReader(file)
	require.NoError(t, err)

	texts, links = map[string]string{}, map[string]string{}
	for reader := tar.NewReader(compressed); ; {
		header, err := reader.Next()
		if err == io.EOF {
			return texts, links
		}
		require.NoError(t, err)

		switch header.Typeflag {
		case tar.TypeSymlink:
			links[path.Clean(header.Name)] = header.Linkname
		case tar.TypeReg:
			text, err := io.ReadAll(reader)
			require.NoError(t, err)
			texts[path.Clean(header.Name)] = string(text)
		}
	}
}
