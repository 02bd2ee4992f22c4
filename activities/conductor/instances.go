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
	"github.com/cyborg-project/cyborg/internal/stalearqs"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	// instancesPerRound is how many instances one round asks Nova about; the next
	// round goes on with the least recently seen.
	instancesPerRound = 50
	// maxUnanswered is how many requests in a row Nova may leave unanswered, after
	// which the round stops asking.
	maxUnanswered = 3
	// recheckAfter is how soon Nova is asked again about an instance that is not as
	// it should be.
	recheckAfter = time.Minute
)

// collectARQs deletes accelerator requests that nobody needs any more: those
// that were never bound, and those of instances that Nova no longer has or
// could not put on any host (package stalearqs has the policy). While Nova is
// away, the requests of instances stay. The result counts the deleted unbound
// requests, and the instances whose requests were deleted: both in one sum, for
// the log.
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

	// Nova may have deleted instances while no conductor was running to notice it,
	// so a new process looks at all of them.
	unseenFor := min(a.policy.CheckInstances, time.Since(a.began))
	instances, err := a.store.StaleInstances(ctx, unseenFor, instancesPerRound)
	if err != nil {
		return collected, err
	}

	// Shuffle them: in a fixed order, a few instances about which Nova never
	// answers could block all others.
	rand.Shuffle(len(instances), func(i, j int) { instances[i], instances[j] = instances[j], instances[i] }) //nolint:gosec // it protects nothing
	unanswered := 0

	for _, held := range instances {
		if unanswered == maxUnanswered || ctx.Err() != nil {
			break
		}

		// Only this error proves that the instance is gone. compareInstance may return
		// the same kind for other reasons.
		current, err := a.cloud.Nova.Instance(ctx, held.UUID)
		gone := cyborg.ErrorKindOf(err) == cyborg.ErrNotFound
		var seen db.SeenInstance
		forgotten := false
		if err == nil {
			seen, forgotten, err = a.compareInstance(ctx, held, &current)
		}

		switch {
		case err == nil:
			if forgotten {
				collected++
			}
			err = a.store.RecordSeenInstances(ctx, []db.SeenInstance{seen}, a.policy.CheckInstances-recheckAfter)
		case gone:
			if err = stalearqs.Gone(ctx, a.store, a.log, held.UUID); err == nil {
				collected++
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

	// Requests were deleted above: end the drift of their instances even where the
	// activity was cancelled meanwhile.
	return collected, a.store.EndInstanceDrift(context.WithoutCancel(ctx))
}

// compareInstance compares an instance with its accelerator requests and
// returns what to record. It reports differences and does not repair them: Nova
// may be in the middle of a change, and taking an accelerator from a running
// instance breaks it. Only the requests of an instance that has no guest on any
// host are deleted; forgotten says that this happened.
func (a *Activities) compareInstance(
	ctx context.Context, held db.HeldInstance, current *nova.Instance,
) (seen db.SeenInstance, forgotten bool, err error) {
	seen = db.SeenInstance{UUID: held.UUID, Host: held.Host, RecheckSoon: held.Lost != nil}

	if !held.Bound {
		return seen, false, nil
	}

	if current.Stranded() {
		forgotten, err := a.forgetStranded(ctx, held)
		if forgotten || err != nil {
			return seen, forgotten, err
		}
	}

	// While Nova works on an instance, or cannot reach its cell, a difference may
	// be gone in a moment.
	seen.Undetermined = current.Task != "" || current.Status == statusUnknown
	if !seen.Undetermined {
		seen.Drift = differences(held, current)
	}

	seen.RecheckSoon = seen.RecheckSoon || seen.Undetermined || len(seen.Drift) > 0

	if held.Lost == nil {
		return seen, false, nil
	}

	// Until its lost images are loaded again, the instance lacks what it was given,
	// whatever Nova does.
	if lost, err := a.store.LostImagesOf(ctx, held.UUID, held.Host); err != nil || len(lost) > 0 {
		return seen, false, err
	}

	found, err := a.decideRescue(ctx, *held.Lost, held.Host, current)
	if err == nil && found.Outcome.HasAccelerators() {
		seen.Recovered = held.Lost
		a.log.InfoContext(ctx, "an instance has its accelerators again since its host booted, or will when it is started",
			slog.String("instance", held.UUID.String()), slog.String("found", string(found.Outcome)))
	}

	return seen, false, err
}

// forgetStranded deletes the accelerator requests of an instance that is on no
// host and that nobody works on. Nova deletes them itself when building or
// unshelving an instance fails, unless it cannot reach us. Nothing is deleted
// while the instance has an allocation of the accelerators in Placement.
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

	_, err := stalearqs.OnNoHost(ctx, a.store, a.log, held.UUID, held.ARQs)
	return err == nil, err
}

// The statuses of Nova's instances that matter here.
const (
	statusActive    = "ACTIVE"
	statusShutOff   = "SHUTOFF"
	statusShelved   = "SHELVED"
	statusOffloaded = "SHELVED_OFFLOADED"
	statusError     = "ERROR"
	statusUnknown   = "UNKNOWN" // its cell is down
)

// differences lists how an instance differs from its accelerator requests.
func differences(held db.HeldInstance, current *nova.Instance) []db.InstanceDrift {
	var out []db.InstanceDrift
	if !current.On(held.Host) {
		out = append(out, db.InstanceDrift{
			Class:  cyborg.DriftInstanceElsewhere,
			Detail: fmt.Sprintf("it is on %s; its accelerators are on %s", current.Node, held.Host),
		})
	}

	switch current.Status {
	case statusError:
		out = append(out, db.InstanceDrift{Class: cyborg.DriftInstanceError, Detail: "it is in ERROR, and has accelerators on " + held.Host})
	case statusOffloaded:
		out = append(out, db.InstanceDrift{Class: cyborg.DriftInstanceOffloaded, Detail: "it is shelved, on no host, and has accelerators on " + held.Host})
	}

	return out
}

// decideRescue decides what to do about an instance that may have lost its
// accelerators at a boot of its host. The result has an outcome if the instance
// must not be rebooted, for example because it has its accelerators again, or
// says what the caller must wait for. With neither, the instance must be
// rebooted.
//
// The order of the cases matters. While Nova works on the instance, its host
// and status may change. Its history says whether the guest was created again,
// but only if it is still on this host.
func (a *Activities) decideRescue(
	ctx context.Context, lost cyborg.Rescue, host string, current *nova.Instance,
) (workflows.LookAtInstanceResult, error) {
	ended := func(outcome cyborg.RescueOutcome, format string, args ...any) (workflows.LookAtInstanceResult, error) {
		return workflows.LookAtInstanceResult{Outcome: outcome, Detail: fmt.Sprintf(format, args...)}, nil
	}

	switch {
	case current.Status == statusUnknown:
		return workflows.LookAtInstanceResult{Wait: "its cell is down"}, nil
	case current.Task != "":
		return workflows.LookAtInstanceResult{Wait: "Nova works on it (" + current.Task + ")"}, nil
	case !current.On(host):
		return ended(cyborg.RescueElsewhere, "it is on %s", current.Node)
	case current.Status == statusShutOff, current.Status == statusShelved:
		return ended(cyborg.RescueOff, "")
	case current.Status == statusOffloaded:
		return ended(cyborg.RescueElsewhere, "it is shelved, and on no host")
	}

	recreated, unclear, err := a.recreatedSince(ctx, host, lost)
	switch {
	case err != nil:
		return workflows.LookAtInstanceResult{}, err
	case recreated:
		return ended(cyborg.RescueRecreated, "")
	case current.Status != statusActive:
		return ended(cyborg.RescueSkipped, "it is %s", current.Status)
	case current.HostStatus == "DOWN" || current.HostStatus == "UNKNOWN":
		return workflows.LookAtInstanceResult{Wait: "the nova-compute of host " + host + " is " + current.HostStatus}, nil
	case unclear:
		return workflows.LookAtInstanceResult{
			Wait: "the agent of host " + host + " has to say how long the host is up, before anybody can tell whether Nova created the guest before the boot",
		}, nil
	}

	return workflows.LookAtInstanceResult{}, nil
}

// recreatedSince says whether Nova has created the instance's guest again since
// that boot: by a request of somebody else, or by a hard reboot of ours that is
// noted in the records and has succeeded. It is unclear where the host was not heard
// since the guest may have been created: that may be before the boot or after it.
func (a *Activities) recreatedSince(ctx context.Context, host string, lost cyborg.Rescue) (recreated, unclear bool, err error) {
	began := time.Now()
	atLeast, atMost, err := a.store.SinceBoot(ctx, host, lost)
	if err != nil {
		return false, false, err
	}

	// Nova answers later than the records, and in whole seconds. So what it says may be
	// too long, by at most the slack.
	ago, ever, err := a.cloud.Nova.Created(ctx, lost.Instance)
	if err != nil {
		return false, false, err
	}
	slack := time.Since(began) + time.Second

	if ever && ago < atLeast {
		return true, false, nil
	}

	request, err := a.store.HardReboot(ctx, lost)
	if err != nil {
		return false, false, err
	}
	if request != "" {
		over, failure, err := a.cloud.Nova.Rebooted(ctx, lost.Instance, request)
		if err != nil || over && failure == "" {
			return err == nil, false, err
		}
	}

	return false, ever && atMost > atLeast && ago < atMost+slack, nil
}
