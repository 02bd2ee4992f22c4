package cli

import (
	"context"
	"iter"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// shortestPrefix is the least number of characters by which a UUID can be
// named, where no other UUID begins with them.
const shortestPrefix = 8

// fullUUID parses a UUID in its usual form of 36 characters.
func fullUUID(text string) (uuid.UUID, bool) {
	id, err := uuid.Parse(text)
	return id, err == nil && len(text) == len(uuid.UUID{}.String())
}

// looksLikePrefix reports whether a text can be the beginning of a UUID.
func looksLikePrefix(text string) bool {
	const pattern = "00000000-0000-0000-0000-000000000000"
	if len(text) < shortestPrefix || len(text) > len(pattern) {
		return false
	}

	_, err := uuid.Parse(text + pattern[len(text):])
	return err == nil
}

// accelerator finds the accelerator that a user means by its UUID, its name, or
// the beginning of its UUID, in this order.
func (s *shell) accelerator(ctx context.Context, client *apiclient.Client, named string) (uuid.UUID, error) {
	if id, ok := fullUUID(named); ok {
		return id, nil
	}

	// The loop returns with its first item; a name that nobody has falls through.
	for found, err := range client.Accelerators(ctx, apiclient.AcceleratorFilter{Names: []string{named}}, apiclient.Page{Limit: 1}) {
		return found.UUID, err
	}

	return byPrefix("accelerator", "accelerator list", named, func(prefix string) iter.Seq2[apiclient.Accelerator, error] {
		return client.Accelerators(ctx, apiclient.AcceleratorFilter{Prefix: prefix}, apiclient.Page{Limit: 2})
	}, func(a apiclient.Accelerator) uuid.UUID { return a.UUID })
}

// near finds out what a user wants to be near to: the number of a NUMA node and a PCI
// address are taken as they are, anything else names an accelerator.
func (s *shell) near(ctx context.Context, client *apiclient.Client, named string) (string, error) {
	_, notNode := strconv.ParseUint(named, 10, 16)
	_, notAddress := cyborg.ParsePCIAddress(named)
	if named == "" || notNode == nil || notAddress == nil {
		return named, nil
	}

	id, err := s.accelerator(ctx, client, named)
	return id.String(), err
}

// device finds a device by its UUID or the beginning of it.
func (s *shell) device(ctx context.Context, client *apiclient.Client, named string) (uuid.UUID, error) {
	return byPrefix("device", "device list", named, func(prefix string) iter.Seq2[apiclient.Device, error] {
		return client.Devices(ctx, apiclient.DeviceFilter{Prefix: prefix}, apiclient.Page{Limit: 2})
	}, func(d apiclient.Device) uuid.UUID { return d.UUID })
}

// operation finds an operation by its id or the beginning of it.
func (s *shell) operation(ctx context.Context, client *apiclient.Client, named string) (uuid.UUID, error) {
	return byPrefix("operation", "operation list", named, func(prefix string) iter.Seq2[apiclient.Operation, error] {
		return client.Operations(ctx, apiclient.OperationFilter{Prefix: prefix}, apiclient.Page{Limit: 2})
	}, func(o apiclient.Operation) uuid.UUID { return o.ID })
}

// byPrefix finds the only item whose UUID begins as given. Two items are enough
// for begin to return, to tell that a prefix is ambiguous.
func byPrefix[T any](what, listing, named string, begin func(prefix string) iter.Seq2[T, error], id func(T) uuid.UUID) (uuid.UUID, error) {
	if full, ok := fullUUID(named); ok {
		return full, nil
	}

	// The error is the same whether the text cannot be a UUID or nothing begins so.
	none := cyborg.Errorf(cyborg.ErrNotFound, "there is no %s %q", what, named).WithHint("See `cyborg %s`.", listing)

	if !looksLikePrefix(named) {
		if len(named) < shortestPrefix && looksLikePrefix(named+strings.Repeat("0", shortestPrefix-len(named))) {
			none = none.WithHint("See `cyborg %s`. Give at least %d characters of a UUID.", listing, shortestPrefix)
		}
		return uuid.UUID{}, none
	}

	found, err := apiclient.Collect(begin(named))

	switch {
	case err != nil:
		return uuid.UUID{}, err
	case len(found) == 0:
		return uuid.UUID{}, none
	case len(found) > 1:
		return uuid.UUID{}, cyborg.Errorf(cyborg.ErrInvalid, "%q is the beginning of more than one %s's UUID: %s, %s", named, what, id(found[0]), id(found[1])).
			WithHint("Give more of its characters.")
	}

	return id(found[0]), nil
}
