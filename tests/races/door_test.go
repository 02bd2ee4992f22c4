package races_test

import (
	"bytes"
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

// door is one API process. Requests go through it as they are: nothing is tried again unseen.
type door struct {
	url  string
	http *http.Client
}

// ask is a request.
type ask struct {
	method, path string
	body         any
	key          string // Idempotency-Key
	async        bool
	wait         bool // of an operation's GET: until it has ended
	ifMatch      string
}

// answer is what a request was answered, and when.
type answer struct {
	status    int
	operation uuid.UUID // the request's own
	etag      string    // without its quotes
	location  string
	requestID string
	text      []byte
	problem   web.Problem // where the status is one of an error
	call, ret time.Duration
}

// unknown says that the request may or may not have done what it asked for.
func (a answer) unknown() bool {
	switch a.status {
	case 0, http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return a.operation == uuid.Nil
	}
	return false
}

// ended says that the answer tells how the request's operation ended.
func (a answer) ended() bool { return a.operation != uuid.Nil && a.status != http.StatusAccepted }

func (a answer) decode(t *testing.T, out any) {
	t.Helper()
	if err := json.Unmarshal(a.text, out); err != nil {
		t.Errorf("%d %s: %v", a.status, a.text, err)
	}
}

// send sends the request once. What cannot be in any race is an error of the test.
func (d door) send(t *testing.T, began time.Time, r ask) answer {
	t.Helper()
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			t.Error(err)
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(t.Context(), r.method, d.url+r.path, body)
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

func (r ask) prefer() string {
	switch {
	case r.async:
		return "respond-async"
	case r.wait:
		return "wait=60"
	}
	return ""
}

func (r ask) String() string {
	body, _ := json.Marshal(r.body) // a test's own map
	return fmt.Sprintf("%s %s %s", r.method, r.path, body)
}
