package db_test

import (
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

// TestFeedSurvivesARestoreIntoAnotherServer: after a dump was restored into a
// new PostgreSQL, whose transaction ids are far below those that the events
// have, all events can be read at once, new ones come after them, and a reader
// goes on at its cursor.
func TestFeedSurvivesARestoreIntoAnotherServer(t *testing.T) {
	t.Parallel()
	old := newRecords(t)
	old.exec(t, "DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
	old.addHost(t, "h1", 2)
	at := old.endOfFeed(t)
	dump := old.dump(t)

	// What the dump does not have is lost.
	lost := old.maintain(t, "h1", "card0")

	server := startServer(t, filepath.Join(serverDir(t), "restored"), postgres.Config{FsyncOff: true})
	require.NoError(t, server.CreateDatabase(t.Context(), "cyborg"))
	r := restored(t, server.URL("cyborg"), dump)
	require.Less(t, scalar[uint64](t, r, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"), at.Transaction, "its ids begin below")

	before := r.events(t, cyborg.Cursor{})
	require.Len(t, before, scalar[int](t, r, "SELECT count(*) FROM events"), "all events can be read before there is a new one")
	require.Equal(t, at, r.lastCursor(t))

	r.requireLost(t, lost, at)
	r.requireNext(t, at, r.maintain(t, "h1", "card1"))
	r.requireLost(t, lost, at)
	require.Equal(t, before, r.events(t, cyborg.Cursor{})[:len(before)], "the old events come first")
}

// TestFeedSurvivesARestoreIntoTheSameServer: after the database was dropped and
// made again from a dump, the same is true.
func TestFeedSurvivesARestoreIntoTheSameServer(t *testing.T) {
	t.Parallel()
	old := newRecords(t)
	old.addHost(t, "h1", 2)
	at := old.endOfFeed(t)
	dump := old.dump(t)
	lost := old.maintain(t, "h1", "card0")
	r := old.remake(t, dump)

	require.Equal(t, at, r.endOfFeed(t))
	r.requireLost(t, lost, at)
	r.requireNext(t, at, r.maintain(t, "h1", "card1"))
	r.requireLost(t, lost, at)
	require.Equal(t, 2, scalar[int](t, r, "SELECT count(*) FROM feed_epochs"), "it is another copy of the database")
}

// TestAssignmentsGoOnBehindThoseThatWereLost: after a restore into the same
// PostgreSQL, and after a failover, no assignment number is drawn once more, though
// no host has said yet which it has seen.
func TestAssignmentsGoOnBehindThoseThatWereLost(t *testing.T) {
	t.Parallel()
	draw := func(r *records) int64 { return scalar[int64](t, r, "SELECT next_assignment()") }

	old := newRecords(t)
	old.addHost(t, "h1", 1)
	dump := old.dump(t)
	last := draw(old)
	again := old.remake(t, dump)
	require.Greater(t, draw(again), last)
	require.Equal(t, draw(again)+1, draw(again), "within an epoch one comes after the other")

	pair := startPair(t, "")
	pair.old.addHost(t, "h1", 1)
	pair.waitForStandby(t)
	stopServer(t, pair.standby)
	for range 100 { // PostgreSQL writes ahead of a sequence, 32 numbers at a time
		last = draw(pair.old)
	}
	pair.standby = startServer(t, pair.standbyDir, pair.standbyConfig("unreachable"))
	require.Greater(t, draw(pair.failOver(t)), last)
}

// TestFeedSurvivesAFailover: the standby had every commit, and readers go on
// without a gap.
func TestFeedSurvivesAFailover(t *testing.T) {
	t.Parallel()
	pair := startPair(t, "standby")
	pair.old.addHost(t, "h1", 2)
	at := pair.old.endOfFeed(t)
	second := pair.old.maintain(t, "h1", "card0")

	r := pair.failOver(t)
	require.Equal(t, second, r.lastCursor(t))
	r.requireNext(t, at, second)
	third := r.maintain(t, "h1", "card1")
	r.requireNext(t, second, third)
	require.Equal(t, third, r.endOfFeed(t))
}

// TestFeedSurvivesAFailoverThatLosesCommits: the standby had not received the
// last commits. A reader that has read them is told where to go on, although the
// new primary gives their transaction ids once more.
func TestFeedSurvivesAFailoverThatLosesCommits(t *testing.T) {
	t.Parallel()
	pair := startPair(t, "")
	pair.old.addHost(t, "h1", 2)
	at := pair.old.endOfFeed(t)
	pair.waitForStandby(t)

	stopServer(t, pair.standby)
	var lost []cyborg.Cursor
	for range 5 {
		lost = append(lost, pair.old.maintain(t, "h1", "card0"))
	}
	pair.standby = startServer(t, pair.standbyDir, pair.standbyConfig("unreachable"))

	r := pair.failOver(t)
	require.Equal(t, at, r.lastCursor(t))
	for _, cursor := range lost {
		r.requireLost(t, cursor, at)
	}

	first := r.maintain(t, "h1", "card1")
	for range 10 { // more than were lost, so that their ids are given again
		r.maintain(t, "h1", "card1")
	}
	for _, cursor := range lost {
		r.requireLost(t, cursor, at)
	}
	r.requireNext(t, at, first)
}

// TestAStandbyMayBeBehind: a standby that has not received a reader's last event
// does not say that it was lost.
func TestAStandbyMayBeBehind(t *testing.T) {
	t.Parallel()
	pair := startPair(t, "")
	pair.old.addHost(t, "h1", 1)
	at := pair.old.endOfFeed(t)
	pair.waitForStandby(t)
	stopServer(t, pair.standby)
	next := pair.old.maintain(t, "h1", "card0")

	pair.standby = startServer(t, pair.standbyDir, pair.standbyConfig("unreachable"))
	r := &records{Store: openStore(t, pair.standby.URL("cyborg"), defaults())}
	require.Empty(t, r.events(t, at))
	_, err := r.Events(t.Context(), db.EventFilter{}, next, 0)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.Contains(t, err.Error(), "standby")
}

// TestAnOpenStoreFollowsAFailover: a store whose URL names both servers goes on
// at the new primary, and does not pass over what was lost.
func TestAnOpenStoreFollowsAFailover(t *testing.T) {
	t.Parallel()
	pair := startPair(t, "")
	pair.old.addHost(t, "h1", 2)
	at := pair.old.endOfFeed(t)
	pair.waitForStandby(t)
	stopServer(t, pair.standby)

	u := parsed(t, pair.old.url)
	first, second := u.Query(), parsed(t, pair.standby.URL("cyborg")).Query()
	u.RawQuery = url.Values{
		"host": {first.Get("host") + "," + second.Get("host")}, "port": {first.Get("port") + "," + second.Get("port")},
		"target_session_attrs": {"read-write"},
	}.Encode()
	r := &records{Store: openStore(t, u.String(), defaults()), url: u.String(), sql: newPool(t, u.String())}
	lost := r.maintain(t, "h1", "card0")
	wake := r.Notify(t.Context())

	pair.standby = startServer(t, pair.standbyDir, pair.standbyConfig("unreachable"))
	promoted := pair.failOver(t)
	next := promoted.maintain(t, "h1", "card1")

	// The reader of a stream looks whenever it is woken.
	require.Eventually(t, func() bool {
		<-wake
		_, err := r.Events(t.Context(), db.EventFilter{}, lost, 0)
		return cyborg.ErrorKindOf(err) == cyborg.ErrGone
	}, 5*time.Minute, time.Millisecond)
	r.requireLost(t, lost, at)
	r.requireNext(t, at, next)

	card := (&host{records: promoted, name: "h1"}).accelerator(t, "card0")
	require.Eventually(t, func() bool { // a broken connection may be noticed only when it is used
		_, err := r.Maintain(t.Context(), card.UUID, cyborg.Maintenance{Reason: "x"}, alice())
		return err == nil
	}, 5*time.Minute, time.Millisecond)
}

// TestFeedSurvivesAnOlderCopyOfTheServer: a copy of the server's files, which
// is the same cluster on the same timeline, goes on at an earlier time.
func TestFeedSurvivesAnOlderCopyOfTheServer(t *testing.T) {
	t.Parallel()
	dir := serverDir(t)
	server := startServer(t, filepath.Join(dir, "first"), postgres.Config{FsyncOff: true})
	old := recordsOn(t, server)
	old.addHost(t, "h1", 2)
	at := old.endOfFeed(t)
	old.close()
	stopServer(t, server)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "copy"), 0o711))
	command(t, "cp", "-a", filepath.Join(dir, "first", "data"), filepath.Join(dir, "copy"))

	server = startServer(t, filepath.Join(dir, "first"), postgres.Config{FsyncOff: true})
	old = recordsOn(t, server)
	lost := old.maintain(t, "h1", "card0")
	old.close()
	stopServer(t, server)

	r := recordsOn(t, startServer(t, filepath.Join(dir, "copy"), postgres.Config{FsyncOff: true}))
	r.requireLost(t, lost, at)
	r.requireNext(t, at, r.maintain(t, "h1", "card1"))
	r.requireLost(t, lost, at)
}

// TestTheFirstWritersOfAnEpochAgree: many transactions write at once after
// PostgreSQL was started again. All are of one new epoch, and no reader misses
// an event.
func TestTheFirstWritersOfAnEpochAgree(t *testing.T) {
	t.Parallel()
	const writers = 8
	r := newRecords(t)
	var cards []*cyborg.Accelerator
	for i := range writers {
		cards = append(cards, r.addHost(t, string(rune('a'+i)), 1).accelerator(t, "card0"))
	}
	at := r.endOfFeed(t)

	// To the records, another start of PostgreSQL is another time of its start.
	r.exec(t, "UPDATE feed_epochs SET server_started = server_started - interval '1 day'")
	require.Equal(t, at, r.lastCursor(t))

	done := make(chan error, writers)
	for _, card := range cards {
		go func() {
			_, err := r.Maintain(t.Context(), card.UUID, cyborg.Maintenance{Reason: "x"}, alice())
			done <- err
		}()
	}

	var read []cyborg.Event
	cursor := at
	for ended := 0; ended < writers; {
		select {
		case err := <-done:
			require.NoError(t, err)
			ended++
		default:
		}

		if events := r.events(t, cursor); len(events) > 0 {
			read, cursor = append(read, events...), events[len(events)-1].Cursor
		}
	}

	r.endOfFeed(t)
	read = append(read, r.events(t, cursor)...)
	require.Len(t, read, writers)
	require.Equal(t, 2, scalar[int](t, r, "SELECT count(*) FROM feed_epochs"))
	require.Equal(t, r.events(t, at), read)
}

// TestAnEpochIsAboveAllThatIsStored: the stored numbers are above the clock,
// because it was set back. The events of a new epoch come after them even if
// their transaction is older than the one that begins the epoch.
func TestAnEpochIsAboveAllThatIsStored(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	card := r.addHost(t, "h1", 1).accelerator(t, "card0")
	r.exec(t, "UPDATE events SET transaction = (transaction::text::bigint + 3000000000000000000)::text::xid8")
	r.exec(t, "UPDATE feed_epochs SET server_started = server_started - interval '1 day'")
	at := r.lastCursor(t)
	require.Greater(t, at.Transaction, uint64(3000000000000000000))

	older, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	_, err = older.Exec(t.Context(), "SELECT pg_current_xact_id()")
	require.NoError(t, err)
	for range 3 { // so that the next one's id is not just behind
		r.exec(t, "SELECT pg_current_xact_id()")
	}

	_, err = r.Maintain(t.Context(), card.UUID, cyborg.Maintenance{Reason: "x"}, alice())
	require.NoError(t, err)
	_, err = older.Exec(t.Context(), "INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value) VALUES ('host', 'h1', 'h1', 'older', '', '')")
	require.NoError(t, err)
	require.NoError(t, older.Commit(t.Context()))

	r.endOfFeed(t)
	after := r.events(t, at)
	require.Len(t, after, 2)
	require.Equal(t, "older", string(after[0].Axis))
	first := scalar[int64](t, r, "SELECT first FROM feed_epochs ORDER BY epoch DESC LIMIT 1")
	require.GreaterOrEqual(t, after[0].Cursor.Transaction, uint64(first), "no event is before the first number")
}

// TestFeedSurvivesAClockThatWasSetBack: the stored numbers are above the clock,
// because it was set back, and then commits are lost. Readers of these are told
// where to go on, and miss nothing; also where a start of PostgreSQL was lost with
// them, so that they have read numbers of an epoch of which nobody knows.
func TestFeedSurvivesAClockThatWasSetBack(t *testing.T) {
	t.Parallel()
	const most = 3
	unlucky := 0
rounds:
	for range most { // whether the lost epoch or the present one has the greater numbers is chance
		old := newRecords(t)
		old.exec(t, "UPDATE feed_epochs SET base = base + 3000000000000000000")
		old.addHost(t, "h1", 2)
		at := old.endOfFeed(t)
		dump := old.dump(t)

		lost := []cyborg.Cursor{old.maintain(t, "h1", "card0")}
		for range 3 { // the lost starts
			old.exec(t, "UPDATE feed_epochs SET server_started = server_started - interval '1 day'")
			lost = append(lost, old.maintain(t, "h1", "card0"))
		}
		lost = append(lost, cyborg.Cursor{Transaction: math.MaxUint64, Event: math.MaxInt64}) // what somebody makes up

		r := old.remake(t, dump)
		var first cyborg.Cursor
		for i := range 20 { // more than were lost
			cursor := r.maintain(t, "h1", "card1")
			if i == 0 {
				first = cursor
			}
			// Each epoch begins at one of 1,024 places behind the last event. Two that begin
			// at the same one cannot be told apart.
			together := func(one cyborg.Cursor) bool {
				return max(one.Transaction, first.Transaction)-min(one.Transaction, first.Transaction) < 1<<30
			}
			if slices.ContainsFunc(lost, together) {
				unlucky++
				continue rounds
			}
			for _, one := range lost {
				r.requireLost(t, one, at)
			}
		}
		r.requireNext(t, at, first)
	}
	require.Less(t, unlucky, most, "that is no chance")
}

// TestFeedOfADatabaseThatWasRestoredBeforeTheMigration: the migration finds ids
// that PostgreSQL has not reached, and begins an epoch above them.
func TestFeedOfADatabaseThatWasRestoredBeforeTheMigration(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.addHost(t, "h1", 2)
	ids := "(SELECT pg_current_xact_id()::text::bigint + 1000000)"
	r.exec(t, "UPDATE events SET transaction = (transaction::text::bigint + "+ids+")::text::xid8")
	r.exec(t, "DELETE FROM goose_db_version WHERE version_id >= 9")
	r.exec(t, `
		DROP TRIGGER number_transaction ON events; ALTER TABLE events ALTER transaction SET DEFAULT pg_current_xact_id();
		DROP FUNCTION number_transaction, begin_feed_epoch, feed_base, unreadable_from, begin_epoch; DROP TABLE feed_epochs;
		DROP TABLE host_identities, forgotten_handles; DROP FUNCTION host_identities_changed;
		DROP TRIGGER deployables_conditions_added ON deployables; DROP TRIGGER deployables_conditions_since ON deployables;
		DROP TRIGGER conditions_changed ON deployables; DROP FUNCTION deployables_conditions_since, conditions_changed, conditions_named;
		ALTER TABLE deployables DROP COLUMN unready, DROP COLUMN conditions, DROP COLUMN conditions_since;
		DROP FUNCTION partitioned_added, partitioned_moved, partitioned_released, devices_layout CASCADE; DROP VIEW drift;
		DROP FUNCTION clear_pending_image, pending_image_changed CASCADE; ALTER TABLE deployables DROP COLUMN pending_image;
		DROP TRIGGER refuse_handover ON devices;
		ALTER TABLE devices DROP COLUMN partition_open, DROP COLUMN partition_operation, DROP COLUMN layout_differs_since, DROP COLUMN wanted_layout,
			DROP COLUMN partitioning, DROP COLUMN layout_doubt_operation;
		DROP FUNCTION layout_text;
		DROP FUNCTION attach_handles_left, attach_handles_doubted, attach_handles_forgotten, attach_handles_shown_again, placement_unclean_changed,
			cleaning_changed, cleaning_after, stronger_cleaning, cleaning_strength CASCADE;
		ALTER TABLE deployables DROP COLUMN cleaning; DROP TABLE forgotten_cleanings;
		ALTER TABLE attach_handles DROP COLUMN clean, DROP COLUMN unclean, DROP COLUMN unclean_since, DROP COLUMN cleaned;
		DROP TRIGGER attach_handles_freed ON attach_handles; DROP TRIGGER preparation_changed ON deployables;
		DROP FUNCTION attach_handles_freed, preparation_changed; ALTER TABLE deployables DROP COLUMN preparation;
		ALTER TABLE attach_handles DROP COLUMN companions, DROP COLUMN prepared, DROP COLUMN parameters;
		DROP TRIGGER attach_handles_given ON attach_handles;
		DROP TRIGGER excludes_changed ON deployables; DROP TRIGGER nova_spec_given ON deployables;
		DROP FUNCTION attach_handles_given, nova_spec_given, check_given, excluded_with, excludes_changed; ALTER TABLE deployables DROP COLUMN excludes;
		DROP TRIGGER same_holder_changed ON deployables; DROP FUNCTION same_holder_changed; ALTER TABLE deployables DROP COLUMN same_holder;
		DROP TRIGGER forget_uptime ON hosts; DROP FUNCTION forget_uptime;
		DROP FUNCTION journals_lost; ALTER TABLE hosts DROP COLUMN journal_opening, DROP COLUMN journal_writes, DROP COLUMN uptime, DROP COLUMN facts; DROP TABLE grant_keys;
		DROP FUNCTION epoch_in_force, unheard_for; ALTER TABLE hosts DROP COLUMN heard_epoch;
		DROP TRIGGER uninstall_pending_changed ON deployables; DROP FUNCTION uninstall_pending_changed;
		ALTER TABLE deployables DROP COLUMN uninstall_pending_since; DROP TABLE forgotten_installs;
		DROP TABLE pending_settlements; DROP FUNCTION read_before, placement_settlement_failed;
		DROP TRIGGER run_corrected ON operations; ALTER TABLE operations DROP COLUMN stray_run, DROP COLUMN cancel_repeated_at;
		DROP FUNCTION run_corrected, may_write, require_writer, writers_begin_epochs, loads_image;
		ALTER TABLE arqs DROP COLUMN bound_boot, DROP COLUMN bound_uptime;
		DROP TRIGGER attach_handles_released ON attach_handles; DROP FUNCTION attach_handles_released;
		ALTER TABLE attach_handles DROP COLUMN undone_reason, DROP COLUMN undone_at;
		DROP TRIGGER devices_back ON devices; DROP FUNCTION devices_back, other_card; ALTER TABLE devices DROP COLUMN fingerprint, DROP COLUMN replaced_by`)
	_, err := db.Migrate(t.Context(), r.url)
	require.NoError(t, err)

	before := r.events(t, cyborg.Cursor{})
	require.Len(t, before, scalar[int](t, r, "SELECT count(*) FROM events"))
	r.requireNext(t, before[len(before)-1].Cursor, r.maintain(t, "h1", "card0"))
}

// TestCursorOlderThanTheRetention: a reader whose last event was deleted is told
// so. The newest event is kept, so that a reader who has it all is not.
func TestCursorOlderThanTheRetention(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.addHost(t, "h1", 2)
	last := r.endOfFeed(t)
	first := r.events(t, cyborg.Cursor{})[0].Cursor

	r.exec(t, "UPDATE events SET at = at - interval '1 day'")
	_, err := r.Prune(t.Context(), db.Retention{Events: time.Hour})
	require.NoError(t, err)

	_, err = r.Events(t.Context(), db.EventFilter{}, first, 0)
	require.Equal(t, cyborg.ErrGone, cyborg.ErrorKindOf(err))
	require.Zero(t, cyborg.AsError(err).After)
	require.Contains(t, err.Error(), "no longer kept")

	require.Empty(t, r.events(t, last))
	r.requireNext(t, last, r.maintain(t, "h1", "card0"))
}

// maintain takes an accelerator out of use and returns the place of the event,
// which it has read.
func (r *records) maintain(t testing.TB, on, local string) cyborg.Cursor {
	t.Helper()
	a := (&host{records: r, name: on}).accelerator(t, local)
	_, err := r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: time.Now().String()}, alice())
	require.NoError(t, err)
	return r.endOfFeed(t)
}

