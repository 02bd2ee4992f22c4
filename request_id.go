package cyborg

import "context"

type requestIDKey struct{}

// WithRequestID returns a context in which other services are asked on behalf of the request with this id: req- and a UUID, as
// OpenStack's services write it.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestIDOf is the id that WithRequestID gave; empty where there is none.
func RequestIDOf(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}
