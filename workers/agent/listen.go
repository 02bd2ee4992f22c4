package agent

import (
	"context"

	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/internal/uevent"
)

// listen has the inventory look whenever the kernel says that hardware came, went or changed, until the context ends.
// Where the kernel does not tell, the slow full scan remains.
func (a *Agent) listen(ctx context.Context, known *inventory.Inventory) {
	listener, err := uevent.Listen()
	if err != nil {
		a.log.WarnContext(ctx, "changes of the hardware are only seen by looking now and then", "error", err)
		return
	}
	over := context.AfterFunc(ctx, func() { _ = listener.Close() }) // it was only read
	defer over()
	for {
		event, err := listener.Next()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			a.log.WarnContext(ctx, "changes of the hardware are from now on only seen by looking now and then", "error", err)
			return
		}
		if event.Lost() || interesting(event.Subsystem) {
			known.Trigger()
		}
	}
}

// interesting says whether a kernel subsystem has to do with accelerators. What containers and disks say all day is not
// worth a look.
func interesting(subsystem string) bool {
	switch subsystem {
	case "pci", "mdev", "vfio", "vfio-dev", "drm", "accel", "nvme", "dfl", "fpga_manager", "fpga_bridge", "fpga_region":
		return true
	default:
		return false
	}
}