// events reads the feed after a place, which must be there.
func (r *records) events(t testing.TB, after cyborg.Cursor) []cyborg.Event {
	t.Helper()
	events, err := r.Events(t.Context(), db.EventFilter{}, after, 0)
	require.NoError(t, err)
	return events
}

// requireNext: a reader at the first place reads the event at the second one
// next.
func (r *records) requireNext(t testing.TB, at, next cyborg.Cursor) {
	t.Helper()
	events := r.events(t, at)
	require.NotEmpty(t, events)
	require.Equal(t, next, events[0].Cursor)
}

// requireLost: a reader that has read a lost event is told so, and to go on
// after the last event that it has read and that is there.
func (r *records) requireLost(t testing.TB, lost, last cyborg.Cursor) {
	t.Helper()
	_, err := r.Events(t.Context(), db.EventFilter{}, lost, 0)
	require.Equal(t, cyborg.ErrGone, cyborg.ErrorKindOf(err))
	require.Contains(t, err.Error(), "it was lost")
	require.Equal(t, last, cyborg.AsError(err).After)
}

// close closes the store and the pool.
func (r *records) close() {
	r.Close()
	r.sql.Close()
}

// dump makes a backup of the database with pg_dump.
func (r *records) dump(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dump")
	command(t, "pg_dump", "--format=custom", "--file="+file, "--dbname="+r.url)
	return file
}

