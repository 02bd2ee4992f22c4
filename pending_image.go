package cyborg

// PendingImage is an image that was loaded and takes effect later, such as one that was
// written to the flash memory of a card, from which the card boots when it gets power.
type PendingImage struct {
	// BitstreamID is the id that the deployable will read back.
	BitstreamID string `json:"bitstream_id"`
	// Until is what has to be done before it takes effect.
	Until Activation `json:"until"`
}

// Activation is what makes a pending image take effect.
type Activation string

// The ways in which a pending image takes effect.
const (
	ActivationReboot     Activation = "reboot"      // of the host, with or without a loss of power
	ActivationPowerCycle Activation = "power_cycle" // the host is switched off and on again
)

// Activations returns the ways in which a pending image takes effect.
func Activations() []Activation { return []Activation{ActivationReboot, ActivationPowerCycle} }

// Text says to people what has to be done to the host: "after a power cycle of rack07".
func (a Activation) Text(host string) string {
	switch a {
	case ActivationReboot:
		return "after a reboot of " + host
	case ActivationPowerCycle:
		return "after a power cycle of " + host
	default:
		return "after something that this release does not know (" + string(a) + ") on " + host
	}
}
