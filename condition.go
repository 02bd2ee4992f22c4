package cyborg

import (
	"cmp"
	"regexp"
	"slices"
	"time"
)

// Condition is something about a deployable that its driver wants people to know. A
// deployable may have several, each with a code of its own.
type Condition struct {
	// Code names what it is, such as "unreadable" or "ecc_errors" (IsConditionCode). It is
	// the same whenever the driver sees the same thing.
	Code  string         `json:"code"`
	Level ConditionLevel `json:"level"`
	// Message says it to people, with what to do about it if anything can be done. It
	// stays the same while nothing changes: each other message is another report.
	Message string `json:"message,omitempty"`
	// Since is when the records have first been told of it at this level, by the clock
	// of the database. A driver leaves it zero.
	Since time.Time `json:"since,omitzero"`
}

// Text says to people what the condition is, but for its level.
func (c *Condition) Text() string {
	if c.Message == "" {
		return c.Code
	}
	return c.Code + ": " + c.Message
}

// conditionCodePattern matches words in small letters.
var conditionCodePattern = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// IsConditionCode says whether the text can be the code of a condition: words in small
// letters, connected by underscores, of 64 characters at most.
func IsConditionCode(text string) bool {
	return len(text) <= 64 && conditionCodePattern.MatchString(text)
}

// ConditionLevel says what a condition means for whoever wants the deployable.
type ConditionLevel string

// The levels of conditions.
const (
	// ConditionNotice changes nothing, such as an image that takes effect with the
	// next power cycle.
	ConditionNotice ConditionLevel = "notice"
	// ConditionDegraded lets the deployable be used, and somebody should look at it.
	ConditionDegraded ConditionLevel = "degraded"
	// ConditionUnready keeps the deployable from everybody who does not have it yet.
	ConditionUnready ConditionLevel = "unready"
)

// ConditionLevels returns the levels, from the least to the most severe.
func ConditionLevels() []ConditionLevel {
	return []ConditionLevel{ConditionNotice, ConditionDegraded, ConditionUnready}
}

// MaxConditions is how many conditions of one deployable are recorded.
const MaxConditions = 16

// severity is the greater, the more severe the level is. One that only a newer release
// knows counts as the most severe, so that nobody gets what is not to be given out.
func (l ConditionLevel) severity() int {
	if at := slices.Index(ConditionLevels(), l); at >= 0 {
		return at
	}
	return len(ConditionLevels())
}

// SortConditions returns the conditions with the most severe first, and of the same
// level in the order of their codes. Of those with the same code only the most severe
// is left. The result is a copy, and nil where there is none.
func SortConditions(conditions []Condition) []Condition {
	sorted := slices.Clone(conditions)
	slices.SortStableFunc(sorted, func(a, b Condition) int {
		return cmp.Or(cmp.Compare(b.Level.severity(), a.Level.severity()), cmp.Compare(a.Code, b.Code))
	})

	var out []Condition
	known := make(map[string]bool, len(sorted))
	for _, c := range sorted {
		if !known[c.Code] {
			known[c.Code] = true
			out = append(out, c)
		}
	}
	return out
}

// Unready returns the first condition that keeps a deployable from everybody; nil
// where there is none.
func Unready(conditions []Condition) *Condition {
	at := slices.IndexFunc(conditions, func(c Condition) bool { return c.Level.severity() >= ConditionUnready.severity() })
	if at < 0 {
		return nil
	}
	return &conditions[at]
}
