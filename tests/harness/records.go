package harness

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// Store opens the database, past the API, for tests of what no client of the
// API can do. It is closed with the test.
func (s *System) Store(t testing.TB) *db.Store {
	t.Helper()
	address, err := s.DatabaseURL()
	require.NoError(t, err)

	store, err := db.Open(t.Context(), address, db.Options{MaxConns: 2}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)

	t.Cleanup(store.Close)
	return store
}

// errorKinds returns the kind of the operation that has left an accelerator in
// error, of those that are.
func (s *System) errorKinds(ctx context.Context) (map[uuid.UUID]cyborg.OperationKind, error) {
	address, err := s.DatabaseURL()
	if err != nil {
		return nil, err
	}

	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written

	rows, err := conn.Query(ctx, "SELECT uuid, error_kind FROM deployables WHERE lifecycle = $1", string(cyborg.LifecycleError))
	if err != nil {
		return nil, err
	}

	kinds := map[uuid.UUID]cyborg.OperationKind{}
	var (
		id   uuid.UUID
		kind cyborg.OperationKind
	)

	_, err = pgx.ForEachRow(rows, []any{&id, (*string)(&kind)}, func() error {
		kinds[id] = kind
		return nil
	})
	return kinds, err
}

// journals returns the entries of the hosts' journals as their agents last
// reported them: the state of each attachment, by host/handle.
func (s *System) journals(ctx context.Context) (map[string]cyborg.AttachmentState, error) {
	address, err := s.DatabaseURL()
	if err != nil {
		return nil, err
	}

	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written

	rows, err := conn.Query(ctx, "SELECT name, attachments FROM hosts")
	if err != nil {
		return nil, err
	}

	journals := map[string]cyborg.AttachmentState{}
	var (
		host    string
		entries []agentapi.Attachment
	)

	_, err = pgx.ForEachRow(rows, []any{&host, &entries}, func() error {
		for _, entry := range entries {
			journals[host+"/"+entry.Handle] = entry.State
		}
		entries = nil // nothing of this row is to be left when the next one is scanned
		return nil
	})
	return journals, err
}

// onHost says that the host of a handle has it attached for its holder: that is the host,
// or the host prepares the handle.
func onHost(h *cyborg.AttachHandle) bool {
	return h.Holder != nil && (h.Holder.Kind == cyborg.HolderHost || h.Prepared)
}

// unsoundJournals returns an error where a journal and the records disagree: a
// handle is attached in the journal of its host if and only if the records have
// it attached there.
func (s *System) unsoundJournals(ctx context.Context, accelerators []apiclient.Accelerator) error {
	journals, err := s.journals(ctx)
	if err != nil {
		return err
	}

	for i := range accelerators {
		for _, handle := range accelerators[i].Handles {
			place := accelerators[i].Host + "/" + handle.Identity
			held := onHost(&handle)

			switch state, known := journals[place]; {
			case held && state != cyborg.AttachmentDone:
				return fmt.Errorf("handle %s is attached on its host, and the journal says %q", place, state)
			case !held && known:
				return fmt.Errorf("handle %s is not attached on its host, and the journal says %q", place, state)
			}

			delete(journals, place)
		}
	}

	// Only entries without a recorded handle are left.
	for place, state := range journals {
		return fmt.Errorf("the journal says %q of %s, which is not recorded", state, place)
	}
	return nil
}

// inDoubt is the suffix that events give to a holder while the result of its
// attach on the host is not known.
const inDoubt = " (in doubt)"

// series names what an event changes: its From is the To of the event before it
// in the same series. For one axis of one subject that is one series, except
// that each handle of an accelerator has holders of its own, and is unclean by itself, and
// each instance with accelerators differs by itself.
func series(event cyborg.Event) string {
	if event.Axis == cyborg.AxisHolder || event.Axis == cyborg.AxisUnclean {
		return fmt.Sprintf("%s %v", event.Axis, event.Data["handle"])
	}

	name := fmt.Sprintf("%s of %s %s", event.Axis, event.Subject.Kind, event.Subject.ID)
	if instance := event.Data["instance"]; instance != nil {
		if _, drift := event.Axis.Drift(); drift {
			name += fmt.Sprintf(" with instance %v", instance)
		}
	}

	return name
}

// replay returns the value at which the events leave each series. It returns an
// error where an event does not begin with the value at which the event before
// it ended.
func replay(events []cyborg.Event) (map[string]string, error) {
	now := map[string]string{}
	for _, event := range events {
		if event.Axis == cyborg.AxisReported || event.Subject.Kind == cyborg.SubjectOperation {
			continue // these carry their content in Data, not in From and To
		}

		what := series(event)
		if before, known := now[what]; before != event.From && (known || event.Axis != cyborg.AxisSpecs) { // the first event of specs begins at a version, not at ""
			return nil, fmt.Errorf("event %v changes %s from %q, which was %q", event.Cursor, what, event.From, before)
		}

		// A handle that changes hands without being free in between was given to two
		// holders.
		from, to := strings.TrimSuffix(event.From, inDoubt), strings.TrimSuffix(event.To, inDoubt)
		if event.Axis == cyborg.AxisHolder && from != "" && to != "" && from != to {
			return nil, fmt.Errorf("event %v hands handle %v from %s to %s, and it was never free", event.Cursor, event.Data["handle"], from, to)
		}

		now[what] = event.To
	}

	return now, nil
}

// unsoundHistory replays the events of an accelerator. It returns an error
// where they contradict each other, or where the last event of a series does
// not end at the recorded value.
func (s *System) unsoundHistory(ctx context.Context, a *apiclient.Accelerator) error {
	events, err := apiclient.Collect(s.API.History(ctx, a.UUID, apiclient.Page{}))
	if err != nil {
		return err
	}

	now, err := replay(events)
	if err != nil {
		return err
	}

	// At rest no operation claims the accelerator, so the claim is empty. A fence
	// may remain.
	recorded := map[cyborg.EventAxis]string{
		cyborg.AxisLifecycle: string(a.Lifecycle), cyborg.AxisAdministration: string(a.Admin), cyborg.AxisPresence: string(a.Presence),
		cyborg.AxisName: a.Name, cyborg.AxisBitstream: a.BitstreamID, cyborg.AxisClaim: "", cyborg.AxisFence: "",
		cyborg.AxisPendingImage: "",
	}
	if a.PendingImage != nil {
		recorded[cyborg.AxisPendingImage] = a.PendingImage.BitstreamID
	}
	if a.Fence != nil {
		recorded[cyborg.AxisFence] = a.Fence.Reason
	}

	for axis, value := range recorded {
		if replayed := now[fmt.Sprintf("%s of %s %s", axis, cyborg.SubjectAccelerator, a.UUID)]; replayed != value {
			return fmt.Errorf("its %s is %q, and its events end in %q", axis, value, replayed)
		}
	}

	for _, handle := range a.Handles {
		holder := ""
		if handle.Holder != nil {
			holder = fmt.Sprintf("%s:%s", handle.Holder.Kind, handle.Holder.ID)
		}
		if replayed := now[fmt.Sprintf("holder %v", handle.UUID)]; replayed != holder {
			return fmt.Errorf("handle %s is held by %q, and its events end in %q", handle.Identity, holder, replayed)
		}

		unclean := ""
		if handle.Unclean != nil {
			unclean = string(handle.Unclean.Method)
		}
		if replayed := now[fmt.Sprintf("%s %v", cyborg.AxisUnclean, handle.UUID)]; replayed != unclean {
			return fmt.Errorf("handle %s is unclean by %q, and its events end in %q", handle.Identity, unclean, replayed)
		}
	}

	return nil
}
