package kernelcall

// SerialNumber returns the device serial number of a function with this
// configuration space, and how often it was read.
func SerialNumber(space []byte) (serial []byte, reads int) {
	serial = serialNumber(counting(space, &reads))
	return serial, reads
}

// StatusRegister returns the Device Status register of a function with this configuration
// space, and how often it was read.
func StatusRegister(space []byte) (status []byte, reads int) {
	status = deviceStatus(counting(space, &reads))
	return status, reads
}

// counting reads from a configuration space, and counts how often.
func counting(space []byte, reads *int) readAt {
	return func(offset int64, into []byte) bool {
		*reads++
		return offset <= int64(len(space)) && copy(into, space[offset:]) == len(into)
	}
}
