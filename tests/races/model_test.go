package races_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// The model describes one accelerator of two handles, and what each action does
// to it. An action is something that a client did, and its outcome is what the
// client was told. It takes effect at one moment between the two times at which
// the client has sent the request and has seen the answer. Which outcomes are
// allowed for an answer:
//
//   - 2xx to a request that is no operation: it was done, and the accelerator
//     looked like that at this moment.
//   - 2xx, or the end that a client saw, of an operation: two actions. It was
//     admitted between its request and the first answer that names it, and it has
//     ended, in the way that was seen, before the first answer that tells of the
//     end. It may fail without a cause in the model only where somebody pulled the
//     card, disabled its backend, or booted its host during the operation, or where
//     the card called itself unready meanwhile.
//   - 409 without an operation of its own: at the moment of the refusal, the guard
//     of the model gives this refusal, with this operation in the way.
//   - 429, 503, 504 without an operation, and no answer at all: nobody knows. The
//     client asks again under the same key until it is told, and the interval
//     begins with the first try.
//
// What nobody is told happens at any moment at which it may, see moves: an admitted
// operation begins, a report arrives, and a round of Reconcile settles what it can.
// So the model is nondeterministic.

// handles is the number of handles of each accelerator.
const handles = 2

// held is the state of one handle.
type held struct {
	holder    string    // empty while nobody has it
	by        uuid.UUID // the operation that has attached it
	confirmed bool      // that operation has succeeded
	left      bool      // unconfirmed: a forced detach has freed it, and Reconcile has not settled it
}

// accelerator is the state of the model. States are compared with ==.
type accelerator struct {
	lifecycle   cyborg.Lifecycle
	movedBy     uuid.UUID            // the operation that has changed the lifecycle last
	errorKind   cyborg.OperationKind // of the operation that left it in error
	maintaining bool
	version     int64 // of its specs
	accType     string
	missing     bool                  // the last report does not show it
	said        cyborg.ConditionLevel // of what the last report says is wrong with it
	nova        bool                  // it is in the whitelist of Nova
	handles     [handles]held

	fence   string    // "" or one of the reasons below
	fenceBy uuid.UUID // the operation that left it

	image string
	kept  bool // an operation has loaded it, so a boot that loses it is noticed
	lost  bool // a boot has lost it
	open  bool // nobody knows what is loaded: a program was disturbed

	shaken bool // its card has been away since it was attached to a host, or the host booted
	undone bool // its host no longer has what it holds, as far as the records know

	pending bool // it left service while its card was away, and has still to be uninstalled

	// What the people at the machine have done.
	pulled    bool                  // the card is off the bus
	disabled  bool                  // the backend is uninstalled
	rebooting bool                  // the host is between two boots, of which no report was recorded
	booting   bool                  // the agent of the second one runs
	silent    bool                  // no agent was heard for long
	ails      cyborg.ConditionLevel // of what the card itself says is wrong with it

	reconciling bool // a round of Reconcile is under way

	claimed
}

// claimed is the operation that has the claim, and how far it is.
type claimed struct {
	claim     uuid.UUID
	request   request
	begun     bool
	wasNova   bool             // the accelerator was in the whitelist of Nova before that
	refused   cyborg.ErrorKind // the guard has refused its begin
	cancelled bool             // its cancellation was requested
	disturbed bool             // the hardware was away at some time during it
	reached   bool             // the hardware was there at some time during it
	worsened  bool             // the card called itself unready at some time during it
}

// Reasons of fences. The others are implied: by a claim, or by a missing card.
const (
	fenceLeft  = "left"  // a forced detach, until Reconcile has settled it
	fenceImage = "image" // a program that could not be undone
)

// request is the request for an operation.
type request struct {
	kind   cyborg.OperationKind
	holder string    // attach and detach; empty for a detach from all holders
	force  bool      // detach
	image  string    // program
	named  uuid.UUID // whitelist: the only accelerator that is to be in it; zero for none
	change string    // configure: install, uninstall or update
}

