package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// ARQHealth says that the holder of an accelerator request may be without what it was given.
type ARQHealth string

// HealthLostAtBoot is the health of a request whose host has booted since it was bound: Nova starts the instances of such a host
// again without asking for their accelerators (nova/virt/libvirt/driver.py, resume_state_on_host_boot).
const HealthLostAtBoot ARQHealth = "lost_at_boot"

// Rescue is an instance that may be without its accelerators since a boot of its host.
type Rescue struct {
	Instance uuid.UUID `json:"instance"`
	BootID   string    `json:"boot_id"`
	BootedAt time.Time `json:"booted_at"` // as well as is known
}

// RescueOutcome says what became of an instance that was to be rescued.
type RescueOutcome string

// The outcomes. After those of the first group the instance has its accelerators, or will when it is started.
const (
	RescueRebooted  RescueOutcome = "rebooted"  // Nova has rebooted it hard
	RescueRecreated RescueOutcome = "recreated" // somebody else had it started or rebuilt since the boot
	RescueOff       RescueOutcome = "off"       // it does not run; Nova asks for its accelerators when it is started

	RescueGone      RescueOutcome = "gone"      // Nova has no such instance any more
	RescueElsewhere RescueOutcome = "elsewhere" // it is on another host than its accelerators
	RescueSkipped   RescueOutcome = "left"      // it is in a state in which a reboot could do harm
	RescueFailed    RescueOutcome = "failed"    // Nova failed, or did not answer in time
)

// Well says that the instance has its accelerators, or will when it is started.
func (o RescueOutcome) Well() bool {
	return o == RescueRebooted || o == RescueRecreated || o == RescueOff
}

// RescuedInstance is what became of one instance.
type RescuedInstance struct {
	Rescue

	Outcome RescueOutcome `json:"outcome"`
	Detail  string        `json:"detail,omitempty"` // why it was left, or has failed
}
