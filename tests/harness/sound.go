package harness

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// settleLimit is how long the system may take to come to rest after a kill.
// Rest needs a heartbeat timeout, the detection that an agent is away, and a
// round of reconciliation, on a busy machine.
const settleLimit = 15 * time.Minute

// ParkDir returns the directory with the fake cards of a host.
func (s *System) ParkDir(host string) string { return s.parkDir(host, "fake") }

// parkDir is ParkDir for a backend that has another name than "fake".
func (s *System) parkDir(host, backend string) string {
	if s.parks != "" {
		return filepath.Join(s.parks, host)
	}
	return filepath.Join(s.StateDir, "agents", host, "backends", backend)
}

// Bench returns the access to the fake cards of a host: it reads and changes
// them like a person at the machine.
func (s *System) Bench(host string) fake.Bench { return fake.NewBench(s.ParkDir(host)) }

// BenchOf is Bench for the card of an accelerator, whatever the name of its backend.
func (s *System) BenchOf(a *apiclient.Accelerator) fake.Bench {
	return fake.NewBench(s.parkDir(a.Host, a.Backend))
}

// Accelerators lists all accelerators.
func (s *System) Accelerators(t testing.TB) []apiclient.Accelerator {
	t.Helper()
	all, err := apiclient.Collect(s.API.Accelerators(t.Context(), apiclient.AcceleratorFilter{}, apiclient.Page{}))
	require.NoError(t, err)
	return all
}

// Operations lists all operations, newest first.
func (s *System) Operations(t testing.TB) []apiclient.Operation {
	t.Helper()
	all, err := apiclient.Collect(s.API.Operations(t.Context(), apiclient.OperationFilter{}, apiclient.Page{}))
	require.NoError(t, err)
	return all
}

// RequireSound waits until no operation is under way and everything is true
// that must be true at rest; the test fails after settleLimit. At rest
//
//   - every operation has ended, with a time, and with an error where it failed;
//   - no accelerator is claimed, and none is fenced without a reason;
//   - the holder of each handle is confirmed, and nobody has what excludes it;
//   - exactly the handles that the records say are attached on the fake cards and
//     in the journals;
//   - what is free has nothing on its card that its host removes after every holder;
//   - a card is divided as the last partition that succeeded has made it, as its host
//     reports, and everything that is recorded of it is there, unless a partition has left
//     it in error;
//   - the conditions of an accelerator are those that its card has;
//   - nobody was ever given what nobody may get;
//   - the events lead to the recorded values.
func RequireSound(t testing.TB, s *Standalone) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()

	Until(t, ctx, "at rest and sound", func() error {
		if !s.Running() {
			t.Fatalf("the standalone has ended (%s):\n%s", s.cmd.ProcessState, s.output)
		}
		return s.Unsound(ctx)
	})
}