// ofHost says that the operation is about the host and not about one
// accelerator.
func (r request) ofHost() bool {
	return r.kind == cyborg.OperationWhitelist || r.kind == cyborg.OperationConfigure
}

// action is an action on an accelerator: the input of the model.
type action struct {
	name        string                // admit, end, cancel, specs, maintain, enable, read; see did
	accelerator uuid.UUID             // zero for what is about the host
	operation   uuid.UUID             // admit, end, cancel
	request     request               // admit, end, cancel
	retryOf     uuid.UUID             // admit
	retried     cyborg.OperationState // admit: how the retried operation ended, as a client saw
	byReconcile bool                  // admit: nobody has asked for it
	version     int64                 // specs: the version that the client expects
	accType     string                // specs
	requestID   string                // everything that is not an operation
}

// outcome is the outcome of an action as the client saw it: the output of the
// model.
type outcome struct {
	nothing bool                  // there was nothing to do
	kind    cyborg.ErrorKind      // of a refusal, or of the error of an end
	by      uuid.UUID             // the operation that the refusal names
	state   cyborg.OperationState // end
	seen    accelerator           // where the answer shows the accelerator
}

// refuse returns a refusal.
func refuse(kind cyborg.ErrorKind, by uuid.UUID) outcome { return outcome{kind: kind, by: by} }

// inUse returns the refusal because of the first held handle, or the zero value
// where nobody holds one.
func (a accelerator) inUse() outcome {
	for _, h := range a.handles {
		if h.holder != "" {
			return refuse(cyborg.ErrInUse, h.by)
		}
	}
	return outcome{}
}

// unsettled says that a forced detach has freed a handle that Reconcile has not
// settled.
func (a accelerator) unsettled() bool { return a.handles[0].left || a.handles[1].left }

// heldByHost says that a host holds a handle. Only such an attachment can be undone.
func (a accelerator) heldByHost() bool {
	return slices.ContainsFunc(a.handles[:], func(h held) bool { return strings.HasPrefix(h.holder, "host:") })
}

// takes lists the handles that a detach takes back.
func (a accelerator) takes(r request) (out []int) {
	for i, h := range a.handles {
		if h.holder != "" && (r.holder == "" || r.holder == h.holder) {
			out = append(out, i)
		}
	}
	return out
}

// mustForce says that the host cannot take these handles back: the card is
// missing, its backend disabled, its agent silent, or the handle or the detach itself in doubt.
func (a accelerator) mustForce(taken []int) bool {
	for _, i := range taken {
		if !a.handles[i].confirmed {
			return true
		}
	}
	return a.missing || a.disabled || a.silent || a.lifecycle == cyborg.LifecycleError && a.errorKind == cyborg.OperationDetach
}

