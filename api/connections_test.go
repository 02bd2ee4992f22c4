package api_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

// dial opens a connection and sends the beginning of a request.
func dial(t *testing.T, address, begin string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })

	_, err = io.WriteString(conn, begin)
	require.NoError(t, err)
	return conn
}

// requireClosed waits until the server has closed the connection.
func requireClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	requireClosedWithin(t, conn, waitLimit)
}

func requireClosedWithin(t *testing.T, conn net.Conn, limit time.Duration) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(limit)))
	_, err := io.Copy(io.Discard, conn)
	timeout, ok := err.(net.Error) //nolint:errorlint // a deadline's error is not wrapped
	require.False(t, ok && timeout.Timeout(), "it is still open")
}

// Clients that open connections and send next to nothing keep nobody out,
// however many they are, and do not disturb a request in progress.
func TestIdleConnectionsDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	const limit, crowd = 20, 200
	entered, leave := make(chan struct{}), make(chan struct{})

	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /long", func(http.ResponseWriter, *http.Request) {
		close(entered)
		<-leave
	})

	registry := prometheus.NewRegistry()
	address, stop := served(t, mux, api.Endpoint{}, api.ServeOptions{Connections: limit, Registry: registry, Name: "test", Head: time.Minute})
	working := dial(t, address, "GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-entered

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var slow []net.Conn

	for i := range crowd {
		slow = append(slow, dial(t, address, "GET / HTTP/1.1\r\nHost: local"))
		if i%20 == 0 {
			answer, err := client.Get("http://" + address + "/healthz")
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			require.Equal(t, http.StatusOK, answer.StatusCode)
		}
	}

	requireClosed(t, slow[0])
	require.Eventually(t, func() bool { // the last ones may not have been accepted yet
		return gauge(t, registry, "cyborg_http_connections_closed_total") >= crowd-limit && gauge(t, registry, "cyborg_http_connections") <= limit
	}, waitLimit, poll)

	close(leave)
	answer, err := http.ReadResponse(bufio.NewReader(working), nil)
	require.NoError(t, err, "a request in progress is not given up")
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.NoError(t, stop())
}

// Clients that send the beginning of a body to a route that does not read it keep
// nobody out, however many they are: their connections count as idle once they are
// answered, and are closed soon.
func TestUnreadBodiesDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	const limit, hour = 20, time.Hour
	for name, answer := range map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"empty":   func(http.ResponseWriter, *http.Request) {},
		"begun": func(w http.ResponseWriter, r *http.Request) {
			_, err := io.ReadFull(r.Body, make([]byte, 1))
			_, written := io.WriteString(w, fmt.Sprint(err))
			_ = written // the client may be gone
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			entered, mux := make(chan struct{}, limit), http.NewServeMux()
			mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
			mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
				entered <- struct{}{}
				answer(w, r)
			})
			address, stop := served(t, mux, api.Endpoint{}, api.ServeOptions{Connections: limit, Head: hour, Read: hour, Write: hour, Rest: hour})
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

			var slow []net.Conn
			for range limit {
				slow = append(slow, dial(t, address, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"))
				<-entered
			}
			for range 5 {
				require.Eventually(t, func() bool { // the last one may not have answered yet
					answer, err := client.Get("http://" + address + "/healthz")
					return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
				}, time.Minute, poll)
			}
			for _, conn := range slow {
				require.NoError(t, conn.Close())
			}
			require.NoError(t, stop())
		})
	}
}

// TestUnreadBodiesAreNotWaitedFor: a connection whose body nobody reads is closed soon,
// although nobody else wants its place.
func TestUnreadBodiesAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	address, stop := served(t, refuse, api.Endpoint{}, api.ServeOptions{Head: time.Hour, Read: time.Hour, Write: time.Hour})
	requireClosedWithin(t, dial(t, address, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"), time.Minute)
	require.NoError(t, stop())
}

// TestClosedBodyIsNoRequest: the rest of a body that a handler closes is never taken for
// a request.
func TestClosedBodyIsNoRequest(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, fmt.Sprint(r.Body.Close())) })
	mux.HandleFunc("GET /hidden", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "it was served") })
	address, stop := served(t, mux, api.Endpoint{}, api.ServeOptions{})

	hidden := strings.Repeat("GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n", 20_000) // more than net/http reads to the end
	conn := dial(t, address, fmt.Sprintf("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", len(hidden)))
	go func() { _, _ = io.WriteString(conn, hidden) }() // the server closes the connection meanwhile
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(waitLimit)))
	said, _ := io.ReadAll(conn) // a reset is as good
	require.NotContains(t, string(said), "it was served")
	require.NoError(t, stop())
}

