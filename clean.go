package cyborg

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// OperationClean removes from the handles of an accelerator what their last holders left
// on them. Nobody gets them before that.
const OperationClean OperationKind = "clean"

// CleanRequest cleans the unclean handles of an accelerator, each as its last holder
// demands it at least.
type CleanRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
	// Method is used where it is stronger than what a handle needs; empty for what each
	// needs.
	Method CleanMethod `json:"method,omitempty"`
	// Due says that a conductor asks, for what is due: it leaves alone what is in maintenance.
	Due bool `json:"due,omitempty"`
	// Declared is why somebody says that the handles are clean, such as after cleaning
	// them by hand. Their host is not asked then. It excludes Method.
	Declared string `json:"declared,omitempty"`
}

// Kind returns OperationClean.
func (CleanRequest) Kind() OperationKind { return OperationClean }

// CleanMethod says how a handle is cleaned. The zero value stands for not at all.
type CleanMethod string

// The methods, the weakest first.
const (
	// CleanReset brings the hardware back to the state after power-on: what is in
	// registers and volatile memory is lost, what is stored stays.
	CleanReset CleanMethod = "reset"
	// CleanScrub also removes what is stored, such as the data of a disk.
	CleanScrub CleanMethod = "scrub"
)

// NoCleaning is the word for the zero CleanMethod in options and device profiles.
const NoCleaning = "none"

// CleanMethods returns the methods, the weakest first.
func CleanMethods() []CleanMethod { return []CleanMethod{CleanReset, CleanScrub} }

// ParseCleanMethod reads a method, or NoCleaning. The error is of kind ErrInvalid.
func ParseCleanMethod(text string) (CleanMethod, error) {
	if text == NoCleaning {
		return "", nil
	}
	if method := CleanMethod(text); slices.Contains(CleanMethods(), method) {
		return method, nil
	}
	return "", Errorf(ErrInvalid, "%.80q is no way to clean; it is one of %s, %s", text, NoCleaning, joinMethods(CleanMethods()))
}

// Stronger returns the stronger one of two methods.
func (m CleanMethod) Stronger(other CleanMethod) CleanMethod {
	if m.Covers(other) {
		return m
	}
	return other
}

// Covers says that nothing stays that the other method would remove.
func (m CleanMethod) Covers(other CleanMethod) bool { return m.strength() >= other.strength() }

// strength orders the methods. One that this release does not know is stronger than all.
func (m CleanMethod) strength() int {
	if m == "" {
		return -1
	}
	if at := slices.Index(CleanMethods(), m); at >= 0 {
		return at
	}
	return len(CleanMethods())
}

// joinMethods lists methods for a message.
func joinMethods(methods []CleanMethod) string {
	texts := make([]string, len(methods))
	for i, m := range methods {
		texts[i] = string(m)
	}
	return strings.Join(texts, ", ")
}

// Cleaning says how the handles of a deployable can be cleaned.
type Cleaning struct {
	// Methods are those that its driver has, the weakest first.
	Methods []CleanMethod `json:"methods"`
	// After is what its backend demands after every holder; empty for nothing. A device
	// profile can demand more.
	After CleanMethod `json:"after,omitempty"`
}

// AfterHolder returns what has to be done after a holder who demands this himself.
func (c *Cleaning) AfterHolder(demanded CleanMethod) CleanMethod {
	if c == nil {
		return demanded
	}
	return demanded.Stronger(c.After)
}

// Choose returns the weakest method of the driver that covers the one that is needed. The
// error is of kind ErrUnsupported where it has none. A driver has none where c is nil.
func (c *Cleaning) Choose(needed CleanMethod) (CleanMethod, error) {
	var methods []CleanMethod
	if c != nil {
		methods = c.Methods
	}

	var chosen CleanMethod
	for _, m := range methods {
		if m.Covers(needed) && (chosen == "" || chosen.Covers(m)) {
			chosen = m
		}
	}
	if chosen != "" {
		return chosen, nil
	}

	has := joinMethods(methods)
	if has == "" {
		has = NoCleaning
	}
	return "", Errorf(ErrUnsupported, "%s is needed to clean it, and its driver has %s", needed, has)
}

// Unclean says what has to be done to a handle before somebody gets it.
type Unclean struct {
	Method CleanMethod `json:"method"`
	Since  time.Time   `json:"since"`
}

// Evidence says how a handle was cleaned.
type Evidence struct {
	// Method is what was done; empty where somebody has declared it clean.
	Method CleanMethod `json:"method,omitempty"`
	// Declared is why somebody has declared it clean.
	Declared string `json:"declared,omitempty"`
	// Tool is what was used, as its driver names it: "nvme format, crypto erase".
	Tool string `json:"tool,omitempty"`
	// ReadBack is what was found afterwards, as its driver says it for people.
	ReadBack string `json:"read_back,omitempty"`
	// At is when it was clean, by the clock of its host, and TookMS how many milliseconds
	// the last try took. The agent sets both.
	At     time.Time `json:"at"`
	TookMS int64     `json:"took_ms,omitempty"`
}

// LongestEvidence is how many characters Declared, Tool and ReadBack of an Evidence have at
// most.
const LongestEvidence = 400

// HandleToClean is one handle that an operation cleans, with the method that it needs.
type HandleToClean struct {
	UUID     uuid.UUID   `json:"uuid"`
	Identity string      `json:"identity"`
	Method   CleanMethod `json:"method"`
}

// CleanedHandle is a handle that is clean now.
type CleanedHandle struct {
	UUID     uuid.UUID `json:"uuid"`
	Evidence Evidence  `json:"evidence"`
}
