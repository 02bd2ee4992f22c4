package journey_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/internal/porttest"
	"github.com/cyborg-project/cyborg/internal/postgres"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestTokensStayOutOfTemporalAndProcesses requests operations with a token. The
// token appears in no run's history, in no process's arguments, in no log, and
// not in the stacks that a process prints when it dies.
func TestTokensStayOutOfTemporalAndProcesses(t *testing.T) {
	t.Parallel()
	token := "journey-secret-" + uuid.NewString()
	s := harness.Start(t, harness.Options{
		Hosts: []string{"rack=fake:2xfpga"}, Token: token,
		Env: []string{"CYBORG_LOG_LEVEL=debug"},
	})

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	cards, err := apiclient.Collect(s.API.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
	require.NoError(t, err)

	id := cards[0].UUID
	_, err = s.API.MakeReady(ctx, id)
	require.NoError(t, err)
	_, err = s.API.Attach(ctx, id, cyborg.Holder{})
	require.NoError(t, err)
	_, err = s.API.Detach(ctx, id, cyborg.Holder{})
	require.NoError(t, err)

	_, err = s.API.Program(ctx, id, cyborg.Image{Source: "nowhere.img"})
	require.Error(t, err)

	_, err = s.API.UpdateDriver(ctx, "rack", "fake", cyborg.JSONObject{"park": "2xfpga", "handles": 2})
	require.NoError(t, err)

	histories := everyHistory(ctx, t, s.TemporalClient(t))
	require.Contains(t, histories, id.String(), "the histories hold readable payloads")
	require.NotContains(t, histories, token)

	require.NotContains(t, everyArgument(t, s.PID()), token)
	require.NotContains(t, s.Output(), token)
	require.Contains(t, s.Output(), "actor=tests")

	s.Signal(t, syscall.SIGQUIT)
	s.WaitExit(t)
	require.Contains(t, s.Output(), "SIGQUIT: quit")
	require.NotContains(t, s.Output(), token)

	s.Restart(t) // the cleanup then stops the processes that the kill left behind
}

// everyHistory returns all that Temporal has of all runs: their histories with
// the payloads, their memos and search attributes, the summaries, the details
// that they show, and the heartbeats of what runs now.
func everyHistory(ctx context.Context, t *testing.T, temporal client.Client) string {
	t.Helper()
	var text strings.Builder
	var next []byte

	for {
		page, err := temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			Namespace: temporalclient.DefaultNamespace, NextPageToken: next,
		})
		require.NoError(t, err)

		for _, run := range page.GetExecutions() {
			text.WriteString(run.String())
			described, err := temporal.DescribeWorkflowExecution(ctx, run.GetExecution().GetWorkflowId(), run.GetExecution().GetRunId())
			require.NoError(t, err)
			text.WriteString(described.String())

			events := temporal.GetWorkflowHistory(ctx, run.GetExecution().GetWorkflowId(), run.GetExecution().GetRunId(), false,
				enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)

			for events.HasNext() {
				event, err := events.Next()
				require.NoError(t, err)
				text.WriteString(event.String())
			}
		}

		if next = page.GetNextPageToken(); len(next) == 0 {
			return text.String()
		}
	}
}

// everyArgument returns the command lines of a process and of all its
// descendants.
func everyArgument(t *testing.T, root int) string {
	t.Helper()
	parents := map[int]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)

	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}

		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		require.NoError(t, err)
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // after the name, which may hold anything
		parents[pid], err = strconv.Atoi(fields[1])
		require.NoError(t, err)
	}

	var text strings.Builder

	for pid := range parents {
		for at := pid; at > 1; at = parents[at] {
			if at == root {
				line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if err == nil {
					text.Write(line)
				}
				break
			}
		}
	}

	require.Contains(t, text.String(), "cyborg-standalone")
	return text.String()
}

// everyRow returns all rows of all tables in all databases of a PostgreSQL, those
// of Temporal included. Bytes are in hexadecimal.
func everyRow(ctx context.Context, t *testing.T, server *url.URL) string {
	t.Helper()
	ask := func(database, sql string) []string {
		one := *server
		one.Path = "/" + database
		c, err := pgx.Connect(ctx, one.String())
		require.NoError(t, err)
		defer c.Close(ctx)

		rows, err := c.Query(ctx, sql)
		require.NoError(t, err)
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return found
	}

	var text strings.Builder
	for _, database := range ask("postgres", "SELECT datname FROM pg_database WHERE NOT datistemplate") {
		for _, table := range ask(database, `
			SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables
			WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('pg_catalog', 'information_schema')`) {
			for _, row := range ask(database, "SELECT r::text FROM "+table+" r") {
				text.WriteString(row + "\n")
			}
		}
	}
	return text.String()
}