// TestRefusedBodyIsNotAskedFor: a client that waits for a "100 Continue" before it sends
// its body gets the refusal at once.
func TestRefusedBodyIsNotAskedFor(t *testing.T) {
	t.Parallel()
	refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	address, stop := served(t, refuse, api.Endpoint{}, api.ServeOptions{Head: time.Hour, Read: time.Hour, Write: time.Hour, Rest: time.Hour})
	conn := dial(t, address, "POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n")
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusUnauthorized, answer.StatusCode)
	require.NoError(t, stop())
}

// A body that has come is no reason to close the connection, although the route does
// not read it.
func TestUnreadBodyKeepsTheConnection(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /refused", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	address, stop := served(t, mux, api.Endpoint{}, api.ServeOptions{})

	request := "POST /refused HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
	conn := dial(t, address, request)
	from := bufio.NewReader(conn)
	for range 3 {
		answer, err := http.ReadResponse(from, nil)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusUnauthorized, answer.StatusCode)
		_, err = io.WriteString(conn, request)
		require.NoError(t, err)
	}
	require.NoError(t, conn.Close())
	require.NoError(t, stop())
}

// gauge is the value of the gauge or counter.
func gauge(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)

	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue() + family.GetMetric()[0].GetCounter().GetValue()
		}
	}

	require.Fail(t, "there is no "+name)
	return 0
}

// A client that takes too long to send its head or its body, or to read the
// answer, is cut off. Others are served meanwhile.
func TestSlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 2)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})

	mux.HandleFunc("POST /body", func(w http.ResponseWriter, r *http.Request) {
		_, err := web.ReadBody(w, r, 1<<20)
		failed <- err
	})

	mux.HandleFunc("GET /answer", func(w http.ResponseWriter, _ *http.Request) {
		text := []byte(strings.Repeat("x", 1<<20))
		for {
			if _, err := w.Write(text); err != nil { // the client reads nothing, and the kernel's buffers are full at some point
				failed <- err
				return
			}
		}
	})

	const limit = 20 * time.Second // far more than the other clients need, on a busy machine, too
	address, stop := served(t, mux, api.Endpoint{}, api.ServeOptions{Head: limit, Read: limit, Write: limit})
	head := dial(t, address, "GET / HTTP/1.1\r\nHost: ")
	body := dial(t, address, "POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	dial(t, address, "GET /answer HTTP/1.1\r\nHost: localhost\r\n\r\n")

	for range 5 {
		answer, err := http.Get("http://" + address + "/healthz")
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
	}

	requireClosed(t, head)
	requireClosed(t, body)
	require.Error(t, <-failed)
	require.Error(t, <-failed)
	require.NoError(t, stop())
}

// A request with too large a head is refused, whatever makes it large.
func TestRequestHeadersTooLarge(t *testing.T) {
	t.Parallel()
	h := setup(t)
	listener, err := api.Endpoint{Address: "127.0.0.1:0"}.Listen(t.Context())
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(ctx, listener, h.handler, api.ServeOptions{Log: quiet()}) }()

	for name, head := range map[string]string{
		"one header":   "X-Long: " + strings.Repeat("x", 100<<10),
		"many headers": strings.TrimSuffix(strings.Repeat("X-Many: 1\r\n", 10_000), "\r\n"),
		"a long URL":   "",
	} {
		url := "/v1/accelerators"
		if head == "" {
			url, head = url+"?host="+strings.Repeat("x", 100<<10), "X: y"
		}

		conn := dial(t, listener.Addr().String(), fmt.Sprintf("GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", url, head))
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, name)
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, answer.StatusCode, name)
		require.NoError(t, answer.Body.Close())
	}

	cancel()
	require.NoError(t, <-ended)
}

// TestFewFilesAreSaid: where the process may not open enough files for the connections
// that are configured, the log says so at the start.
func TestFewFilesAreSaid(t *testing.T) {
	t.Parallel()
	for connections, warned := range map[int]bool{
		math.MaxInt32: true, // no machine allows six times as many files
		1:             false,
		0:             false, // nobody has counted on a number
	} {
		listener, err := api.Endpoint{Address: porttest.Address(t)}.Listen(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // Serve ends at once

		var log bytes.Buffer
		require.NoError(t, api.Serve(ctx, listener, http.NotFoundHandler(), api.ServeOptions{
			Connections: connections, Name: "agents", Log: slog.New(slog.NewTextHandler(&log, nil)),
		}))
		require.Equal(t, warned, strings.Contains(log.String(), "LimitNOFILE"), &log)
		if warned {
			require.Regexp(t, `level=WARN .* listener=agents configured=2147483647 connections=\d+ open_files=\d+ open_files_needed=12884901882\n`, log.String())
		}
	}
}
