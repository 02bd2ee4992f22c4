package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workers/agent"
)

// overridden returns lines that tell the person which backends do not run as
// --hosts says, with the commands that change that. An operator has configured
// these backends through the API; the agent keeps such a configuration in its
// state directory, and it overrides --hosts.
func (s *standalone) overridden(ctx context.Context, store *db.Store) ([]string, error) {
	var lines []string
	for _, m := range s.machines {
		backends, err := store.Backends(ctx, m.Host)
		if err != nil {
			return nil, err
		}

		for _, want := range m.Backends {
			i := slices.IndexFunc(backends, func(b cyborg.Backend) bool { return b.Name == want.Name })
			switch {
			case i < 0:
			case backends[i].State == cyborg.BackendDisabled:
				lines = append(lines, "Backend "+want.Name+" of host "+m.Host+" was uninstalled. To have it again:",
					"  "+reset("install "+m.Host+" "+want.Driver+" --name "+want.Name, want))
			case !sameOptions(backends[i].Options, want.Options):
				lines = append(lines, "Backend "+want.Name+" of host "+m.Host+" keeps the options that it was given since. For those of --hosts:",
					"  "+reset("update "+m.Host+" "+want.Name, want))
			}
		}
	}

	return lines, nil
}

// sameOptions compares options by their JSON text, because a number from a
// configuration file and the same number from the API have different Go types.
// No options are the same as an empty set.
func sameOptions(a, b map[string]any) bool {
	one, errOne := json.Marshal(a)
	other, errOther := json.Marshal(b)
	return errOne == nil && errOther == nil && (bytes.Equal(one, other) || len(a)+len(b) == 0)
}

// reset returns the command that gives a backend the options of --hosts.
func reset(verb string, want agent.BackendConfig) string {
	words := []string{clientCommand(), "driver", verb}

	for _, key := range slices.Sorted(maps.Keys(want.Options)) {
		value, ok := want.Options[key].(string)
		if !ok {
			text, err := json.Marshal(want.Options[key])
			if err != nil {
				continue // cannot happen: machineOf only makes options that JSON can hold
			}
			value = string(text)
		}

		words = append(words, "--option", quote(key+"="+value))
	}

	return strings.Join(words, " ")
}

// quote quotes a text so that a shell reads it as one word.
func quote(text string) string {
	if !strings.ContainsAny(text, " \t\"'`$&|;<>()*?[]{}\\#~!") {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
