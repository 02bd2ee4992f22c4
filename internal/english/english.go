// Package english puts lists, numbers and durations into words for people.
package english

import (
	"strconv"
	"strings"
	"time"
)

// Capital turns the first letter of a text that is not empty into a capital.
func Capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// List joins names as "a", "a and b" or "a, b and c".
func List(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// Some joins names like List, and counts those after the first few.
func Some(names []string) string {
	const few = 3
	if len(names) <= few+1 {
		return List(names)
	}
	return strings.Join(names[:few], ", ") + " and " + Count(len(names)-few, "other")
}

// Count formats a number with its noun: "1 accelerator", "2 accelerators".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// Duration rounds a duration to what matters: to 100 ms, and to 1 ms below a
// second.
func Duration(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}
