package db

import "github.com/cyborg-project/cyborg"

// HandledKinds lists the kinds of operations that have a handler.
func HandledKinds() []cyborg.OperationKind {
	var out []cyborg.OperationKind
	for _, line := range handlerTable {
		out = append(out, line.kind)
	}
	return out
}
