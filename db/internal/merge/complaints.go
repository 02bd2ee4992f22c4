package merge

import (
	"fmt"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// The error of a backend shows what could not be recorded. It is kept short
// enough to read in a table; the lengths are in characters.
const (
	mostComplaints   = 10
	longestComplaint = 300  // one complaint
	LongestError     = 1000 // all of them, joined
)

// Complaints are what could not be recorded of one backend: the first of them, and
// how many more there are. A report may be wrong thousands of times.
type Complaints struct {
	first []string
	more  int
}

// complain notes that a part of what a backend reported is not recorded. The
// complaints are shown as the error of the backend.
func (v *Inventory) complain(backend, format string, args ...any) {
	c := v.Complaints[backend]
	if c == nil {
		c = &Complaints{}
		v.Complaints[backend] = c
	}

	if len(c.first) == mostComplaints {
		c.more++
		return
	}

	c.first = append(c.first, cyborg.Sanitize(fmt.Sprintf(format, args...), longestComplaint))
}

// String joins the complaints into a text that is short enough to read.
func (c *Complaints) String() string { return c.after("") }

// after is String behind an error of the backend itself, if there is one.
func (c *Complaints) after(failure string) string {
	texts := c.first
	if failure != "" {
		texts = append([]string{failure}, texts...)
	}

	more := ""
	if c.more > 0 {
		more = fmt.Sprintf("; and %d more", c.more)
	}

	return cyborg.Sanitize(strings.Join(texts, "; "), LongestError-len(more)) + more
}
