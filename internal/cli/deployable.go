package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// deployableCommand offers some verbs of `accelerator` under OpenStack's noun
// for accelerators, for its users.
func (s *shell) deployableCommand() *cobra.Command {
	offered := []string{listVerb, "show", "program"}
	var verbs []verb
	for _, v := range s.acceleratorVerbs() {
		name, _, _ := strings.Cut(v.use, " ")
		if !slices.Contains(offered, name) {
			continue
		}

		for i, example := range v.examples {
			v.examples[i] = strings.ReplaceAll(example, "cyborg accelerator ", "cyborg deployable ")
		}
		verbs = append(verbs, v)
	}

	return noun("deployable", "Accelerators, under OpenStack's name for them", verbs, "deployables")
}
