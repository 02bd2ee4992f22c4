package v1

import (
	"encoding/json"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
)

// retryTable has for each kind of operation the role that a retry of a request
// needs. It is the role that the table of routes has for the same request. A
// kind with nil cannot be retried.
var retryTable = map[cyborg.OperationKind]func(request cyborg.Request) auth.Role{
	cyborg.OperationProvision: admin,
	cyborg.OperationProgram:   member,
	cyborg.OperationAttach:    member,
	cyborg.OperationDetach:    detachRole,
	cyborg.OperationConfigure: admin,
	cyborg.OperationRetire:    admin,
	cyborg.OperationBind:      nil, // Nova has given its requests up
	cyborg.OperationUnbind:    nil, // likewise
	cyborg.OperationWhitelist: admin,
	cyborg.OperationRescue:    nil, // a new one looks again which instances need it
	cyborg.OperationClean:     admin,
	cyborg.OperationPartition: admin,
}

func admin(cyborg.Request) auth.Role { return auth.Admin }

func member(cyborg.Request) auth.Role { return auth.Member }

// roleOf returns the role that a retry of the request needs.
func roleOf(request cyborg.Request) auth.Role { return retryTable[request.Kind()](request) }

// requestOf returns the request for an operation from its recorded input. The
// error is of kind ErrUnsupported for kinds that cannot be retried.
func requestOf(op cyborg.Operation) (cyborg.Request, error) {
	if retryTable[op.Kind] == nil {
		return nil, cyborg.Errorf(cyborg.ErrUnsupported, "an operation of kind %s cannot be retried", op.Kind)
	}

	var request cyborg.Request

	input, err := json.Marshal(op.Input)
	if err == nil {
		request, err = cyborg.DecodeRequest(op.Kind, input)
	}
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "the input of operation %s cannot be read: %w", op.ID, err)
	}

	return request, nil
}
