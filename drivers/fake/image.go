package fake

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// An image is one header line and then a payload of at least one byte:
//
//	CYBORGFAKE/1 target=FPGA id=aes-v1
const (
	imageMagic = "CYBORGFAKE/1"
	maxHeader  = 256 // bytes; every valid header is shorter
)

// imageHeader matches a header line; its groups are the type of the card and
// the id.
var imageHeader = regexp.MustCompile(`^` + imageMagic + ` target=([A-Za-z]+) id=([A-Za-z0-9._-]{1,64})$`)

// MakeImage makes an image for cards of that type. The id says what the image
// does, in up to 64 letters, digits, dots, dashes and underscores. The id of an
// FPGA's image becomes a trait.
func MakeImage(target cyborg.DeviceType, id string, payload []byte) []byte {
	return append([]byte(imageMagic+" target="+string(target)+" id="+id+"\n"), payload...)
}

// CheckImage returns an error of kind ErrImageRejected that says why the image
// cannot go into the target.
func (d *driver) CheckImage(ctx context.Context, target drivers.Target, path string, _ cyborg.Image) error {
	s, _, err := d.find(target)
	if err != nil {
		return err
	}

	if _, err := d.readStep(ctx, s, StepCheckImage); err != nil {
		return err
	}

	_, _, err = s.readImage(ctx, path)
	return err
}

// readImage reads an image to its end and returns the id in its header and its
// checksum. The error is of kind ErrImageRejected where the image does not fit
// the card.
func (s *slot) readImage(ctx context.Context, path string) (id, checksum string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", "", cyborg.Errorf(cyborg.ErrInternal, "the staged image cannot be read: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()

	sum := sha256.New()
	reader := bufio.NewReaderSize(io.TeeReader(file, sum), maxHeader)
	line, err := reader.ReadSlice('\n')
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		return "", "", cyborg.Errorf(cyborg.ErrInternal, "the staged image cannot be read: %w", err)
	}

	header := strings.TrimSuffix(string(line), "\n")
	fields := imageHeader.FindStringSubmatch(header)
	if fields == nil || err != nil {
		return "", "", cyborg.Errorf(cyborg.ErrImageRejected, "the image begins with %.40q; a fake card takes %q and then a payload",
			header, imageMagic+" target="+string(s.kind)+" id=NAME")
	}

	if !strings.EqualFold(fields[1], string(s.kind)) {
		return "", "", cyborg.Errorf(cyborg.ErrImageRejected, "image %q is for a card of type %s; %s is of type %s",
			fields[2], strings.ToUpper(fields[1]), s.identity(), s.kind)
	}

	payload, err := io.Copy(io.Discard, &interruptible{reader: reader, interrupted: func() error { return interruption(ctx) }})
	if err != nil {
		if interrupted := interruption(ctx); interrupted != nil {
			return "", "", interrupted
		}
		return "", "", cyborg.Errorf(cyborg.ErrInternal, "the staged image cannot be read: %w", err)
	}

	if payload == 0 {
		return "", "", cyborg.Errorf(cyborg.ErrImageRejected, "image %q ends after its header", fields[2])
	}

	return fields[2], hex.EncodeToString(sum.Sum(nil)), nil
}

// interruptible is a reader that fails once interrupted returns an error. It
// lets a long read end with its call.
type interruptible struct {
	reader      io.Reader
	interrupted func() error
}

// Read reads from the underlying reader unless the call was interrupted.
func (r *interruptible) Read(buffer []byte) (int, error) {
	if err := r.interrupted(); err != nil {
		return 0, err
	}

	return r.reader.Read(buffer)
}

// traitWord converts an image's id to a part of a Placement trait: capitals,
// digits and underscores.
func traitWord(id string) string {
	return strings.NewReplacer(".", "_", "-", "_").Replace(strings.ToUpper(id))
}