// guard returns the refusal of a request, or the zero value where it can be
// admitted. It checks in the same order as the server.
func (a accelerator) guard(r request, id uuid.UUID) outcome {
	if a.claim != uuid.Nil {
		return refuse(cyborg.ErrClaimed, a.claim)
	}
	changed := refuse(cyborg.ErrChanged, uuid.Nil)

	switch r.kind {
	case cyborg.OperationDetach:
		taken := a.takes(r)
		if len(taken) == 0 {
			return outcome{nothing: true}
		}
		if r.force && !a.mustForce(taken) {
			return changed
		}
		return outcome{}

	case cyborg.OperationConfigure:
		if r.change == "uninstall" && a.nova {
			return refuse(cyborg.ErrInUse, uuid.Nil)
		}
		if r.change == "uninstall" {
			return a.inUse()
		}
		return outcome{}

	case cyborg.OperationRetire:
		switch {
		case a.lifecycle == cyborg.LifecycleInactive && !a.pending:
			return refuse(cyborg.ErrChanged, a.movedBy)
		case a.inUse() != outcome{}:
			return a.inUse()
		case a.unsettled():
			return refuse(cyborg.ErrChanged, a.fenceBy)
		}
		return outcome{}
	}

	if r.kind == cyborg.OperationWhitelist && r.named != id {
		return outcome{} // it is taken out, or was not in
	}
	if a.missing {
		return changed
	}

	switch r.kind {
	case cyborg.OperationProvision:
		switch {
		case a.lifecycle != cyborg.LifecycleInactive && a.lifecycle != cyborg.LifecycleError:
			return refuse(cyborg.ErrChanged, a.movedBy)
		case a.nova:
			return refuse(cyborg.ErrInUse, uuid.Nil)
		case a.maintaining:
			return changed
		case a.unsettled():
			return refuse(cyborg.ErrChanged, a.fenceBy)
		}
		return outcome{}

	case cyborg.OperationWhitelist:
		switch {
		case a.nova:
			return outcome{}
		case a.said == cyborg.ConditionUnready:
			return changed
		case a.lifecycle != cyborg.LifecycleInactive:
			return refuse(cyborg.ErrChanged, a.movedBy)
		case a.inUse() != outcome{}:
			return a.inUse()
		case a.unsettled() || a.fence != "":
			return refuse(cyborg.ErrChanged, a.fenceBy)
		case a.pending:
			return changed
		}
		return outcome{}

	case cyborg.OperationProgram:
		curable := a.lifecycle == cyborg.LifecycleError && a.errorKind == cyborg.OperationProgram
		if a.lifecycle != cyborg.LifecycleReady && !curable {
			return refuse(cyborg.ErrChanged, a.movedBy)
		}
		if a.inUse() != (outcome{}) && !a.loadsAgain() {
			return a.inUse()
		}
		if a.unsettled() {
			return refuse(cyborg.ErrChanged, a.fenceBy)
		}
		return outcome{}
	}

	switch { // attach
	case a.lifecycle != cyborg.LifecycleReady:
		return refuse(cyborg.ErrChanged, a.movedBy)
	case a.maintaining:
		return changed
	case a.unsettled() || a.fence != "" || a.undone && a.heldByHost():
		return refuse(cyborg.ErrChanged, a.fenceBy)
	case a.said == cyborg.ConditionUnready:
		return changed
	}

	free := false
	for _, h := range a.handles {
		if h.holder == r.holder {
			return refuse(cyborg.ErrInUse, h.by)
		}
		free = free || h.holder == ""
	}
	if !free {
		return a.inUse()
	}
	return outcome{}
}

// loadsAgain says that an image may be loaded under its holders: a boot has lost
// it, and only instances hold the accelerator, which cannot use it until then.
func (a accelerator) loadsAgain() bool {
	for _, h := range a.handles {
		if h.holder != "" && !strings.HasPrefix(h.holder, "instance:") {
			return false
		}
	}
	return a.lost
}

// away says that a step on the hardware cannot succeed now.
func (a accelerator) away() bool { return a.pulled || a.disabled || a.rebooting }

// admit admits an operation or refuses it. Like the other actions, it returns no
// state where the outcome is impossible in this one.
func (a accelerator) admit(m action, out outcome) []accelerator {
	ended := a.claim != m.retryOf
	if m.retryOf != uuid.Nil && out.kind == cyborg.ErrChanged && out.by == m.retryOf {
		// An operation that has not failed cannot be retried.
		return a.where(!ended || m.retried == cyborg.OperationSucceeded)
	}

	if m.retryOf != uuid.Nil && (!ended || m.retried == cyborg.OperationSucceeded) {
		return nil
	}

	// A whitelist leaves alone what it does not name and what was not in it.
	if m.request.kind == cyborg.OperationWhitelist && m.request.named != m.accelerator && !a.nova && out == (outcome{}) {
		return a.where(true)
	}

	if a.guard(m.request, m.accelerator) != out {
		return nil
	}

	// Reconcile uninstalls what left service while its card was away, once the card is back.
	if m.byReconcile && (!a.reconciling || !a.pending || a.missing || a.maintaining) {
		return nil
	}

	if out == (outcome{}) {
		a.claimed = claimed{
			claim: m.operation, request: m.request, disturbed: a.away(), reached: !a.away(), worsened: a.ails == cyborg.ConditionUnready,
		}
	}
	return a.where(true)
}

