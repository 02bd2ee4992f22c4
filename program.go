package cyborg

import "github.com/google/uuid"

// OperationProgram loads an image into an accelerator.
const OperationProgram OperationKind = "program"

// ProgramRequest loads an image into an accelerator. Only an accelerator that
// lost its image when its host booted may be held by instances then: they
// cannot use an image that is not there, and the host checks that none does.
type ProgramRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Image       Image     `json:"image"`
	// Reload restricts the program to an accelerator that has lost its image and
	// lacks it still.
	Reload bool `json:"reload,omitempty"`
}

// Kind returns OperationProgram.
func (ProgramRequest) Kind() OperationKind { return OperationProgram }
