package harness

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// DatabaseURL is that of the records: in the PostgreSQL that the standalone was given, or in its private one, which listens
// on a Unix socket only.
func (s *Standalone) DatabaseURL() (string, error) {
	for _, variable := range s.options.Env {
		if given, ok := strings.CutPrefix(variable, "CYBORG_DATABASE_URL="); ok {
			return given, nil
		}
	}
	// postmaster.pid: the fourth line is the port, the fifth the directory of the socket.
	text, err := os.ReadFile(filepath.Join(s.StateDir, "postgres", "data", "postmaster.pid"))
	if err != nil {
		return "", err
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 5 {
		return "", fmt.Errorf("postmaster.pid has %d lines", len(lines))
	}
	query := url.Values{"port": {lines[3]}, "host": {lines[4]}}
	return (&url.URL{Scheme: "postgres", User: url.User("cyborg"), Path: "/cyborg", RawQuery: query.Encode()}).String(), nil
}

// Store opens the records themselves, past the API, for what a client cannot do. It closes with the test.
func (s *Standalone) Store(t testing.TB) *db.Store {
	t.Helper()
	address, err := s.DatabaseURL()
	require.NoError(t, err)
	store, err := db.Open(t.Context(), address, db.Options{MaxConns: 2}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return store
}

// journals returns what each host's journal says of its handles, as the agents last reported: host/handle → state.
func (s *Standalone) journals(ctx context.Context) (map[string]cyborg.AttachmentState, error) {
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
func (s *Standalone) unsoundJournals(ctx context.Context, accelerators []apiclient.Accelerator) error {
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

// unconfirmed is what events add to a holder while an attach or a detach is under way.
const unconfirmed = " (unconfirmed)"

// unsoundHistory replays an accelerator's events: each change begins where the one before it ended, and the last ones
// end where the records are.
func (s *Standalone) unsoundHistory(ctx context.Context, a *apiclient.Accelerator) error {
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
