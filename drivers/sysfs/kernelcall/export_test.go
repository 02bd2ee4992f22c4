package kernelcall

// SerialNumber returns the device serial number of a function with this
// configuration space, and how often it was read.
func SerialNumber(space []byte) (serial []byte, reads int) {
	serial = serialNumber(func(offset int64, into []byte) bool {
		reads++
		return offset <= int64(len(space)) && copy(into, space[offset:]) == len(into)
	})
	return serial, reads
}
