package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/api/agents"
	"github.com/cyborg-project/cyborg/db"
)

// answerPattern matches the first line of an answer.
var answerPattern = regexp.MustCompile(`(?m)^HTTP/1\.[01] ([0-9]{3})`)

// door is a listener, with a request that it grants.
type door struct {
	name, address string
	path          string   // of the request, whose method is POST
	headers       []string // without those about the body
	body          string
}

// speak sends a text, and returns the statuses of all answers that come before the
// server closes the connection.
func (d door) speak(t *testing.T, text string) []string {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", d.address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(waitLimit)))
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)

	got, err := io.ReadAll(conn)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection stays open after:\n%s", got) // it may be reset, where the server has not read all

	var statuses []string
	for _, found := range answerPattern.FindAllStringSubmatch(string(got), -1) {
		statuses = append(statuses, found[1])
	}
	return statuses
}

// request is the head of a request.
func (d door) request(line string, headers ...string) string {
	return d.headless(line, append([]string{"Host: " + d.address}, headers...)...)
}

// headless is request without the header Host.
func (door) headless(line string, headers ...string) string {
	return line + " HTTP/1.1\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n"
}

// act is the request that is granted, with other headers about its body.
func (d door) act(headers ...string) string {
	return d.request("POST "+d.path, append(append([]string{}, d.headers...), headers...)...) + d.body
}

// chunked is the body in chunks.
func (d door) chunked() string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(d.body), d.body) }

