package operation

import (
	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
)

// cleanProperty is the property in a group of a device profile that demands how a handle is
// cleaned after the instance.
const cleanProperty = "accel:clean"

// cleanOf returns how a group of a device profile demands that a handle of the accelerator
// is cleaned afterwards; empty for not at all. The error says that it cannot be cleaned so.
func cleanOf(a *inventory.Accelerator, group map[string]string) (cyborg.CleanMethod, error) {
	text, ok := group[cleanProperty]
	if !ok {
		return "", nil
	}

	demanded, err := cyborg.ParseCleanMethod(text)
	if err == nil && demanded != "" {
		_, err = a.Cleaning.Choose(demanded)
	}
	if err != nil {
		return "", cyborg.Errorf(cyborg.AsError(err).Kind, "accelerator %q cannot be cleaned as its device profile demands with %s: %w", a.Name, cleanProperty, err)
	}
	return demanded, nil
}
