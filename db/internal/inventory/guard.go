package inventory

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/merge"
)

// Claimed returns the refusal of work on an accelerator that another operation
// has claimed.
func Claimed(name string, claim cyborg.Claim) error {
	return cyborg.Errorf(cyborg.ErrClaimed, "operation %s (%s) works on accelerator %q", claim.Operation, claim.Kind, name).
		WithOperation(claim.Operation).
		WithHint("Wait until it has ended, or cancel it.")
}

// Unclaimed refuses an accelerator that another operation than the given one
// works on.
func (a *Accelerator) Unclaimed(operation uuid.UUID) error {
	if a.Claim != nil && a.Claim.Operation != operation {
		return Claimed(a.Name, *a.Claim)
	}
	return nil
}

// UnclaimedBut refuses an accelerator that an operation of another kind works on.
func (a *Accelerator) UnclaimedBut(kind cyborg.OperationKind) error {
	if a.Claim != nil && a.Claim.Kind == kind {
		return nil
	}
	return a.Unclaimed(uuid.Nil)
}

// Present refuses an accelerator that its host does not show any more.
func (a *Accelerator) Present() error {
	if a.ReplacedBy != "" {
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is missing: another card (%s) is in its place on host %s since %s",
			a.Name, a.ReplacedBy, a.Host, a.MissingAt.Format(time.RFC3339)).
			WithHint("Put the card back; or detach it from who has it, and it leaves the records.")
	}
	if a.Presence == cyborg.PresenceMissing {
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is missing: host %s has not shown it since %s",
			a.Name, a.Host, a.MissingAt.Format(time.RFC3339)).
			WithHint("Look at the device; it is present again with the next report that shows it.")
	}
	return nil
}

// Unprotected refuses an accelerator that the host itself depends on.
func (a *Accelerator) Unprotected() error {
	if a.Protected != "" {
		return cyborg.Errorf(cyborg.ErrProtected, "accelerator %q must not be touched: %s", a.Name, a.Protected)
	}
	return nil
}

// Enabled refuses an accelerator that is in maintenance.
func (a *Accelerator) Enabled() error {
	if a.Admin != cyborg.AdministrationMaintaining {
		return nil
	}

	until := ""
	if !a.Maintenance.Until.IsZero() {
		until = " until " + a.Maintenance.Until.Format(time.RFC3339)
	}

	return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is in maintenance%s: %s", a.Name, until, a.Maintenance.Reason).
		WithHint("Enable it first.")
}

// Unfenced refuses an accelerator that is fenced.
func (a *Accelerator) Unfenced() error {
	if a.Fence == nil {
		return nil
	}

	return a.fenced(a.Fence.Reason)
}

// fenced returns the refusal of new work on a fenced accelerator. The reason is
// a parameter because a handle may be unconfirmed while the fence itself is a
// Program's.
func (a *Accelerator) fenced(reason string) error {
	out := cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is fenced: %s", a.Name, reason)
	if a.Fence != nil && a.Fence.Operation != uuid.Nil {
		out = out.WithOperation(a.Fence.Operation)
	}

	switch reason {
	case FenceUnconfirmed:
		return out.WithHint("Reconcile asks host %s as soon as it is heard. A host that is gone for ever can be forgotten.", a.Host)
	case merge.FenceVanished:
		return out.WithHint("Put the device back, or detach it from who has it.")
	}

	if isUndone(reason) {
		return out.WithHint("Reconcile has host %s attach it again. `cyborg doctor` says what prevents that.", a.Host)
	}

	return out.WithHint("Program it again, with an image that works.")
}

