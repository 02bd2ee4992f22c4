package conductor

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/openstack/nova"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	// instancesEach is how many instances a round asks Nova about; the next goes on with those unseen for longest.
	instancesEach = 50
	// novaTries is after how many questions in a row that it does not answer Nova is left alone until the next round.
	novaTries = 3
	// lookAgain is when Nova is asked again about an instance that is not as it should be.
	lookAgain = time.Minute
)

// collectARQs deletes accelerator requests that nobody needs any more: those that were never bound, and those of instances
// that Nova no longer has, or could put on no host. While Nova is away, the latter stay.
func (a *Activities) collectARQs(ctx context.Context) (int, error) {
	collected := 0
	if a.policy.ForgetUnbound > 0 {
		n, err := a.store.CollectUnbound(ctx, a.policy.ForgetUnbound, findingsLimit)
		if err != nil {
			return 0, err
		}
		collected = n
	}
	if a.cloud.Nova == nil {
		return collected, nil
	}
	// Nova may have deleted instances while nobody of us was there to hear it: after a start all of them are looked at.
	unseenFor := min(a.policy.CheckInstances, time.Since(a.began))
	instances, err := a.store.UnseenInstances(ctx, unseenFor, instancesEach)
	if err != nil {
		return collected, err
	}
	// In no order: those about which Nova never answers would always be the first.
	rand.Shuffle(len(instances), func(i, j int) { instances[i], instances[j] = instances[j], instances[i] }) //nolint:gosec // it protects nothing
	unanswered := 0
	for _, held := range instances {
		if unanswered == novaTries || ctx.Err() != nil {
			break
		}
		now, err := a.cloud.Nova.Instance(ctx, held.UUID)
		gone := cyborg.ErrorKindOf(err) == cyborg.ErrNotFound // only this says so; what else is not found proves nothing
		var seen db.SeenInstance
		forgotten := false
		if err == nil {
			seen, forgotten, err = a.compareInstance(ctx, held, &now)
		}
		switch {
		case err == nil:
			if forgotten {
				collected++
			}
			err = a.store.SawInstances(ctx, []db.SeenInstance{seen}, a.policy.CheckInstances-lookAgain)
		case gone:
			if _, err = a.store.DeleteARQs(ctx, db.ARQDeletion{Instance: held.UUID, Held: true}, repairer()); err == nil {
				collected++
				a.log.WarnContext(ctx, "deleted the accelerator requests of an instance that Nova no longer has", slog.String("instance", held.UUID.String()))
			}
		default:
			a.log.WarnContext(ctx, "it is not known whether an instance with accelerator requests exists and needs them",
				slog.String("instance", held.UUID.String()), slog.String("error", err.Error()))
			unanswered++
			continue
		}
		if err != nil {
			return collected, err
		}
		unanswered = 0
	}
	return collected, a.store.EndInstanceDrift(context.WithoutCancel(ctx))
}

// compareInstance compares an instance with its accelerator requests. Nothing is done about what differs: Nova may be in the
// middle of something, and who takes an accelerator from an instance that runs breaks it. Only those of an instance that has no
// guest anywhere are forgotten.
func (a *Activities) compareInstance(
	ctx context.Context, held db.HeldInstance, now *nova.Instance,
) (seen db.SeenInstance, forgotten bool, err error) {
	seen = db.SeenInstance{UUID: held.UUID, Host: held.Host, Again: held.Lost != nil}
	if !held.Bound {
		return seen, false, nil
	}
	if now.Stranded() {
		if forgotten, err = a.forgetStranded(ctx, held); forgotten || err != nil {
			return seen, forgotten, err
		}
	}
	if seen.Unclear = now.Task != "" || now.Status == statusUnknown; !seen.Unclear {
		seen.Drift = differences(held, now)
	}
	seen.Again = seen.Again || seen.Unclear || len(seen.Drift) > 0
	if held.Lost == nil {
		return seen, false, nil
	}
	if lost, err := a.store.LostImagesOf(ctx, held.UUID, held.Host); err != nil || len(lost) > 0 {
		return seen, false, err // until that is loaded again, it lacks what it was given, whatever Nova does
	}
	found, err := a.lookAt(ctx, *held.Lost, held.Host, now)
	if err == nil && found.Outcome.Well() {
		seen.Well = held.Lost
		a.log.InfoContext(ctx, "an instance has its accelerators again since its host booted, or will when it is started",
			slog.String("instance", held.UUID.String()), slog.String("found", string(found.Outcome)))
	}
	return seen, false, err
}