// where returns the state where the condition holds, and else none.
func (a accelerator) where(condition bool) []accelerator {
	if !condition {
		return nil
	}
	return []accelerator{a}
}

// begin makes the first change of the operation that has the claim, or refuses
// it because the accelerator has changed since the admission. Nobody is told
// when this happens.
func (a accelerator) begin(id uuid.UUID) accelerator {
	free := a
	free.claim = uuid.Nil
	if refusal := free.guard(a.request, id); refusal.kind != "" {
		a.refused = refusal.kind
		return a
	}

	a.begun = true
	switch a.request.kind {
	case cyborg.OperationProvision:
		a.lifecycle, a.movedBy, a.errorKind = cyborg.LifecycleInstalling, a.claim, ""
	case cyborg.OperationWhitelist:
		a.wasNova, a.nova = a.nova, true // what is taken out stays in until the end
	case cyborg.OperationAttach:
		for i := range a.handles {
			if a.handles[i].holder == "" {
				a.handles[i] = held{holder: a.request.holder, by: a.claim}
				break
			}
		}
	}
	return a
}

// needsCard says that an operation of this kind cannot succeed without its card:
// whoever gets a handle, its host looks at it first.
func (r request) needsCard() bool {
	return r.kind == cyborg.OperationProvision || r.kind == cyborg.OperationProgram || r.kind == cyborg.OperationAttach
}

// refusedByHost says that the host may have refused the operation so: it knows before
// the records do that a card calls itself unready, and gives nobody such a card.
func (c claimed) refusedByHost(kind cyborg.ErrorKind) bool {
	return c.begun && c.worsened && c.request.kind == cyborg.OperationAttach && kind == cyborg.ErrChanged
}

// end ends an operation: it makes the last change, or takes back the first.
func (a accelerator) end(m action, out outcome) []accelerator {
	if a.claim != m.operation {
		return a.where(m.request.kind == cyborg.OperationWhitelist && m.request.named != m.accelerator) // it had left it alone
	}

	was, r := a.claimed, a.request
	explained := false
	switch out.state {
	case cyborg.OperationSucceeded:
		explained = was.begun && (was.reached || !r.needsCard())
	case cyborg.OperationCancelled:
		explained = was.cancelled
	case cyborg.OperationFailed: // one of the host may have failed because of another accelerator
		explained = was.refused != "" && was.refused == out.kind || was.refused == "" && (was.disturbed || r.ofHost() || was.refusedByHost(out.kind))
	case cyborg.OperationNeedsOperator:
		explained = was.begun && was.disturbed
	}
	if !explained {
		return nil
	}

	a.claimed = claimed{}
	switch {
	case out.state == cyborg.OperationSucceeded:
		a = a.succeed(r, m)
	case out.state == cyborg.OperationNeedsOperator:
		a = a.leaveInError(r, m.operation)
	case was.begun:
		a = a.takeBack(was)
	}

	if r.kind == cyborg.OperationProgram && was.begun && was.disturbed {
		a.open = true
		return a.lostOrNot()
	}
	if was.begun && (r.kind == cyborg.OperationRetire || r.kind == cyborg.OperationProvision) {
		return a.uninstalledOrNot(was, out.state)
	}
	return []accelerator{a}
}

// uninstalledOrNot returns the states of an accelerator after an operation that
// may have uninstalled it. A card that was away is not, and has it pending. A
// provision that has not succeeded may not have got as far as to install anything.
func (a accelerator) uninstalledOrNot(was claimed, state cyborg.OperationState) (states []accelerator) {
	r := was.request
	if r.kind == cyborg.OperationProvision && state == cyborg.OperationSucceeded {
		a.pending = false
		return []accelerator{a}
	}

	if r.kind == cyborg.OperationProvision || state != cyborg.OperationSucceeded {
		states = append(states, a) // the host was not asked
	}
	for _, pending := range []bool{false, true} {
		b := a
		b.pending = pending
		if (pending && was.disturbed || !pending && was.reached) && !slices.Contains(states, b) {
			states = append(states, b)
		}
	}
	return states
}

