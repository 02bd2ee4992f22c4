package chaos_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/clock"
)

// Two hosts clean what a holder leaves, before anybody else gets it: the one that prepares
// its handles by a reset, and another one by a scrub. Whatever takes a handle from its
// holder, a conductor has it cleaned then; so the faults of any work strike cleans, too. An
// operator asks for more of them.

// cleaners returns how the hosts that clean do that.
func cleaners() map[string]cyborg.CleanMethod {
	return map[string]cyborg.CleanMethod{hostName(1): cyborg.CleanReset, hostName(2): cyborg.CleanScrub}
}

// cleans reports whether a host cleans.
func cleans(host int) bool { return cleaners()[hostName(host)] != "" }

// declaration is why somebody declares a handle clean.
const declaration = "wiped by hand"

// clean returns the request for a clean.
func (d *driver) clean(id uuid.UUID, w work) request {
	what := apiclient.Cleaning{Method: w.method}
	if w.declared {
		what.Declared = declaration
	}
	return request{
		what: "clean", kind: cyborg.OperationClean, accelerator: id, api: w.api, async: w.async,
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.Clean(ctx, id, what, options...)
		},
	}
}

// runClean has the holder give the handle back, and then asks for a clean, which a conductor
// may have begun already.
func (d *driver) runClean(ctx context.Context, j *job) {
	d.ask(ctx, j.leaving)
	if j.declared {
		if err := d.wipe(ctx, j); err != nil {
			d.t.Errorf("card %s of %s cannot be wiped: %v", j.card, j.host, err)
			return
		}
	}
	d.ask(ctx, j.request)
}

// wipe removes by hand what holders have left on the job's card.
func (d *driver) wipe(ctx context.Context, j *job) error {
	return d.c.Bench(j.host).Edit(ctx, j.card, func(card *fake.Card) {
		for _, region := range card.Deployables {
			for _, handle := range region.Handles {
				handle.Residue, handle.Scrubbed = fake.Residue{}, 0
			}
		}
	})
}

// leaveAgain takes a handle back from its holder once more where the records have lost that:
// its host does not attach it again while it is not cleaned to its end.
func (d *driver) leaveAgain(ctx context.Context, j *job) error {
	for {
		a, err := d.accelerator(ctx, j.request.accelerator)
		switch {
		case err != nil || a.Claim != nil: // an API comes back, or an operation is under way
		case !slices.Contains(a.Holders, j.request.holder):
			return nil
		default:
			return d.mustDo(ctx, d.detach(a.UUID, j.request.holder, j.api, false))
		}

		if clock.Sleep(ctx, 100*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}

// cleanAfterLoss cleans what is free and was in use, as somebody does who has put a backup
// of the database back: who had it since, the records do not know. A host knows only of the
// cleans that have not ended.
func (d *driver) cleanAfterLoss(ctx context.Context) error {
	for _, host := range d.c.Hosts {
		method, ok := cleaners()[host]
		if !ok {
			continue
		}

		all, err := d.accelerators(ctx, host)
		if err != nil {
			return err
		}
		for _, a := range all[:cards] {
			if err := d.cleanUntilDone(ctx, a, method); err != nil {
				return fmt.Errorf("%s cannot be cleaned after the loss: %w", a.Name, err)
			}
		}
	}
	return nil
}

// cleanUntilDone cleans an accelerator by a method. Others may be at work on it, and its
// agent may come back only now.
func (d *driver) cleanUntilDone(ctx context.Context, a apiclient.Accelerator, method cyborg.CleanMethod) error {
	for {
		err := d.takenBack(ctx, a.UUID)
		if err == nil {
			err = d.doOnce(ctx, d.clean(a.UUID, work{method: method}))
		}
		if kind := cyborg.ErrorKindOf(err); err == nil || kind != cyborg.ErrHostSilent && !kind.Retryable() {
			return err
		}
		if clock.Sleep(ctx, 300*time.Millisecond) != nil {
			return err
		}
	}
}
