package server

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/adopt"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
)

// adoptConnections is how many connections the store of an adoption may keep;
// the adoption works in one transaction.
const adoptConnections = 2

// adoptCommand returns the command that takes over the records of an OpenStack
// Cyborg. Like migrate, it works on the database itself with the server's
// configuration, and needs no running server: it is used before the first
// server is started.
func adoptCommand() *cobra.Command {
	var (
		from, file    string
		apply, dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Take over the records of an OpenStack Cyborg",
		Long: "Reads the database of an OpenStack Cyborg, MySQL (MariaDB) or PostgreSQL, and makes its devices, deployables, attach\n" +
			"handles, device profiles and accelerator requests ours, with their UUIDs. Nothing is changed there, and without --apply\n" +
			"nothing here either: it reports what it would do. One row that it does not understand keeps it from doing anything.",
		Example: commandline.Examples(
			"cyborg adopt --from-file /etc/cyborg/old-database-url            # what it would do",
			"cyborg adopt --from-file /etc/cyborg/old-database-url --apply",
			"cyborg adopt --from mysql+pymysql://cyborg@db.example.org/cyborg"),
		Args: commandline.Takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(config.LoadOptions{Process: config.ProcessMigrate, Flags: cmd.Flags()})
			if err != nil {
				return err
			}

			if file != "" {
				text, err := os.ReadFile(file)
				if err != nil {
					return cyborg.Errorf(cyborg.ErrInvalid, "the file of --from-file cannot be read: %w", err)
				}
				from = strings.TrimSpace(string(text))
			}

			ctx, log := cmd.Context(), c.Log.Logger(cmd.ErrOrStderr())
			store, err := db.Open(ctx, c.Database.URL.Reveal(), db.Options{MaxConns: adoptConnections}, log)
			if err != nil {
				return err
			}
			defer store.Close()

			report, err := adopt.Run(ctx, from, store, apply, log)
			if err != nil {
				return err
			}

			report.Write(cmd.OutOrStdout())
			return report.Refusal()
		},
	}

	flags := cmd.Flags()
	flags.StringVar(&from, "from", "", "URL of the OpenStack Cyborg's database, as [database] connection of its cyborg.conf has it")
	flags.StringVar(&file, "from-file", "", "file that holds that URL: everybody on this machine can read arguments")
	flags.BoolVar(&apply, "apply", false, "adopt, where nothing stands against it")
	flags.BoolVar(&dryRun, "dry-run", false, "only report what would be done; so it is without --apply")

	cmd.MarkFlagsOneRequired("from", "from-file")
	cmd.MarkFlagsMutuallyExclusive("from", "from-file")
	cmd.MarkFlagsMutuallyExclusive("apply", "dry-run")

	config.AddFlags(flags, config.Flag{Name: "database-url", Key: "database.url"})
	return cmd
}
