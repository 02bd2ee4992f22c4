package sysfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/jaypipes/ghw"
	"github.com/jaypipes/ghw/pkg/option"
	"github.com/jaypipes/pcidb"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/internal/capture"
)

// named returns the names that the database has for a vendor and a product.
func named(t *testing.T, names *sysfs.Names, vendor, product string) (vendorName, productName string) {
	t.Helper()
	functions := []sysfs.Function{{Vendor: vendor, Product: product}}
	names.Fill(t.Context(), functions)
	return functions[0].VendorName, functions[0].ProductName
}

// Names come from the database, and an id stands in for a name that is missing
// there.
func TestNames(t *testing.T) {
	t.Parallel()
	names := sysfs.NewNames(sysfstest.PCIIDs(t), logger(t))
	for range 2 { // the second time from memory
		vendor, product := named(t, names, "10de", "15f8")
		require.Equal(t, "NVIDIA Corporation", vendor)
		require.Equal(t, "GP100GL [Tesla P100 PCIe 16GB]", product)

		vendor, product = named(t, names, "10de", "ffff")
		require.Equal(t, "NVIDIA Corporation", vendor)
		require.Equal(t, "ffff", product, "an id stands in for a name that nobody knows")

		vendor, product = named(t, names, "f00d", "1234")
		require.Equal(t, "f00d", vendor)
		require.Equal(t, "1234", product)
	}
}

func TestNamesWithoutDatabase(t *testing.T) {
	t.Parallel()
	names := sysfs.NewNames(filepath.Join(t.TempDir(), "pci.ids"), logger(t))
	vendor, product := named(t, names, "10de", "15f8")
	require.Equal(t, "10de", vendor)
	require.Equal(t, "15f8", product)
}

func TestNamesFromADamagedDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"short": "10de\n", "orphan": "\t15f8  Tesla\n", "binary": "C\x00\xff\n\t\t\n"} {
		place(t, dir, map[string]string{name: text})
		vendor, product := named(t, sysfs.NewNames(filepath.Join(dir, name), logger(t)), "10de", "15f8")
		require.Equal(t, "10de", vendor, name)
		require.Equal(t, "15f8", product, name)
	}
}

// A database that is installed later is used without a restart.
func TestNamesAppearWithTheDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names := sysfs.NewNames(filepath.Join(dir, "pci.ids"), logger(t))
	vendor, _ := named(t, names, "10de", "15f8")
	require.Equal(t, "10de", vendor)

	place(t, dir, map[string]string{"pci.ids": "10de  NVIDIA Corporation\n\t15f8  Tesla\n"})
	vendor, product := named(t, names, "10de", "15f8")
	require.Equal(t, "NVIDIA Corporation", vendor)
	require.Equal(t, "Tesla", product)
}

// TestFunctionsAgreesWithGHW compares the functions and the names with those of
// ghw, on every recording in ghw. ghw reads its names from the database that
// PCIDB_PATH names, so the test cannot run in parallel with others.
func TestFunctionsAgreesWithGHW(t *testing.T) {
	t.Setenv("PCIDB_PATH", sysfstest.PCIIDs(t))
	compared := 0
	for _, snapshot := range sysfstest.Recordings(t) {
		root, err := capture.Open(snapshot, filepath.Join(t.TempDir(), "machine"))
		require.NoError(t, err)
		functions, err := tree(t, root).Functions(t.Context())
		require.NoError(t, err)
		sysfs.NewNames(sysfstest.PCIIDs(t), logger(t)).Fill(t.Context(), functions)

		info, err := ghw.PCI(ghw.WithChroot(root), ghw.WithDisableTools(), ghw.WithDisableTopology(), ghw.WithDisableWarnings())
		require.NoError(t, err)
		require.Len(t, functions, len(info.Devices), snapshot)
		for i, f := range functions {
			other := info.Devices[i]
			require.Equal(t, other.Address, f.Address.String())
			require.Equal(t, other.Vendor.ID, f.Vendor)
			require.Equal(t, other.Product.ID, f.Product)
			require.Equal(t, other.Class.ID+other.Subclass.ID+other.ProgrammingInterface.ID, f.Class.String())
			require.Equal(t, other.Driver, f.Driver)
			require.Equal(t, other.IOMMUGroup, f.IOMMUGroup)
			require.Equal(t, known(other.Vendor.Name, f.Vendor), f.VendorName)
			require.Equal(t, known(other.Product.Name, f.Product), f.ProductName)
			compared++
		}
	}
	require.Greater(t, compared, 200)
}

// TestGHWFailsOnOneBadFunction shows why this package does not use the list of
// ghw. When the test fails, ghw has improved and can be used.
func TestGHWFailsOnOneBadFunction(t *testing.T) {
	t.Setenv("PCIDB_PATH", sysfstest.PCIIDs(t))
	host := sysfstest.New(t, sysfstest.GPU(t, gpu), sysfstest.NIC(t, nic, "ens1"))

	count := func() int {
		info, err := ghw.PCI(ghw.WithChroot(host.Root()), ghw.WithDisableTools(), ghw.WithDisableTopology(), ghw.WithDisableWarnings())
		require.NoError(t, err)
		return len(info.Devices)
	}

	require.Equal(t, 2, count())
	require.NoError(t, os.Remove(filepath.Join(host.Root(), "sys/bus/pci/devices", nic, "modalias")))
	require.Zero(t, count())

	functions, err := tree(t, host.Root()).Functions(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{nic, gpu}, addresses(functions))
}

// TestGHWTakesItsOwnDatabase shows why this package does not look names up by ghw: the
// names are the same, but it takes no database, and no other way to a file than the
// environment. When the test fails, ghw has improved and can be used.
func TestGHWTakesItsOwnDatabase(t *testing.T) {
	t.Setenv("PCIDB_PATH", sysfstest.PCIIDs(t))
	dir := t.TempDir()
	place(t, dir, map[string]string{"pci.ids": "10de  Nobody\n\t15f8  Nothing\n"})
	own, err := pcidb.New(pcidb.WithPath(filepath.Join(dir, "pci.ids")))
	require.NoError(t, err)

	info, err := ghw.PCI(ghw.WithChroot(dir), option.WithPCIDB(own), ghw.WithDisableTopology(), ghw.WithDisableWarnings())
	require.NoError(t, err)
	parsed := info.ParseDevice("0000:3b:00.0", "pci:v000010DEd000015F8sv000010DEsd00001212bc03sc02i00")

	vendor, product := named(t, sysfs.NewNames(sysfstest.PCIIDs(t), logger(t)), "10de", "15f8")
	require.Equal(t, vendor, parsed.Vendor.Name)
	require.Equal(t, product, parsed.Product.Name)
}

// known returns ghw's name, or the id where ghw knows no name.
func known(name, id string) string {
	if name == "unknown" {
		return id
	}
	return name
}
