package journal

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// The file is text, so that a person can read it: a header line, then one line
// for each change. A line is the CRC-32C of the JSON in hexadecimal, a space,
// and the JSON.
const (
	headerPrefix = "cyborg-journal "
	version      = 1
	header       = headerPrefix + "1\n"
	checksumSize = 8 // hexadecimal digits

	// highestSequence is far above every number that a conductor takes.
	highestSequence = 1 << 60
)

// checksum is the CRC-32C of a record's JSON. It finds torn writes and disk
// errors, not tampering.
func checksum(text []byte) uint32 { return crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)) }

// encode returns the line of a change, with its line feed.
func encode(change Change) ([]byte, error) {
	text, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}

	line := make([]byte, 0, checksumSize+len(text)+2)
	line = fmt.Appendf(line, "%08x ", checksum(text))
	line = append(line, text...)
	return append(line, '\n'), nil
}

// decode reads one line, without its line feed. The error says what is wrong
// with the line, and continues a sentence.
func decode(line []byte) (Change, error) {
	var sum [checksumSize / 2]byte
	if len(line) < checksumSize+1 || line[checksumSize] != ' ' {
		return Change{}, errors.New("has no checksum")
	}
	if _, err := hex.Decode(sum[:], line[:checksumSize]); err != nil {
		return Change{}, errors.New("has no checksum")
	}

	text := line[checksumSize+1:]
	if got := fmt.Sprintf("%08x", checksum(text)); got != string(line[:checksumSize]) {
		return Change{}, fmt.Errorf("does not match its checksum (%s, it says %s)", got, line[:checksumSize])
	}

	var change Change
	if err := json.Unmarshal(text, &change); err != nil {
		return Change{}, fmt.Errorf("cannot be decoded: %w", err)
	}
	if change.Sequence > highestSequence { // the numbers after it would overflow
		return Change{}, fmt.Errorf("has the sequence number %d, which no agent reaches", change.Sequence)
	}

	return change, nil
}

// replay applies every change of the file in order, and returns how many bytes
// of the file are good. A bad line without a good one after it is a write that
// was cut off. A bad line with a good one after it means that the file was
// damaged, which is an error: later changes may rely on the lost one.
func replay(text []byte, apply func(Change)) (int64, error) {
	first, rest, ok := bytes.Cut(text, []byte("\n"))
	number, isHeader := strings.CutPrefix(string(first), headerPrefix)
	format, err := strconv.Atoi(number)
	if !ok || !isHeader || err != nil {
		return 0, fmt.Errorf("its first line is %.40q and not %q", first, strings.TrimSpace(header))
	}

	if format > version {
		return 0, fmt.Errorf("it has format %d and this release knows formats up to %d; run the newer release that wrote it", format, version)
	}

	good := int64(len(first) + 1)
	for line := 2; len(rest) > 0; line++ {
		record, after, whole := bytes.Cut(rest, []byte("\n"))
		if !whole { // the last line has no line feed: its write was cut off
			return good, nil
		}

		change, err := decode(record)
		if err != nil {
			if holdsRecord(after) {
				return 0, fmt.Errorf("line %d, at byte %d, %w, and there are good lines after it", line, good, err)
			}
			return good, nil
		}

		apply(change)
		good += int64(len(record) + 1)
		rest = after
	}

	return good, nil
}

// holdsRecord reports whether any line of the text is a good record.
func holdsRecord(text []byte) bool {
	for line := range bytes.Lines(text) {
		if whole, ok := bytes.CutSuffix(line, []byte("\n")); ok {
			if _, err := decode(whole); err == nil {
				return true
			}
		}
	}
	return false
}
