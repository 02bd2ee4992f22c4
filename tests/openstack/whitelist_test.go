package openstack_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// askNova is a program that reads nova.conf and its drop-ins with the code of
// nova-compute, and prints which of the functions Nova would give out, and how.
// It uses the /sys of the simulated machine in place of this machine's.
const askNova = `
import json, os, sys
import nova.conf
from nova import objects
from nova.compute import pci_placement_translator as placement
from nova.pci import utils, whitelist

conf, drop_ins, root, functions = sys.argv[1:]

def is_physical_function(domain, bus, slot, function):
    path = f"{root}/sys/bus/pci/devices/{domain}:{bus}:{slot}.{function}/sriov_totalvfs"
    return os.path.exists(path) and int(open(path).read()) > 0

utils.is_physical_function = is_physical_function
nova.conf.CONF(["--config-file", conf, "--config-dir", drop_ins], project="nova")
known = whitelist.Whitelist(nova.conf.CONF.pci.device_spec)
out = {}
for f in json.loads(functions):
    for spec in known.specs:
        if spec.match(f):
            tags = spec.get_tags()
            dev = objects.PciDevice(vendor_id=f["vendor_id"], product_id=f["product_id"])
            out[f["address"]] = {
                "class": placement._get_rc_for_dev(dev, tags), "traits": sorted(placement._get_traits_for_dev(tags)),
                "physical_network": tags.get("physical_network", ""), "trusted": tags.get("trusted", "")}
            break
json.dump({"specs": len(nova.conf.CONF.pci.device_spec), "functions": out}, sys.stdout)
`

// TestNovaAcceptsTheWhitelist checks the file that an agent writes with Nova's
// own code. Nova accepts it in addition to nova.conf, and gives out exactly
// these functions, with the resource classes and traits that were requested.
func TestNovaAcceptsTheWhitelist(t *testing.T) {
	t.Parallel()
	r := rig.Up(t, rig.Keystone)
	const gpu, qat, nic, other = "0000:af:00.0", "0000:3d:00.0", "0000:3b:00.0", "0000:5e:00.0"
	machine := sysfstest.New(t, sysfstest.GPU(t, gpu), sysfstest.QAT(t, qat), sysfstest.NIC(t, nic, "eth0"), sysfstest.FPGA(t, other))
	machine.SetVFs(nic, "2")

	dir := t.TempDir()

	s := harness.Start(t, harness.Options{
		Hosts: []string{"rack=sysfs:" + machine.Root()}, Env: []string{"CYBORG_AGENT_NOVA_CONF_DIR=" + dir},
	})

	all, err := apiclient.Collect(s.API.Accelerators(t.Context(), apiclient.AcceleratorFilter{}, apiclient.Page{}))
	require.NoError(t, err)

	var functions []map[string]string
	first := map[string]string{} // address of the first virtual function, by its physical function
	for _, a := range all {
		parent, _ := a.Specs.Capability["physical_function"].(string)
		address := a.Handles[0].Identity
		f := map[string]string{"address": address, "vendor_id": a.Specs.VendorID, "product_id": a.Specs.ProductID}

		if parent != "" {
			f["parent_addr"] = parent
			if first[parent] == "" {
				first[parent] = address
			}
		}

		functions = append(functions, f)
	}

	require.NotEmpty(t, first[nic])
	// A virtual function that the host does not have yet, and another card in the
	// GPU's slot.
	functions = append(functions,
		map[string]string{"address": "0000:3d:01.0", "vendor_id": "8086", "product_id": "37c9", "parent_addr": qat},
		map[string]string{"address": gpu, "vendor_id": "1002", "product_id": "6929"})

	yes := true
	answer, err := s.API.ApplyWhitelist(t.Context(), "rack", []apiclient.WhitelistDevice{
		{Device: gpu, Spec: cyborg.NovaSpec{ResourceClass: "PGPU", Traits: []string{"HW_GPU_API_VULKAN", "CUSTOM_RACK_7"}}},
		{Device: qat, Spec: cyborg.NovaSpec{ResourceClass: "CUSTOM_QAT_1"}},
		{Device: first[nic], Spec: cyborg.NovaSpec{PhysicalNetwork: "physnet1", Trusted: &yes}},
	}, false)
	require.NoError(t, err)
	require.Nil(t, answer.Operation, "the change is complete, so no operation continues")

	conf := filepath.Join(t.TempDir(), "nova.conf")
	require.NoError(t, os.WriteFile(conf, []byte("[pci]\ndevice_spec = {\"address\": \"0000:5e:00.0\"}\n"), 0o600))
	text, err := json.Marshal(functions)
	require.NoError(t, err)
	stdout, stderr, code := r.Run(t, "admin", "/usr/bin/python3", "-c", askNova, conf, filepath.Join(dir, "rack"), machine.Root(), string(text))

	require.Zero(t, code, stderr)

	type given struct {
		Class, Trusted  string
		Traits          []string
		PhysicalNetwork string `json:"physical_network"`
	}

	var nova struct {
		Specs     int
		Functions map[string]given
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &nova), stdout)

	require.Equal(t, 4, nova.Specs, "the entries of nova.conf and of the file")
	require.Contains(t, nova.Functions, other)
	delete(nova.Functions, other)

	own := "COMPUTE_MANAGED_PCI_DEVICE"
	vfClass := nova.Functions[first[nic]].Class
	require.Equal(t, map[string]given{
		gpu:        {Class: "PGPU", Traits: []string{own, "CUSTOM_RACK_7", "HW_GPU_API_VULKAN"}},
		qat:        {Class: "CUSTOM_QAT_1", Traits: []string{own}},
		first[nic]: {Class: vfClass, Traits: []string{own}, PhysicalNetwork: "physnet1", Trusted: "true"},
	}, nova.Functions)
	require.Contains(t, vfClass, "CUSTOM_PCI_")
}
