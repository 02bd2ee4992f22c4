package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// OperationRescue has Nova reboot instances that lost accelerators when their
// host booted.
const OperationRescue OperationKind = "rescue"

// RescueRequest has Nova reboot the instances on a host that may have lost
// their accelerators when the host booted.
type RescueRequest struct {
	Host string `json:"host"`
	// Once leaves out the instances that an earlier rescue has handled since the
	// same boot.
	Once bool `json:"once,omitempty"`
	// Within bounds the whole rescue, including the time for which Nova is away.
	Within time.Duration `json:"within"`
}

// Kind returns OperationRescue.
func (RescueRequest) Kind() OperationKind { return OperationRescue }

// ARQHealth says why the holder of an accelerator request may lack the
// accelerator; empty where nothing is known to be wrong.
type ARQHealth string

// HealthLostAtBoot is the health of a request whose host has booted since it
// was bound. After a boot, Nova starts a host's instances again without their
// accelerators (nova/virt/libvirt/driver.py, resume_state_on_host_boot).
const HealthLostAtBoot ARQHealth = "lost_at_boot"

// Rescue is an instance that may have lost its accelerators when its host
// booted.
type Rescue struct {
	Instance uuid.UUID `json:"instance"`
	BootID   string    `json:"boot_id"`
	BootedAt time.Time `json:"booted_at"` // an estimate
}

// RescueOutcome is the outcome of a rescue for one instance.
type RescueOutcome string

// The outcomes of a rescue.
const (
	// The instance has its accelerators, or will have them when it is started.
	RescueRebooted  RescueOutcome = "rebooted"  // Nova has rebooted it hard
	RescueRecreated RescueOutcome = "recreated" // it was started or rebuilt since the boot for another reason
	RescueOff       RescueOutcome = "off"       // it does not run; Nova asks for its accelerators when it is started

	// The instance does not exist, or may be without its accelerators.
	RescueGone      RescueOutcome = "gone"      // Nova has no such instance any more
	RescueElsewhere RescueOutcome = "elsewhere" // it is on another host than its accelerators
	RescueSkipped   RescueOutcome = "left"      // it is in a state in which a reboot could do harm
	RescueFailed    RescueOutcome = "failed"    // Nova failed, or did not answer in time
)

// HasAccelerators says that the instance has its accelerators, or will when it
// is started.
func (o RescueOutcome) HasAccelerators() bool {
	return o == RescueRebooted || o == RescueRecreated || o == RescueOff
}

// RescuedInstance is what became of one instance.
type RescuedInstance struct {
	Rescue

	Outcome RescueOutcome `json:"outcome"`
	Detail  string        `json:"detail,omitempty"` // more about an outcome other than rebooted
}
