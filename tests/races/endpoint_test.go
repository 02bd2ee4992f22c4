package races_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/v1"
	"github.com/cyborg-project/cyborg/api/web"
)

// endpoint is one API process. It sends each request once: a repetition would
// hide an outcome.
type endpoint struct {
	url  string
	http *http.Client
}

// httpRequest is an HTTP request.
type httpRequest struct {
	method, path string
	body         any
	key          string // Idempotency-Key
	async        bool   // Prefer: respond-async
	wait         bool   // GET of an operation: wait until it has ended
	ifMatch      string
	hangUp       time.Duration // do not wait longer for the answer; 0: wait
}

// answer is the answer to a request, with the times of call and return since
// the start of the race.
type answer struct {
	status    int
	operation uuid.UUID // the operation of the request, where it has one
	etag      string    // without its quotes
	location  string
	requestID string
	text      []byte
	problem   web.Problem // where the status is an error
	call, ret time.Duration
}

// unknown reports whether the answer leaves open if the request took effect.
func (a answer) unknown() bool {
	switch a.status {
	case 0, http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return a.operation == uuid.Nil
	}
	return false
}

// ended reports whether the answer is the end of the request's operation.
func (a answer) ended() bool { return a.operation != uuid.Nil && a.status != http.StatusAccepted }

// decode decodes the body of the answer.
func (a answer) decode(t *testing.T, out any) {
	t.Helper()
	if err := json.Unmarshal(a.text, out); err != nil {
		t.Errorf("the answer %d %s cannot be decoded: %v", a.status, a.text, err)
	}
}

// send sends the request once. A broken connection and an internal error fail
// the test, because no race may cause them.
func (d endpoint) send(t *testing.T, began time.Time, r httpRequest) answer {
	t.Helper()
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			t.Error(err)
		}
		body = bytes.NewReader(text)
	}

	ctx := t.Context()
	if r.hangUp > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.hangUp)
		defer cancel()
	}

	request, err := http.NewRequestWithContext(ctx, r.method, d.url+r.path, body)
	if err != nil {
		t.Error(err)
		return answer{}
	}

	if r.body != nil {
		request.Header.Set("Content-Type", "application/json")
	}

	for name, value := range map[string]string{
		"Idempotency-Key": r.key, "If-Match": r.ifMatch, "Prefer": r.prefer(),
	} {
		if value != "" {
			request.Header.Set(name, value)
		}
	}

	out := answer{call: time.Since(began)}
	response, err := d.http.Do(request)
	if err == nil {
		defer response.Body.Close()
		out.text, err = io.ReadAll(response.Body)
	}

	out.ret = time.Since(began)

	if err != nil && r.hangUp > 0 && ctx.Err() != nil {
		return answer{call: out.call, ret: out.ret} // nobody knows what became of it
	}
	if err != nil {
		t.Errorf("%s %s: %v", r.method, r.path, err)
		return out
	}

	out.status = response.StatusCode
	out.etag = strings.Trim(response.Header.Get("ETag"), `"`)
	out.requestID = response.Header.Get(web.RequestIDHeader)
	out.location = response.Header.Get("Location")
	if own := response.Header.Get(v1.OperationHeader); own != "" {
		out.operation = uuid.MustParse(own)
	}

	if out.status >= http.StatusBadRequest {
		out.decode(t, &out.problem)
	}

	if out.status == http.StatusInternalServerError || out.problem.Kind == cyborg.ErrInternal {
		t.Errorf("%s %s answers %d: %s", r.method, r.path, out.status, out.text)
	}

	return out
}

// prefer returns the value of the header Prefer.
func (r httpRequest) prefer() string {
	switch {
	case r.async:
		return "respond-async"
	case r.wait:
		return "wait=60"
	}
	return ""
}

// String describes the request in failure messages.
func (r httpRequest) String() string {
	body, _ := json.Marshal(r.body) // it was encoded before
	return fmt.Sprintf("%s %s %s", r.method, r.path, body)
}
