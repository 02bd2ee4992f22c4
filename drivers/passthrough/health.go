package passthrough

import (
	"context"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// kernelHangs is the code of the condition of a function with which the kernel hangs.
const kernelHangs = "kernel_hangs"

// Health says with which functions the kernel hangs: it has not come back from a
// change of the function's driver, or has not answered whether the function is there,
// for the deadline of the backend; it need not be this process that has asked. What
// hangs with a physical function hangs with its virtual ones, and what hangs with a
// companion hangs with the function that it goes with.
//
// It asks the kernel nothing new that could hang.
func (d *Driver) Health(ctx context.Context) (map[string][]cyborg.Condition, error) {
	functions, err := d.tree.Functions(ctx)
	if err != nil {
		return nil, err
	}

	byAddress := map[cyborg.PCIAddress]sysfs.Function{}
	for _, f := range functions {
		byAddress[f.Address] = f
	}

	said := map[string][]cyborg.Condition{}
	all := byCard(functions)
	for _, f := range functions {
		card := byAddress[physical(f)]
		if len(f.VFs) > 0 || !d.cards.Chosen(f) && (f.PF == nil || !d.cards.Chosen(card)) {
			continue // it is no deployable
		}

		for _, one := range append([]sysfs.Function{f, card}, d.companions(f, all[slotOf(f.Address)])...) {
			if message := d.hangsWith(one); message != "" {
				said[f.Address.String()] = []cyborg.Condition{{Code: kernelHangs, Level: cyborg.ConditionUnready, Message: message}}
				break
			}
		}
	}
	return said, nil
}

// hangsWith says since when the kernel hangs with the function, and what to do; empty where
// it does not.
func (d *Driver) hangsWith(f sysfs.Function) string {
	if d.binder != nil {
		if err := d.binder.Hangs(f.Address); err != nil {
			e := cyborg.AsError(err)
			return e.Message + ". " + e.Hint
		}
	}

	if since, waits := d.tree.Unanswered(f); waits && time.Since(since) >= d.options.deadline {
		return "the kernel has not answered since " + since.UTC().Format(time.RFC3339) + " whether " + f.Address.String() +
			" is there. The kernel log (dmesg) may say why."
	}
	return ""
}
