package cyborg

import (
	"cmp"
	"strconv"
	"strings"
)

// Cursor is a place in the event feed. The zero Cursor is before the first
// event.
type Cursor struct {
	// Transaction is the number of the transaction that wrote the event. It comes
	// first in the order, because events become visible by transaction.
	Transaction uint64
	Event       int64
}

// ParseCursor reads what String wrote; the empty text is the zero Cursor. The
// error is of kind ErrInvalid.
func ParseCursor(text string) (Cursor, error) {
	if text == "" {
		return Cursor{}, nil
	}

	transaction, event, ok := strings.Cut(text, "-")
	if ok {
		t, errT := strconv.ParseUint(transaction, 10, 64)
		e, errE := strconv.ParseInt(event, 10, 64)
		if errT == nil && errE == nil && e >= 0 {
			return Cursor{Transaction: t, Event: e}, nil
		}
	}

	return Cursor{}, Errorf(ErrInvalid, "%.80q is not an event id; send back the id of the last event you got, such as 4711-42", text)
}

// String returns the form that the ids of server-sent events have:
// transaction-event.
func (c Cursor) String() string {
	return strconv.FormatUint(c.Transaction, 10) + "-" + strconv.FormatInt(c.Event, 10)
}

// Compare returns a number below 0 if c comes before other in the feed, above 0
// if it comes after it, and 0 if both are the same place.
func (c Cursor) Compare(other Cursor) int {
	return cmp.Or(cmp.Compare(c.Transaction, other.Transaction), cmp.Compare(c.Event, other.Event))
}

// MarshalText makes the cursor a JSON string.
func (c Cursor) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (c *Cursor) UnmarshalText(text []byte) error {
	parsed, err := ParseCursor(string(text))
	if err != nil {
		return err
	}
	*c = parsed
	return nil
}
