package agents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/workflows"
)

// ImageSource opens images that are outside the agent's host.
type ImageSource interface {
	// Open returns the image from the offset (in bytes) on, and its whole size, or
	// -1 if the size is unknown. The caller closes the reader. An offset beyond the
	// end is an error of kind ErrInvalid. An image larger than the source's limit
	// is an error of kind ErrTooLarge, from Open or from a Read.
	Open(ctx context.Context, image cyborg.Image, offset int64) (content io.ReadCloser, size int64, err error)
}

// imageChunk is how many bytes of an image are passed on at once.
const imageChunk = 256 << 10

// GlanceSource opens images in Glance.
type GlanceSource interface {
	// Open returns an image of the given size from the offset (in bytes) on. Its
	// errors are those of ImageSource.
	Open(ctx context.Context, image cyborg.Image, size, offset int64) (io.ReadCloser, error)
}

// openFunc opens one image from an offset on. It returns the image's whole
// size, or -1 if the size is unknown.
type openFunc func(ctx context.Context, offset int64) (io.ReadCloser, int64, error)

// image streams the image of a running operation to the agent of its host. The
// agent verifies what it received. A transfer that broke off is continued with
// the header Range.
func (e *endpoint) image(w http.ResponseWriter, r *http.Request) error {
	// The agent is checked before the key is: a use of the URL extends its
	// validity, and another host must not.
	op, err := e.authorizeImage(r)
	if err != nil {
		return err
	}

	end, err := e.images.begin(w, op.Host)
	if err != nil {
		return err
	}
	defer end()

	image, open, err := e.imageOf(r, op)
	if err != nil {
		return err
	}

	offset, err := rangeStart(r)
	if err != nil {
		return err
	}

	content, size, err := open(r.Context(), offset)
	// Without the size there can be no Content-Range, so the agent gets the whole
	// image.
	if err == nil && size < 0 && offset > 0 {
		_ = content.Close()
		offset = 0
		content, size, err = open(r.Context(), 0)
	}

	switch {
	case offset > 0 && cyborg.ErrorKindOf(err) == cyborg.ErrInvalid:
		return web.RangeNotSatisfiable(err)
	case err != nil:
		return err
	}
	defer func() { _ = content.Close() }()

	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Accept-Ranges", "bytes")

	status := http.StatusOK
	if size >= 0 {
		header.Set("Content-Length", strconv.FormatInt(size-offset, 10))
	}

	if offset > 0 {
		status = http.StatusPartialContent
		header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, size-1, size))
	}

	w.WriteHeader(status)

	if err := e.copy(w, content); err != nil {
		// Status and headers are sent already: only a broken connection tells the agent
		// that the image is incomplete.
		e.deps.Log.WarnContext(r.Context(), "image transfer broke off",
			slog.String("source", cyborg.ShowSource(image.Source)), slog.String("error", err.Error()))
		panic(http.ErrAbortHandler)
	}
	return nil
}

// imageOf finds the image of an operation, for whose agent the request was
// checked. An image in Glance has a name in the operation, which may have
// several; for any other image, the operation's id is enough. A file on the
// host itself is never fetched here.
func (e *endpoint) imageOf(r *http.Request, op cyborg.Operation) (cyborg.Image, openFunc, error) {
	if key := r.URL.Query().Get(workflows.ImageKey); key != "" {
		return e.imageByURL(r, op.ID, key)
	}

	if op.Kind != cyborg.OperationProgram || op.State != cyborg.OperationRunning {
		return cyborg.Image{}, nil, cyborg.Errorf(cyborg.ErrChanged, "operation %s is of kind %s and has the state %s; only a running program operation may fetch its image",
			op.ID, op.Kind, op.State)
	}

	var request cyborg.ProgramRequest
	text, err := json.Marshal(op.Input)
	if err == nil {
		err = json.Unmarshal(text, &request)
	}
	if err != nil {
		return cyborg.Image{}, nil, cyborg.Errorf(cyborg.ErrInternal, "the input of operation %s cannot be read: %w", op.ID, err)
	}

	image := request.Image
	if !strings.HasPrefix(image.Source, "http://") && !strings.HasPrefix(image.Source, "https://") {
		return image, nil, cyborg.Errorf(cyborg.ErrInvalid, "image %q cannot be fetched with the operation's id alone: it is a file on the host, or it is in Glance and needs the URL that its step names", image.Source)
	}

	if image.QueryHidden() { // a reload, and the host did not keep what it had loaded
		return image, nil, cyborg.Errorf(cyborg.ErrInvalid, "image %q cannot be fetched again: the query of its URL was deleted when it had been loaded", image.Source).
			WithHint("Program the accelerator with the whole URL.")
	}

	return image, func(ctx context.Context, offset int64) (io.ReadCloser, int64, error) {
		return e.deps.Images.Open(ctx, image, offset)
	}, nil
}

