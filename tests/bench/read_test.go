package bench_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// devicesEach is the number of devices of each simulated host.
const devicesEach = 8

// reader gets one URL again and again on a connection of its own. It does as
// little work as HTTP allows, because it shares the processors with the server.
type reader struct {
	conn    net.Conn
	answers *bufio.Reader
	request []byte
	parsed  *http.Request // what http.ReadResponse needs
}

// newReader connects to the server of the URL.
func newReader(ctx context.Context, url string) (*reader, error) {
	parsed, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}

	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", parsed.URL.Host)
	if err != nil {
		return nil, err
	}

	return &reader{
		conn: conn, answers: bufio.NewReaderSize(conn, 64<<10), parsed: parsed,
		request: fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", parsed.URL.RequestURI(), parsed.URL.Host),
	}, nil
}

// get sends the request and reads the whole answer.
func (r *reader) get() error {
	if _, err := r.conn.Write(r.request); err != nil {
		return err
	}

	response, err := http.ReadResponse(r.answers, r.parsed)
	if err != nil {
		return err
	}

	_, err = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close() // it was read to its end

	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", r.parsed.URL, response.Status)
	}
	return err
}

// ownTime returns the processor time of this process.
func ownTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkRead reads a page of a list, and one accelerator, in a small and in
// a large cloud. In addition to the times it reports the processor time of a
// read: in the server, in PostgreSQL, and in the benchmark itself.
func BenchmarkRead(b *testing.B) {
	for _, devices := range []int{1_000, 80_000} {
		b.Run(fmt.Sprintf("devices=%d", devices), func(b *testing.B) {
			s := filled(b, devices, asBuilt)
			page, err := apiclient.Collect(s.API.Accelerators(b.Context(), apiclient.AcceleratorFilter{}, apiclient.Page{Limit: 1}))
			require.NoError(b, err)

			for _, what := range []struct{ name, path string }{
				{"page=100", "/v1/accelerators?limit=100"},
				{"show", "/v1/accelerators/" + page[0].UUID.String()},
			} {
				for _, clients := range []int{1, 8, 64} {
					b.Run(fmt.Sprintf("%s/clients=%d", what.name, clients), func(b *testing.B) { read(b, s, s.URL+what.path, clients) })
				}
			}
		})
	}
}

// read gets the URL b.N times, and reports times and processor time.
func read(b *testing.B, s *harness.Standalone, url string, clients int) {
	b.Helper()
	get := readers(b, url, clients)

	var took samples
	before, own := used(b, s), ownTime(b)

	b.ResetTimer()

	share(b, clients, b.N, func(int) error {
		return took.measure(func() error { return get(b.Context(), uuid.Nil) })
	})

	b.StopTimer()
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(b.N) }

	spent := used(b, s).since(before)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reads/s")
	b.ReportMetric(each(spent.server), "server-µs/op")
	b.ReportMetric(each(spent.postgres), "postgres-µs/op")
	b.ReportMetric(each(ownTime(b)-own), "client-µs/op")

	took.report(b, "")
}

// readers connects this many readers to the URL, and returns what has one of them
// read it.
func readers(b *testing.B, url string, clients int) func(context.Context, uuid.UUID) error {
	b.Helper()
	idle := make(chan *reader, clients)
	for range clients {
		r, err := newReader(b.Context(), url)
		require.NoError(b, err)
		b.Cleanup(func() { _ = r.conn.Close() }) // the benchmark is over
		require.NoError(b, r.get())              // so that the server opens its connections to the database before
		idle <- r
	}

	return func(context.Context, uuid.UUID) error {
		r := <-idle
		defer func() { idle <- r }()
		return r.get()
	}
}

// filled starts a standalone with this many devices, which simulated agents
// report.
func filled(b *testing.B, devices int, with func(harness.Options) harness.Options) *harness.Standalone {
	b.Helper()
	s := harness.Start(b, with(harness.Options{Hosts: []string{"fake:1xfpga"}, Env: []string{
		"CYBORG_CONDUCTOR_SILENT_AFTER=24h", // the agents end, and silent hosts would change the measurement
		"CYBORG_CONDUCTOR_RECONCILE_INTERVAL=1h",
	}}))

	agents := simulate(b, s, devices/devicesEach, "-heartbeat", "0")
	agents.do(b, "start")
	agents.end(b)

	execute(b, s, "VACUUM ANALYZE") // autovacuum would do it after a while
	return s
}

// execute runs a statement in the database.
func execute(b *testing.B, s *harness.Standalone, sql string) {
	b.Helper()
	url, err := s.DatabaseURL()
	require.NoError(b, err)

	conn, err := pgx.Connect(b.Context(), url)
	require.NoError(b, err)
	defer conn.Close(b.Context())

	_, err = conn.Exec(b.Context(), sql)
	require.NoError(b, err)
}
