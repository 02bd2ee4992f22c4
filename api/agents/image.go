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
	image, open, err := e.imageOf(r)
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

// imageOf finds the image of the operation in the path and checks that this
// agent may have it. For an image in Glance, the agent needs the secret of the
// one-time URL that it received; for any other image, the operation's id is
// enough. A file on the host itself is never fetched here.
func (e *endpoint) imageOf(r *http.Request) (cyborg.Image, openFunc, error) {
	id, err := operationOf(r)
	if err != nil {
		return cyborg.Image{}, nil, err
	}

	// The host is checked before the secret is: a use of the URL extends its
	// validity, and another host must not.
	op, err := e.deps.Records.Operation(r.Context(), id)
	if err != nil {
		return cyborg.Image{}, nil, err
	}

	if err := e.authorizeHost(r, op.Host); err != nil {
		return cyborg.Image{}, nil, err
	}

	if secret := r.URL.Query().Get(workflows.ImageKey); secret != "" {
		return e.imageByURL(r, id, secret)
	}

	if op.Kind != cyborg.OperationProgram || op.State != cyborg.OperationRunning {
		return cyborg.Image{}, nil, cyborg.Errorf(cyborg.ErrChanged, "operation %s is of kind %s and has the state %s; only a running program operation may fetch its image",
			id, op.Kind, op.State)
	}

	var request cyborg.ProgramRequest
	text, err := json.Marshal(op.Input)
	if err == nil {
		err = json.Unmarshal(text, &request)
	}
	if err != nil {
		return cyborg.Image{}, nil, cyborg.Errorf(cyborg.ErrInternal, "the input of operation %s cannot be read: %w", id, err)
	}

	image := request.Image
	if !strings.HasPrefix(image.Source, "http://") && !strings.HasPrefix(image.Source, "https://") {
		return image, nil, cyborg.Errorf(cyborg.ErrInvalid, "image %q cannot be fetched with the operation's id alone: it is a file on the host, or it is in Glance and needs its one-time URL", image.Source)
	}

	if image.QueryHidden() { // a reload, and the host did not keep what it had loaded
		return image, nil, cyborg.Errorf(cyborg.ErrInvalid, "image %q cannot be fetched again: the query of its URL was deleted when it had been loaded", image.Source).
			WithHint("Program the accelerator with the whole URL.")
	}

	return image, func(ctx context.Context, offset int64) (io.ReadCloser, int64, error) {
		return e.deps.Images.Open(ctx, image, offset)
	}, nil
}

// imageByURL returns the image of a one-time URL, which was made for the host
// of its operation.
func (e *endpoint) imageByURL(r *http.Request, operation uuid.UUID, secret string) (cyborg.Image, openFunc, error) {
	url, err := e.deps.Records.UseImage(r.Context(), operation, secret)
	if err != nil {
		return url.Image, nil, err
	}

	if e.deps.Glance == nil {
		return url.Image, nil, cyborg.Errorf(cyborg.ErrUnavailable, "this conductor is not configured for Glance; the one that made the URL was").
			WithHint("Configure the section openstack alike on all conductors.")
	}

	return url.Image, func(ctx context.Context, offset int64) (io.ReadCloser, int64, error) {
		content, err := e.deps.Glance.Open(ctx, url.Image, url.Size, offset)
		return content, url.Size, err
	}, nil
}

// revokeImage revokes a one-time URL, because the host has received the image.
// Whoever knows the secret may revoke the URL. The answer is the same if there
// was none, so that it reveals nothing.
func (e *endpoint) revokeImage(w http.ResponseWriter, r *http.Request) error {
	id, err := operationOf(r)
	if err != nil {
		return err
	}

	if err := e.deps.Records.RevokeImage(r.Context(), id, r.URL.Query().Get(workflows.ImageKey)); err != nil {
		return err
	}

	w.WriteHeader(http.StatusNoContent)
	return nil
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