// imageByURL returns the image with this key, which was found for the host of
// its operation.
func (e *endpoint) imageByURL(r *http.Request, operation uuid.UUID, key string) (cyborg.Image, openFunc, error) {
	url, err := e.deps.Records.UseImage(r.Context(), operation, key)
	if err != nil {
		return url.Image, nil, err
	}

	if e.deps.Glance == nil {
		return url.Image, nil, cyborg.Errorf(cyborg.ErrUnavailable, "this conductor is not configured for Glance; the one that found the image was").
			WithHint("Configure the section openstack alike on all conductors.")
	}

	return url.Image, func(ctx context.Context, offset int64) (io.ReadCloser, int64, error) {
		content, err := e.deps.Glance.Open(ctx, url.Image, url.Size, offset)
		return content, url.Size, err
	}, nil
}

// revokeImage makes a URL invalid, because the host has received the image. The
// answer is the same if there was none: an earlier one may have been lost.
func (e *endpoint) revokeImage(w http.ResponseWriter, r *http.Request) error {
	op, err := e.authorizeImage(r)
	if err != nil {
		return err
	}

	if err := e.deps.Records.RevokeImage(r.Context(), op.ID, r.URL.Query().Get(workflows.ImageKey)); err != nil {
		return err
	}

	w.WriteHeader(http.StatusNoContent)
	return nil
}

// authorizeImage returns the operation in the path, unless the agent may have no
// image of it: it must be the agent of the operation's host. Nothing in a step
// helps others to its image, because many can read what is sent through
// Temporal.
func (e *endpoint) authorizeImage(r *http.Request) (cyborg.Operation, error) {
	id, err := operationOf(r)
	if err != nil {
		return cyborg.Operation{}, err
	}

	op, unknown := e.deps.Records.Operation(r.Context(), id)
	if unknown != nil && cyborg.ErrorKindOf(unknown) != cyborg.ErrNotFound {
		return op, unknown
	}

	if err = e.authorizeAgent(r, op.Host); err == nil {
		err = unknown
	}

	// Nobody learns of the operations of other hosts, also not whether there is one.
	if kind := cyborg.ErrorKindOf(err); kind == cyborg.ErrNotFound || kind == cyborg.ErrForbidden {
		err = cyborg.Errorf(cyborg.ErrForbidden, "the request does not prove that it comes from the agent of the host of an operation %s", id).
			WithHint("Upgrade the agent if it is of release 0.1, or give agents and servers certificates, each agent that of its host.")
	}
	return op, err
}

// authorizeAgent returns an error unless the request comes from the agent of the
// host.
func (e *endpoint) authorizeAgent(r *http.Request, host string) error {
	if !e.config.Certificates && !inProcess(r) {
		if err := e.checkProof(r, host); err != nil {
			return err
		}
	}
	return e.authorizeHost(r, host)
}

// checkProof returns an error unless the request comes from the host's agent,
// where no certificate says so. An agent in a server's process never comes
// through a port. An agent of release 0.1 has no proof: as from a server of that
// release, it gets the images for which it names the operation, or a secret that
// a server of that release made.
func (e *endpoint) checkProof(r *http.Request, name string) error {
	host, err := e.deps.Records.Host(r.Context(), name)
	if err != nil {
		return err
	}

	if agentapi.ProvenInstance(r.Header.Get(agentapi.ProofHeader)) == host.Instance {
		web.SetIdentity(r.Context(), web.Identity{Name: host.Name})
		return nil
	}

	_, err = uuid.Parse(r.URL.Query().Get(workflows.ImageKey))
	if named := err == nil; !named && agentapi.HasNoProof(host.Instance) {
		return nil
	}

	return cyborg.Errorf(cyborg.ErrForbidden, "the request does not prove that it comes from the agent of host %q", host.Name)
}

// operationOf returns the ID of the operation in the path.
func operationOf(r *http.Request) (uuid.UUID, error) {
	text := chi.URLParam(r, "operation")
	id, err := uuid.Parse(text)
	if err != nil {
		return id, cyborg.Errorf(cyborg.ErrInvalid, "%q is not the id of an operation", text)
	}

	return id, nil
}

// rangeStart reads the header Range in the only form that agents send,
// bytes=N-. Without the header it is 0.
func rangeStart(r *http.Request) (int64, error) {
	header := r.Header.Get("Range")
	if header == "" {
		return 0, nil
	}

	text, ok := strings.CutPrefix(header, "bytes=")
	text, open := strings.CutSuffix(text, "-")

	start, err := strconv.ParseInt(text, 10, 64)
	if !ok || !open || err != nil || start < 0 {
		return 0, cyborg.Errorf(cyborg.ErrInvalid, "the header Range is %q; only bytes=N- is supported", header)
	}

	return start, nil
}

// copy passes the image on as fast as the agent accepts it. The write deadline
// is renewed for each chunk, so it bounds how long the agent may stand still,
// and not how long the image takes.
func (e *endpoint) copy(w http.ResponseWriter, content io.Reader) error {
	control := http.NewResponseController(w)
	chunk := make([]byte, imageChunk)

	for {
		n, err := content.Read(chunk)
		if n > 0 {
			if err := control.SetWriteDeadline(time.Now().Add(e.config.ImageWrite)); err != nil {
				return err
			}
			if _, err := w.Write(chunk[:n]); err != nil {
				return err
			}
		}

		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil {
			return err
		}
	}
}
