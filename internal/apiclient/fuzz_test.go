package apiclient

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzMessages reads arbitrary text as an event stream. Reading must end, the
// last ID must be fit for a header, and the data must not be longer than the
// text.
func FuzzMessages(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "id: 1\nevent: change\ndata: {}\n\n", "retry: 99999999999999999999\n\n", "data\n\n", "id: \x01\ndata: a\n\n", ": c\r\n\r\n", "data: a\ndata: b\n\n") {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		reader := newMessageReader(strings.NewReader(text), func() {})
		read := 0

		for {
			msg, err := reader.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				fuzztest.RequireRefusal(t, err, cyborg.ErrUnavailable)
				break
			}

			read += len(msg.data)
			require.NotContains(t, reader.lastID, "\n")
			require.NotContains(t, reader.lastID, "\x00")
			require.GreaterOrEqual(t, reader.retry.Nanoseconds(), int64(0))
		}

		require.LessOrEqual(t, read, len(text))
	})
}

// FuzzProblem reads arbitrary error answers, of the API or of anything in its
// place. Each must become an error of a known kind that is fit for display.
func FuzzProblem(f *testing.F) {
	full := map[string]any{
		"title": "t", "detail": "d", "kind": "claimed", "hint": "h", "request_id": "req-1", "operation_id": "5b7a31d2-6a0c-4a6b-9d33-6a58a2f0c1de",
	}

	for i, text := range fuzztest.Values() {
		f.Add(http.StatusConflict, "application/problem+json", "1", fuzztest.ReplaceLeaf(f, full, i%8, text))
		f.Add(http.StatusBadGateway, "text/html", text, text)
	}

	f.Fuzz(func(t *testing.T, status int, media, retry, body string) {
		answer := &http.Response{
			StatusCode: status, Status: http.StatusText(status), Request: &http.Request{URL: &url.URL{Scheme: "http", Host: "h"}},
			Header: http.Header{"Content-Type": {media}, "Retry-After": {retry}},
		}

		problem := newProblem(answer, []byte(body))
		require.GreaterOrEqual(t, problem.RetryAfter.Nanoseconds(), int64(0))
		fuzztest.RequireRefusal(t, problem, cyborg.ErrorKinds()...)
	})
}
