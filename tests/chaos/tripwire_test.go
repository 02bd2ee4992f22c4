package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// layTripwires says on every card who holds it, and who uses it, so that the
// cards themselves note whatever takes it from them, at any moment of the
// round. Whoever holds a handle also uses it. It is called at rest. What the
// round's own work takes away is left out.
func (d *driver) layTripwires(ctx context.Context, jobs []*job) error {
	d.laid = map[string][]tripwire{}
	for _, host := range d.c.Hosts {
		all, err := d.accelerators(ctx, host)
		if err != nil {
			return err
		}

		for i := range all {
			if err := d.layTripwire(ctx, &all[i], jobs); err != nil {
				return err
			}
		}
	}
	return nil
}

// layTripwire lays those of one accelerator.
func (d *driver) layTripwire(ctx context.Context, a *apiclient.Accelerator, jobs []*job) error {
	device, err := d.c.API.Device(ctx, a.DeviceUUID)
	if err != nil {
		return err
	}

	bench := d.c.Bench(a.Host)
	for _, handle := range a.Handles {
		if handle.Holder == nil {
			continue
		}
		if handle.Holder.Kind != cyborg.HolderHost && a.Cleaning != nil && a.Cleaning.After != "" {
			if err := bench.Leave(ctx, device.Identity, handle.Identity, handle.Holder.String()); err != nil {
				return err
			}
		}
		if slices.ContainsFunc(jobs, func(j *job) bool { return j.takes(a, *handle.Holder) }) {
			continue
		}

		wire := tripwire{device.Identity, handle.Identity}
		d.laid[a.Host] = append(d.laid[a.Host], wire)
		if err := possess(ctx, bench, wire, *handle.Holder); err != nil {
			return err
		}
	}

	for _, j := range jobs {
		if !j.used || j.request.accelerator != a.UUID {
			continue
		}

		used := j.uses(a)
		if len(used) == 0 {
			return fmt.Errorf("%s has no handle that somebody could use during %q", a.Name, j.request.what)
		}
		for _, handle := range used {
			d.laid[a.Host] = append(d.laid[a.Host], tripwire{device.Identity, handle})
			if err := bench.Use(ctx, device.Identity, handle, "a program on "+a.Host); err != nil {
				return err
			}
		}
	}
	return nil
}

// uses returns the handles that somebody uses during the work, so that it must
// not be done. An attach may take any handle that is free.
func (j *job) uses(a *apiclient.Accelerator) (used []string) {
	for _, h := range a.Handles {
		switch {
		case h.Holder == nil && j.kind == cyborg.OperationAttach:
			used = append(used, h.Identity)
		case len(used) > 0:
		case j.kind == cyborg.OperationProgram, j.kind == cyborg.OperationRetire, h.Holder != nil && *h.Holder == j.request.holder:
			used = append(used, h.Identity)
		}
	}
	return used
}

// takes reports whether the work takes the accelerator from this holder.
func (j *job) takes(a *apiclient.Accelerator, holder cyborg.Holder) bool {
	if j.binding != nil {
		return j.binding.at.UUID == a.UUID && holder.ID == j.binding.instance.String()
	}
	if j.crossing != nil { // these lay their own
		return j.request.accelerator == a.UUID && holder != stayer()
	}
	return (j.kind == cyborg.OperationDetach || j.kind == cyborg.OperationClean) && j.request.accelerator == a.UUID && j.request.holder == holder
}

// endUses ends the uses of a round, so that what waits for them comes to rest.
func (d *driver) endUses(ctx context.Context) error {
	return d.eachTripwire(func(bench fake.Bench, wire tripwire) error { return bench.Use(ctx, wire.card, wire.handle, "") })
}

// liftTripwires removes the tripwires of a round: what prepares the next one
// may take any card from anybody.
func (d *driver) liftTripwires(ctx context.Context) error {
	return d.eachTripwire(func(bench fake.Bench, wire tripwire) error { return bench.Hold(ctx, wire.card, wire.handle, "", false) })
}

func (d *driver) eachTripwire(do func(bench fake.Bench, wire tripwire) error) error {
	for host, laid := range d.laid {
		for _, wire := range laid {
			if err := do(d.c.Bench(host), wire); err != nil {
				return err
			}
		}
	}
	return nil
}

// possess says on the card that somebody holds and uses a handle; an empty holder
// ends that.
func possess(ctx context.Context, bench fake.Bench, wire tripwire, holder cyborg.Holder) error {
	var by string
	if holder.ID != "" {
		by = holder.String()
	}
	return errors.Join(bench.Use(ctx, wire.card, wire.handle, by),
		bench.Hold(ctx, wire.card, wire.handle, by, by != "" && holder.Kind != cyborg.HolderHost))
}

// tripwire is a handle on whose card it is said that somebody holds or uses it.
type tripwire struct{ card, handle string }

// tripped returns an error that names what the cards of all hosts have noted, since
// the test began.
func (k *checker) tripped() error {
	benches := map[string]fake.Bench{}
	for _, host := range k.c.Hosts {
		benches[host] = k.c.Bench(host)
	}
	return noted(benches)
}

// noted returns an error that names what the cards have noted: a card was taken
// from somebody who held or used it, if only for a moment. Nothing excuses that.
// A detach by force frees a handle in the records only, and its host waits until
// nobody uses it.
func noted(benches map[string]fake.Bench) error {
	var all []error
	for _, host := range slices.Sorted(maps.Keys(benches)) {
		trips, err := benches[host].Trips()
		if err != nil {
			return err
		}
		for _, one := range trips {
			what := fmt.Sprintf("handle %s on %s was %s, while %q held it and %q used it", one.Handle, host, one.What, one.HeldBy, one.InUseBy)
			if one.LeftBy != "" {
				what += fmt.Sprintf(", with what %q had left", one.LeftBy)
			}
			all = append(all, errors.New(what))
		}
	}
	return errors.Join(all...)
}