// succeed makes the last change of an operation.
func (a accelerator) succeed(r request, m action) accelerator {
	switch r.kind {
	case cyborg.OperationProvision:
		a.lifecycle, a.movedBy, a.errorKind = cyborg.LifecycleReady, m.operation, ""
	case cyborg.OperationRetire:
		if a.lifecycle != cyborg.LifecycleInactive { // one that is uninstalled later has been retired already
			a.lifecycle, a.movedBy, a.errorKind = cyborg.LifecycleInactive, m.operation, ""
		}
	case cyborg.OperationWhitelist:
		a.nova = r.named == m.accelerator
	case cyborg.OperationConfigure:
		a.disabled = r.change == "uninstall" || a.disabled && r.change == "update"

	case cyborg.OperationProgram:
		a.image, a.kept, a.lost, a.open = r.image, true, false, false
		if a.lifecycle == cyborg.LifecycleError {
			a.lifecycle, a.movedBy, a.errorKind = cyborg.LifecycleReady, m.operation, ""
		}
		if a.fence == fenceImage {
			a.fence, a.fenceBy = "", uuid.Nil
		}

	case cyborg.OperationAttach:
		for i := range a.handles {
			a.handles[i].confirmed = a.handles[i].confirmed || a.handles[i].holder != "" && a.handles[i].by == m.operation
		}

	case cyborg.OperationDetach:
		for _, i := range a.takes(r) {
			a.handles[i] = held{left: r.force}
		}
		if r.force {
			a.fence, a.fenceBy = fenceLeft, m.operation
		} else {
			a = a.settle(m.operation)
		}
	}
	return a
}

// takeBack takes back the first change of an operation.
func (a accelerator) takeBack(was claimed) accelerator {
	switch was.request.kind {
	case cyborg.OperationProvision:
		a.lifecycle, a.movedBy, a.errorKind = cyborg.LifecycleInactive, was.claim, ""
	case cyborg.OperationWhitelist:
		a.nova = was.wasNova
	case cyborg.OperationAttach:
		for i, h := range a.handles {
			if h.holder != "" && h.by == was.claim {
				a.handles[i] = held{}
			}
		}
	}
	return a
}

// leaveInError is the end of an operation that could not be undone.
func (a accelerator) leaveInError(r request, by uuid.UUID) accelerator {
	if r.kind == cyborg.OperationWhitelist || a.lifecycle == cyborg.LifecycleInactive {
		return a
	}

	// A doubt about a handle does not replace an error about something else.
	if a.lifecycle != cyborg.LifecycleError || r.kind == cyborg.OperationProvision || r.kind == cyborg.OperationProgram || r.kind == cyborg.OperationConfigure {
		a.errorKind = r.kind
	}
	a.lifecycle, a.movedBy = cyborg.LifecycleError, by
	if r.kind == cyborg.OperationProgram {
		a.fence, a.fenceBy, a.kept = fenceImage, by, false
	}
	return a
}

// settle takes the accelerator back into service where only a doubt about
// handles had left it in error, and none is in doubt any more.
func (a accelerator) settle(by uuid.UUID) accelerator {
	for _, h := range a.handles {
		if h.left || h.holder != "" && !h.confirmed {
			return a
		}
	}
	if a.lifecycle == cyborg.LifecycleError && (a.errorKind == cyborg.OperationAttach || a.errorKind == cyborg.OperationDetach) {
		a.lifecycle, a.movedBy, a.errorKind = cyborg.LifecycleReady, by, ""
	}
	return a
}

