package db

import (
	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/operation"
)

// HandledKinds lists the kinds of operations that have a handler.
func HandledKinds() []cyborg.OperationKind { return operation.HandledKinds() }
