package sysfstest

import (
	"errors"

	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// ErrDied is what a DyingKernel fails with.
var ErrDied = errors.New("the process died")

// DyingKernel fails at one write, before or after it is done, as if the process died there.
type DyingKernel struct {
	sysfs.Kernel

	At    int // which write, from 1
	After bool

	count int
}

// Write writes, or fails with ErrDied.
func (k *DyingKernel) Write(attribute, text string) error {
	k.count++
	if k.count != k.At {
		return k.Kernel.Write(attribute, text)
	}
	if k.After {
		if err := k.Kernel.Write(attribute, text); err != nil {
			return err
		}
	}
	return ErrDied
}
