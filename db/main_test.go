package db_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/leaktest"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the generated parts of the documentation")
	if err := flag.Set("rapid.checks", "40"); err != nil { // few, because each check is many transactions
		panic(err)
	}
	leaktest.Main(postgrestest.Runner(m))
}

// records is a store on a database of the test's own, with the address of the
// database and a pool to reach it directly.
type records struct {
	*db.Store
	url string
	sql *pgxpool.Pool // for what no caller of the store can do
}

// newRecords opens a store on a new database.
func newRecords(t testing.TB) *records {
	t.Helper()
	return newRecordsWith(t, defaults())
}

// defaults are the options of most tests. No host falls silent by itself, however
// slow the machine is.
func defaults() db.Options { return db.Options{SilentAfter: 25 * time.Minute} }

// newRecordsWith opens a store with options on a new database, which is a copy
// of a migrated one.
func newRecordsWith(t testing.TB, opts db.Options) *records {
	t.Helper()
	url := postgrestest.NewFrom(t, "migrated", func(ctx context.Context, url string) error {
		_, err := db.Migrate(ctx, url)
		return err
	})
	return &records{Store: openStore(t, url, opts), url: url, sql: newPool(t, url)}
}

// newPool connects to a database without a store.
func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// withParameter returns the URL of a database with a parameter for each of its
// sessions.
func withParameter(t testing.TB, database, name, value string) string {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)

	query := u.Query()
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u.String()
}

// openStore opens another store on the same records, as another process would.
func openStore(t testing.TB, url string, opts db.Options) *db.Store {
	t.Helper()
	return openStoreSaying(t, url, opts, t.Output())
}

// openStoreSaying is openStore with a log of its own.
func openStoreSaying(t testing.TB, url string, opts db.Options, said io.Writer) *db.Store {
	t.Helper()
	store, err := db.Open(t.Context(), url, opts, slog.New(slog.NewTextHandler(said, nil)))
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return store
}

// exec runs SQL that no caller of the store could run.
func (r *records) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := r.sql.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// scalar reads the one value that a query returns.
func scalar[T any](t testing.TB, r *records, sql string, args ...any) T {
	t.Helper()
	var out T
	require.NoError(t, r.sql.QueryRow(t.Context(), sql, args...).Scan(&out))
	return out
}

// host is an agent, as far as the records see it.
type host struct {
	records  *records
	name     string
	boot     string
	sequence int64
	content  agentapi.Content
	reply    agentapi.ReportReply
}

// addHost reports a host with devices of two handles each on one backend.
func (r *records) addHost(t testing.TB, name string, devices int) *host {
	t.Helper()
	h := &host{records: r, name: name, boot: "boot-1", content: content(devices)}
	h.report(t)
	return h
}

// content is what a host with this many devices on one backend reports.
func content(devices int) agentapi.Content {
	b := agentapi.BackendReport{Name: "fake", Driver: "fake", State: cyborg.BackendOK, Services: []string{"discover", "attach"}}
	for i := range devices {
		b.Devices = append(b.Devices, device(fmt.Sprintf("card%d", i)))
	}
	return agentapi.Content{Backends: []agentapi.BackendReport{b}, Attachments: []agentapi.Attachment{}}
}

// device is a card with one deployable of the same name, and two handles.
func device(name string) cyborg.DeviceReport {
	return cyborg.DeviceReport{
		Identity: name, Type: cyborg.DeviceTypeFPGA, VendorID: "1234", ProductID: "0001", Vendor: "Acme", Model: "F1",
		ControlPath: cyborg.ControlPath{Kind: "PCI", Info: map[string]string{"bus": name}},
		Deployables: []cyborg.DeployableReport{deployable(name, 2)},
	}
}

// deployable is a part of a card with this many handles.
func deployable(name string, handles int) cyborg.DeployableReport {
	d := cyborg.DeployableReport{
		Name:       name,
		Specs:      cyborg.Specs{Num: handles, DeviceType: cyborg.DeviceTypeFPGA, VendorID: "1234", ProductID: "0001"},
		Attributes: []cyborg.Attribute{{Key: "rc", Value: "FPGA"}},
	}

	for i := range handles {
		d.Handles = append(d.Handles, cyborg.HandleReport{
			Kind: cyborg.HandleTestPCI, Identity: fmt.Sprintf("%s.%d", name, i), Info: map[string]string{"function": fmt.Sprint(i)},
		})
	}
	return d
}

// next is the report that the agent would send now.
func (h *host) next() agentapi.Report {
	h.sequence++
	return agentapi.Report{
		Host: h.name, BootID: h.boot, AgentVersion: "1", Sequence: h.sequence, Digest: h.content.Digest(), Content: h.content,
	}
}

// report sends the agent's next report and keeps the reply for its heartbeats.
func (h *host) report(t testing.TB) agentapi.ReportReply {
	t.Helper()
	replies, err := h.records.MergeReports(t.Context(), []agentapi.Report{h.next()})
	require.NoError(t, err)
	h.reply = replies[0]
	return h.reply
}

// beat is the heartbeat that the agent would send now.
func (h *host) beat() agentapi.Heartbeat {
	return agentapi.Heartbeat{
		Host: h.name, BootID: h.boot, AgentVersion: "1", StartedAt: time.Unix(1, 0), Digest: h.content.Digest(),
		Present: h.content.Digest(), Generation: h.reply.Generation,
	}
}

