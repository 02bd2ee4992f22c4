package cli

import (
	"context"
	"iter"
	"regexp"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// shortestPrefix is how much of a UUID may stand for it, if it is the only one that begins so.
const shortestPrefix = 8

// fullUUID reads a UUID in its usual form.
func fullUUID(text string) (uuid.UUID, bool) {
	id, err := uuid.Parse(text)
	return id, err == nil && len(text) == len(uuid.UUID{}.String())
}

func looksLikePrefix(text string) bool {
	return len(text) >= shortestPrefix && regexp.MustCompile(`^[0-9a-fA-F-]+$`).MatchString(text)
}

// accelerator finds the accelerator that a person means by its UUID, its name, or the beginning of its UUID.
func (s *shell) accelerator(ctx context.Context, client *apiclient.Client, named string) (uuid.UUID, error) {
	if id, ok := fullUUID(named); ok {
		return id, nil
	}
	for found, err := range client.Accelerators(ctx, apiclient.AcceleratorFilter{Names: []string{named}}, apiclient.Page{Limit: 1}) {
		return found.UUID, err
	}
	return byPrefix("accelerator", "accelerator list", named,
		client.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}),
		func(a apiclient.Accelerator) uuid.UUID { return a.UUID })
}

// device finds a device by its UUID or the beginning of that.
func (s *shell) device(ctx context.Context, client *apiclient.Client, named string) (uuid.UUID, error) {
	if id, ok := fullUUID(named); ok {
		return id, nil
	}
	return byPrefix("device", "device list", named, client.Devices(ctx, apiclient.DeviceFilter{}, apiclient.Page{}),
		func(d apiclient.Device) uuid.UUID { return d.UUID })
}

// operation finds an operation by its id or the beginning of that.
func (s *shell) operation(ctx context.Context, client *apiclient.Client, named string) (uuid.UUID, error) {
	if id, ok := fullUUID(named); ok {
		return id, nil
	}
	return byPrefix("operation", "operation list", named, client.Operations(ctx, apiclient.OperationFilter{}, apiclient.Page{}),
		func(o apiclient.Operation) uuid.UUID { return o.ID })
}

// byPrefix finds the only item whose UUID begins as given.
func byPrefix[T any](what, listing, named string, items iter.Seq2[T, error], id func(T) uuid.UUID) (uuid.UUID, error) {
	none := cyborg.Errorf(cyborg.NotFound, "there is no %s %q", what, named).WithHint("See `cyborg %s`.", listing)
	if !looksLikePrefix(named) {
		return uuid.UUID{}, none
	}
	found := uuid.Nil
	for item, err := range items {
		switch {
		case err != nil:
			return uuid.UUID{}, err
		case !strings.HasPrefix(id(item).String(), strings.ToLower(named)):
		case found != uuid.Nil:
			return uuid.UUID{}, cyborg.Errorf(cyborg.Invalid, "%q is the beginning of more than one %s's UUID: %s, %s", named, what, found, id(item)).
				WithHint("Give more of it.")
		default:
			found = id(item)
		}
	}
	if found == uuid.Nil {
		return uuid.UUID{}, none
	}
	return found, nil
}
