package db_test

import (
	"os"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// signed is an image whose URL has a signature, and shown is how it may be
// shown.
func signed() (image cyborg.Image, shown string) {
	return cyborg.Image{Source: "https://images.example/aes@1.2/a.bin?signature=canary#part", SHA256: "5f", ID: "aes"}, "https://images.example/aes@1.2/a.bin?…"
}

// TestQueryOfAnImageIsKeptWhileItsOperationRuns: the agent endpoint needs the
// whole URL, and nobody else does: not the run, and nobody after the end.
func TestQueryOfAnImageIsKeptWhileItsOperationRuns(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	image, shown := signed()

	for _, state := range []cyborg.OperationState{cyborg.OperationFailed, cyborg.OperationSucceeded} {
		work := r.begin(t, toLoad(a.UUID, image))
		require.Equal(t, shown, work.Program.Image.Source, "the run's history has the work")

		kept := func() any {
			op, err := r.Operation(t.Context(), work.Operation)
			require.NoError(t, err)
			return op.Input["image"].(map[string]any)["source"]
		}
		require.Equal(t, image.Source, kept())

		h.shows(t, 0, "aes")
		h.report(t)
		outcome := cyborg.Outcome{Operation: work.Operation, State: state, BitstreamID: "aes", Images: map[uuid.UUID]cyborg.Image{a.UUID: image}}
		if state == cyborg.OperationFailed {
			outcome.Error = cyborg.Errorf(cyborg.ErrTimeout, "too slow")
		}
		require.NoError(t, r.End(t.Context(), runOf(work.Operation), outcome))
		require.Equal(t, shown, kept())
	}

	require.Equal(t, 0, scalar[int](t, r, "SELECT count(*) FROM deployables WHERE image::text LIKE '%canary%'"))
	require.Equal(t, 0, scalar[int](t, r, "SELECT count(*) FROM events e WHERE e::text LIKE '%canary%'"))

	// A retry has only what is left of the URL.
	image.Source = shown
	_, err := r.Admit(t.Context(), toLoad(a.UUID, image))
	requireKind(t, cyborg.ErrInvalid, err, "lacks the query of its URL")

	// A reload needs no more: the host keeps the image.
	h.shows(t, 0, "")
	h.reboot(t, 0)
	lost, err := r.LostImages(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, lost, 1)
	require.Equal(t, shown, lost[0].LostImage.Image.Source)
	r.begin(t, toReload(a.UUID, lost[0].LostImage.Image))
}

// TestQueriesOfImagesAreForgotten: the migration deletes the queries that
// release 0.1 has left, except those that running operations need.
func TestQueriesOfImagesAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a, b := h.ready(t, "card0"), h.ready(t, "card1")
	image, shown := signed()

	r.loads(t, h, 0, a, image)
	running := r.begin(t, toLoad(b.UUID, image))
	for _, sql := range []string{
		`UPDATE operations SET input = jsonb_set(input, '{image,source}', to_jsonb($1::text)) WHERE kind = 'program'`,
		`UPDATE deployables SET image = jsonb_set(image, '{source}', to_jsonb($1::text))`,
	} {
		r.exec(t, sql, image.Source)
	}

	migration, err := os.ReadFile("migrations/00010_forget_queries.sql")
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), r.url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	_, err = conn.PgConn().Exec(t.Context(), string(migration)).ReadAll()
	require.NoError(t, err)

	require.Equal(t, []string{image.Source, shown}, scalar[[]string](t, r,
		"SELECT array_agg(input #>> '{image,source}' ORDER BY id = $1 DESC) FROM operations WHERE kind = 'program'", running.Operation))
	require.Equal(t, []string{shown}, scalar[[]string](t, r, "SELECT array_agg(image ->> 'source') FROM deployables WHERE image IS NOT NULL"))
}
