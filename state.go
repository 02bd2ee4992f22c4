package cyborg

// Lifecycle says how far an accelerator has been taken into service.
type Lifecycle string

// The lifecycle states.
const (
	Inactive   Lifecycle = "inactive"   // found, not in service
	Installing Lifecycle = "installing" // a Provision runs
	Ready      Lifecycle = "ready"      // in service
	Broken     Lifecycle = "error"      // an operation left it in doubt or its driver failed; see the reason
)

// Administration says whether an operator has taken the accelerator out of use for a while.
type Administration string

// The administration states.
const (
	Enabled     Administration = "enabled"
	Maintaining Administration = "maintaining"
)

// Presence says whether the host's bus still shows the device.
type Presence string

// The presence states.
const (
	Present Presence = "present"
	Missing Presence = "missing"
)

// OperationState is where an operation stands.
type OperationState string

// The operation states. The last four are terminal.
const (
	Admitted      OperationState = "admitted"       // recorded with its claims; the workflow may not have started
	Running       OperationState = "running"        // its first step has run
	Succeeded     OperationState = "succeeded"      //
	Failed        OperationState = "failed"         // and everything it had done is undone
	NeedsOperator OperationState = "needs_operator" // failed, and the undo failed too: the accelerator is in error
	Stopped       OperationState = "cancelled"      // someone cancelled it, and everything it had done is undone
)

// Ended says whether the state is terminal.
func (s OperationState) Ended() bool {
	return s == Succeeded || s == Failed || s == NeedsOperator || s == Stopped
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

// Transition is one legal change of a state machine.
type Transition[S ~string] struct {
	From, To S
	// On says what makes it happen.
	On string
}

// LifecycleTransitions is the whole lifecycle machine; SQL guards, docs and metrics derive from it.
func LifecycleTransitions() []Transition[Lifecycle] {
	return []Transition[Lifecycle]{
		{Inactive, Installing, "provision starts"},
		{Installing, Ready, "provision succeeds"},
		{Installing, Inactive, "provision is undone"},
		{Installing, Broken, "provision cannot be undone"},
		{Ready, Inactive, "retire succeeds"},
		{Ready, Broken, "an operation cannot be undone"},
		{Inactive, Broken, "reconcile finds it in doubt"},
		{Broken, Installing, "provision starts"},
		{Broken, Inactive, "retire succeeds"},
		{Broken, Ready, "reconcile settles what was in doubt"},
	}
}

// AdministrationTransitions is the administration machine.
func AdministrationTransitions() []Transition[Administration] {
	return []Transition[Administration]{
		{Enabled, Maintaining, "maintain"},
		{Maintaining, Enabled, "enable, or the maintenance expires"},
	}
}

// PresenceTransitions is the presence machine.
func PresenceTransitions() []Transition[Presence] {
	return []Transition[Presence]{
		{Present, Missing, "a report no longer shows it"},
		{Missing, Present, "a report shows it again"},
	}
}

// OperationTransitions is the machine of operations.
func OperationTransitions() []Transition[OperationState] {
	return []Transition[OperationState]{
		{Admitted, Running, "the first step begins"},
		{Admitted, Failed, "a guard fails, or the workflow cannot run"},
		{Admitted, Stopped, "cancelled before the first step"},
		{Running, Succeeded, "the last step is recorded"},
		{Running, Failed, "a step fails and all is undone"},
		{Running, NeedsOperator, "a step fails and the undo fails"},
		{Running, Stopped, "cancelled and undone"},
	}
}

// ARQTransitions is the machine of accelerator requests. One that no operation works on is deleted from any state, and
// Deleting is what it is until an operation has ended that does.
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

// Allowed says whether the machine may go from one state to the other.
func Allowed[S ~string](machine []Transition[S], from, to S) bool {
	for _, t := range machine {
		if t.From == from && t.To == to {
			return true
		}
	}
	return false
}

// Sources lists the states from which the machine may go to the given one, in table order.
func Sources[S ~string](machine []Transition[S], to S) []S {
	var from []S
	for _, t := range machine {
		if t.To == to {
			from = append(from, t.From)
		}
	}
	return from
}
