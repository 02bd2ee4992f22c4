package sysfstest

import (
	"errors"

	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// ErrDied is the error with which a DyingKernel fails.
var ErrDied = errors.New("the process died")

// DyingKernel fails at one of its writes, either before or after the write is
// done, as if the process had died there.
type DyingKernel struct {
	sysfs.Kernel

	At    int  // the number of the write that fails, from 1
	After bool // the write is done before it fails
	Dead  bool // all later writes fail, too, and are not done

	count int // the writes so far
}

// Write writes, or fails with ErrDied where this is the write that fails.
func (k *DyingKernel) Write(attribute, text string) error {
	k.count++

	if k.count > k.At && k.Dead {
		return ErrDied
	}
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
