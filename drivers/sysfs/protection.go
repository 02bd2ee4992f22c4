package sysfs

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
)

// Protection says why a function must not be touched, for each function that
// the host needs. A function that is not in it may be given out.
type Protection map[cyborg.PCIAddress]string

// Protection finds the functions that the host needs at this moment. The
// protected functions are:
//   - the chipset: host bridges, PCI bridges, system peripherals, memory and SMBus controllers;
//   - controllers of disks that are mounted or swapped to, also below LVM, software RAID, multipath, bcache, btrfs. Where
//     the disks of something mounted cannot be told (ZFS), every disk controller;
//   - virtio devices through which a mounted file system comes from the hypervisor (9p, virtiofs);
//   - network interfaces that are up, members of a bridge or bond, or carry the default route;
//   - the display on which the firmware boots, and the system console;
//   - every function above one of these on the bus;
//   - the physical function of a protected virtual one;
//   - the other functions of an IOMMU group that has a protected one with a driver, since VFIO takes whole groups.
//
// The error is of kind ErrUnavailable where this cannot be found out. The
// caller must then not touch anything.
func (t *Tree) Protection(ctx context.Context) (Protection, error) {
	_, protection, err := t.Survey(ctx)
	return protection, err
}

// Survey lists every function, and the protection of those that the host needs,
// from one look at the tree.
func (t *Tree) Survey(ctx context.Context) ([]Function, Protection, error) {
	v, err := t.open()
	if err != nil {
		return nil, nil, err
	}
	defer v.close()

	functions, err := v.functions(ctx)
	if err != nil {
		return nil, nil, err
	}

	s := survey{view: v, live: t.Live(), functions: map[cyborg.PCIAddress]*Function{}, found: Protection{}}
	for i := range functions {
		s.functions[functions[i].Address] = &functions[i]
	}

	console := func() error { return s.protectConsole(ctx) }
	for _, look := range []func() error{s.protectChipset, s.protectStorage, s.protectNetwork, console} {
		if err := look(); err != nil {
			return nil, nil, cyborg.Errorf(cyborg.ErrUnavailable, "nobody can tell which PCI functions the host lives on: %w", err)
		}
	}

	// These three protect the neighbours of what was found above, so they come last
	// and in this order.
	s.protectAncestors()
	s.protectPhysicalFunctions()
	s.protectGroups()

	return functions, s.found, nil
}

// survey collects the reasons for protection. The first reason that is found
// for a function is kept.
type survey struct {
	view      *view
	live      bool // the tree is that of the running kernel
	functions map[cyborg.PCIAddress]*Function
	found     Protection
}

// protect protects a function, unless it is protected already or not on the
// bus.
func (s *survey) protect(address cyborg.PCIAddress, reason string) {
	if _, there := s.functions[address]; !there {
		return
	}

	if _, known := s.found[address]; !known {
		s.found[address] = reason
	}
}

// protectNearest protects the function to which a directory of sysfs belongs.
func (s *survey) protectNearest(dir, reason string) {
	if chain := functionsOn(dir); len(chain) > 0 {
		s.protect(chain[len(chain)-1], reason)
	}
}

// protectChipset protects the functions of the machine itself, and the display
// of the console.
func (s *survey) protectChipset() error {
	for address, f := range s.functions {
		if reason := f.Class.platform(); reason != "" {
			s.protect(address, reason)
		}

		if f.BootVGA {
			s.protect(address, "it is the display that this host boots on")
		}
	}
	return nil
}

// protectStorage protects the controllers of the disks that are in use. It
// fails where no table of mounts can be read, except in a recording without any
// processes.
func (s *survey) protectStorage() error {
	disks, err := s.view.disks()
	if err != nil {
		return err
	}

	storages, complete := s.view.storages()
	if !complete && (s.live || s.view.exists("proc/1")) {
		return cyborg.Errorf(cyborg.ErrUnavailable, "neither /proc/1/mountinfo nor /proc/self/mountinfo can be read")
	}

	for _, storage := range storages {
		for _, dir := range s.view.shares(storage) {
			s.protectNearest(dir, "its file system "+storage.node+" "+storage.use)
		}

		dir := disks.find(storage.number, storage.node)
		if dir == "" {
			if storage.local() {
				s.protectEveryDisk(disks, storage)
			}
			continue
		}

		functions, known := disks.functions(dir)
		if !known {
			s.protectEveryDisk(disks, storage)
		}

		for _, address := range functions {
			s.protect(address, "its disk "+path.Base(dir)+" "+storage.use)
		}
	}
	return nil
}

// protectEveryDisk protects all disk controllers, because nobody can tell on
// which of their disks the storage is.
func (s *survey) protectEveryDisk(disks *disks, storage storage) {
	for _, dir := range disks.physical() {
		s.protectNearest(dir, "it has the disk "+path.Base(dir)+", and "+storage.node+", which "+storage.use+", may be on it")
	}
}

// protectNetwork protects the controllers of the network interfaces that the
// host needs.
func (s *survey) protectNetwork() error {
	interfaces, err := s.view.interfaces()
	if err != nil {
		return err
	}

	for _, i := range interfaces {
		if i.use != "" {
			s.protectNearest(i.dir, "its network interface "+i.name+" "+i.use)
		}
	}

	return nil
}

// protectConsole protects the functions that carry the system console, such as
// a serial port on PCI. The kernel answers under the lock of the console, which it
// keeps for as long as it prints to a slow one.
func (s *survey) protectConsole(ctx context.Context) error {
	text, err := s.view.ask(ctx, kernelcall.Call{Kind: kernelcall.Read, Path: "sys/class/tty/console/active"})
	if isGone(err) {
		return nil // a host without a console has none to lose
	}
	if err != nil {
		return err
	}

	for name := range strings.FieldsSeq(text) {
		if dir := s.view.target(path.Join("sys/class/tty", name)); dir != "" {
			s.protectNearest(dir, "it carries the system console "+name)
		}
	}

	return nil
}

// protectAncestors protects every function above a protected one. These are not
// only bridges: a controller can have a bus of its own.
func (s *survey) protectAncestors() {
	for _, address := range s.addresses() {
		for _, above := range s.functions[address].ancestors() {
			s.protect(above, "protected function "+address.String()+" is below it")
		}
	}
}

// protectPhysicalFunctions protects the physical function of each protected
// virtual one, since its driver makes the virtual functions.
func (s *survey) protectPhysicalFunctions() {
	for _, address := range s.addresses() {
		if pf := s.functions[address].PF; pf != nil {
			s.protect(*pf, "its virtual function "+address.String()+" is protected: "+s.found[address])
		}
	}
}

// protectGroups protects the functions that share an IOMMU group with a
// protected one which has a driver. It starts from a copy, so that a function
// that is protected for its group only does not protect others.
func (s *survey) protectGroups() {
	direct := maps.Clone(s.found)
	for address, f := range s.functions {
		if f.IOMMUGroup == "" {
			continue
		}

		for _, other := range slices.SortedFunc(maps.Keys(direct), compareAddresses) {
			sibling := s.functions[other]
			if other != address && sibling.IOMMUGroup == f.IOMMUGroup && sibling.Obstructs() {
				s.protect(address, "it shares IOMMU group "+f.IOMMUGroup+" with "+other.String()+", which is protected: "+direct[other])
				break
			}
		}
	}
}

// addresses lists the functions that are protected so far, by address, so that
// the reasons are the same in each run.
func (s *survey) addresses() []cyborg.PCIAddress {
	return slices.SortedFunc(maps.Keys(s.found), compareAddresses)
}
