package agents

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// A body is looked at before it is decoded: elements, nesting and NUL count,
// wherever no string only looks like them.
func TestOutline(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]outline{
		``:                                {},
		`7`:                               {},
		`{}`:                              {elements: 1, depth: 1},
		`[{},{},{}]`:                      {elements: 6, depth: 2},
		`{"a":[1,2],"b":[[]]}`:            {elements: 6, depth: 3},
		`{"a":"[[{,\"{[,","b":"\\"}`:      {elements: 2, depth: 1},
		`{"a":"\\\"{,"}`:                  {elements: 1, depth: 1},
		`["\u0000"]`:                      {elements: 1, depth: 1, nul: true},
		`["\\u0000","\\\\u0000","\u0001"`: {elements: 3, depth: 1},
		`["\\\u0000"]`:                    {elements: 1, depth: 1, nul: true},
	} {
		require.Equal(t, want, outlineOf([]byte(text)), text)
	}

	most := "[" + strings.Repeat(",", maxElements-1)
	require.NoError(t, outlineOf([]byte(most)).check())
	require.Equal(t, cyborg.ErrTooLarge, cyborg.ErrorKindOf(outlineOf([]byte(most+",")).check()))
	require.NoError(t, outlineOf(bytes.Repeat([]byte("["), maxDepth)).check())
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(outlineOf(bytes.Repeat([]byte("["), maxDepth+1)).check()))
}

// A report counts for the memory that it takes decoded, where that is more than
// its text.
func TestEmptyElementsTakeMemory(t *testing.T) {
	t.Parallel()
	text := []byte("[{},{},{},{}]")
	require.EqualValues(t, 8*elementMemory, outlineOf(text).memory(text))
	text = []byte(`"` + strings.Repeat(",", 10_000) + `"`)
	require.EqualValues(t, len(text), outlineOf(text).memory(text))
}

// A small body of millions of empty cards is refused before it is decoded. This
// measures what the process allocates, so no other test may run meanwhile.
//
//nolint:paralleltest // see above
func TestManyEmptyElementsAreNotDecoded(t *testing.T) {
	handler, err := New(Config{ReportLimit: 4 << 20, User: func(_, _ string) (uint32, error) { return 0, nil }}, Deps{
		Records: struct{ Records }{}, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)

	text := `{"host":"h1","content":{"backends":[{"name":"a","driver":"a","state":"ok","devices":[{}` + strings.Repeat(",{}", 1_300_000) + `]}]}}`
	require.True(t, json.Valid([]byte(text)))
	var sent bytes.Buffer
	zip := gzip.NewWriter(&sent)
	_, err = zip.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	require.Less(t, sent.Len(), 64<<10)

	for _, path := range []string{ReportsPath, DifferencesPath} {
		request := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(sent.Bytes()))
		request.Host = "localhost"
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Content-Encoding", "gzip")
		answer := httptest.NewRecorder()

		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		handler.ServeHTTP(&connection{ResponseWriter: answer}, request)
		runtime.ReadMemStats(&after)

		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "decoded, they would take hundreds of MiB")
		require.Equal(t, http.StatusRequestEntityTooLarge, answer.Code, answer.Body)
		var problem web.Problem
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &problem))
		require.Equal(t, cyborg.ErrTooLarge, problem.Kind)
		require.Contains(t, problem.Detail, "more than 500000")
	}
}
