package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/internal/commandline"
)

// examplesTable has the examples of the help by command. Each is a complete
// command line that works where the things that it names exist.
var examplesTable = map[string][]string{
	"accelerator list": {
		"cyborg accelerator list --status ready --device-type FPGA",
		"cyborg accelerator list -f value -c uuid -c name --sort host,name:desc",
		"cyborg accelerator list --host compute-1 --long --watch=2s",
	},
	"accelerator show": {"cyborg accelerator show crypto-1 -f json"},
	"accelerator create": {
		"cyborg accelerator create crypto-1 --device-type FPGA --acc-type crypto",
		"cyborg accelerator create gpu-1 --host compute-1 --vendor-id 10de --capability memory.gib=16",
		"cyborg accelerator create gpu-2 --accelerator 0a1b2c3d    # that very one",
	},
	"accelerator set": {"cyborg accelerator set crypto-1 --acc-type crypto --capability memory.gib=16"},
	"accelerator attach": {
		"cyborg accelerator attach crypto-1                                                   # to its own host",
		"cyborg accelerator attach crypto-1 --instance 5f5f5f5f-0000-4000-8000-00000000000f",
		"cyborg accelerator attach crypto-1 --service ovs --no-wait",
	},
	"accelerator detach": {
		"cyborg accelerator detach crypto-1 --instance 5f5f5f5f-0000-4000-8000-00000000000f",
		"cyborg accelerator detach crypto-1 --yes            # from whoever has it",
		"cyborg accelerator detach crypto-1 --force --yes    # its host will not come back",
	},
	"accelerator program": {
		"cyborg accelerator program crypto-1 afu/aes.gbs",
		"cyborg accelerator program crypto-1 glance:5b7a31d2-6a0c-4a6b-9d33-6a58a2f0c1de --yes",
		"cyborg accelerator program crypto-1 https://images.example.org/aes.gbs --sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
	},
	"accelerator maintain": {`cyborg accelerator maintain crypto-1 --reason "new fan" --for 2h`},
	"accelerator history": {
		"cyborg accelerator history crypto-1",
		"cyborg accelerator history crypto-1 --events -f json",
	},
	"device list":    {"cyborg device list --vendor-id 10de --long"},
	"device disable": {`cyborg device disable 0a1b2c3d --reason "to be replaced" --until 2030-01-31T18:00:00Z`},
	"device history": {"cyborg device history 0a1b2c3d"},
	"attach-instance": {
		"cyborg attach-instance 5f5f5f5f-0000-4000-8000-00000000000f crypto-1",
	},
	"detach-instance": {
		"cyborg detach-instance 5f5f5f5f-0000-4000-8000-00000000000f crypto-1",
		"cyborg detach-instance 5f5f5f5f-0000-4000-8000-00000000000f --yes    # all that it has",
	},
	"discover": {"cyborg discover compute-1"},
	"usage":    {"cyborg usage --host compute-1 -c name -c in_use -c by"},
	"driver install": {
		"cyborg driver install compute-1 generic --name nvidia --option device_spec.vendor_id=10de",
	},
	"driver update": {"cyborg driver update compute-1 nvidia --option device_spec.vendor_id=10de"},
	"host list":     {"cyborg host list --watch"},
	"host history":  {"cyborg host history compute-1 --limit 100"},
	"host whitelist": {
		"cyborg host whitelist compute-1                                        # what it has",
		"cyborg host whitelist compute-1 0000:3b:00.0,physical_network=physnet1 --dry-run",
		"cyborg host whitelist compute-1 --none --yes",
	},
	"host rescue": {
		"cyborg drift list --host compute-1 --class lost_at_boot    # which instances it would reboot",
		"cyborg host rescue compute-1",
	},
	"operation list": {
		"cyborg operation list --state failed --state needs_operator --long",
		"cyborg operation list --accelerator crypto-1 --limit 0",
	},
	"operation watch":  {"cyborg operation watch 0a1b2c3d --timeout 10m"},
	"operation cancel": {"cyborg operation cancel 0a1b2c3d --yes"},
	"events": {
		"cyborg events --host compute-1",
		"cyborg events --after 0-0 -f json    # all that are kept, and on",
	},
	"drift list": {
		"cyborg drift list",
		"cyborg drift list --class lost_at_boot --class lost_image --all --sort found_at:desc",
	},
	"doctor": {
		"cyborg doctor",
		"cyborg doctor --profile lab -f json",
	},
	"profile list": {"cyborg profile list"},
	"profile set": {
		"cyborg profile set lab --url https://cyborg.lab.example.org:6666 --token-stdin",
		"cyborg profile set lab --url https://cyborg.lab.example.org:6666 --cacert /etc/cyborg/lab.pem",
	},
	"profile use": {"cyborg profile use lab"},
}

// showExamples gives the commands below root their examples.
func showExamples(root *cobra.Command) {
	for path, lines := range examplesTable {
		if cmd, rest, err := root.Find(strings.Fields(path)); err == nil && len(rest) == 0 {
			cmd.Example = commandline.Examples(lines...)
		}
	}
}
