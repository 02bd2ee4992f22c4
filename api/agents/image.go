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

// ImageSource opens images that are not on the agent's host.
type ImageSource interface {
	// Open returns the image from offset (bytes) on, and its whole size, -1 where nobody can tell. The caller closes
	// the reader. An offset beyond the end is an error of kind ErrInvalid; an image larger than the source's limit one of
	// kind ErrTooLarge, from Open or from a Read.
	Open(ctx context.Context, image cyborg.Image, offset int64) (content io.ReadCloser, size int64, err error)
}

// imageChunk is how much of an image is passed on at once.
const imageChunk = 256 << 10

// GlanceSource opens images in Glance.
type GlanceSource interface {
	// Open returns an image of that size from offset (bytes) on. Errors are those of ImageSource.
	Open(ctx context.Context, image cyborg.Image, size, offset int64) (io.ReadCloser, error)
}

// openFunc opens an image from a byte on, and tells its whole size, -1 where nobody can.
type openFunc func(ctx context.Context, offset int64) (io.ReadCloser, int64, error)

// image streams the image of a running operation to the agent of its host. The agent checks what it got; a transfer that
// broke off is continued with a range.
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
	if err == nil && size < 0 && offset > 0 { // a part of nobody knows how much cannot be told; the whole can
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
	defer func() { _ = content.Close() }() // it was only read
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
		// The head is sent: breaking the connection is the only way to say that this is not all.
		e.deps.Log.WarnContext(r.Context(), "image transfer broke off",
			slog.String("source", image.Source), slog.String("error", err.Error()))
		panic(http.ErrAbortHandler)
	}
	return nil
}

// imageOf is the image of the operation in the path, if it is for this agent and not a file on its own host: by the one-time
// URL that the agent was handed, where the image is in Glance, else by the operation.
func (e *endpoint) imageOf(r *http.Request) (cyborg.Image, openFunc, error) {
	id, err := operationOf(r)
	if err != nil {
		return cyborg.Image{}, nil, err
	}
	if secret := r.URL.Query().Get(workflows.ImageKey); secret != "" {
		return e.imageByURL(r, id, secret)
	}
	op, err := e.deps.Records.Operation(r.Context(), id)
	if err != nil {
		return cyborg.Image{}, nil, err
	}
	if err := e.authorizeHost(r, op.Host); err != nil {
		return cyborg.Image{}, nil, err
	}
	if op.Kind != cyborg.OperationProgram || op.State != cyborg.OperationRunning {
		return cyborg.Image{}, nil, cyborg.Errorf(cyborg.ErrChanged, "operation %s is of kind %s and has the state %s; images are for program operations that run",
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
		return image, nil, cyborg.Errorf(cyborg.ErrInvalid, "image %q is not fetched by its operation alone: it is a path on the host, or in Glance", image.Source)
	}
	return image, func(ctx context.Context, offset int64) (io.ReadCloser, int64, error) {
		return e.deps.Images.Open(ctx, image, offset)
	}, nil
}

// granted is the image of a one-time URL.
func (e *endpoint) imageByURL(r *http.Request, operation uuid.UUID, secret string) (cyborg.Image, openFunc, error) {
	url, err := e.deps.Records.UseImage(r.Context(), operation, secret)
	if err != nil {
		return url.Image, nil, err
	}
	if err := e.authorizeHost(r, url.Host); err != nil {
		return url.Image, nil, err
	}
	if e.deps.Glance == nil {
		return url.Image, nil, cyborg.Errorf(cyborg.ErrUnavailable, "this conductor has no way to Glance, and another one had").
			WithHint("Configure the section openstack alike on all conductors.")
	}
	return url.Image, func(ctx context.Context, offset int64) (io.ReadCloser, int64, error) {
		content, err := e.deps.Glance.Open(ctx, url.Image, url.Size, offset)
		return content, url.Size, err
	}, nil
}

// releaseImage ends a one-time URL, because the host has the image.
func (e *endpoint) releaseImage(w http.ResponseWriter, r *http.Request) error {
	id, err := operationOf(r)
	if err != nil {
		return err
	}
	// Who knows the secret may end it; that tells nothing, also where there was none.
	if err := e.deps.Records.GiveBackImage(r.Context(), id, r.URL.Query().Get(workflows.ImageKey)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func operationOf(r *http.Request) (uuid.UUID, error) {
	text := chi.URLParam(r, "operation")
	id, err := uuid.Parse(text)
	if err != nil {
		return id, cyborg.Errorf(cyborg.ErrInvalid, "%q is not the id of an operation", text)
	}
	return id, nil
}

// rangeStart reads the one kind of range that agents send: bytes=N-.
func rangeStart(r *http.Request) (int64, error) {
	header := r.Header.Get("Range")
	if header == "" {
		return 0, nil
	}
	text, ok := strings.CutPrefix(header, "bytes=")
	text, open := strings.CutSuffix(text, "-")
	start, err := strconv.ParseInt(text, 10, 64)
	if !ok || !open || err != nil || start < 0 {
		return 0, cyborg.Errorf(cyborg.ErrInvalid, "the header Range is %q; bytes=N- is known", header)
	}
	return start, nil
}

// copy passes the image on as fast as the agent takes it. Neither may stand still for long.
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
