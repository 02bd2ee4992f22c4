package cli_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// listed gives the API accelerators with these names, in this order, and
// returns the names in the order in which the command lists them.
func listed(t require.TestingT, api *fakeAPI, names []string, args ...string) []string {
	api.mu.Lock()
	one := park()[0]
	api.accelerators = nil
	for i, name := range names {
		one.UUID, one.Name, one.Specs.Num = uuid.UUID{15: byte(i)}, name, len(names)-i
		api.accelerators = append(api.accelerators, one)
	}
	api.mu.Unlock()

	got := api.cyborg(append([]string{"accelerator", "list", "-f", "csv", "-c", "name"}, args...)...)
	require.Zero(t, got.code, got.err)
	return strings.Split(strings.TrimSpace(got.out), "\n")[1:]
}

// TestSortIsNatural: numbers within names are sorted by value, and PCI
// addresses as hexadecimal.
func TestSortIsNatural(t *testing.T) {
	t.Parallel()
	for _, want := range [][]string{
		{"card1", "card2", "Card9", "card10", "card10b"},
		{"0000:0a:00.0", "0000:10:00.0", "0000:9f:00.0", "0000:a0:00.0", "10000:01:00.0"},
		{"here_0000:9f:00.1", "here_0000:a0:00.0"},
		{"h1_gpu2", "h2_gpu1", "h10_gpu0"},
	} {
		api := newAPI(t)
		require.Equal(t, want, listed(t, api, append(slices.Clone(want[2:]), want[:2]...), "--sort", "name"))

		backwards := slices.Clone(want)
		slices.Reverse(backwards)
		require.Equal(t, backwards, listed(t, api, want, "--sort", "Name:desc"))
	}
}

func TestSortIsStableAndTakesMoreColumns(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	require.Equal(t, []string{"b", "a", "c"}, listed(t, api, []string{"b", "a", "c"}, "--sort", "host"), "equal rows keep their order")
	require.Equal(t, []string{"c", "a", "b"}, listed(t, api, []string{"b", "a", "c"}, "--sort", "host,num"), "a number is sorted by value, in a column that is not shown")
	require.Equal(t, []string{"a", "b", "c"}, listed(t, api, []string{"b", "a", "c"}, "--sort", "device-type:desc", "--sort", "name:asc"))
}

// TestSortKeepsAllRowsAndIsIdempotent: with any names, sorting keeps every row,
// and neither sorting again nor another order before it changes the result.
func TestSortKeepsAllRowsAndIsIdempotent(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	rapid.Check(t, func(rt *rapid.T) {
		names := rapid.SliceOfN(rapid.StringMatching(`[a-cA-C0-9:._-]{1,14}`), 2, 12).Draw(rt, "names")
		once := listed(rt, api, names, "--sort", "name")

		require.ElementsMatch(rt, names, once)
		require.Equal(rt, once, listed(rt, api, once, "--sort", "name"))

		slices.Reverse(names)
		require.Equal(rt, once, listed(rt, api, names, "--sort", "name"), "the order in which they came does not matter")
	})
}

// TestSortTimesAndEmptyValues: times are sorted as times, and empty values come
// last in either direction.
func TestSortTimesAndEmptyValues(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.answers("GET /v1/hosts", http.StatusOK, map[string]any{"host": []cyborg.Host{
		{Name: "never", Backends: []cyborg.Backend{}},
		{Name: "later", LastSeen: noon.Truncate(time.Second).Add(time.Second), Backends: []cyborg.Backend{}},
		{Name: "sooner", LastSeen: noon, Backends: []cyborg.Backend{}},
	}})

	names := func(order string) string {
		return api.cyborg("host", "list", "-f", "value", "-c", "name", "--sort", order).out
	}

	require.Equal(t, "sooner\nlater\nnever\n", names("last_seen"))
	require.Equal(t, "later\nsooner\nnever\n", names("Last Seen:desc"))
	require.Equal(t, "later\nnever\nsooner\n", names("state,name"))
}

// TestEveryListSorts: each list command accepts --sort.
func TestEveryListSorts(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.answers("GET /v1/devices", http.StatusOK, map[string]any{"device": []apiclient.Device{}})
	api.answers("GET /v1/drivers", http.StatusOK, map[string]any{"driver": []cyborg.Backend{}})
	api.answers("GET /v1/hosts", http.StatusOK, map[string]any{"host": []cyborg.Host{}})
	api.answers("GET /v1/hosts/h1/services", http.StatusOK, map[string]any{"service": []cyborg.Backend{}})
	api.answers("GET /v1/services", http.StatusOK, map[string]any{"service": []cyborg.Service{}})
	api.answers("GET /v1/drift", http.StatusOK, map[string]any{"drift": []apiclient.Drift{}})
	api.answers("GET /v1/operations", http.StatusOK, map[string]any{"operation": []apiclient.Operation{}})

	for _, line := range []string{
		"accelerator list", "deployable list", "device list", "driver list", "host list", "host services h1", "service list", "operation list", "drift list",
	} {
		got := api.cyborg(append(strings.Fields(line), "--sort", "host:desc")...)
		if line == "host list" || line == "host services h1" {
			got = api.cyborg(append(strings.Fields(line), "--sort", "name")...)
		}
		require.Zero(t, got.code, "%s: %s", line, got.err)
	}
}
