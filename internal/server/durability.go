package server

import (
	"fmt"

	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/doctor"
)

// examineDurability says what a crash of the database loses, and what a
// failover does.
func examineDurability(f *doctor.Findings, d db.Durability) {
	const wanted = "Set fsync, full_page_writes and synchronous_commit on; for a failover that loses nothing, name standbys in synchronous_standby_names."

	switch {
	case !d.Fsync:
		f.Warn("durability", "fsync is off: a crash of the database's machine can destroy the database", wanted)
	case !d.FullPageWrites:
		f.Warn("durability", "full_page_writes is off: a crash of the database's machine can destroy the database", wanted)
	case d.SynchronousCommit == "off":
		f.Warn("durability", "synchronous_commit is off: a crash of the database, and a failover, lose what was recorded in the last moments", wanted)
	default:
		f.OKf("durability", "a crash of the database loses nothing")
	}

	switch waits := d.SynchronousCommit != "off" && d.SynchronousCommit != "local"; {
	case d.Standbys == "":
		f.OKf("failover", "a failover to a standby loses what was recorded in the last moments, because synchronous_standby_names is empty")
	case !waits:
		f.Warn("failover", "a failover to a standby loses what was recorded in the last moments: there are synchronous standbys, but synchronous_commit is "+
			d.SynchronousCommit, "Set synchronous_commit on, for the role or in the database.url.")
	case d.Synchronous < 0:
		f.OKf("failover", "a failover to a standby that is synchronous loses nothing; whether one is connected is shown to roles with pg_monitor")
	case d.Synchronous == 0 && d.Quorum == 0:
		f.Warn("failover", "no synchronous standby is connected, so changes wait for one", "Start one of "+d.Standbys+", or change synchronous_standby_names.")
	default:
		safe := fmt.Sprintf("a failover to one of %d synchronous standbys loses nothing", d.Synchronous)
		if d.Quorum > 0 {
			safe = fmt.Sprintf("a failover to one of %d standbys of a quorum loses nothing only if the standby with the most WAL is promoted", d.Quorum)
		}
		if d.SynchronousCommit == "remote_write" {
			safe += ", unless the standby's machine crashes, too"
		}
		f.OKf("failover", "%s", safe)
	}
}
