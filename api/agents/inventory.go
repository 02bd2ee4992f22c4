package agents

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// heartbeatLimit is the largest heartbeat, in bytes; they are a tenth of it.
const heartbeatLimit = 64 << 10

// report takes a full inventory and answers when it is recorded.
func (e *endpoint) report(w http.ResponseWriter, r *http.Request) error {
	if err := e.reports.Acquire(r.Context(), 1); err != nil {
		return err
	}
	defer e.reports.Release(1)
	var report cyborg.Report
	if err := decode(w, r, e.config.ReportLimit, &report); err != nil {
		return err
	}
	switch {
	case report.Host == "":
		return cyborg.Errorf(cyborg.Invalid, "the report has no host")
	case report.BootID == "":
		return cyborg.Errorf(cyborg.Invalid, "the report of host %q has no boot_id", report.Host)
	case report.Sequence <= 0:
		return cyborg.Errorf(cyborg.Invalid, "the report of host %q has sequence %d; sequences begin at 1", report.Host, report.Sequence)
	case report.Digest == "":
		return cyborg.Errorf(cyborg.Invalid, "the report of host %q has no digest", report.Host)
	}
	if err := e.speaksFor(r, report.Host); err != nil {
		return err
	}
	reply, err := e.deps.Intake.Report(r.Context(), report)
	if err != nil {
		return err
	}
	return web.WriteJSON(w, http.StatusOK, reply)
}

// heartbeat takes a sign of life and answers whether a full report is wanted.
func (e *endpoint) heartbeat(w http.ResponseWriter, r *http.Request) error {
	var heartbeat cyborg.Heartbeat
	if err := decode(w, r, heartbeatLimit, &heartbeat); err != nil {
		return err
	}
	if heartbeat.Host == "" {
		return cyborg.Errorf(cyborg.Invalid, "the heartbeat has no host")
	}
	if err := e.speaksFor(r, heartbeat.Host); err != nil {
		return err
	}
	reply, err := e.deps.Intake.Heartbeat(r.Context(), heartbeat)
	if err != nil {
		return err
	}
	return web.WriteJSON(w, http.StatusOK, reply)
}

// decode reads a body, which may be compressed with gzip. Properties that this release does not know are left out:
// agents may be one release ahead.
func decode(w http.ResponseWriter, r *http.Request, limit int64, into any) error {
	body, err := readBody(w, r, limit)
	if err != nil {
		return err
	}
	if hasEscapedNUL(body) {
		return cyborg.Errorf(cyborg.Invalid, "the body has a NUL character, which cannot be stored")
	}
	if err := json.Unmarshal(body, into); err != nil {
		return cyborg.Errorf(cyborg.Invalid, "the body is not what was expected: %w", err)
	}
	return nil
}

func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		return web.ReadBody(w, r, limit)
	case "gzip":
	default:
		return nil, cyborg.Errorf(cyborg.Invalid, "the body is encoded with %q; gzip is known", encoding)
	}
	unzipped, err := gzip.NewReader(http.MaxBytesReader(w, r.Body, limit))
	if err == nil {
		var body []byte
		body, err = io.ReadAll(io.LimitReader(unzipped, limit+1))
		if err == nil && int64(len(body)) <= limit {
			return body, nil
		}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok || err == nil {
		return nil, cyborg.Errorf(cyborg.TooLarge, "the body is longer than %d bytes", limit)
	}
	return nil, cyborg.Errorf(cyborg.Invalid, "the body cannot be decompressed: %w", err)
}

// hasEscapedNUL finds \u0000 in JSON text, but not an escaped backslash before u0000. One such text would fail the
// whole batch of reports that is recorded together.
func hasEscapedNUL(text []byte) bool {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		i++ // what is escaped
		if i+4 < len(text) && text[i] == 'u' && string(text[i+1:i+5]) == "0000" {
			return true
		}
	}
	return false
}
