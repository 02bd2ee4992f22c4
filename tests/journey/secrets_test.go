package journey_test

import (
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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/internal/porttest"
	"github.com/cyborg-project/cyborg/internal/postgres"
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

	histories := harness.Histories(ctx, t, s.TemporalClient(t))
	require.Contains(t, histories, id.String(), "the histories hold readable payloads")
	require.NotContains(t, histories, token)

	arguments := harness.Arguments(t, s.PID())
	require.Contains(t, arguments, "postgres", "those of its PostgreSQL are among them")
	require.NotContains(t, arguments, token)
	given := harness.Environments(s.PID())
	require.Contains(t, given, "PATH=")
	require.NotContains(t, given, token, "its PostgreSQL runs as another user")
	require.NotContains(t, s.Output(), token)
	require.Contains(t, s.Output(), "actor=tests")

	s.Signal(t, syscall.SIGQUIT)
	s.WaitExit(t)
	require.Contains(t, s.Output(), "SIGQUIT: quit")
	require.NotContains(t, s.Output(), token)

	s.Restart(t) // the cleanup then stops the processes that the kill left behind
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
	secrets := harness.Secrets{}
	for what, secret := range map[string]string{
		"the token": token, "the database's password": password, "Keystone's password": openstacktest.OwnPassword, "the option": option,
		"the signature": signature, "a user's token": user, "a service's token": service, "a wrong token": guess,
		"an option that was refused": refusedOption, "an option within it": refusedWithin,
	} {
		secrets.Add(what, secret)
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
		if during = harness.Histories(ctx, t, s.TemporalClient(t)); !strings.Contains(during, "StageImage") {
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

	places := map[string]string{"the answers": fmt.Sprint(refused, err), "the processes": harness.Arguments(t, s.PID())}

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

	histories := harness.Histories(ctx, t, s.TemporalClient(t))
	require.Contains(t, histories, cards[0].UUID.String(), "the histories hold readable payloads")
	places["Temporal"], places["Temporal, during a step"] = histories, during
	places["the log"] = s.Output()
	trail, err := os.ReadFile(audit)
	require.NoError(t, err)
	require.Contains(t, string(trail), "alice")
	places["the audit trail"] = string(trail)

	rows := harness.Rows(ctx, t, database)
	require.Contains(t, rows, hex.EncodeToString([]byte(cards[0].UUID.String())), "Temporal's databases are among them")
	places["all databases"] = rows

	secrets.RequireAbsent(t, places)

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
	s.Signal(t, syscall.SIGQUIT)
	s.WaitExit(t)
	require.Contains(t, s.Output(), "SIGQUIT: quit")
	secrets.RequireAbsent(t, map[string]string{"the log with the stacks": s.Output()})
}

// TestCanariesOfProcesses looks for the secrets of processes that run apart, and
// for all keys: those of certificates, with which steps are signed, and with which
// an agent proves who it is.
func TestCanariesOfProcesses(t *testing.T) {
	t.Parallel()
	canary := func(of string) string { return of + "-canary-" + uuid.NewString() }
	token, apiKey, option, signature := canary("token"), canary("api-key"), canary("option"), canary("signature")

	keystone := openstacktest.NewKeystone(t)
	user := keystone.Issue(openstacktest.Token{UserID: "u1", User: "alice", ProjectID: "p1", ProjectIs: "demo", Roles: []string{"admin"}})
	clouds := filepath.Join(t.TempDir(), "clouds.yaml")
	require.NoError(t, os.WriteFile(clouds, []byte("clouds: {lab: {region_name: RegionOne, auth: {auth_url: "+keystone.URL+", username: "+openstacktest.OwnUser+
		", password: "+openstacktest.OwnPassword+", project_name: service, user_domain_name: Default, project_domain_name: Default}}}\n"), 0o600))

	bitstream := fake.MakeImage("FPGA", "aes", []byte("payload"))
	sum := sha256.Sum256(bitstream)
	origin := startOrigin(t, bitstream, func(r *http.Request) bool { return r.URL.Query().Get("X-Signature") == signature })
	close(origin.goOn)

	// The standalone logs in to Keystone as clouds.yaml says, and a server beside it
	// with an application credential. That server and an agent send an API key to
	// Temporal. The agent has an option that a driver does not even know.
	s := harness.Start(t, harness.Options{
		Hosts: []string{"rack=fake:1xfpga"}, Token: token,
		Env: []string{
			"CYBORG_LOG_LEVEL=debug", "CYBORG_KEYSTONE_ENABLED=true", "CYBORG_OPENSTACK_CLOUD=lab", "CYBORG_OPENSTACK_CLOUDS_FILE=" + clouds,
			"CYBORG_IMAGES_ALLOW=" + origin.URL, "CYBORG_TEMPORAL_API_KEY=" + apiKey,
		},
	})
	asServer := []string{
		"CYBORG_OPENSTACK_CLOUD=", "CYBORG_OPENSTACK_CLOUDS_FILE=", "CYBORG_OPENSTACK_AUTH_URL=" + keystone.URL,
		"CYBORG_OPENSTACK_APPLICATION_CREDENTIAL_ID=" + openstacktest.OwnCredential,
		"CYBORG_OPENSTACK_APPLICATION_CREDENTIAL_SECRET=" + openstacktest.OwnSecret,
	}
	server := s.StartServerWith(t, asServer, "api", "conductor")
	edge := s.StartAgentWith(t, "edge", "CYBORG_AGENT_BACKENDS=[{driver: fake, options: {park: 1xfpga}}, "+
		"{name: odd, driver: fake, options: {park: 1xgpu, bmc: {password: "+option+"}}}]")

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ask := func(method, address string, status int, headers ...string) string {
		request, err := http.NewRequestWithContext(ctx, method, address, http.NoBody)
		require.NoError(t, err)
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

	places := map[string]string{}
	const tokenHeader = "X-Auth-Token"
	for _, url := range []string{s.URL, server.URL} {
		places["answers of "+url] = ask(http.MethodGet, url+"/v1/hosts", http.StatusOK, tokenHeader, user)
	}

	// Keystone, or a proxy before it, breaks and repeats what it was asked.
	keystone.RevokeOwn()
	keystone.Disturb(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		status := http.StatusBadGateway
		if r.Method == http.MethodGet {
			status = http.StatusUnauthorized // so that the server logs in again
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"error": {"message": %q}}`, fmt.Sprint(string(body), r.Header, err))
	})
	for _, url := range []string{s.URL, server.URL} {
		places["answers of "+url] += ask(http.MethodGet, url+"/v1/hosts", http.StatusServiceUnavailable, tokenHeader, "unknown-"+user)
	}
	keystone.Disturb(nil)

	cards, err := apiclient.Collect(s.API.Accelerators(ctx, apiclient.AcceleratorFilter{Hosts: []string{"edge"}}, apiclient.Page{}))
	require.NoError(t, err)
	require.Len(t, cards, 1)
	_, err = s.API.MakeReady(ctx, cards[0].UUID)
	require.NoError(t, err)
	_, err = s.API.Program(ctx, cards[0].UUID, cyborg.Image{Source: origin.URL + "/aes?X-Signature=" + signature, SHA256: hex.EncodeToString(sum[:])})
	require.NoError(t, err)
	for _, path := range []string{"/v1/hosts", "/v1/services", "/v1/hosts/edge/drivers", "/v1/operations", "/v1/accelerators", "/metrics"} {
		places["the answer of "+path] = ask(http.MethodGet, s.URL+path, http.StatusOK, "Authorization", "Bearer "+token)
	}
	require.Contains(t, places["the answer of /v1/hosts/edge/drivers"], "bmc", "the agent has refused the option")

	address, err := s.DatabaseURL()
	require.NoError(t, err)
	database, err := url.Parse(address)
	require.NoError(t, err)
	records, err := pgxpool.New(ctx, address)
	require.NoError(t, err)
	t.Cleanup(records.Close)
	rows, err := records.Query(ctx, "SELECT public FROM grant_keys")
	require.NoError(t, err)
	public, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	require.NoError(t, err)

	secrets := harness.Secrets{}
	proof, key := edge.Proof(t)
	for what, secret := range map[string]string{
		"the token": token, "the API key of Temporal": apiKey, "the option": option, "the signature": signature, "a user's token": user,
		"the password in clouds.yaml": openstacktest.OwnPassword, "the secret of the application credential": openstacktest.OwnSecret,
		"the proof of the agent": proof, "the key of the agent": key,
		"the key of grants of the standalone": string(s.GrantKey(t, public).Seed()), "the key of grants of the server": string(server.GrantKey(t, public).Seed()),
	} {
		secrets.Add(what, secret)
	}
	for n, own := range keystone.OwnTokens() {
		secrets.Add(fmt.Sprint("our own token ", n), own)
	}

	held := s.Certificates(t)
	own := filepath.Join(s.StateDir, "certificates")
	secrets.AddKeys(t, filepath.Join(own, "ca.key"), filepath.Join(own, "temporal.pem"), filepath.Join(own, "admin.pem"))
	for _, pattern := range []string{"host-edge.key", "server-server-*.key"} {
		paths, err := filepath.Glob(filepath.Join(held.Dir(), pattern))
		require.NoError(t, err)
		require.NotEmpty(t, paths, pattern)
		secrets.AddKeys(t, paths...)
	}

	for _, dump := range []struct {
		binary string
		env    []string
	}{
		{"cyborg-standalone", s.Environ()}, {"cyborg", append(append(s.Environ(), "CYBORG_DATABASE_URL="+address), asServer...)}, {"cyborg-agent", edge.Environ(t)},
	} {
		command := exec.CommandContext(ctx, harness.Binary(t, dump.binary), "config", "dump")
		command.Env = dump.env
		text, err := command.CombinedOutput()
		require.NoError(t, err, "%s", text)
		places["config dump of "+dump.binary] = string(text)
	}
	require.Contains(t, places["config dump of cyborg-agent"], "api_key: '******'")
	require.Contains(t, places["config dump of cyborg-agent"], "password: '******'")

	for name, pid := range map[string]int{"cyborg-standalone": s.PID(), "cyborg": server.PID(), "cyborg-test-agent": edge.PID()} {
		arguments := harness.Arguments(t, pid)
		require.Contains(t, arguments, name)
		places["the arguments of "+name], places["what "+name+" gave its children"] = arguments, harness.Environments(pid)
	}
	places["Temporal"] = harness.Histories(ctx, t, s.TemporalClient(t))
	require.Contains(t, places["Temporal"], "StageImage")
	places["all databases"] = harness.Rows(ctx, t, database)
	require.Contains(t, places["all databases"], hex.EncodeToString(public[0]))

	for _, one := range []struct { // the agent first, and the standalone last
		name    string
		process interface {
			Signal(t testing.TB, signal syscall.Signal)
			WaitExit(t testing.TB) int
			Output() string
		}
	}{{"the agent", edge}, {"the server", server}, {"the standalone", s}} {
		one.process.Signal(t, syscall.SIGQUIT)
		one.process.WaitExit(t)
		require.Contains(t, one.process.Output(), "SIGQUIT: quit")
		places["the log of "+one.name] = one.process.Output()
	}
	require.Contains(t, places["the log of the agent"], "bmc")
	secrets.RequireAbsent(t, places)

	s.Restart(t) // the cleanup then stops the processes that the kill left behind
}
