// Package contentrange reads the header Content-Range (RFC 9110 §14.4), by
// which a server says which part of an image it sends: an image source to the
// conductor, and the conductor to an agent. It imports only the standard
// library.
package contentrange

import (
	"strconv"
	"strings"
)

// Parse reads "bytes 5-9/10" as 5 and 10: the offset of the part's first byte,
// and the size of the whole in bytes, which is -1 where the header has "*". Ok
// is false for anything else, and where the part begins behind the end. A part
// that begins at the end is empty.
func Parse(header string) (begin, size int64, ok bool) {
	text, bytes := strings.CutPrefix(header, "bytes ")
	span, whole, hasSize := strings.Cut(text, "/")
	first, _, hasSpan := strings.Cut(span, "-")
	if !bytes || !hasSize || !hasSpan {
		return 0, 0, false
	}

	begin, err := strconv.ParseInt(first, 10, 64)
	if err != nil || begin < 0 {
		return 0, 0, false
	}

	if whole == "*" {
		return begin, -1, true
	}

	size, err = strconv.ParseInt(whole, 10, 64)
	if err != nil || size < begin {
		return 0, 0, false
	}

	return begin, size, true
}
