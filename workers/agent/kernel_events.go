package agent

import (
	"context"

	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/internal/uevent"
)

// watchKernel has the inventory scan the hardware whenever the kernel reports
// that hardware came, went or changed. It returns when the context ends, or
// when the kernel's messages are not available: then only the full scan at
// intervals remains.
func (a *Agent) watchKernel(ctx context.Context, hardware *inventory.Inventory) {
	listener, err := uevent.Listen()
	if err != nil {
		a.log.WarnContext(ctx, "the kernel's messages are not available: changes of the hardware are only found by the full scan (agent.full_scan)", "error", err)
		return
	}

	stop := context.AfterFunc(ctx, func() { _ = listener.Close() }) // this ends a Next that is waiting
	defer stop()

	for {
		event, err := listener.Next()
		if ctx.Err() != nil {
			return
		}

		if err != nil {
			a.log.WarnContext(ctx, "the kernel's messages are no longer available: changes of the hardware are only found by the full scan (agent.full_scan)", "error", err)
			return
		}

		if event.Lost() || interesting(event.Subsystem) {
			hardware.Trigger()
		}
	}
}

// interesting reports whether a kernel subsystem has to do with accelerators.
// Containers and disks cause events all day, which are not worth a look.
func interesting(subsystem string) bool {
	switch subsystem {
	case "pci", "mdev", "vfio", "vfio-dev", "drm", "accel", "nvme", "dfl", "fpga_manager", "fpga_bridge", "fpga_region":
		return true
	default:
		return false
	}
}
