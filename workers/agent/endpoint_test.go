package agent

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

func serveImages(t *testing.T, handler http.HandlerFunc) *endpoint {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	e := newEndpoint([]string{server.URL}, nil)
	t.Cleanup(e.close)
	return e
}

func TestImagesComeInParts(t *testing.T) {
	t.Parallel()
	const image = "0123456789"
	operation := uuid.New()
	e := serveImages(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/agent/v1/images/"+operation.String() {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(image))
	})
	for offset, want := range map[int64]struct {
		offset int64
		text   string
	}{0: {0, image}, 4: {4, "456789"}, 10: {0, image}, 50: {0, image}} {
		download, err := e.Image(t.Context(), operation, offset)
		require.NoError(t, err)
		text, err := io.ReadAll(download)
		require.NoError(t, err)
		require.NoError(t, download.Close())
		require.Equal(t, want.text, string(text), "from %d", offset)
		require.Equal(t, want.offset, download.Offset)
		require.Equal(t, int64(len(image)), download.Size)
	}
	_, err := e.Image(t.Context(), uuid.New(), 0)
	require.Equal(t, cyborg.NotFound, cyborg.KindOf(err))
}

func TestWhatTheConductorSaysOfAnImage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status int
		body   string
		kind   cyborg.Kind
		text   string
	}{
		{409, `{"kind":"changed","detail":"the operation has ended","hint":"Retry it."}`, cyborg.Changed, "the operation has ended"},
		{413, `{"kind":"too_large","message":"too large"}`, cyborg.TooLarge, "too large"},
		{404, `{"kind":"nonsense","detail":"no image"}`, cyborg.NotFound, "no image"},
		{401, ``, cyborg.Unauthenticated, "401"},
		{403, `not JSON`, cyborg.Forbidden, "403"},
		{429, ``, cyborg.Overloaded, "429"},
		{400, ``, cyborg.Invalid, "400"},
		{416, ``, cyborg.Unavailable, "416"},
		{302, ``, cyborg.Unavailable, "302"},
		{502, `{"kind":"hardware","detail":"the mirror burns"}`, cyborg.Unavailable, "the mirror burns"},
		{503, ``, cyborg.Unavailable, "503"},
	} {
		e := serveImages(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(test.status)
			_, _ = fmt.Fprint(w, test.body) // the client tells what it got of it
		})
		_, err := e.Image(t.Context(), uuid.New(), 0)
		require.Equal(t, test.kind, cyborg.KindOf(err), "status %d: %v", test.status, err)
		require.ErrorContains(t, err, test.text)
	}
}

func TestAPartThatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	e := serveImages(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Range", "items 1-2/3")
		w.WriteHeader(http.StatusPartialContent)
	})
	_, err := e.Image(t.Context(), uuid.New(), 1)
	require.Equal(t, cyborg.Unavailable, cyborg.KindOf(err))
	require.ErrorContains(t, err, "does not say which")
}

func TestContentRange(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		begin, all int64
		ok         bool
	}{
		"bytes 5-9/10": {5, 10, true}, "bytes 0-0/1": {0, 1, true}, "bytes 5-9/*": {5, -1, true},
		"bytes */10": {0, 0, false}, "5-9/10": {5, 0, false}, "bytes 5-9": {5, 0, false}, "bytes -5-9/10": {0, 0, false},
		"bytes 5-9/3": {5, 3, false}, "bytes 5-9/x": {5, 0, false}, "": {},
	} {
		begin, all, ok := parseContentRange(text)
		require.Equal(t, want.ok, ok, text)
		if ok {
			require.Equal(t, [2]int64{want.begin, want.all}, [2]int64{begin, all}, text)
		}
	}
}