// forgetStranded deletes the requests of an instance that is on no host, and that nobody works on: when building or unshelving it
// failed, Nova could not reach us. As long as it has an allocation in Placement nobody else gets its accelerators, and they stay.
// Those that Nova has made since it was asked are others.
func (a *Activities) forgetStranded(ctx context.Context, held db.HeldInstance) (bool, error) {
	if a.policy.ForgetUnbound == 0 || held.Untouched < a.policy.ForgetUnbound {
		return false, nil
	}
	if a.cloud.Placement != nil {
		allocated, err := a.cloud.Placement.allocated(ctx, held.UUID, held.Providers)
		if allocated || err != nil {
			return false, err
		}
	}
	_, err := a.store.DeleteARQs(ctx, db.ARQDeletion{UUIDs: held.ARQs, Held: true}, repairer())
	if err == nil {
		a.log.WarnContext(ctx, "deleted the accelerator requests of an instance that Nova could put on no host", slog.String("instance", held.UUID.String()))
	}
	return err == nil, err
}

// Statuses of Nova's instances.
const (
	statusActive    = "ACTIVE"
	statusShutOff   = "SHUTOFF"
	statusShelved   = "SHELVED"
	statusOffloaded = "SHELVED_OFFLOADED"
	statusError     = "ERROR"
	statusUnknown   = "UNKNOWN" // its cell is down
)

func differences(held db.HeldInstance, now *nova.Instance) []db.InstanceDrift {
	var out []db.InstanceDrift
	if !now.On(held.Host) {
		out = append(out, db.InstanceDrift{
			Class:  cyborg.DriftInstanceElsewhere,
			Detail: fmt.Sprintf("it is on %s; its accelerators are on %s", now.Node, held.Host),
		})
	}
	switch now.Status {
	case statusError:
		out = append(out, db.InstanceDrift{Class: cyborg.DriftInstanceError, Detail: "it is in ERROR, and has accelerators on " + held.Host})
	case statusOffloaded:
		out = append(out, db.InstanceDrift{Class: cyborg.DriftInstanceOffloaded, Detail: "it is shelved, on no host, and has accelerators on " + held.Host})
	}
	return out
}

// lookAt says whether an instance has its accelerators again since its host booted, will have them, or must be rebooted for that.
func (a *Activities) lookAt(ctx context.Context, lost cyborg.Rescue, host string, now *nova.Instance) (workflows.LookAtInstanceResult, error) {
	left := func(outcome cyborg.RescueOutcome, format string, args ...any) (workflows.LookAtInstanceResult, error) {
		return workflows.LookAtInstanceResult{Outcome: outcome, Detail: fmt.Sprintf(format, args...)}, nil
	}
	switch {
	case now.Status == statusUnknown:
		return workflows.LookAtInstanceResult{Wait: "its cell is down"}, nil
	case now.Task != "":
		return workflows.LookAtInstanceResult{Wait: "Nova works on it (" + now.Task + ")"}, nil
	case !now.On(host):
		return left(cyborg.RescueElsewhere, "it is on %s", now.Node)
	case now.Status == statusShutOff, now.Status == statusShelved:
		return left(cyborg.RescueOff, "")
	case now.Status == statusOffloaded:
		return left(cyborg.RescueElsewhere, "it is shelved, and on no host")
	}
	recreated, err := a.recreatedSince(ctx, lost)
	switch {
	case err != nil:
		return workflows.LookAtInstanceResult{}, err
	case recreated:
		return left(cyborg.RescueRecreated, "")
	case now.Status != statusActive:
		return left(cyborg.RescueSkipped, "it is %s", now.Status)
	case now.HostStatus == "DOWN" || now.HostStatus == "UNKNOWN":
		return workflows.LookAtInstanceResult{Wait: "the nova-compute of host " + host + " is " + now.HostStatus}, nil
	}
	return workflows.LookAtInstanceResult{}, nil
}

// recreatedSince says whether somebody had Nova make the instance's guest anew since that boot.
func (a *Activities) recreatedSince(ctx context.Context, lost cyborg.Rescue) (bool, error) {
	recreated, err := a.cloud.Nova.RecreatedSince(ctx, lost.Instance, lost.BootedAt)
	if recreated || err != nil {
		return recreated, err
	}
	request, err := a.store.HardReboot(ctx, lost)
	if request == "" || err != nil {
		return false, err
	}
	over, failure, err := a.cloud.Nova.Rebooted(ctx, lost.Instance, request)
	return over && failure == "", err
}