// Available refuses an accelerator that its driver calls unready.
func (a *Accelerator) Available() error {
	c := cyborg.Unready(a.Conditions)
	if c == nil {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is unready since %s: %s", a.Name, c.Since.Format(time.RFC3339), c.Text()).
		WithHint("It is given out again when host %s reports that this is over.", a.Host)
}

// Ready refuses an accelerator that is not in service.
func (a *Accelerator) Ready() error {
	switch a.Lifecycle {
	case cyborg.LifecycleReady:
		return nil
	case cyborg.LifecycleError:
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is in error: %s", a.Name, a.Reason).
			WithOperation(a.MovedBy).WithHint("%s", a.remedy())
	default:
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is %s, not ready", a.Name, a.Lifecycle).
			WithOperation(a.MovedBy).WithHint("Make it ready first, with `cyborg accelerator ready %s`.", a.UUID)
	}
}

// remedy says what an operator can do about an accelerator in error, depending
// on the kind of operation that left it so; docs/data.md describes the cases,
// and remedy in workflows tells them when the operation ends.
func (a *Accelerator) remedy() string {
	switch a.ErrorKind.Doubt() {
	case cyborg.DoubtHandle:
		return "Its host settles it when it answers; else detach it by force."
	case cyborg.DoubtImage:
		return "Program it with an image that works, or make it ready again."
	case cyborg.DoubtLayout:
		return "Partition its device again, with a layout that works."
	default:
		return "Make it ready again once the reason is gone."
	}
}

// Unheld refuses an accelerator that somebody holds, or that Nova uses by its
// whitelist. The refusal of a held one names the operation that took its first
// held handle.
func (a *Accelerator) Unheld() error { return a.UnheldExcept(uuid.Nil) }

// UnheldExcept refuses like Unheld, except that handles which the given
// operation took are no obstacle.
func (a *Accelerator) UnheldExcept(operation uuid.UUID) error {
	if err := a.NotWhitelisted(); err != nil {
		return err
	}

	for _, h := range a.Handles {
		if h.Holder != nil && (operation == uuid.Nil || h.Operation != operation) {
			return cyborg.Errorf(cyborg.ErrInUse, "accelerator %q is attached to %s", a.Name, nameHolders(a.Holders())).
				WithOperation(h.Operation).WithHint("Detach it first.")
		}
	}

	return nil
}

// NotHeldBy refuses a second handle of one accelerator for the same holder.
func (a *Accelerator) NotHeldBy(holder cyborg.Holder) error {
	for _, h := range a.Handles {
		if h.Holder != nil && *h.Holder == holder {
			return cyborg.Errorf(cyborg.ErrInUse, "accelerator %q is attached to %s %s already", a.Name, holder.Kind, holder.ID).
				WithOperation(h.Operation)
		}
	}
	return nil
}

// Compatible refuses an accelerator for a holder because of what is given out of others
// that go to one holder with it, or that exclude it.
func (a *Accelerator) Compatible(holder cyborg.Holder) error {
	return FirstError(a.Together(holder), a.NotExcluded())
}

// Together refuses an accelerator for a holder while somebody else has another one
// that goes to one holder with it, or may give it out.
func (a *Accelerator) Together(holder cyborg.Holder) error {
	if a.SameHolder == "" {
		return nil
	}

	for i := range a.HeldTogether {
		if h := &a.HeldTogether[i]; h.Precludes(holder) {
			return a.heldTogether(h)
		}
	}

	// Its own handles are no exception.
	for _, h := range a.Handles {
		if left := h.Unconfirmed; left != nil && *left != holder {
			return cyborg.Errorf(cyborg.ErrInUse, "%s may still have accelerator %q, and because of %s all of it goes to one holder", left, a.Name, a.SameHolder).
				WithHint("Reconcile asks host %s as soon as it is heard.", a.Host)
		}
		if by := h.Holder; by != nil && *by != holder {
			return cyborg.Errorf(cyborg.ErrInUse, "accelerator %q is attached to %s, and because of %s all of it goes to one holder", a.Name, by, a.SameHolder).
				WithOperation(h.Operation).WithHint("Detach it first.")
		}
	}

	return a.AllClean()
}

// NotTogether refuses an accelerator for Nova, which may give it to anybody, while
// Cyborg has given out another one that goes to one holder with it.
func (a *Accelerator) NotTogether() error {
	for i := range a.HeldTogether {
		if h := &a.HeldTogether[i]; h.Holder != nil || h.Unclean {
			return a.heldTogether(h)
		}
	}
	return nil
}

// heldTogether is the refusal of an accelerator because somebody has another one
// that goes to one holder with it.
func (a *Accelerator) heldTogether(h *cyborg.OtherHeld) error {
	out := cyborg.Errorf(cyborg.ErrInUse, "accelerator %q shares %s with %q, which %s: they go to one holder", a.Name, a.SameHolder, h.Name, h.Taken())
	return a.withRemedy(out, h, "Give both to the same holder, or detach that one first.")
}

// NotExcluded refuses an accelerator for everybody while somebody has another one that
// excludes it, or may give it out.
func (a *Accelerator) NotExcluded() error { return a.NotExcludedBut(nil) }

// NotExcludedBut is NotExcluded but for the others of which the caller decides itself
// whether somebody may have them.
func (a *Accelerator) NotExcludedBut(others []Accelerator) error {
	at := slices.IndexFunc(a.ExcludedBy, func(h cyborg.OtherHeld) bool {
		return !slices.ContainsFunc(others, func(o Accelerator) bool { return o.UUID == h.Accelerator })
	})
	if at < 0 {
		return nil
	}

	h := &a.ExcludedBy[at]
	out := cyborg.Errorf(cyborg.ErrInUse, "accelerators %q and %q exclude each other, and the latter %s", a.Name, h.Name, h.Taken())
	return a.withRemedy(out, h, "Detach that one first.")
}

// NotBoth refuses two accelerators at once that exclude each other.
func (a *Accelerator) NotBoth(other *Accelerator) error {
	if !slices.Contains(a.Excludes, other.Name) && !slices.Contains(other.Excludes, a.Name) {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrInvalid, "accelerators %q and %q exclude each other: nobody gets both", other.Name, a.Name).
		WithHint("One may be a part of the other, such as a slice of a card.")
}

// withRemedy adds to a refusal because of another accelerator what can be done about
// that one. detach says it where somebody has it.
func (a *Accelerator) withRemedy(refusal *cyborg.Error, h *cyborg.OtherHeld, detach string) error {
	refusal = refusal.WithOperation(h.Operation)

	switch {
	case h.Unclean:
		return refusal.WithHint("%s", cleanedSoon)
	case h.Holder == nil:
		return refusal.WithHint("Take that one out of Nova's whitelist first, with cyborg host whitelist, and restart nova-compute.")
	case h.Left:
		return refusal.WithHint("Reconcile asks host %s as soon as it is heard.", a.Host)
	default:
		return refusal.WithHint("%s", detach)
	}
}

// nameHolders lists holders for a message.
func nameHolders(holders []cyborg.Holder) string {
	names := make([]string, len(holders))
	for i, h := range holders {
		names[i] = fmt.Sprintf("%s %s", h.Kind, h.ID)
	}
	return strings.Join(names, ", ")
}

// FirstError returns the first error that is not nil, or nil.
func FirstError(refusals ...error) error {
	for _, err := range refusals {
		if err != nil {
			return err
		}
	}
	return nil
}

// MoveToFront moves the accelerator with this id to the front of targets, in
// place, and keeps the order of the others.
func MoveToFront(targets []Accelerator, id uuid.UUID) []Accelerator {
	slices.SortStableFunc(targets, func(a, b Accelerator) int {
		switch {
		case a.UUID == id:
			return -1
		case b.UUID == id:
			return 1
		}

		return 0
	})

	return targets
}

// UUIDs lists the UUIDs of accelerators.
func UUIDs(targets []Accelerator) []uuid.UUID {
	out := make([]uuid.UUID, len(targets))
	for i := range targets {
		out[i] = targets[i].UUID
	}
	return out
}

// Confirmed refuses an accelerator with an unconfirmed handle, whatever reason
// its fence gives.
func (a *Accelerator) Confirmed() error {
	for _, h := range a.Handles {
		switch {
		case h.Unconfirmed == nil:
		case h.Prepared && a.Fence == nil:
			return cyborg.Errorf(cyborg.ErrChanged, "host %s has still to take a handle of accelerator %q back", a.Host, a.Name).
				WithHint("Reconcile asks it as soon as it is heard. A host that is gone for ever can be forgotten.")
		default:
			return a.fenced(FenceUnconfirmed)
		}
	}
	return nil
}

// Heard refuses, for now, an accelerator whose host has still to say what it has:
// the database has begun an epoch, and may have lost to whom its handles were
// given. A host that has said nothing for silentAfter, in this epoch, is silent and
// no longer waited for.
func (a *Accelerator) Heard(silentAfter time.Duration) error {
	return heard(a.unheard, silentAfter, a.Host, "accelerator", a.Name)
}

// heard refuses something of a host that has still to say what it has, for as long as it has
// been waited for no longer than silentAfter.
func heard(unheard *time.Duration, silentAfter time.Duration, host, what, name string) error {
	if unheard == nil || *unheard > silentAfter {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrUnavailable, "host %s has not said what it has since the database was started, restored or failed over, "+
		"which may have lost who has %s %q", host, what, name).
		WithHint("It goes on with the next heartbeat or report of that host's agent. An agent that stays away counts as silent after conductor.silent_after.")
}

// Enrolled refuses an accelerator whose host nobody can ask for anything, because
// its certificates were revoked.
func (a *Accelerator) Enrolled() error {
	if !a.revoked {
		return nil
	}
	return revokedHost(a.Host)
}

// NotWhitelisted refuses an accelerator that Nova gives out.
func (a *Accelerator) NotWhitelisted() error {
	if a.Nova == nil {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrInUse, "accelerator %q is in the whitelist of Nova on host %s", a.Name, a.Host).
		WithHint("Take it out first, with cyborg host whitelist, and restart nova-compute.")
}

// Uninstalled refuses an accelerator that left service while its host did not show
// it: its driver may still have it installed.
func (a *Accelerator) Uninstalled() error {
	if a.UninstallPending.IsZero() {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q was retired at %s while host %s did not show it, and has still to be uninstalled",
		a.Name, a.UninstallPending.Format(time.RFC3339), a.Host).
		WithHint("Reconcile has it uninstalled when the host shows it and nobody uses it; or retire it once more.")
}

// Target returns the accelerator in the form that agents get it in.
func (a *Accelerator) Target() cyborg.Target {
	return cyborg.Target{
		Accelerator: a.UUID, Backend: a.Backend, Device: a.device, Fingerprint: a.fingerprint, Deployable: a.LocalName, BitstreamID: a.LoadedLast(),
		ProgramSet: a.ProgramSet,
	}
}

// Doubtful are the kinds of operations that leave a handle in doubt when they
// cannot be undone.
func Doubtful() []string {
	var out []string
	for _, kind := range cyborg.OperationKinds() {
		if kind.Doubt() == cyborg.DoubtHandle {
			out = append(out, string(kind))
		}
	}

	return out
}
