package cyborg

import (
	"crypto/md5" //nolint:gosec // an old Glance has nothing else, and the operator must allow it (glance.allow_md5)
	"crypto/sha256"
	"crypto/sha3"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"maps"
	"slices"
	"strings"
)

// Checksum is the hash that the content of an image must have: the algorithm,
// as Glance's os_hash_algo names it (Python's hashlib), a colon, and the value
// in lower-case hexadecimal digits.
type Checksum string

// MakeChecksum joins an algorithm and a value.
func MakeChecksum(algorithm, value string) Checksum {
	return Checksum(strings.ToLower(algorithm) + ":" + strings.ToLower(value))
}

// checksumTable has the algorithms that can be verified.
var checksumTable = map[string]func() hash.Hash{
	"md5":      md5.New,
	"sha256":   sha256.New,
	"sha384":   sha512.New384,
	"sha512":   sha512.New,
	"sha3_256": func() hash.Hash { return sha3.New256() },
	"sha3_384": func() hash.Hash { return sha3.New384() },
	"sha3_512": func() hash.Hash { return sha3.New512() },
}

// Algorithm is the part before the colon.
func (c Checksum) Algorithm() string {
	algorithm, _, _ := strings.Cut(string(c), ":")
	return algorithm
}

// Value is the part behind the colon.
func (c Checksum) Value() string {
	_, value, _ := strings.Cut(string(c), ":")
	return value
}

// Hash returns a new hash of the checksum's algorithm. The error is of kind
// ErrInvalid where the algorithm is not known, or where the value is not of its
// length.
func (c Checksum) Hash() (hash.Hash, error) {
	begin, ok := checksumTable[c.Algorithm()]
	if !ok {
		return nil, Errorf(ErrInvalid, "a checksum of algorithm %q cannot be verified; known are %s",
			Sanitize(c.Algorithm(), 80), strings.Join(slices.Sorted(maps.Keys(checksumTable)), ", "))
	}

	h := begin()
	if value, err := hex.DecodeString(c.Value()); err != nil || len(value) != h.Size() || c.Value() != strings.ToLower(c.Value()) {
		return nil, Errorf(ErrInvalid, "%q is no checksum: a %s has %d hexadecimal digits", Sanitize(string(c), 300), c.Algorithm(), 2*h.Size())
	}
	return h, nil
}
