package agents

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// instanceLimit is the length of the longest instance of an agent, in bytes:
// several times the usual length.
const instanceLimit = 255

// smallReport is the largest report, in bytes after decompression, that needs
// no place for large reports.
const smallReport = 1 << 20

// wholeReport takes a full inventory, and answers when it is recorded.
func (e *endpoint) wholeReport(w http.ResponseWriter, r *http.Request) error {
	return e.report(w, r, false)
}

// difference takes what has changed since an acknowledged report. It answers
// when the change is recorded, or that it cannot be applied and the agent must
// send the whole inventory.
func (e *endpoint) difference(w http.ResponseWriter, r *http.Request) error {
	return e.report(w, r, true)
}

// report takes an inventory, whole or as a difference.
func (e *endpoint) report(w http.ResponseWriter, r *http.Request, difference bool) error {
	body, done, err := e.readReport(w, r)
	defer done()
	if err != nil {
		return err
	}

	outline := outlineOf(body)
	if err := outline.check(); err != nil {
		return err
	}

	// The report counts until it is recorded, and what was decoded with it.
	recorded, err := e.held.take(w, peer(r), !told(r), outline.memory(body))
	if err != nil {
		return err
	}
	defer recorded()

	var report agentapi.Report
	if err := unmarshal(body, &report); err != nil {
		return err
	}

	if err := checkAgent(report.Host, report.Instance); err != nil {
		return err
	}

	// A whole report with a base would be an agent's mistake: the devices that the
	// difference leaves out would be recorded as missing.
	switch {
	case report.BootID == "":
		return cyborg.Errorf(cyborg.ErrInvalid, "the report of host %q has no boot_id", report.Host)
	case report.Sequence <= 0:
		return cyborg.Errorf(cyborg.ErrInvalid, "the report of host %q has sequence %d; sequences begin at 1", report.Host, report.Sequence)
	case report.Digest == "":
		return cyborg.Errorf(cyborg.ErrInvalid, "the report of host %q has no digest", report.Host)
	case !difference && (report.Base != "" || len(report.Gone) > 0):
		return cyborg.Errorf(cyborg.ErrInvalid, "the report of host %q tells a difference; those go to %s", report.Host, DifferencesPath)
	case difference && report.Base == "":
		return cyborg.Errorf(cyborg.ErrInvalid, "the difference that host %q tells has no base", report.Host)
	}

	if err := e.authorizeHost(r, report.Host); err != nil {
		return err
	}

	if err := checkInProcess(r, report.Host, report.Instance); err != nil {
		return err
	}

	// The place is taken only now, when all of the report is there and its host is
	// known: a report that is sent by halves keeps no place from the others.
	release, err := e.reports.acquire(r.Context(), w, report.Host)
	if err != nil {
		return err
	}
	defer release()

	if err := e.refuseRevoked(r); err != nil {
		return err
	}

	report.Address = address(r)
	reply, err := e.deps.Ingester.Report(r.Context(), report)
	if err != nil {
		return err
	}
	if reply.Grants, err = e.grants.tell(r.Context()); err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusOK, reply)
}

// checkInProcess refuses what comes over the network under the name of an agent in a
// server's own process. A host whose agent is recorded as such a one is not revoked
// before it is silent.
func checkInProcess(r *http.Request, host, instance string) error {
	if agentapi.IsInProcess(instance) && !inProcess(r) {
		return cyborg.Errorf(cyborg.ErrInvalid, "the agent of host %q says that it is in the server's process, and is not", host)
	}
	return nil
}

// readReport reads a report. A report that is longer than smallReport needs a
// place for large reports as well, so the bodies and the places bound the
// memory of all reports together. The caller must call done, also after an
// error; it gives that place back.
func (e *endpoint) readReport(w http.ResponseWriter, r *http.Request) (text []byte, done func(), err error) {
	done = func() {}

	text, err = e.bodies.read(w, r, func(ctx context.Context, one *body) ([]byte, error) {
		limit := e.config.ReportLimit
		from, err := decompressed(w, r, limit)
		if err != nil {
			return nil, err
		}

		small := min(smallReport, limit)
		// One byte more than a small report may have shows whether there is more.
		body, err := io.ReadAll(io.LimitReader(from, small+1))

		if err == nil && int64(len(body)) > small && small < limit {
			err := e.bodies.pause(one, func() error {
				release, err := e.large.acquire(ctx, w, one.peer)
				if err == nil {
					done = release
				}
				return err
			})
			if err != nil {
				return nil, err
			}

			rest, err := io.ReadAll(io.LimitReader(from, limit+1-int64(len(body))))
			body = append(body, rest...)
			return body, bodyError(r, body, limit, err)
		}

		return body, bodyError(r, body, limit, err)
	})

	return text, done, err
}

// checkAgent refuses a sender that does not say which agent of which host it
// is. The records have an index of the instances, and one that is too long for
// it would fail the whole batch.
func checkAgent(host, instance string) error {
	if err := cyborg.CheckHostName(host); err != nil {
		return err
	}
	if instance == "" || len(instance) > instanceLimit {
		return cyborg.Errorf(cyborg.ErrInvalid, "the agent of host %q has an instance of %d bytes, not of 1 to %d", host, len(instance), instanceLimit)
	}
	return nil
}

// decode checks and decodes a body.
func decode(body []byte, into any) error {
	if err := outlineOf(body).check(); err != nil {
		return err
	}
	return unmarshal(body, into)
}

// unmarshal decodes a body that was checked. It ignores properties that this
// release does not know, because agents may be one release ahead.
func unmarshal(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "the body is not what was expected: %w", err)
	}
	return nil
}

// decompressed returns a reader of a body, which may be compressed with gzip.
// It bounds the compressed size only; the caller bounds what it reads.
func decompressed(w http.ResponseWriter, r *http.Request, limit int64) (io.Reader, error) {
	// A browser may send other types to another origin without asking it first.
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the body has the Content-Type %q; it must be application/json", r.Header.Get("Content-Type"))
	}

	sent := http.MaxBytesReader(w, r.Body, limit)
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		return sent, nil
	case "gzip":
	default:
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the body is encoded with %q; gzip is known", encoding)
	}

	unzipped, err := gzip.NewReader(sent)
	if err != nil {
		return nil, bodyError(r, nil, limit, err)
	}

	return unzipped, nil
}

// bodyError returns what is wrong with a body. The caller has read up to one
// byte more than the limit, which shows that a body is too long.
func bodyError(r *http.Request, body []byte, limit int64, err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok || err == nil && int64(len(body)) > limit {
		return cyborg.Errorf(cyborg.ErrTooLarge, "the body is longer than %d bytes", limit)
	}

	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded): // the context may have ended for it
		return err
	case r.Context().Err() != nil:
		return fmt.Errorf("reading the body: %w", r.Context().Err())
	}

	return cyborg.Errorf(cyborg.ErrInvalid, "the body cannot be read: %w", err)
}