// fall makes the host silent: it was heard last an hour ago.
func (h *host) fall(t testing.TB) {
	t.Helper()
	h.records.exec(t, "UPDATE hosts SET last_seen = now() - interval '1 hour' WHERE name = $1", h.name)
}

// accelerators are those of a host, by the driver's names.
func (h *host) accelerators(t testing.TB) map[string]cyborg.Accelerator {
	t.Helper()
	found, err := h.records.Accelerators(t.Context(), db.AcceleratorFilter{Hosts: []string{h.name}}, db.Page{})
	require.NoError(t, err)
	out := map[string]cyborg.Accelerator{}
	for _, a := range found {
		out[a.LocalName] = a
	}
	return out
}

// accelerator is the one with this name of the driver, which must exist.
func (h *host) accelerator(t testing.TB, local string) *cyborg.Accelerator {
	t.Helper()
	a, ok := h.accelerators(t)[local]
	require.True(t, ok, "host %s has no %s", h.name, local)
	return &a
}

// alice is the actor of most tests.
func alice() cyborg.Actor { return cyborg.Actor{Name: "alice", Project: "p", RequestID: "req-1"} }

// admission is one without a request.
func admission() db.Admission { return db.Admission{ID: uuid.New(), Actor: alice()} }

// edit changes the request of an admission.
func edit[R cyborg.Request](a *db.Admission, change func(r *R)) {
	r := a.Request.(R)
	change(&r)
	a.Request = r
}

// toProvision is the admission of a provision.
func toProvision(r cyborg.ProvisionRequest) db.Admission {
	a := admission()
	a.Request = r
	return a
}

// toAttach is the admission of an attach.
func toAttach(accelerator uuid.UUID, holder cyborg.Holder) db.Admission {
	a := admission()
	a.Request = cyborg.AttachRequest{Accelerator: accelerator, Holder: holder}
	return a
}

// toDetach is the admission of a detach from this holder, or from all where it
// is nil.
func toDetach(accelerator uuid.UUID, holder *cyborg.Holder) db.Admission {
	a := admission()
	a.Request = cyborg.DetachRequest{Accelerator: accelerator, Holder: holder}
	return a
}

// toProgram is the admission of a program with any image.
func toProgram(accelerator uuid.UUID) db.Admission {
	a := admission()
	a.Request = cyborg.ProgramRequest{Accelerator: accelerator, Image: cyborg.Image{Source: "image.bin"}}
	return a
}

// toConfigure is the admission of a change of a backend.
func toConfigure(r cyborg.ConfigureRequest) db.Admission {
	a := admission()
	a.Request = r
	return a
}

// onHost is a holder that is a host.
func onHost(name string) cyborg.Holder { return cyborg.Holder{Kind: cyborg.HolderHost, ID: name} }

// instance is a holder that is an instance.
func instance(id string) cyborg.Holder { return cyborg.Holder{Kind: cyborg.HolderInstance, ID: id} }

// admit admits an operation that has something to do.
func (r *records) admit(t testing.TB, a db.Admission) cyborg.Operation {
	t.Helper()
	out, err := r.Admit(t.Context(), a)
	require.NoError(t, err)
	require.False(t, out.NothingToDo)
	return out.Operation
}

// begin admits and begins an operation.
func (r *records) begin(t testing.TB, a db.Admission) cyborg.Work {
	t.Helper()
	work, err := r.Begin(t.Context(), runOf(r.admit(t, a).ID))
	require.NoError(t, err)
	return work
}

// end ends an operation, with an error unless it has succeeded.
func (r *records) end(t testing.TB, work cyborg.Work, state cyborg.OperationState) {
	t.Helper()
	outcome := cyborg.Outcome{Operation: work.Operation, State: state}
	if state != cyborg.OperationSucceeded {
		outcome.Error = cyborg.Errorf(cyborg.ErrHardware, "it smoked")
	}
	require.NoError(t, r.End(t.Context(), runOf(outcome.Operation), outcome))
}

// do admits, begins and ends an operation.
func (r *records) do(t testing.TB, a db.Admission, state cyborg.OperationState) cyborg.Work {
	t.Helper()
	work := r.begin(t, a)
	r.end(t, work, state)
	return work
}

// ready provisions an accelerator of the host under its present name.
func (h *host) ready(t testing.TB, local string) *cyborg.Accelerator {
	t.Helper()
	a := h.accelerator(t, local)
	h.records.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}), cyborg.OperationSucceeded)
	return h.accelerator(t, local)
}

// accelerator reads an accelerator, which must exist.
func (r *records) accelerator(t testing.TB, id uuid.UUID) *cyborg.Accelerator {
	t.Helper()
	a, err := r.Accelerator(t.Context(), id)
	require.NoError(t, err)
	return &a
}

// requireKind requires an error of this kind that contains each text.
func requireKind(t testing.TB, kind cyborg.ErrorKind, err error, text ...string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, kind, cyborg.ErrorKindOf(err), "%v", err)
	for _, part := range text {
		require.ErrorContains(t, err, part)
	}
}

// runOf is the run of an operation's workflow; each operation of these tests
// has one, unless a test says otherwise.
func runOf(operation uuid.UUID) db.Run {
	return db.Run{Operation: operation, ID: "run-of-" + operation.String()}
}