// moves returns the states that may follow without anybody being told.
func (a accelerator) moves(id uuid.UUID) (out []accelerator) {
	if a.claim != uuid.Nil && !a.begun && a.refused == "" && !a.cancelled {
		out = append(out, a.begin(id))
	}

	// A round of Reconcile settles, and so does a report of a host, which knows that a card
	// that is gone has nothing attached. It cannot tell while the backend is disabled.
	if a.claim == uuid.Nil && (a.reconciling || !a.disabled && !a.rebooting && !a.silent) {
		out = append(out, a.settlements()...)
	}
	if a.shaken && a.heldByHost() {
		b := a
		b.undone = !a.undone
		out = append(out, b)
	}

	// A report arrives. While a backend changes, it may show the card or not: the host
	// has installed the backend, and says so, before the operation ends.
	changes := a.begun && a.request.kind == cyborg.OperationConfigure
	if a.missing && !a.pulled && (!a.disabled || changes) {
		b := a
		b.missing = false
		out = append(out, b)
	}
	if !a.missing && (a.pulled || a.disabled || changes) {
		b := a
		b.missing = true
		out = append(out, b)
	}

	// So does what the card says. Of a card that no report shows, what was said last stays.
	if a.said != a.ails && !a.pulled && (!a.disabled || changes) {
		b := a
		b.said = a.ails
		out = append(out, b)
	}

	// The agent of a new boot is heard once that of the boot before counts as silent.
	if a.booting && a.rebooting {
		b := a
		b.silent = !a.silent
		out = append(out, b)
		out = append(out, a.boot()...)
	}
	return out
}

// settlements returns what may be settled at a moment at which no
// operation has the accelerator: a handle in doubt, or one that a forced detach has
// freed, or an error that was only a doubt.
func (a accelerator) settlements() (out []accelerator) {
	for i, h := range a.handles {
		if h.left || h.holder != "" && !h.confirmed {
			b := a
			b.handles[i] = held{}
			if b.fence == fenceLeft && !b.unsettled() {
				b.fence, b.fenceBy = "", uuid.Nil
			}
			out = append(out, b.settle(uuid.Nil))
		}
	}
	return append(out, a.settle(uuid.Nil))
}

// hidden returns this state and all that may follow without anybody being told.
func (a accelerator) hidden(id uuid.UUID) []accelerator {
	out := []accelerator{a}
	for i := 0; i < len(out); i++ {
		for _, b := range out[i].moves(id) {
			if !slices.Contains(out, b) {
				out = append(out, b)
			}
		}
	}
	return out
}

// lostOrNot returns both states of an accelerator of which nobody knows whether
// a boot has lost its image.
func (a accelerator) lostOrNot() []accelerator {
	b := a
	a.lost, b.lost = true, false
	return []accelerator{a, b}
}

// boot is the first report after a boot: the card has lost its image.
func (a accelerator) boot() []accelerator {
	a.rebooting, a.silent = false, false
	a = a.cameBack()
	if a.open || a.begun && a.request.kind == cyborg.OperationProgram {
		a.open = true
		return a.lostOrNot()
	}
	a.image, a.lost = "", a.lost || a.kept && a.image != ""
	return []accelerator{a}
}

// disturb marks the operation under way as one that the hardware has left, or
// has come back to.
func (a accelerator) disturb() accelerator {
	a.disturbed = a.disturbed || a.claim != uuid.Nil
	a.shaken = true
	return a
}

// cameBack is disturb for hardware that is there again.
func (a accelerator) cameBack() accelerator {
	a.reached = a.reached || a.claim != uuid.Nil && !a.away()
	return a
}

