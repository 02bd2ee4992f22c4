package cli

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
)

// versionCommand is `version`.
func (s *shell) versionCommand() *cobra.Command {
	return verb{
		use: "version", short: "Show the release of this program",
		build: func(cmd *cobra.Command) {
			p := s.printer(cmd)
			cmd.RunE = func(*cobra.Command, []string) error {
				return printShow(p, struct {
					Version  string `json:"version"`
					Go       string `json:"go"`
					Platform string `json:"platform"`
				}{cyborg.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}, nil, nil)
			}
		},
	}.command()
}
