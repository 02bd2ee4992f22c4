package agent

import (
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/workflows"
)

// usageWidth is how many deployables are measured at the same time. Asking all
// of a large host at once would load the host that the census wants to observe.
const usageWidth = 16

// usage measures how the deployables are used at this moment. A deployable that
// does not answer in time, or fails, carries that error in its own entry; the
// census as a whole does not fail.
func (a *Activities) usage(ctx context.Context, t *try, in workflows.UsageInput) (cyborg.HostUsage, error) {
	if in.Host != "" && in.Host != a.Inventory.Host() {
		return cyborg.HostUsage{}, cyborg.Errorf(cyborg.ErrInvalid, "this is the agent of host %s and not of %s", a.Inventory.Host(), in.Host)
	}

	// The drivers get less time than the activity, so that the census is answered
	// even where some of them hang.
	limited, cancel := context.WithTimeout(ctx, a.UsageTimeout)
	defer cancel()

	known := a.Inventory.Deployables()
	if len(in.Deployables) > 0 {
		known = slices.DeleteFunc(known, func(d inventory.Known) bool { return !slices.Contains(in.Deployables, d.Deployable.Name) })
	}

	measured := make(chan []inventory.Measured, 1)
	go func() { measured <- a.Inventory.MeasureAll(limited, known) }()
	out := cyborg.HostUsage{Host: a.Inventory.Host(), At: a.now().UTC(), Deployables: a.askHandles(limited, t, known)}
	addMetrics(out.Deployables, known, <-measured)

	if ctx.Err() != nil {
		return cyborg.HostUsage{}, context.Cause(ctx)
	}

	if len(in.Deployables) == 0 {
		out.Error = a.failedBackends()
	}

	// A deployable that was asked for and does not exist gets an entry as well, so
	// that the answer has one for each question.
	for _, name := range in.Deployables {
		if !slices.ContainsFunc(out.Deployables, func(d cyborg.DeployableUsage) bool { return d.Deployable == name }) {
			out.Deployables = append(out.Deployables, cyborg.DeployableUsage{
				Deployable: name, Handles: []cyborg.HandleUsage{}, Error: "host " + out.Host + " has no such deployable",
			})
		}
	}

	return out, nil
}

// failedBackends lists the backends that cannot be asked, with the reason, as
// one text; empty for none. The census is partial then.
func (a *Activities) failedBackends() string {
	var failed []string
	for _, b := range a.Inventory.Content().Backends {
		if b.State == cyborg.BackendFailed {
			failed = append(failed, "backend "+b.Name+": "+b.Error)
		}
	}
	return strings.Join(failed, "; ")
}

// askHandles asks of each deployable who uses its handles.
func (a *Activities) askHandles(ctx context.Context, t *try, known []inventory.Known) []cyborg.DeployableUsage {
	out := make([]cyborg.DeployableUsage, len(known))
	var all errgroup.Group
	all.SetLimit(usageWidth)
	for n, one := range known {
		all.Go(func() error {
			out[n] = a.askInTime(ctx, t, one)
			return nil
		})
	}
	_ = all.Wait() // none returns an error
	return out
}

// addMetrics adds to each deployable what its device measures of it, and why it does
// not.
func addMetrics(usages []cyborg.DeployableUsage, known []inventory.Known, measured []inventory.Measured) {
	for n, one := range known {
		for _, m := range measured {
			if m.Backend != one.Backend || m.Device != one.Device.Identity {
				continue
			}

			for _, s := range m.Samples {
				if s.Deployable != one.Deployable.Name {
					continue
				}
				if usages[n].Metrics == nil {
					usages[n].Metrics = map[string]float64{}
				}
				name := s.Name
				if s.Sensor != "" {
					name += "/" + s.Sensor
				}
				usages[n].Metrics[name] = s.Value
			}

			if m.Err != nil && usages[n].Error != m.Err.Error() {
				usages[n].Error = strings.TrimPrefix(usages[n].Error+"\n"+m.Err.Error(), "\n")
			}
		}
	}
}

// askInTime asks of one deployable. Where its driver does not return in time,
// the goroutine is left behind: a driver cannot be interrupted, and the census
// must not hang with it.
func (a *Activities) askInTime(ctx context.Context, t *try, known inventory.Known) cyborg.DeployableUsage {
	silent := cyborg.DeployableUsage{Backend: known.Backend, Deployable: known.Deployable.Name, Handles: []cyborg.HandleUsage{}}
	if known.Failure != "" {
		silent.Error = known.Failure
		return silent
	}

	// The channel has room for the answer, so that a late driver does not block its
	// goroutine for ever.
	answers := make(chan cyborg.DeployableUsage, 1)
	go func() { answers <- a.ask(ctx, t, known) }()

	select {
	case answer := <-answers:
		return answer
	case <-ctx.Done():
		silent.Error = cyborg.UsageUnanswered
		return silent
	}
}

// ask reads from the driver who uses each handle. What could be read is kept even
// where something fails.
func (a *Activities) ask(ctx context.Context, t *try, known inventory.Known) cyborg.DeployableUsage {
	out := cyborg.DeployableUsage{Backend: known.Backend, Deployable: known.Deployable.Name, Handles: []cyborg.HandleUsage{}}
	var failures []error

	for _, handle := range known.Deployable.Handles {
		line := cyborg.HandleUsage{Handle: handle.Identity}
		var err error
		if line.Attached, err = a.attached(ctx, t, known.Found, handle, a.entryOr(known.Found, handle, a.hostItself())); err != nil {
			failures = append(failures, err)
		}
		if line.By, err = a.inUse(ctx, t, known.Found, handle); err != nil {
			failures = append(failures, err)
		}

		line.InUse = line.By != ""
		out.Handles = append(out.Handles, line)
	}

	if err := errors.Join(failures...); err != nil {
		out.Error = err.Error()
	}

	return out
}
