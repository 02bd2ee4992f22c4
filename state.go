package cyborg

// Lifecycle says how far an accelerator has been taken into service.
type Lifecycle string

// The lifecycle states.
const (
	LifecycleInactive   Lifecycle = "inactive"   // found, not in service
	LifecycleInstalling Lifecycle = "installing" // a provision runs
	LifecycleReady      Lifecycle = "ready"      // in service
	LifecycleError      Lifecycle = "error"      // an operation left it in doubt or its driver failed; see the reason
)

// Administration says whether an operator has taken the accelerator out of use
// for a while.
type Administration string

// The administration states.
const (
	AdministrationEnabled     Administration = "enabled"
	AdministrationMaintaining Administration = "maintaining"
)

// Presence says whether the host still reports the device.
type Presence string

// The presence states.
const (
	PresencePresent Presence = "present"
	PresenceMissing Presence = "missing"
)

// OperationState says how far an operation is.
type OperationState string

// The operation states.
const (
	OperationAdmitted OperationState = "admitted" // recorded with its claims; the workflow may not have started
	OperationRunning  OperationState = "running"  // begun

	// The terminal states: the claims are released.
	OperationSucceeded     OperationState = "succeeded"
	OperationFailed        OperationState = "failed"         // and everything it had done is undone
	OperationNeedsOperator OperationState = "needs_operator" // failed, and the undo failed too: the accelerator is in error
	OperationCancelled     OperationState = "cancelled"      // someone cancelled it, and everything it had done is undone
)

// Ended says whether the state is terminal.
func (s OperationState) Ended() bool {
	return s == OperationSucceeded || s == OperationFailed || s == OperationNeedsOperator || s == OperationCancelled
}

// ARQState is the state of an accelerator request, as OpenStack clients see it.
type ARQState string

// The ARQ states (openstack/cyborg common/constants.py).
const (
	ARQInitial      ARQState = "Initial"
	ARQBindStarted  ARQState = "BindStarted"
	ARQBound        ARQState = "Bound"
	ARQBindFailed   ARQState = "BindFailed"
	ARQUnbound      ARQState = "Unbound"
	ARQUnbindFailed ARQState = "UnbindFailed"
	ARQDeleting     ARQState = "Deleting"
)

// Transition is one legal change of state.
type Transition[S ~string] struct {
	From, To S
	// On says what causes the change.
	On string
}

// LifecycleTransitions returns all transitions of the lifecycle. Guards in SQL,
// documentation and metrics derive from them.
func LifecycleTransitions() []Transition[Lifecycle] {
	return []Transition[Lifecycle]{
		{LifecycleInactive, LifecycleInstalling, "provision starts"},
		{LifecycleInstalling, LifecycleReady, "provision succeeds"},
		{LifecycleInstalling, LifecycleInactive, "provision is undone"},
		{LifecycleInstalling, LifecycleError, "provision cannot be undone"},
		{LifecycleReady, LifecycleInactive, "retire succeeds"},
		{LifecycleReady, LifecycleError, "an operation cannot be undone"},
		{LifecycleInactive, LifecycleError, "reconcile or a partition leaves it in doubt"},
		{LifecycleError, LifecycleInstalling, "provision starts"},
		{LifecycleError, LifecycleInactive, "retire succeeds, or what was in doubt is settled"},
		{LifecycleError, LifecycleReady, "what was in doubt is settled"},
	}
}

// AdministrationTransitions returns all transitions of the administration.
func AdministrationTransitions() []Transition[Administration] {
	return []Transition[Administration]{
		{AdministrationEnabled, AdministrationMaintaining, "maintain"},
		{AdministrationMaintaining, AdministrationEnabled, "enable, or the maintenance expires"},
	}
}

// PresenceTransitions returns all transitions of the presence.
func PresenceTransitions() []Transition[Presence] {
	return []Transition[Presence]{
		{PresencePresent, PresenceMissing, "a report no longer shows it"},
		{PresenceMissing, PresencePresent, "a report shows it again"},
	}
}

// OperationTransitions returns all transitions of an operation.
func OperationTransitions() []Transition[OperationState] {
	return []Transition[OperationState]{
		{OperationAdmitted, OperationRunning, "the first step begins"},
		{OperationAdmitted, OperationFailed, "a guard fails, or the workflow cannot run"},
		{OperationAdmitted, OperationCancelled, "cancelled before the first step"},
		{OperationRunning, OperationSucceeded, "the last step is recorded"},
		{OperationRunning, OperationFailed, "a step fails and all is undone"},
		{OperationRunning, OperationNeedsOperator, "a step fails and the undo fails"},
		{OperationRunning, OperationCancelled, "cancelled and undone"},
	}
}

// ARQTransitions returns all transitions of an accelerator request. A request
// that no operation works on can be deleted in any state, without a transition.
// Otherwise it is in state Deleting until that operation has ended.
func ARQTransitions() []Transition[ARQState] {
	return []Transition[ARQState]{
		{ARQInitial, ARQBindStarted, "bind"},
		{ARQUnbound, ARQBindStarted, "bind"},
		{ARQBindStarted, ARQBound, "bind succeeds"},
		{ARQBindStarted, ARQBindFailed, "bind fails"},
		{ARQBound, ARQUnbound, "unbind"},
		{ARQBindFailed, ARQUnbound, "unbind"},
		{ARQBound, ARQUnbindFailed, "unbind fails"},
		{ARQUnbindFailed, ARQUnbound, "unbind"},
		{ARQBindStarted, ARQDeleting, "deleted during a bind"},
		{ARQBound, ARQDeleting, "deleted during an unbind"},
		{ARQUnbindFailed, ARQDeleting, "deleted during an unbind"},
		{ARQBindFailed, ARQDeleting, "deleted during an undo or an unbind"},
	}
}

// Allowed says whether the state machine has a transition between these states.
func Allowed[S ~string](machine []Transition[S], from, to S) bool {
	for _, t := range machine {
		if t.From == from && t.To == to {
			return true
		}
	}
	return false
}

// Sources returns the states from which the state machine has a transition to
// the given one, in the order of the transitions.
func Sources[S ~string](machine []Transition[S], to S) []S {
	var from []S
	for _, t := range machine {
		if t.To == to {
			from = append(from, t.From)
		}
	}
	return from
}
