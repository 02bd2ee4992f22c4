package chaos_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// job is a piece of work with its accelerator and its request.
type job struct {
	work

	request   request
	contender request   // of the other holder, where there is one
	leaving   request   // of the holder before, where the work is a clean
	binding   *binding  // the accelerator requests, where the work is about them
	crossing  *crossing // what the clients know, where several work on one card
	sharing   *sharing  // what the clients know, where several want parts of one card
	host      string
	card      string // identity of the card whose step is held

	struck  bool // somebody terminates or resets its run
	expires bool // PostgreSQL's clock jumps, so that a bind may be too late to begin

	earlier uuid.UUID // the newest operation of its kind on its accelerator before it begins

	asked chan struct{} // closed when its request is being sent
	letGo func()        // ends the hold on its step; further calls do nothing
}

// holderOf returns the holder that a number of the schedule stands for.
func holderOf(host string, n int) cyborg.Holder {
	switch n {
	case 0:
		return cyborg.Holder{Kind: cyborg.HolderHost, ID: host}
	case 1, 2:
		return cyborg.Holder{Kind: cyborg.HolderInstance, ID: fmt.Sprintf("5f5f5f5f-0000-4000-8000-00000000000%d", n)}
	default:
		return cyborg.Holder{Kind: cyborg.HolderService, ID: fmt.Sprintf("service-%d", n)}
	}
}

// prepare finds the accelerator of a piece of work, and brings it into the
// state in which the work is allowed.
func (d *driver) prepare(ctx context.Context, w work) (*job, error) {
	j := &job{work: w, host: hostName(w.host), asked: make(chan struct{}), letGo: func() {}}
	if w.kind == cyborg.OperationConfigure {
		return j, d.prepareConfigure(ctx, j)
	}

	if w.kind == cyborg.OperationWhitelist {
		return j, d.prepareWhitelist(ctx, j)
	}

	if w.kind == kindShare {
		return j, d.prepareSharing(ctx, j)
	}

	if w.kind == cyborg.OperationPartition {
		return j, d.preparePartition(ctx, j)
	}

	accelerator, err := d.find(ctx, j)
	if err != nil {
		return nil, err
	}

	// What the last round has done again at its end may still be cleaned.
	if err := d.takenBack(ctx, accelerator.UUID); err != nil {
		return nil, err
	}

	d.mu.Lock()
	d.prepared[accelerator.UUID] = accelerator.Preparation != nil
	d.mu.Unlock()
	if w.kind != cyborg.OperationProvision {
		if accelerator, err = d.makeReady(ctx, accelerator); err != nil {
			return nil, err
		}
	}

	if w.kind == cyborg.OperationAttach || w.kind == cyborg.OperationDetach || w.kind == cyborg.OperationClean {
		if accelerator, err = d.releaseWithImage(ctx, accelerator); err != nil {
			return nil, err
		}
	}

	id, holder := accelerator.UUID, holderOf(j.host, w.holder)
	j.request = request{kind: w.kind, accelerator: id, api: w.api, async: w.async}

	if w.ofRequests() {
		return j, d.prepareRequests(ctx, j, accelerator)
	}

	switch w.kind {
	case kindCross:
		if err := d.prepareCrossing(ctx, j, accelerator); err != nil {
			return nil, err
		}
	case cyborg.OperationProvision:
		ready := d.makingReady(id)
		j.request.what, j.request.send = ready.what, ready.send
	case cyborg.OperationProgram:
		if err := d.free(ctx, accelerator); err != nil {
			return nil, err
		}

		if err := d.load(ctx, accelerator); err != nil {
			return nil, err
		}
		if j.request, err = d.program(j.host, id, w.api, w.async); err != nil {
			return nil, err
		}
	case cyborg.OperationRetire:
		if err := d.free(ctx, accelerator); err != nil {
			return nil, err
		}

		retire := d.retire(id)
		j.request.what, j.request.send = retire.what, retire.send
	case cyborg.OperationAttach:
		if slices.Contains(accelerator.Holders, holder) || noneFree(accelerator) {
			if err := d.free(ctx, accelerator); err != nil {
				return nil, err
			}
		}

		j.request = d.attach(id, holder, w.api, w.async)
		if w.contender >= 0 {
			j.contender = d.attach(id, holderOf(j.host, w.contender), 1-w.api, true)
		}
	case cyborg.OperationClean:
		if err := d.give(ctx, accelerator, holder, w.api); err != nil {
			return nil, err
		}
		j.leaving, j.request = d.detach(id, holder, w.api, false), d.clean(id, w)
		j.request.holder = holder
	case cyborg.OperationDetach:
		if err := d.give(ctx, accelerator, holder, w.api); err != nil {
			return nil, err
		}

		j.request = d.detach(id, holder, w.api, w.async)
		if w.force {
			j.request.what = "detach by force"
			j.request.send = func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
				return c.ForceDetach(ctx, id, holder, options...)
			}
		}
	}

	return j, nil
}

