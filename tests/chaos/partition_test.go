package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// Each host also has a card that can be divided, which nothing else works on: what it offers
// changes with each partition. While it is divided, somebody takes what there is of it. Who
// gets something says so on the card, which notes where others have what cannot be there
// beside it, and where it is divided under its holder.

// dividedBackend is the backend of that card.
const dividedBackend = "divided"

// layouts lists how the card is divided.
func layouts() []cyborg.Layout {
	return []cyborg.Layout{{}, {"half": 2}, {"half": 1, "quarter": 2}, {"quarter": 4}, {"quarter": 1}}
}

// otherLayout returns another layout than that one. It has a part in common with it where
// that is possible.
func otherLayout(layout cyborg.Layout) cyborg.Layout {
	at := slices.IndexFunc(layouts(), layout.Equal)
	return layouts()[(at+1)%len(layouts())]
}

// divided returns the card of a host that can be divided.
func (d *driver) divided(ctx context.Context, host string) (apiclient.Device, error) {
	all, err := apiclient.Collect(d.c.API.Devices(ctx, apiclient.DeviceFilter{Hosts: []string{host}}, apiclient.Page{}))
	if err != nil {
		return apiclient.Device{}, err
	}
	at := slices.IndexFunc(all, func(device apiclient.Device) bool { return device.Backend == dividedBackend })
	if at < 0 {
		return apiclient.Device{}, fmt.Errorf("host %s has no card of backend %s", host, dividedBackend)
	}
	return all[at], nil
}

// partsOf lists what that card offers, as the first API says that answers.
func (d *driver) partsOf(ctx context.Context, host string) (all []apiclient.Accelerator, err error) {
	for _, api := range d.c.Directs {
		limited, cancel := context.WithTimeout(ctx, time.Second)
		all, err = apiclient.Collect(api.Accelerators(limited, apiclient.AcceleratorFilter{Hosts: []string{host}, Backends: []string{dividedBackend}}, apiclient.Page{}))
		cancel()
		if err == nil {
			return all, nil
		}
	}
	return nil, err
}

// partition returns the request for a partition.
func (d *driver) partition(device uuid.UUID, layout cyborg.Layout) request {
	return request{
		what: "partition into " + layout.String(), kind: cyborg.OperationPartition,
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.PartitionDevice(ctx, device, layout, options...)
		},
	}
}

// preparePartition divides the card otherwise than the work will, and makes ready what it
// offers then.
func (d *driver) preparePartition(ctx context.Context, j *job) error {
	j.card = harness.DividedCard
	if err := d.freeParts(ctx, j.host); err != nil {
		return err
	}
	device, err := d.divided(ctx, j.host)
	if err != nil {
		return err
	}
	if err := d.mustDo(ctx, d.partition(device.UUID, otherLayout(j.layout))); err != nil {
		return err
	}

	parts, err := d.partsOf(ctx, j.host)
	for _, part := range parts {
		_, more := d.makeReady(ctx, part)
		err = errors.Join(err, more)
	}
	j.request = d.partition(device.UUID, j.layout)
	j.request.api, j.request.async = j.api, j.async
	j.request.trace = trace{string(cyborg.SubjectDevice) + " " + device.UUID.String(), cyborg.AxisLayout, j.layout.String()}
	return err
}

// freeParts takes what there is of the card from whoever has it.
func (d *driver) freeParts(ctx context.Context, host string) error {
	parts, err := d.partsOf(ctx, host)
	for _, part := range parts {
		err = errors.Join(err, d.free(ctx, part))
	}
	return err
}

// runPartition divides the card while somebody takes what there is of it.
func (d *driver) runPartition(ctx context.Context, j *job) {
	var all sync.WaitGroup
	all.Go(func() { d.ask(ctx, j.request) })
	if j.taken {
		all.Go(func() {
			if err := d.takeParts(ctx, j); err != nil {
				d.t.Errorf("%s: %v", j.work, err)
			}
		})
	}
	all.Wait()
}

// takeParts attaches what there is of the card, each part for another holder, until it has
// two of them or has tried some times.
func (d *driver) takeParts(ctx context.Context, j *job) error {
	got := map[uuid.UUID]bool{}
	for try := 0; try < 8 && len(got) < 2; try++ {
		parts, err := d.partsOf(ctx, j.host)
		parts = slices.DeleteFunc(parts, func(a apiclient.Accelerator) bool { return got[a.UUID] })
		if err == nil && len(parts) > 0 {
			part := parts[try%len(parts)]
			if part.Lifecycle != cyborg.LifecycleReady {
				d.ask(ctx, d.makingReady(part.UUID))
			}
			has, err := d.takePart(ctx, j, part)
			if err != nil {
				return err
			}
			if has {
				got[part.UUID] = true
			}
		}
		if err := clock.Sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// takePart attaches one part. Whoever is told that it has it says so on the card.
func (d *driver) takePart(ctx context.Context, j *job, part apiclient.Accelerator) (has bool, err error) {
	holder := cyborg.Holder{Kind: cyborg.HolderService, ID: fmt.Sprintf("of-%s-%d", part.UUID, d.serial())}
	a := d.ask(ctx, d.attach(part.UUID, holder, 1-j.api, false))
	if told := a.err == nil && a.operation == uuid.Nil; !told {
		return false, nil
	}

	for _, handle := range part.Handles { // each part has one
		wire := tripwire{j.card, handle.Identity}
		d.mu.Lock()
		d.laid[j.host] = append(d.laid[j.host], wire)
		d.mu.Unlock()
		err = errors.Join(err, possess(ctx, d.c.Bench(j.host), wire, holder))
	}
	return true, err
}

// strays reports whether the card of a host may be divided otherwise than wanted after the
// round: the records may have lost the last partition, or the journal may, or it could not
// be written when the card was to be divided again after a boot. The drift says so then, and
// somebody divides the card once more. Nobody has anything of it in such a round.
func (r round) strays(host string) bool {
	strikes := func(kind faultKind) bool {
		return slices.ContainsFunc(r.faults, func(f fault) bool { return f.faultKind == kind && f.target == host })
	}
	return r.loses() || slices.ContainsFunc(r.faults, func(f fault) bool { return f.replacesJournal(host) }) || strikes(reboot) && strikes(full)
}

// divideAgain divides the card of a host as the records want it, as its operator does where
// the drift says that it is divided otherwise. It is divided in another way first, so that
// its agent has done that, whatever the records say of the card.
func (d *driver) divideAgain(ctx context.Context, host string) error {
	device, err := d.divided(ctx, host)
	if err != nil || device.WantedLayout == nil {
		return err
	}

	wanted := *device.WantedLayout
	for _, layout := range []cyborg.Layout{otherLayout(wanted), wanted} {
		if err := d.divideUntilDone(ctx, host, device.UUID, layout); err != nil {
			return err
		}
	}
	return nil
}

// divideUntilDone divides a card. Others may be at work on it, and its agent may come back
// only now.
func (d *driver) divideUntilDone(ctx context.Context, host string, device uuid.UUID, layout cyborg.Layout) error {
	ctx, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()
	for {
		err := d.freeParts(ctx, host)
		if err == nil {
			err = d.doOnce(ctx, d.partition(device, layout))
		}
		kind := cyborg.ErrorKindOf(err)
		passing := kind.Retryable() || slices.Contains([]cyborg.ErrorKind{cyborg.ErrHostSilent, cyborg.ErrChanged, cyborg.ErrInUse}, kind)
		if err == nil || !passing || clock.Sleep(ctx, 300*time.Millisecond) != nil {
			return err
		}
	}
}