// shows reports whether a client that reads the accelerator may see this.
func (a accelerator) shows(seen accelerator) bool {
	if a.open || a.begun && a.request.kind == cyborg.OperationProgram {
		seen.image = a.image // a report may show the image before the operation has ended
		seen.lost = a.lost
	}
	if a.begun && a.request.kind == cyborg.OperationProgram {
		seen.fence, seen.fenceBy = a.fence, a.fenceBy // its own fence, meanwhile
	}

	// The API does not show these.
	seen.movedBy, seen.errorKind, seen.kept, seen.open, seen.pending = a.movedBy, a.errorKind, a.kept, a.open, a.pending
	seen.pulled, seen.disabled, seen.rebooting, seen.booting, seen.silent = a.pulled, a.disabled, a.rebooting, a.booting, a.silent
	seen.reconciling, seen.shaken, seen.undone, seen.ails = a.reconciling, a.shaken, a.undone, a.ails
	claim := seen.claim
	seen.claimed = a.claimed
	return a == seen && a.claim == claim
}

// step applies an action, and returns the states that may follow; none where its
// outcome is impossible. Whatever nobody is told may have happened before, and may
// happen afterwards.
func (a accelerator) step(m action, out outcome) (next []accelerator) {
	for _, before := range a.hidden(m.accelerator) {
		for _, after := range before.apply(m, out) {
			next = append(next, after.hidden(m.accelerator)...)
		}
	}
	return next
}

// apply is step without what nobody is told.
func (a accelerator) apply(m action, out outcome) []accelerator {
	switch m.name {
	case "admit":
		return a.admit(m, out)
	case "end":
		return a.end(m, out)

	case "cancel":
		if m.request.ofHost() { // the host's part of the history checks the answer
			a.cancelled = a.cancelled || out.kind == "" && a.claim == m.operation
			return a.where(true)
		}
		if out.kind != "" {
			return a.where(out.kind == cyborg.ErrChanged && out.by == m.operation && a.claim != m.operation)
		}
		a.cancelled = true
		return a.where(a.claim == m.operation)

	case "specs":
		if out.kind != "" {
			return a.where(out.kind == cyborg.ErrChanged && out.by == uuid.Nil && a.version != m.version)
		}
		was := a.version
		a.version, a.accType = a.version+1, m.accType
		return a.where(was == m.version && a.shows(out.seen))

	case "maintain", "enable":
		a.maintaining = m.name == "maintain"
		return a.where(out.kind == "" && a.shows(out.seen))
	case "read":
		return a.where(out.kind == "" && a.shows(out.seen))

	}
	return a.did(m.name)
}

// did applies what the operator of the race did, or saw.
func (a accelerator) did(name string) []accelerator {
	switch name {
	case "pull":
		a.pulled = true
		a = a.disturb()
	case "put back":
		a.pulled = false
		a = a.cameBack()
	case "missing", "present":
		return a.where(a.missing == (name == "missing"))

	case "ail", "worsen", "recover":
		a.ails = map[string]cyborg.ConditionLevel{"ail": cyborg.ConditionDegraded, "worsen": cyborg.ConditionUnready}[name]
		a.worsened = a.worsened || a.claim != uuid.Nil && a.ails == cyborg.ConditionUnready
	case "told": // a report of what the card says was seen
		return a.where(a.said == a.ails)

	case "power off":
		a.rebooting = true
		a = a.disturb()
	case "power on":
		a.booting = true
	case "booted": // a report of the new boot was seen
		a.booting = false
		return a.where(!a.rebooting)

	case "round begins", "round ends":
		a.reconciling = name == "round begins"
	default:
		return nil
	}
	return []accelerator{a}
}

// host is the state of the host's own part of the history: which operations
// about it are open. There is at most one of each kind.
type host struct{ whitelist, configure uuid.UUID }

// step applies an action, and returns false where its outcome is impossible.
func (h host) step(m action, out outcome) (bool, host) {
	slot := &h.configure
	if m.request.kind == cyborg.OperationWhitelist {
		slot = &h.whitelist
	}
	open := *slot != uuid.Nil && *slot == m.operation

	switch {
	case m.name == "admit" && out.kind == "":
		was := *slot
		*slot = m.operation
		return was == uuid.Nil, h
	case m.name == "admit": // the other operation is about the host as well
		return out.kind == cyborg.ErrClaimed && (out.by == h.whitelist || out.by == h.configure), h
	case m.name == "end":
		*slot = uuid.Nil
		return open, h
	case m.name == "cancel" && out.kind == "":
		return open, h
	case m.name == "cancel":
		return out.kind == cyborg.ErrChanged && out.by == m.operation && !open, h
	}
	return false, h
}

