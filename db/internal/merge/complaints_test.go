package merge

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// Of thousands of complaints the first ones are kept, and the number of the
// others is told, however long those that are kept are.
func TestComplaintsAreBounded(t *testing.T) {
	t.Parallel()
	v := NewInventory("h1", nil, nil)
	v.complain("a", "%s is wrong", "one")
	require.Equal(t, "one is wrong", v.Complaints["a"].String())
	require.Equal(t, "discovery failed; one is wrong", v.Complaints["a"].after("discovery failed"))

	for range 5000 {
		v.complain("a", "%s", strings.Repeat("ü", 500))
		v.complain("b", "%s", "short")
	}
	require.Len(t, v.Complaints["a"].first, mostComplaints)
	require.Equal(t, strings.Repeat("short; ", 10)+"and 4990 more", v.Complaints["b"].String())
	text := v.Complaints["a"].String()
	require.LessOrEqual(t, utf8.RuneCountInString(text), LongestError)
	require.True(t, strings.HasSuffix(text, "…; and 4991 more"), text)
}

// What is not kept costs nothing: no name is looked for.
func TestComplaintsThatAreNotKeptCostNothing(t *testing.T) {
	t.Parallel()
	v := NewInventory("h1", nil, nil)
	asked := 0
	for range 100 {
		v.complain("a", "%s", counted{&asked})
	}
	require.Equal(t, mostComplaints, asked)
	require.Equal(t, uuid.Max.String(), localName{v, uuid.Max}.String())
}

// counted counts how often its text is made.
type counted struct{ asked *int }

func (c counted) String() string {
	*c.asked++
	return "x"
}