// TestAmbiguousRequests sends what two programs could read in two ways, with the
// credential of somebody who may do it, to the API and to the agent endpoint. All
// of it is refused, and nothing that comes behind it counts as another request.
func TestAmbiguousRequests(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	card := h.as(adminToken).ready("alpha")
	apiAddress, _ := served(t, h.handler, api.Endpoint{}, api.ServeOptions{})

	intake := db.NewIngester(h.store, db.IngesterOptions{FlushInterval: 5 * time.Millisecond}, quiet())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- intake.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	endpoint, err := agents.New(agents.Config{}, agents.Deps{Ingester: intake, Records: h.store, Registry: prometheus.NewRegistry(), Log: quiet()})
	require.NoError(t, err)
	agentsAddress, _ := served(t, endpoint, api.Endpoint{}, api.ServeOptions{Connected: agents.Connected})

	of := func(host string) string {
		said := report(host, 1, 1)
		said.Instance = "agent of " + host
		text, err := json.Marshal(said)
		require.NoError(t, err)
		return string(text)
	}
	const asJSON = "Content-Type: application/json"
	forAPI := door{"the API", apiAddress, path(card, "/maintain"), []string{"Authorization: Bearer " + adminToken, asJSON}, `{"reason": "smuggled"}`}
	forAgents := door{"the agent endpoint", agentsAddress, agents.ReportsPath, []string{asJSON}, of("smuggled")}

	for _, d := range []door{forAPI, forAgents} {
		length := fmt.Sprintf("Content-Length: %d", len(d.body))
		granted := d.act(length)
		for name, test := range map[string]struct{ text, status string }{
			"two lengths":                    {d.act(length, "Content-Length: 3"), "400"},
			"a list of lengths":              {d.act(length + ", 3"), "400"},
			"a signed length":                {d.act(fmt.Sprintf("Content-Length: +%d", len(d.body))), "400"},
			"a length in hexadecimal":        {d.act(fmt.Sprintf("Content-Length: 0x%x", len(d.body))), "400"},
			"a length after a space":         {d.act(strings.Replace(length, ":", " :", 1)), "400"},
			"an encoding after a space":      {d.act("Transfer-Encoding : chunked"), "400"},
			"two encodings":                  {d.act("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), "501"},
			"a list of encodings":            {d.act("Transfer-Encoding: identity, chunked"), "501"},
			"another encoding":               {d.act("Transfer-Encoding: xchunked"), "501"},
			"no encoding":                    {d.act(length, "Transfer-Encoding: identity"), "501"},
			"chunks without a size":          {d.request("POST "+d.path, append(d.headers, "Transfer-Encoding: chunked")...) + "zz\r\n" + d.body, "400"},
			"a length and chunks":            {d.request("POST /nothing", length, "Transfer-Encoding: chunked") + "0\r\n\r\n" + granted, "404"},
			"chunks, and more":               {d.request("POST /nothing", "Transfer-Encoding: chunked") + "0\r\n\r\n" + granted, "404"},
			"chunks for HTTP/1.0":            {strings.Replace(d.act("Transfer-Encoding: chunked"), "HTTP/1.1", "HTTP/1.0", 1), "400"},
			"a fold at the start":            {strings.Replace(granted, "Host:", " Host:", 1), "400"},
			"a folded host":                  {d.headless("POST "+d.path, append(d.headers, "Host: "+d.address+"\r\n .example.org", length)...) + d.body, "400"},
			"a return in a header":           {d.act("X-Note: a\r"+length) + d.body, "400"},
			"a zero in a header":             {d.act("X-Note: a\x00", length), "400"},
			"a header without a name":        {d.act(": a", length), "400"},
			"a space in the name":            {d.act("X Note: a", length), "400"},
			"two hosts":                      {d.act("Host: example.org", length), "400"},
			"no host":                        {d.headless("POST "+d.path, append(d.headers, length)...) + d.body, "400"},
			"a host with a path":             {d.headless("POST "+d.path, append(d.headers, "Host: "+d.address+" /x", length)...) + d.body, "400"},
			"another version":                {strings.Replace(granted, "HTTP/1.1", "HTTP/3.0", 1), "505"},
			"no version":                     {"POST " + d.path + "\r\n" + d.body, "400"},
			"a line of three words and more": {strings.Replace(granted, " HTTP/1.1", " x HTTP/1.1", 1), "400"},
		} {
			require.Equal(t, []string{test.status}, d.speak(t, test.text), "%s: %s", d.name, name)
		}
	}

	override := []string{"X-HTTP-Method-Override: DELETE", "X-HTTP-Method: DELETE", "X-Method-Override: DELETE", "Connection: close"}
	admin := "Authorization: Bearer " + adminToken
	strange := []string{ // what OpenStack's middleware, or a proxy, would tell a service behind it
		"X-Identity-Status: Confirmed", "X-Roles: admin", "X-User-Id: u1", "X-User-Name: ada", "X-Project-Id: p1", "X-Is-Admin-Project: True",
		"X-Service-Identity-Status: Confirmed", "X-Service-Roles: service", "X-Auth-Key: x", "X-Remote-User: ada", "X-Forwarded-User: ada",
		"X-Forwarded-For: 127.0.0.1", "X-Real-Ip: 127.0.0.1", "Forwarded: for=127.0.0.1", "X-Forwarded-Client-Cert: URI=spiffe://cyborg/admin/ada",
		"X-Auth_Token: " + adminToken, "X_Auth_Token: " + adminToken, "Connection: close",
	}
	for name, test := range map[string]struct {
		at           door
		text, status string
	}{
		"another method, of a look":       {forAPI, forAPI.request("GET /v1/hosts/h1", append(override, admin)...), "200"},
		"another method, of a change":     {forAPI, forAPI.request("POST /v1/hosts/h1?_method=DELETE", append(override, admin)...), "405"},
		"another method, for agents":      {forAgents, forAgents.request("PUT "+agents.ReportsPath, "X-HTTP-Method-Override: POST", asJSON, fmt.Sprint("Content-Length: ", len(forAgents.body)), "Connection: close") + forAgents.body, "405"},
		"who somebody says that he is":    {forAPI, forAPI.request("GET /v1/hosts", strange...), "401"},
		"the same, on /v2":                {forAPI, forAPI.request("GET /v2/devices", strange...), "401"},
		"a token in a fold":               {forAPI, forAPI.request("GET /v1/hosts", "X-Note: a\r\n "+admin, "Connection: close"), "401"},
		"a token behind another":          {forAPI, forAPI.request("GET /v1/hosts", "Authorization: Bearer wrong", admin, "Connection: close"), "401"},
		"another host in the line":        {forAPI, forAPI.request("GET http://example.org/v1/hosts", "Connection: close"), "401"},
		"another host, for agents":        {forAgents, strings.Replace(forAgents.act(fmt.Sprint("Content-Length: ", len(forAgents.body)), "Connection: close"), "POST ", "POST http://example.org", 1), "403"},
		"another host behind the line":    {forAgents, forAgents.headless("GET "+agents.HealthPath, "Host: example.org", "Connection: close"), "403"},
		"a connection to somewhere else":  {forAPI, forAPI.request("CONNECT example.org:80", "Connection: close"), "405"},
		"the same, for agents":            {forAgents, forAgents.request("CONNECT "+agentsAddress, "Connection: close"), "404"},
		"a request for what it was asked": {forAPI, forAPI.request("TRACE /v1/hosts", admin, "Connection: close"), "405"},
		"another protocol":                {forAPI, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "405"},
	} {
		require.Equal(t, []string{test.status}, test.at.speak(t, test.text), name)
	}

	// Nothing of it was done, and what it was would have been.
	require.Nil(t, h.accelerator(card.UUID).Maintenance)
	_, err = h.store.Host(t.Context(), "smuggled")
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
	_, err = h.store.Host(t.Context(), "h1")
	require.NoError(t, err)
	for _, d := range []door{forAPI, forAgents} {
		chunks := d.request("POST "+d.path, append(d.headers, "Transfer-Encoding: chunked")...) + d.chunked()
		for _, text := range []string{d.act(fmt.Sprint("Content-Length: ", len(d.body)), "Connection: close"), chunks} {
			require.Equal(t, []string{fmt.Sprint(http.StatusOK)}, d.speak(t, text), d.name)
		}
	}
	require.NotNil(t, h.accelerator(card.UUID).Maintenance)
	_, err = h.store.Host(t.Context(), "smuggled")
	require.NoError(t, err)
}