// TestCanaries puts a secret into every input that takes one, and looks for
// them wherever somebody may look: in logs, the audit trail, answers, dumps of the
// configuration, events, operations, the list of processes, Temporal's histories,
// and all rows of all databases.
func TestCanaries(t *testing.T) {
	t.Parallel()
	canary := func(of string) string { return of + "-canary-" + uuid.NewString() }
	token, signature, option := canary("token"), canary("signature"), canary("option")
	guess, refusedOption, refusedWithin := canary("guess"), canary("refused"), canary("within")
	audit := filepath.Join(harness.Place(t), "audit.log")

	pg, err := postgres.Start(t.Context(), postgres.Config{
		Dir: filepath.Join(harness.Place(t), "postgres"), TCP: true, Port: porttest.Ports(t, 1)[0], FsyncOff: true, DieWithParent: true,
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pg.Stop(context.WithoutCancel(t.Context()))) })
	require.NoError(t, pg.CreateDatabase(t.Context(), "accelerators"))
	database, err := url.Parse(pg.TCPURL("accelerators"))
	require.NoError(t, err)
	password, ok := database.User.Password()
	require.True(t, ok)

	bitstream := fake.MakeImage("FPGA", "aes", []byte("payload"))
	sum := sha256.Sum256(bitstream)
	origin := startOrigin(t, bitstream, func(r *http.Request) bool {
		return r.URL.Query().Get("X-Signature") == signature
	})

	keystone := openstacktest.NewKeystone(t)
	user := keystone.Issue(openstacktest.Token{UserID: "u1", User: "alice", ProjectID: "p1", ProjectIs: "demo", Roles: []string{"admin", "member"}})
	service := keystone.Issue(openstacktest.Token{UserID: "u2", User: "nova", ProjectID: "p2", ProjectIs: "service", Roles: []string{"service"}})
	s := harness.Start(t, harness.Options{
		Hosts: []string{"rack=fake:1xfpga"}, Token: token,
		Env: []string{
			"CYBORG_LOG_LEVEL=debug", "CYBORG_DATABASE_URL=" + database.String(), "CYBORG_IMAGES_ALLOW=" + origin.URL,
			"CYBORG_AUDIT_FILE=" + audit, "CYBORG_KEYSTONE_ENABLED=true",
			"CYBORG_OPENSTACK_AUTH_URL=" + keystone.URL, "CYBORG_OPENSTACK_PASSWORD=" + openstacktest.OwnPassword,
			"CYBORG_AGENT_BACKENDS=[{driver: generic, options: {device_spec: [{address: '*'}], bmc: {api_token: " + option + "}}}]",
		},
	})
	secrets := map[string]string{
		"the token": token, "the database's password": password, "Keystone's password": openstacktest.OwnPassword, "the option": option,
		"the signature": signature, "a user's token": user, "a service's token": service, "a wrong token": guess,
		"an option that was refused": refusedOption, "an option within it": refusedWithin,
	}

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cards, err := apiclient.Collect(s.API.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
	require.NoError(t, err)
	_, err = s.API.MakeReady(ctx, cards[0].UUID)
	require.NoError(t, err)

	// One image is loaded, and one is refused at its source.
	image := cyborg.Image{Source: origin.URL + "/aes?X-Signature=" + signature, SHA256: hex.EncodeToString(sum[:])}
	programmed := make(chan error, 1)
	go func() {
		_, err := s.API.Program(ctx, cards[0].UUID, image)
		programmed <- err
	}()
	origin.awaitFetch(t, programmed)
	var during string
	harness.Until(t, ctx, "listed by Temporal", func() error {
		if during = everyHistory(ctx, t, s.TemporalClient(t)); !strings.Contains(during, "StageImage") {
			return errors.New("no history has the step")
		}
		return nil
	})
	close(origin.goOn)
	require.NoError(t, <-programmed)
	_, refused := s.API.InstallDriver(ctx, "rack", "more", "generic", cyborg.JSONObject{"bmc": map[string]any{"api_token": option}})
	require.ErrorContains(t, refused, "options that look secret cannot be set through the API: bmc.api_token")
	image.Source, image.SHA256 = origin.URL+"/aes?X-Signature=no&also="+signature, strings.Repeat("ab", 32)
	_, err = s.API.Program(ctx, cards[0].UUID, image)
	require.Error(t, err)

	places := map[string]string{"the answers": fmt.Sprint(refused, err), "the processes": everyArgument(t, s.PID())}

	// Somebody is let in by Keystone, somebody else guesses, and both are in the log.
	ask := func(method, address string, status int, body string, headers ...string) string {
		request, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			request.Header.Set(headers[i], headers[i+1])
		}
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, status, response.StatusCode, "%s %s: %s", method, address, text)
		return string(text) + fmt.Sprint(response.Header)
	}
	basic := func(password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte("whoever:"+password))
	}
	const tokenHeader, serviceHeader = "X-Auth-Token", "X-Service-Token"

	at := s.URL + "/v1/accelerators/" + cards[0].UUID.String()
	places["answers"] = strings.Join([]string{
		ask(http.MethodGet, s.URL+"/v2/accelerator_requests", http.StatusOK, "", tokenHeader, user, serviceHeader, service),
		ask(http.MethodPost, at+"/maintain", http.StatusOK, `{"reason": "a new fan"}`, tokenHeader, user),
		ask(http.MethodGet, at, http.StatusUnauthorized, "", "Authorization", "Bearer "+guess),
		ask(http.MethodGet, at, http.StatusUnauthorized, "", tokenHeader, guess),
		ask(http.MethodGet, s.URL+"/v2/accelerator_requests", http.StatusUnauthorized, "", tokenHeader, user, serviceHeader, guess),
		ask(http.MethodGet, s.UI+"/", http.StatusUnauthorized, "", "Authorization", basic(guess)),
		ask(http.MethodGet, s.UI+"/", http.StatusOK, "", "Authorization", basic(token)),
	}, "\n")

	// The host refuses options that look secret, wherever they are.
	for _, options := range []cyborg.JSONObject{
		{"park": "1xfpga", "password": refusedOption}, {"park": "1xfpga", "bmc": cyborg.JSONObject{"api_token": refusedWithin}},
	} {
		_, err = s.API.UpdateDriver(ctx, "rack", "fake", options)
		require.Error(t, err)
		places["answers"] += fmt.Sprint(err)
	}

	read := func(path string) string {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode, "%s: %s", path, text)
		return string(text)
	}

	operations, err := apiclient.Collect(s.API.Operations(ctx, apiclient.OperationFilter{}, apiclient.Page{}))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(operations), 3)
	for _, operation := range operations { // the streams end with their operations
		at := "/v1/operations/" + operation.ID.String()
		places[at] = read(at) + read(at+"/events") + read(at+"/history")
	}
	places["the list"], places["the metrics"], places["the drivers"] = read("/v1/operations"), read("/metrics"), read("/v1/hosts/rack/drivers")
	require.Contains(t, places["the list"], origin.URL+"/aes")

	for _, binary := range []string{"cyborg-standalone", "cyborg-agent", "cyborg"} {
		args := map[string][]string{"cyborg": {"config", "dump"}}[binary]
		if args == nil {
			args = []string{"config", "dump"}
		}
		dump := exec.CommandContext(ctx, harness.Binary(t, binary), args...)
		dump.Env = s.Environ()
		text, err := dump.CombinedOutput()
		require.NoError(t, err, "%s", text)
		places["config dump of "+binary] = string(text)
	}
	require.Contains(t, places["config dump of cyborg-agent"], "api_token: '******'")

	histories := everyHistory(ctx, t, s.TemporalClient(t))
	require.Contains(t, histories, cards[0].UUID.String(), "the histories hold readable payloads")
	places["Temporal"], places["Temporal, during a step"] = histories, during
	places["the log"] = s.Output()
	trail, err := os.ReadFile(audit)
	require.NoError(t, err)
	require.Contains(t, string(trail), "alice")
	places["the audit trail"] = string(trail)

	rows := everyRow(ctx, t, database)
	require.Contains(t, rows, hex.EncodeToString([]byte(cards[0].UUID.String())), "Temporal's databases are among them")
	places["all databases"] = rows

	for where, text := range places {
		for which, secret := range secrets {
			require.NotContains(t, text, secret, "%s has %s", where, which)
			require.NotContains(t, text, hex.EncodeToString([]byte(secret)), "%s has %s", where, which)
			require.NotContains(t, text, base64.StdEncoding.EncodeToString([]byte(secret)), "%s has %s", where, which)
		}
	}

	// The records have the whole source only while the operation runs.
	records, err := pgxpool.New(ctx, database.String())
	require.NoError(t, err)
	t.Cleanup(records.Close)
	var kept string
	require.NoError(t, records.QueryRow(ctx, `
		SELECT (SELECT string_agg(o::text, '') FROM operations o) || (SELECT string_agg(d::text, '') FROM deployables d) ||
		       (SELECT string_agg(e::text, '') FROM events e) || coalesce((SELECT string_agg(i::text, '') FROM image_urls i), '')`).Scan(&kept))
	require.Contains(t, kept, origin.URL+"/aes")
	require.NotContains(t, kept, signature, "the records")
	require.NotContains(t, kept, option, "the records")
}
