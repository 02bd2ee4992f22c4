package standalone_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestTemporalAsksForACertificate: who has no certificate gets no answer of the
// embedded Temporal, not even on the same machine. The operator has one, in a
// directory that only the standalone's user can enter, and it stays the same.
func TestTemporalAsksForACertificate(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	dir := filepath.Join(s.StateDir, "certificates")
	for name, mode := range map[string]fs.FileMode{"": 0o700, "ca.key": 0o600, "admin.pem": 0o600, "temporal.pem": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), name)
	}

	admin, authority := filepath.Join(dir, "admin.pem"), filepath.Join(dir, "ca.crt")
	list := func(certificate string) error {
		files, err := pki.NewClient(pki.ClientOptions{Files: pki.Files{Cert: certificate, Key: certificate, CA: authority}})
		require.NoError(t, err)
		return listRuns(t, s.Temporal, files.Config())
	}
	require.NoError(t, list(admin))
	require.Error(t, list(""))
	require.Error(t, listRuns(t, s.Temporal, nil))

	before, err := os.ReadFile(admin)
	require.NoError(t, err)
	s.Stop(t)
	s.Restart(t)
	after, err := os.ReadFile(admin)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
	require.NoError(t, list(admin))
	harness.RequireSound(t, s)
}

// listRuns lists the runs of a Temporal, in plain text without a configuration.
func listRuns(t *testing.T, address string, config *tls.Config) error {
	t.Helper()
	c, err := client.DialContext(t.Context(), client.Options{
		HostPort: address, Namespace: temporalclient.DefaultNamespace,
		ConnectionOptions: client.ConnectionOptions{TLS: config, TLSDisabled: config == nil},
	})
	if err != nil {
		return err
	}
	defer c.Close()

	_, err = c.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{})
	return err
}

// asking is a request to the Web UI.
type asking struct {
	method, path, password string
	headers                map[string]string
}

// ask returns status and body of the answer.
func (a asking) ask(t *testing.T, s *harness.Standalone) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), a.method, s.UI+a.path, strings.NewReader("{}"))
	require.NoError(t, err)
	if a.password != "" {
		request.SetBasicAuth("whoever", a.password)
	}
	for name, value := range a.headers {
		request.Header.Set(name, value)
	}
	if host := a.headers["Host"]; host != "" {
		request.Host = host
	}

	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if response.StatusCode == http.StatusUnauthorized {
		require.Contains(t, response.Header.Get("WWW-Authenticate"), "Basic ")
	}
	return response.StatusCode, string(body)
}

const (
	runsPath      = "/api/v1/namespaces/cyborg/workflows"
	terminatePath = runsPath + "/attach%2Fx/terminate"
)

// TestWebUI: the Web UI shows what Temporal does, changes nothing, and answers no
// page of another site. Where the API has tokens, it asks for one.
func TestWebUI(t *testing.T) {
	t.Parallel()
	const admin, reader = "secret-of-the-admin", "secret-of-the-reader"
	open := harness.Start(t, harness.Options{})
	asked := harness.Start(t, harness.Options{Token: admin, Env: []string{
		fmt.Sprintf("CYBORG_API_TOKENS=[{name: ada, role: admin, token: %s}, {name: rob, role: reader, token: %s}]", admin, reader),
		"CYBORG_STANDALONE_TEMPORAL_UI_WRITES=true",
	}})

	evil := map[string]string{"Origin": "https://evil.example", "Content-Type": "application/json"}
	for _, of := range []struct {
		of   *harness.Standalone
		when asking
		want []int
		says string
	}{
		{open, asking{method: http.MethodGet, path: "/"}, []int{http.StatusOK}, "<html"},
		{open, asking{method: http.MethodGet, path: runsPath}, []int{http.StatusOK}, "executions"},
		{open, asking{method: http.MethodGet, path: runsPath, headers: map[string]string{"Host": "evil.example"}}, []int{http.StatusForbidden}, "is not called"},
		{open, asking{method: http.MethodPost, path: terminatePath, headers: evil}, []int{http.StatusForbidden}, "another origin"},
		{open, asking{method: http.MethodPost, path: terminatePath}, []int{http.StatusForbidden, http.StatusBadRequest, http.StatusMethodNotAllowed}, ""},

		{asked, asking{method: http.MethodGet, path: "/"}, []int{http.StatusUnauthorized}, "api.tokens"},
		{asked, asking{method: http.MethodGet, path: runsPath, password: "guessed"}, []int{http.StatusUnauthorized}, "api.tokens"},
		{asked, asking{method: http.MethodGet, path: runsPath, headers: map[string]string{"X-Auth-Token": reader}}, []int{http.StatusUnauthorized}, ""},
		{asked, asking{method: http.MethodGet, path: "/", password: reader}, []int{http.StatusOK}, "<html"},
		{asked, asking{method: http.MethodGet, path: runsPath, password: reader}, []int{http.StatusOK}, "executions"},
		{asked, asking{method: http.MethodPost, path: terminatePath, password: reader}, []int{http.StatusForbidden}, "rob has the role reader, and this needs admin"},
		{asked, asking{method: http.MethodPost, path: terminatePath, password: admin, headers: evil}, []int{http.StatusForbidden}, "another origin"},
	} {
		// Temporal lists a run a moment after it has started.
		harness.Until(t, t.Context(), "answered as it must be", func() error {
			status, body := of.when.ask(t, of.of)
			require.Contains(t, of.want, status, "%+v: %s", of.when, body)
			if !strings.Contains(body, of.says) {
				return fmt.Errorf("%+v: %q does not contain %q", of.when, body, of.says)
			}
			return nil
		})
	}
	harness.RequireSound(t, open)
	harness.RequireSound(t, asked)
}
