package cyborg

import "context"

type requestIDKey struct{}

// WithRequestID returns a context whose requests to other services carry this
// request id: req- and a UUID, as OpenStack's services write it.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestIDOf returns the id that WithRequestID has set; empty where there is
// none.
func RequestIDOf(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}
