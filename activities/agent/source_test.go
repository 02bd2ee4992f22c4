package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/images"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// source is a conductor that serves one image to all operations.
type source struct {
	mu    sync.Mutex
	image []byte
	asked int
	// meanwhile, where set, is called when an image is asked for.
	meanwhile func()
}

func (s *source) Image(_ context.Context, _ string, offset int64) (images.Download, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.meanwhile != nil {
		s.meanwhile()
	}
	if s.image == nil {
		return images.Download{}, cyborg.Errorf(cyborg.ErrNotFound, "there is no such image")
	}
	return images.Download{ReadCloser: io.NopCloser(bytes.NewReader(s.image[offset:])), Offset: offset, Size: int64(len(s.image))}, nil
}

func (s *source) GiveBack(context.Context, string) error { return nil }

// sum returns the SHA-256 of an image.
func sum(image []byte) string {
	s := sha256.Sum256(image)
	return hex.EncodeToString(s[:])
}

// fpgaImage returns an image that the fake FPGA accepts.
func fpgaImage(id string) []byte {
	return fake.MakeImage(cyborg.DeviceTypeFPGA, id, []byte("payload of "+id))
}

// image puts an image into the host's image directory, and returns the
// reference to it.
func (h *host) image(name string, content []byte) cyborg.Image {
	h.t.Helper()
	require.NoError(h.t, os.WriteFile(filepath.Join(h.dir, "images", name), content, 0o644))
	return cyborg.Image{Source: "file:" + name, SHA256: sum(content), ID: name}
}
