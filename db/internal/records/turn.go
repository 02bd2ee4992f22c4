package records

import "context"

// Turn waits until its caller may use one connection of the store, and returns
// the function that the store calls when it no longer uses it. The error
// becomes that of the call, unchanged.
type Turn func(ctx context.Context) (release func(), err error)

type turnKey struct{}

// WithTurn returns a context whose calls of the store wait for their turn
// before they use a connection. This limits callers that make many calls to a
// part of the connections; api/limiter decides whose turn it is. A call takes a
// turn for each statement, batch or transaction that it needs, and may be
// refused before any of them. Calls without a turn in their context, such as
// those of workers, wait only for a free connection; so do Ping and Notify.
func WithTurn(ctx context.Context, turn Turn) context.Context {
	return context.WithValue(ctx, turnKey{}, turn)
}

// TakeTurn waits for the turn of ctx. The returned context has no turn any
// more: calls with it belong to the turn that was just taken. Waiting for a second
// turn while holding the first could last for ever.
func TakeTurn(ctx context.Context) (within context.Context, release func(), err error) {
	turn, _ := ctx.Value(turnKey{}).(Turn)
	if turn == nil {
		return ctx, func() {}, nil
	}

	release, err = turn(ctx)
	if err != nil {
		return ctx, nil, &noTurn{err}
	}

	return WithTurn(ctx, nil), release, nil
}

// noTurn is the error of a Turn. It says nothing about the database, so
// DB.Failure returns it unchanged.
type noTurn struct{ error }

func (e *noTurn) Unwrap() error { return e.error }
