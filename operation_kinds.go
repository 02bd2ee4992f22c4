package cyborg

import (
	"encoding/json"
	"fmt"
)

// OperationKind is the kind of an operation; it is also the prefix of its
// workflow id.
type OperationKind string

// Request asks for an operation of one kind. It is passed by value, and
// recorded as the operation's input.
type Request interface {
	// Kind returns the kind of the operation that is asked for.
	Kind() OperationKind
}

// Doubt is what is not known of an accelerator after an operation that could
// not be undone. It decides what takes the accelerator out of its error; see
// "Remedies" in docs/data.md. Where it is empty, and the kind can leave an
// accelerator in error, a provision or a retire takes it out.
type Doubt string

// The doubts.
const (
	DoubtHandle Doubt = "handle" // whether a handle is attached: its host settles that
	DoubtImage  Doubt = "image"  // which image is loaded: a program settles that
	DoubtLayout Doubt = "layout" // how its device is divided: a partition settles that
)

// operationKind describes one kind of operation.
type operationKind struct {
	kind   OperationKind
	status Status // of an accelerator while it is claimed; "" for a kind that claims none
	closed bool   // Placement must not give an accelerator away while it is claimed
	doubt  Doubt  // what is not known of an accelerator where the undo has failed
	decode func(input []byte) (Request, error)
}

// operationKindTable has a line for each kind. The records, the workflows and
// the API have tables of their own, with one line for each of these kinds;
// docs/workflows.md names them.
var operationKindTable = []operationKind{
	{kind: OperationProvision, status: StatusInstalling, decode: decode[ProvisionRequest]},
	{kind: OperationProgram, status: StatusProgramming, closed: true, doubt: DoubtImage, decode: decode[ProgramRequest]},
	{kind: OperationAttach, status: StatusAttaching, doubt: DoubtHandle, decode: decode[AttachRequest]},
	{kind: OperationDetach, status: StatusDetaching, doubt: DoubtHandle, decode: decode[DetachRequest]},
	{kind: OperationConfigure, status: StatusConfiguring, decode: decode[ConfigureRequest]},
	{kind: OperationRetire, status: StatusRetiring, closed: true, decode: decode[RetireRequest]},
	{kind: OperationBind, status: StatusProgramming, doubt: DoubtImage, decode: decode[BindRequest]}, // keeps claims only on what it programs
	{kind: OperationUnbind, status: StatusDetaching, decode: decode[UnbindRequest]},
	{kind: OperationWhitelist, status: StatusConfiguring, decode: decode[WhitelistRequest]},
	{kind: OperationRescue, decode: decode[RescueRequest]},
	{kind: OperationClean, status: StatusCleaning, decode: decode[CleanRequest]},
	{kind: OperationPartition, status: StatusPartitioning, closed: true, doubt: DoubtLayout, decode: decode[PartitionRequest]},
}

// decode reads a request from an operation's recorded input.
func decode[R Request](input []byte) (Request, error) {
	var request R
	err := json.Unmarshal(input, &request)
	return request, err
}

// describe returns the line of the kind in operationKindTable, or the zero
// value for an unknown kind.
func (k OperationKind) describe() operationKind {
	for _, line := range operationKindTable {
		if line.kind == k {
			return line
		}
	}

	return operationKind{}
}

// OperationKinds returns every kind.
func OperationKinds() []OperationKind {
	out := make([]OperationKind, len(operationKindTable))
	for i, line := range operationKindTable {
		out[i] = line.kind
	}

	return out
}

// Status returns the status that an accelerator shows while an operation of
// this kind has claimed it; "" for a kind that claims none.
func (k OperationKind) Status() Status { return k.describe().status }

// ClosesPlacement reports whether Placement must not give an accelerator away
// while an operation of this kind has claimed it. It is true for an unknown
// kind: during an upgrade, a newer server may have begun an operation of a kind
// that this one does not know.
func (k OperationKind) ClosesPlacement() bool {
	line := k.describe()
	return line.closed || line.kind == ""
}

// Doubt returns what is not known of an accelerator where an operation of this
// kind could not be undone.
func (k OperationKind) Doubt() Doubt { return k.describe().doubt }

// DecodeRequest returns the request of an operation from its kind and its
// recorded input, which is JSON.
func DecodeRequest(kind OperationKind, input []byte) (Request, error) {
	line := kind.describe()
	if line.decode == nil {
		return nil, fmt.Errorf("unknown kind %q", kind)
	}

	return line.decode(input)
}