// remake drops the database, makes it again from a dump, and opens a store on it.
func (r *records) remake(t testing.TB, dump string) *records {
	t.Helper()
	r.close()

	server := parsed(t, r.url)
	name := filepath.Base(server.Path)
	server.Path = "/postgres"
	command(t, "dropdb", "--maintenance-db="+server.String(), name)
	command(t, "createdb", "--maintenance-db="+server.String(), name)
	return restored(t, r.url, dump)
}

// restored fills an empty database from a dump, and opens a store on it.
func restored(t testing.TB, url, dump string) *records {
	t.Helper()
	command(t, "pg_restore", "--exit-on-error", "--no-owner", "--dbname="+url, dump)
	return &records{Store: openStore(t, url, defaults()), url: url, sql: newPool(t, url)}
}

// parsed is the URL of a database.
func parsed(t testing.TB, database string) *url.URL {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	return u
}

// command runs a program.
func command(t testing.TB, name string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s: %s", name, out)
}

// pair is a primary with a standby.
type pair struct {
	old              *records
	primary, standby *postgres.Server
	standbyDir, hba  string
	socketDir        string
}

// startPair starts a primary with a standby, which is synchronous if it has a
// name.
func startPair(t testing.TB, synchronous string) *pair {
	t.Helper()
	dir := serverDir(t)
	p := &pair{standbyDir: filepath.Join(dir, "standby"), hba: filepath.Join(dir, "pg_hba.conf")}
	require.NoError(t, os.WriteFile(p.hba, []byte("local all,replication all peer map=cyborg\n"), 0o644))
	primary := filepath.Join(dir, "primary")

	first := startServer(t, primary, postgres.Config{Settings: map[string]string{"hba_file": p.hba}})
	recordsOn(t, first).close()
	stopServer(t, first)

	require.NoError(t, os.Mkdir(p.standbyDir, 0o711))
	command(t, "cp", "-a", filepath.Join(primary, "data"), p.standbyDir)
	require.NoError(t, os.WriteFile(filepath.Join(p.standbyDir, "data", "standby.signal"), nil, 0o644))

	p.primary = startServer(t, primary, postgres.Config{Settings: map[string]string{"hba_file": p.hba, "synchronous_standby_names": synchronous}})
	p.socketDir = parsed(t, p.primary.URL("cyborg")).Query().Get("host")
	p.standby = startServer(t, p.standbyDir, p.standbyConfig(p.socketDir))
	p.old = recordsOn(t, p.primary)
	p.waitForStandby(t)
	return p
}

// standbyConfig is that of a standby which follows the server of that socket.
func (p *pair) standbyConfig(socketDir string) postgres.Config {
	return postgres.Config{Settings: map[string]string{
		"primary_conninfo": "host=" + socketDir + " user=cyborg application_name=standby",
		"hba_file":         p.hba, "wal_retrieve_retry_interval": "100ms",
	}}
}

// waitForStandby waits until the standby has what the primary has committed.
func (p *pair) waitForStandby(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool {
		return scalar[int](t, p.old, "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()") == 1
	}, 5*time.Minute, 10*time.Millisecond)
}

// failOver stops the primary at once, promotes the standby, and opens a store
// there.
func (p *pair) failOver(t testing.TB) *records {
	t.Helper()
	p.old.close()
	require.NoError(t, syscall.Kill(p.primary.PID(), syscall.SIGQUIT))
	<-p.primary.Done()

	url := p.standby.URL("cyborg")
	promoted := &records{url: url, sql: newPool(t, url)}
	require.True(t, scalar[bool](t, promoted, "SELECT pg_promote(true, 300)"))
	promoted.Store = openStore(t, url, defaults())
	return promoted
}