// Unsound returns an error that names the first thing that is not, or not yet,
// as RequireSound demands; nil where the system is at rest and sound.
func (s *System) Unsound(ctx context.Context) error {
	operations, err := apiclient.Collect(s.API.Operations(ctx, apiclient.OperationFilter{}, apiclient.Page{}))
	if err != nil {
		return err
	}

	for _, op := range operations {
		switch {
		case !op.State.Ended():
			return fmt.Errorf("operation %s %s is %s", op.Kind, op.ID, op.State)
		case op.EndedAt.IsZero():
			return fmt.Errorf("operation %s %s ended %s, but not when", op.Kind, op.ID, op.State)
		case op.State != cyborg.OperationSucceeded && op.Error == nil:
			return fmt.Errorf("operation %s %s ended %s, but not why", op.Kind, op.ID, op.State)
		}
	}

	accelerators, err := apiclient.Collect(s.API.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
	if err != nil {
		return err
	}

	errorsOf, err := s.errorKinds(ctx)
	if err != nil {
		return err
	}

	if err := s.unsoundLayouts(ctx, accelerators, errorsOf); err != nil {
		return err
	}

	for i := range accelerators {
		if err := s.unsoundAccelerator(ctx, &accelerators[i], errorsOf[accelerators[i].UUID]); err != nil {
			return fmt.Errorf("accelerator %s: %w", accelerators[i].Name, err)
		}
		if err := s.unsoundHistory(ctx, &accelerators[i]); err != nil {
			return fmt.Errorf("accelerator %s: %w", accelerators[i].Name, err)
		}
	}

	if err := s.unsoundGifts(ctx); err != nil {
		return err
	}

	return s.unsoundJournals(ctx, accelerators)
}

// mayBeEither reports whether nobody knows if an accelerator is installed: an
// operation that installs, uninstalls or configures has left it in error. After
// one of another kind, it is installed as before. A partition that could not be undone may
// have taken away what was installed.
func mayBeEither(lifecycle cyborg.Lifecycle, left cyborg.OperationKind) bool {
	return lifecycle == cyborg.LifecycleError &&
		slices.Contains([]cyborg.OperationKind{
			cyborg.OperationProvision, cyborg.OperationRetire, cyborg.OperationConfigure, cyborg.OperationPartition,
		}, left)
}

// unsoundAccelerator compares one accelerator with itself and, where it is a
// fake one, with its card. left is the kind of the operation that has left it in
// error; empty where it is not. It returns an error where it is not sound.
func (s *System) unsoundAccelerator(ctx context.Context, a *apiclient.Accelerator, left cyborg.OperationKind) error {
	switch {
	case a.Claim != nil:
		return fmt.Errorf("claimed by %s", a.Claim.Operation)
	case a.Lifecycle == cyborg.LifecycleInstalling:
		return fmt.Errorf("still installing")
	case a.Fence != nil && a.Fence.Reason == "":
		return fmt.Errorf("fenced without a reason")
	case a.Lifecycle == cyborg.LifecycleError && (a.Reason == "" || left == ""):
		return fmt.Errorf("in error without a reason or without the operation that has left it so: %q, %q", a.Reason, left)
	case len(a.Holders) > 0 && len(a.ExcludedBy) > 0 && !a.ExcludedBy[0].Unclean:
		return fmt.Errorf("held although %s is, too", a.ExcludedBy[0].Name)
	}

	if a.Driver != "fake" {
		return nil
	}

	device, err := s.API.Device(ctx, a.DeviceUUID)
	if err != nil {
		return err
	}
	card, err := s.BenchOf(a).Card(ctx, device.Identity)
	if err != nil {
		return err
	}

	// A card has one or more regions. The region of this accelerator is the one
	// with one of its handles.
	hardware := map[string]*fake.Handle{} // by address
	for _, region := range card.Deployables {
		mine := false
		for address, handle := range region.Handles {
			hardware[address] = handle
			mine = mine || slices.ContainsFunc(a.Handles, func(h cyborg.AttachHandle) bool { return h.Identity == address })
		}

		switch {
		case !mine: // it belongs to another accelerator
		case !mayBeEither(a.Lifecycle, left) && region.Installed != (a.Lifecycle != cyborg.LifecycleInactive):
			return fmt.Errorf("it is %s, and installed on the card is %v", a.Lifecycle, region.Installed)
		case region.BitstreamID != a.BitstreamID:
			return fmt.Errorf("it has image %q in the records and %q on the card", a.BitstreamID, region.BitstreamID)
		default:
			if err := unsoundConditions(a, region); err != nil {
				return err
			}
		}
	}

	for _, handle := range a.Handles {
		if err := unsoundHandle(&handle, hardware[handle.Identity], card.Clean); err != nil {
			return fmt.Errorf("handle %s %w", handle.Identity, err)
		}
	}

	return nil
}

// unsoundHandle compares a handle with what its card shows of it, nil for nothing, and
// cleans after every holder as demanded. It returns an error where they differ.
func unsoundHandle(h *cyborg.AttachHandle, card *fake.Handle, demanded cyborg.CleanMethod) error {
	recorded, attached := onHost(h), card != nil && card.Attached
	switch {
	case h.Holder != nil && h.AttachedAt.IsZero():
		return fmt.Errorf("is held by %s, which is not confirmed", h.Holder.ID)
	case attached != recorded:
		return fmt.Errorf("is attached on the card: %v, and in the records: %v", attached, recorded)
	case card == nil:
		return nil
	case !maps.Equal(card.Parameters, h.Parameters):
		return fmt.Errorf("has the parameters %v on the card and %v in the records", card.Parameters, h.Parameters)
	case h.Free() && unclean(card, demanded) && (h.Cleaned == nil || h.Cleaned.Declared == ""):
		return fmt.Errorf("is free, and has something of its holders on the card: %+v, scrubbed in %d parts", card.Residue, card.Scrubbed)
	}
	return nil
}

// unclean says that a handle has something on its card that the method removes, or was not
// scrubbed to the end.
func unclean(h *fake.Handle, method cyborg.CleanMethod) bool {
	return h.Scrubbed > 0 || method.Covers(cyborg.CleanReset) && h.Residue.Registers != "" || method.Covers(cyborg.CleanScrub) && h.Residue.Stored != ""
}
