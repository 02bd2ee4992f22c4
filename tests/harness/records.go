package harness

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// Store opens the records themselves, past the API, for what a client cannot
// do. It closes with the test.
func (s *System) Store(t testing.TB) *db.Store {
	t.Helper()
	address, err := s.DatabaseURL()
	require.NoError(t, err)
	store, err := db.Open(t.Context(), address, db.Options{MaxConns: 2}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return store
}

// journals returns what each host's journal says of its handles, as the agents
// last reported: host/handle → state.
func (s *System) journals(ctx context.Context) (map[string]cyborg.AttachmentState, error) {
	address, err := s.DatabaseURL()
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it was only read
	rows, err := conn.Query(ctx, "SELECT name, attachments FROM hosts")
	if err != nil {
		return nil, err
	}
	journals := map[string]cyborg.AttachmentState{}
	var (
		host    string
		entries []cyborg.Attachment
	)
	_, err = pgx.ForEachRow(rows, []any{&host, &entries}, func() error {
		for _, entry := range entries {
			journals[host+"/"+entry.Handle] = entry.State
		}
		entries = nil
		return nil
	})
	return journals, err
}

// unsoundJournals compares the agents' journals with who holds what.
func (s *System) unsoundJournals(ctx context.Context, accelerators []apiclient.Accelerator) error {
	journals, err := s.journals(ctx)
	if err != nil {
		return err
	}
	for i := range accelerators {
		for _, handle := range accelerators[i].Handles {
			place := accelerators[i].Host + "/" + handle.Identity
			held := handle.Holder != nil && handle.Holder.Kind == cyborg.HolderHost
			switch state, known := journals[place]; {
			case held && state != cyborg.AttachmentDone:
				return fmt.Errorf("handle %s is held by its host, and the journal says %q", place, state)
			case !held && known:
				return fmt.Errorf("handle %s is not held by its host, and the journal says %q", place, state)
			}
			delete(journals, place)
		}
	}
	for place, state := range journals {
		return fmt.Errorf("the journal says %q of %s, which is not recorded", state, place)
	}
	return nil
}

// unconfirmed is what events add to a holder while an attach or a detach is
// under way.
const unconfirmed = " (unconfirmed)"

// unsoundHistory replays an accelerator's events: each change begins where the
// one before it ended, and the last ones end where the records are.
func (s *System) unsoundHistory(ctx context.Context, a *apiclient.Accelerator) error {
	events, err := apiclient.Collect(s.API.History(ctx, a.UUID, apiclient.Page{}))
	if err != nil {
		return err
	}
	now := map[string]string{}
	for _, event := range events {
		if event.Axis == "reported" || event.Subject.Kind == cyborg.SubjectOperation {
			continue // what it carries is in its data
		}
		axis := fmt.Sprintf("%s of %s %s", event.Axis, event.Subject.Kind, event.Subject.ID)
		if event.Axis == "holder" {
			axis = fmt.Sprintf("holder %v", event.Data["handle"])
		}
		if before, known := now[axis]; before != event.From && (known || event.Axis != "specs") { // specs begin at a version
			return fmt.Errorf("event %v changes %s from %q, which was %q", event.Cursor, axis, event.From, now[axis])
		}
		from, to := strings.TrimSuffix(event.From, unconfirmed), strings.TrimSuffix(event.To, unconfirmed)
		if event.Axis == "holder" && from != "" && to != "" && from != to {
			return fmt.Errorf("event %v hands handle %v from %s to %s, and it was never free", event.Cursor, event.Data["handle"], from, to)
		}
		now[axis] = event.To
	}
	recorded := map[string]string{
		"lifecycle": string(a.Lifecycle), "administration": string(a.Admin), "presence": string(a.Presence),
		"name": a.Name, "bitstream": a.BitstreamID, "claim": "", "fence": "",
	}
	if a.Fence != nil {
		recorded["fence"] = a.Fence.Reason
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
	}
	return nil
}
