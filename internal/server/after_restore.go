package server

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
)

// afterRestoreCommand returns the command that tells the records that they were
// restored.
func afterRestoreCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "after-restore",
		Short: "Tell the records that they were restored from a backup, where they cannot see it",
		Long: "Begins a new epoch of the records: readers of events whose last event was lost are told so, no assignment number is drawn\n" +
			"again, and no host's devices are given to anybody before the host has said what it has. The records see most restores\n" +
			"by themselves; after one into the same tables, or from a copy of the database, they cannot. Servers may run, and it\n" +
			"does no harm to run it again, or where nothing was restored.",
		Args: commandline.Takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(config.LoadOptions{Process: config.ProcessMigrate, Flags: cmd.Flags()}) // it needs the database only
			if err != nil {
				return err
			}

			store, err := db.Open(cmd.Context(), c.Database.URL.Reveal(), db.Options{MaxConns: 2, SilentAfter: c.Conductor.SilentAfter}, c.Log.Logger(cmd.ErrOrStderr()))
			if err != nil {
				return err
			}
			defer store.Close()

			epoch, err := store.BeginEpoch(cmd.Context())
			if err != nil {
				return err
			}

			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Epoch %d of the records has begun.\n", epoch)
			return err
		},
	}
}