// model returns the model of all accelerators and their host. initially holds
// the state of each accelerator at the start.
func model(initially map[uuid.UUID]accelerator) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			of := map[uuid.UUID][]porcupine.Operation{}
			for _, o := range history {
				id := o.Input.(action).accelerator
				of[id] = append(of[id], o)
			}

			var parts [][]porcupine.Operation
			for _, part := range of {
				parts = append(parts, part)
			}
			return parts
		},
		// All parts share one Init, so the state is nil until the first action of a
		// part names its accelerator.
		Init: func() []any { return []any{nil} },
		Step: func(state, input, output any) (next []any) {
			m, out := input.(action), output.(outcome)
			if m.accelerator == uuid.Nil {
				h, _ := state.(host)
				if ok, then := h.step(m, out); ok {
					next = append(next, then)
				}
				return next
			}

			a, ok := state.(accelerator)
			if !ok {
				a = initially[m.accelerator]
			}
			for _, then := range a.step(m, out) {
				next = append(next, then)
			}
			return next
		},
		DescribeOperation: func(input, output any) string { return describe(input.(action), output.(outcome)) },
		DescribeState:     func(state any) string { return fmt.Sprint(state) },
	}
	return m.ToModel()
}

// short returns the beginning of a UUID.
func short(id uuid.UUID) string { return id.String()[:4] }

// describe describes an action and its outcome in failure messages.
func describe(m action, out outcome) string {
	text := m.name
	switch m.name {
	case "admit":
		text += fmt.Sprintf(" %s %s%s%s", m.request.kind, m.request.holder, m.request.image, m.request.change)
		if m.request.force {
			text += " by force"
		}
		if m.request.named != uuid.Nil {
			text += " of " + short(m.request.named)
		}
		if m.retryOf != uuid.Nil {
			text += " retry of " + short(m.retryOf)
		}
	case "specs":
		text += fmt.Sprintf(" at %d", m.version)
	}

	if m.operation != uuid.Nil {
		text += " " + short(m.operation)
	}

	switch {
	case out.state != "" && out.kind != "":
		text += fmt.Sprintf(" → %s: %s", out.state, out.kind)
	case out.nothing:
		text += " → nothing to do"
	case out.kind != "":
		text += fmt.Sprintf(" → %s by %s", out.kind, short(out.by))
	case out.state != "":
		text += " → " + string(out.state)
	case out.seen != accelerator{}:
		text += " → " + out.seen.String()
	}
	return text
}

// String describes the state in failure messages.
func (a accelerator) String() string {
	text := fmt.Sprintf("%s %s %q v%d", a.lifecycle, a.accType, a.image, a.version)
	for _, mark := range []struct {
		set  bool
		text string
	}{
		{a.maintaining, "maintaining"},
		{a.missing, "missing"},
		{a.said != "", string(a.said)},
		{a.ails != a.said, "of which the card says " + cmp.Or(string(a.ails), "nothing")},
		{a.nova, "nova"},
		{a.lost, "lost"},
		{a.pulled, "pulled"},
		{a.disabled, "disabled"},
		{a.fence != "", "fenced " + a.fence + " by " + short(a.fenceBy)},
	} {
		if mark.set {
			text += " " + mark.text
		}
	}

	for _, h := range a.handles {
		if h.left {
			text += " [left]"
			continue
		}
		if h.holder == "" {
			text += " [free]"
			continue
		}
		text += fmt.Sprintf(" [%s by %s]", strings.TrimLeft(h.holder, "0-"), short(h.by))
		if !h.confirmed {
			text += "?"
		}
	}

	if a.claim != uuid.Nil {
		text += fmt.Sprintf(" claimed by %s %s", a.request.kind, short(a.claim))
	}

	return text
}