// give attaches a handle of an accelerator for a holder that has none yet.
func (d *driver) give(ctx context.Context, a apiclient.Accelerator, holder cyborg.Holder, api int) error {
	if slices.Contains(a.Holders, holder) {
		return nil
	}
	if noneFree(a) {
		if err := d.free(ctx, a); err != nil {
			return err
		}
	}
	return d.mustDo(ctx, d.attach(a.UUID, holder, api, false))
}

// releaseWithImage deletes the requests of an accelerator that has an image, or had one.
// Beside another holder, no rescue could load that image again after a boot: an operator
// has to detach the other one first, see the runbook of lost images.
func (d *driver) releaseWithImage(ctx context.Context, a apiclient.Accelerator) (apiclient.Accelerator, error) {
	if a.BitstreamID == "" && a.LostImage == nil {
		return a, nil
	}
	if _, err := d.release(ctx, a.UUID); err != nil {
		return a, err
	}
	now, _, err := d.c.API.Accelerator(ctx, a.UUID)
	return now, err
}

// noneFree reports whether no handle is free. One holder may have several.
func noneFree(a apiclient.Accelerator) bool {
	return !slices.ContainsFunc(a.Handles, func(h cyborg.AttachHandle) bool { return h.Holder == nil })
}

// attach returns the request for an attach.
func (d *driver) attach(id uuid.UUID, holder cyborg.Holder, api int, async bool) request {
	parameters := d.choose(id, holder.ID)
	return request{
		what: "attach", kind: cyborg.OperationAttach, accelerator: id, holder: holder, api: api, async: async,
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.AttachWith(ctx, id, holder, parameters, options...)
		},
	}
}

// choose returns what is chosen for a handle of the accelerator, another thing for each
// holder; nil where its host prepares nothing.
func (d *driver) choose(id uuid.UUID, holder string) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.prepared[id] {
		return nil
	}

	sum := fnv.New32a()
	_, _ = sum.Write([]byte(holder)) // it never fails
	return map[string]string{"vlan": strconv.Itoa(int(sum.Sum32() % 4095))}
}

// load loads an image where an accelerator has none, because an undo cannot empty
// it: what is cancelled or lost in the middle of a first image needs an operator. So
// does an image that the present journal of the host may not know.
func (d *driver) load(ctx context.Context, a apiclient.Accelerator) error {
	if a.BitstreamID != "" && !d.replaced[a.Host] {
		return nil
	}
	first, err := d.program(a.Host, a.UUID, 0, false)
	if err != nil {
		return err
	}
	return d.mustDo(ctx, first)
}

// program returns the request for a program with a new image.
func (d *driver) program(host string, id uuid.UUID, api int, async bool) (request, error) {
	content := fake.MakeImage("FPGA", "f-"+id.String(), []byte(uuid.NewString()))
	image, err := d.c.Image(host, fmt.Sprintf("image-%d", d.serial()), content)
	return request{
		what: "program", kind: cyborg.OperationProgram, accelerator: id, api: api, async: async,
		trace: trace{string(cyborg.SubjectAccelerator) + " " + id.String(), cyborg.AxisBitstream, fmt.Sprintf("%x", sha256.Sum256(content))},
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.Program(ctx, id, cyborg.Image{Source: image}, options...)
		},
	}, err
}

// retire returns the request for a retire.
func (d *driver) retire(id uuid.UUID) request {
	return request{
		what: "retire", kind: cyborg.OperationRetire, accelerator: id,
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.Retire(ctx, id, options...)
		},
	}
}

// detach returns the request for a detach.
func (d *driver) detach(id uuid.UUID, holder cyborg.Holder, api int, async bool) request {
	return request{
		what: "detach", kind: cyborg.OperationDetach, accelerator: id, holder: holder, api: api, async: async,
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.Detach(ctx, id, holder, options...)
		},
	}
}
