package api_test

import (
	"bufio"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/policy"
	v1 "github.com/cyborg-project/cyborg/api/v1"
	"github.com/cyborg-project/cyborg/internal/openstack"
	"github.com/cyborg-project/cyborg/internal/openstack/keystone"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
)

// cloud is a harness whose callers have tokens of Keystone or static ones.
type cloud struct {
	*harness

	keystone *openstacktest.Keystone
	log      *record
	answers  strings.Builder
}

const publicKeystone = "https://keystone.example.org:5000"

// setupCloud serves the API to callers who have tokens of a fake Keystone or
// static ones.
func setupCloud(t *testing.T) *cloud {
	t.Helper()
	return setupCloudWith(t, time.Minute, v1.Config{SyncWait: waitLimit})
}

// setupCloudWith is setupCloud for which answers of Keystone count for so long.
func setupCloudWith(t *testing.T, revocation time.Duration, served v1.Config) *cloud {
	t.Helper()
	c := &cloud{harness: setup(t), keystone: openstacktest.NewKeystone(t), log: &record{}}
	log := slog.New(slog.NewTextHandler(c.log, &slog.HandlerOptions{Level: slog.LevelDebug}))

	session, err := openstack.New(c.keystone.Config(), log)
	require.NoError(t, err)
	t.Cleanup(session.Close)

	registry := prometheus.NewRegistry()
	validator, err := keystone.New(session, keystone.Options{Revocation: revocation, Tokens: 1000, Registry: registry, Log: log})
	require.NoError(t, err)
	rules, err := policy.New(policy.Config{EnforceNewDefaults: true, Log: log})
	require.NoError(t, err)

	config := api.Config{V1: served}
	withTokens(&config)
	config.Auth.Keystone = auth.Keystone{
		Validator: validator, URI: publicKeystone, ServiceRoles: []string{"service"},
		Admins: []string{"admin"}, Members: []string{"operator"}, Readers: []string{"auditor"},
	}

	handler, err := api.New(config, api.Deps{Store: c.store, Engine: c.engine, Policy: rules, Registry: registry, Log: log})
	require.NoError(t, err)
	c.server = httptest.NewServer(handler)
	t.Cleanup(c.server.Close)
	return c
}

// ask sends a request with the token in X-Auth-Token, or without one if it is
// empty.
func (c *cloud) ask(token, method, path string, body any, headers ...string) *reply {
	c.t.Helper()
	if token != "" {
		headers = append(headers, "X-Auth-Token", token)
	}

	answer := c.do(method, path, body, headers...)
	c.answers.Write(answer.body)

	for name, values := range answer.header {
		c.answers.WriteString(name + ": " + strings.Join(values, ",") + "\n")
	}
	return answer
}

// user issues a token of alice with these roles in project p1.
func (c *cloud) user(roles ...string) string {
	return c.keystone.Issue(openstacktest.Token{UserID: "u-alice", User: "alice", ProjectID: "p1", ProjectIs: "demo", Roles: roles})
}

// unauthorized expects the answer that Keystone's own middleware gives.
func (r *reply) unauthorized() string {
	r.t.Helper()
	r.expect(http.StatusUnauthorized)
	require.Equal(r.t, `Keystone uri="`+publicKeystone+`"`, r.header.Values("WWW-Authenticate")[0])
	require.Equal(r.t, "application/json", r.header.Get("Content-Type"))

	body := as[map[string]struct {
		Code           int
		Title, Message string
	}](r)["error"]
	require.Equal(r.t, http.StatusUnauthorized, body.Code)
	require.Equal(r.t, "Unauthorized", body.Title)
	return body.Message
}

// profile is a body that creates a device profile.
func profile(name string) any {
	return []any{map[string]any{"name": name, "groups": []any{map[string]any{"resources:FPGA": "1"}}}}
}

const profiles = "/v2/device_profiles"

func TestKeystoneTokens(t *testing.T) {
	t.Parallel()
	c := setupCloud(t)
	reader, admin := c.user("reader"), c.user("admin", "manager", "member", "reader")

	c.ask(reader, "GET", profiles, nil).expect(http.StatusOK)
	c.ask(admin, "POST", profiles, profile("gold")).expect(http.StatusCreated)
	denied := c.ask(reader, "POST", profiles, profile("silver")).fault(http.StatusForbidden)
	require.Contains(t, denied, "Access was denied to the following resource: cyborg:device_profile:create")
	require.Contains(t, denied, "alice has the roles [reader]")

	for name, token := range map[string]openstacktest.Token{
		"system":  {UserID: "u1", User: "root", System: true, Roles: []string{"admin", "reader"}},
		"domain":  {UserID: "u1", User: "root", DomainID: "d1", Roles: []string{"admin", "reader"}},
		"project": {UserID: "u1", User: "root", Roles: []string{"admin", "reader"}},
	} {
		fault := c.ask(c.keystone.Issue(token), "GET", profiles, nil).fault(http.StatusForbidden)
		require.Contains(t, fault, name)
	}

	require.Contains(t, c.ask("", "GET", profiles, nil).unauthorized(), "X-Auth-Token")
	c.ask("made-up", "GET", profiles, nil).unauthorized()
	c.ask(strings.Repeat("x", 20000), "GET", profiles, nil).unauthorized()
	c.ask(c.keystone.Issue(openstacktest.Token{UserID: "u1", Expires: time.Now().Add(-time.Minute)}), "GET", profiles, nil).unauthorized()
	c.ask("", "GET", "/v2", nil).expect(http.StatusOK)

	// Static tokens work as well, in Keystone's header, too.
	c.ask(readerToken, "GET", profiles, nil).expect(http.StatusOK)
	c.ask(adminToken, "POST", profiles, profile("bronze")).expect(http.StatusCreated)
	c.ask(readerToken, "GET", "/v1/accelerators", nil).expect(http.StatusOK)
	c.as(readerToken).do("GET", profiles, nil).expect(http.StatusOK)

	require.Zero(t, c.keystone.Asked(adminToken), "Keystone is not told of them")
	require.Zero(t, c.keystone.Asked(readerToken))

	for _, secret := range []string{reader, admin, "made-up", readerToken, adminToken, openstacktest.OwnPassword} {
		require.NotContains(t, c.log.String(), secret)
		require.NotContains(t, c.answers.String(), secret)
	}
}

// Two users of the same name stay apart: neither may act on an operation of the
// other, nor finds it by an idempotency key.
func TestUsersWithTheSameNameAreDistinct(t *testing.T) {
	t.Parallel()
	c := setupCloud(t)
	accelerator := c.as(adminToken).ready("alpha")

	namesake := func(id string) string {
		return c.keystone.Issue(openstacktest.Token{UserID: id, User: "mia", System: true, Roles: []string{"operator"}})
	}
	one, two := namesake("u-one"), namesake("u-two")

	c.engine.set(func(e *engine) { e.fail = cyborg.Errorf(cyborg.ErrHardware, "no") })
	for asks, other := range map[string][]string{memberToken: {one, two}, one: {memberToken, two}} {
		failed := c.ask(asks, "PUT", path(accelerator), map[string]any{}, "Idempotency-Key", "k").problem(cyborg.ErrHardware).Operation
		require.Equal(t, "mia", c.as(adminToken).ended(failed).Actor.Name)
		for _, token := range other {
			c.ask(token, "POST", operationPath(failed, "/retry"), nil).problem(cyborg.ErrForbidden)
			c.ask(token, "POST", operationPath(failed, "/cancel"), nil).problem(cyborg.ErrForbidden)
		}

		again := c.ask(asks, "PUT", path(accelerator), map[string]any{}, "Idempotency-Key", "k").problem(cyborg.ErrHardware).Operation
		require.Equal(t, failed, again)
		retried := as[cyborg.Operation](c.ask(asks, "POST", operationPath(failed, "/retry"), nil).expect(http.StatusAccepted))
		c.as(adminToken).ended(retried.ID)
	}
}

// A bad service token is refused and not ignored, because its sender believes
// that it counts.
func TestServiceTokens(t *testing.T) {
	t.Parallel()
	c := setupCloud(t)
	user := c.user("member", "reader")
	nova := c.keystone.Issue(openstacktest.Token{UserID: "u-nova", User: "nova", ProjectID: "p-service", Roles: []string{"service", "admin"}})
	const header = "X-Service-Token"
	get := func(user, service string) *reply { return c.ask(user, "GET", profiles, nil, header, service) }

	get(user, nova).expect(http.StatusOK)
	get(user, adminToken).expect(http.StatusOK)

	require.Contains(t, get(user, user).unauthorized(), "[service]")
	require.Contains(t, get(user, memberToken).unauthorized(), "static")
	require.Contains(t, get(user, "made-up").unauthorized(), "service token is not valid")

	require.Contains(t, get("made-up", nova).unauthorized(), "the token is not valid")
	get("", nova).unauthorized()

	// Nova may work for longer than the user's token lasts.
	expired := c.keystone.Issue(openstacktest.Token{
		UserID: "u-alice", User: "alice", ProjectID: "p1", Roles: []string{"member", "reader"}, Expires: time.Now().Add(-time.Minute),
	})

	c.ask(expired, "GET", profiles, nil).unauthorized()
	get(expired, nova).expect(http.StatusOK)
}

func TestKeystoneAwayIsUnavailableToNewTokens(t *testing.T) {
	t.Parallel()
	c := setupCloud(t)
	known, other := c.user("reader"), c.user("reader")
	c.ask(known, "GET", profiles, nil).expect(http.StatusOK)

	c.keystone.Away()

	answer := c.ask(other, "GET", profiles, nil)
	require.Contains(t, answer.fault(http.StatusServiceUnavailable), "Keystone does not answer")
	require.Equal(t, "5", answer.header.Get("Retry-After"))
	require.NotContains(t, string(answer.body), c.keystone.URL)

	c.ask(other, "GET", "/v1/accelerators", nil).problem(cyborg.ErrUnavailable)
	c.ask(known, "GET", profiles, nil).expect(http.StatusOK)
	c.ask(adminToken, "GET", profiles, nil).expect(http.StatusOK)
}

// /v1 has one inventory for all, so the operator says which roles of Keystone
// may do what there.
func TestKeystoneCallersOnV1(t *testing.T) {
	t.Parallel()
	c := setupCloud(t)
	accelerator := c.host("h1", 1)["fpga-0"]
	const list = "/v1/accelerators"

	problem := c.ask(c.user("member", "reader"), "GET", list, nil).problem(cyborg.ErrForbidden)
	require.Equal(t, "alice has the Keystone roles [member reader], and none of them may GET /v1/accelerators", problem.Detail)
	require.Contains(t, problem.Hint, "keystone.reader_roles")

	c.ask(c.user("auditor"), "GET", list, nil).expect(http.StatusOK)
	c.as(c.user("auditor")).do("GET", list, nil).expect(http.StatusOK) // as the command line sends it
	c.ask(c.user("auditor"), "POST", path(accelerator, "/ready"), nil).problem(cyborg.ErrForbidden)
	c.ask(c.keystone.Issue(openstacktest.Token{UserID: "u1", User: "root", System: true, Roles: []string{"admin"}}), "GET", list, nil).expect(http.StatusOK)
	c.ask(c.keystone.Issue(openstacktest.Token{UserID: "u1", User: "root", DomainID: "d1", Roles: []string{"admin"}}), "GET", list, nil).problem(cyborg.ErrForbidden)

	unknown := c.ask("made-up", "GET", list, nil)
	unknown.problem(cyborg.ErrUnauthenticated)
	require.Equal(t, []string{`Keystone uri="` + publicKeystone + `"`, `Bearer realm="cyborg"`}, unknown.header.Values("WWW-Authenticate"))

	id := "req-" + uuid.NewString()
	c.ask(c.user("admin"), "POST", path(accelerator, "/ready"), nil, "X-Openstack-Request-Id", id).expect(http.StatusOK)
	operations := as[map[string][]cyborg.Operation](c.ask(c.user("auditor"), "GET", "/v1/operations", nil))["operation"]
	require.Equal(t, cyborg.Actor{Name: "alice", ID: "keystone/u-alice", Project: "p1", RequestID: id}, operations[0].Actor)

	// A member may not cancel an operation of a namesake in another project.
	member := c.keystone.Issue(openstacktest.Token{UserID: "u2", User: "alice", ProjectID: "p2", Roles: []string{"operator"}})
	c.ask(member, "POST", "/v1/operations/"+operations[0].ID.String()+"/cancel", nil).problem(cyborg.ErrForbidden)
}

// Each route of /v2 asks for the rule that OpenStack Cyborg has for it, under
// the same name.
func TestRoutesUseTheirPolicyRules(t *testing.T) {
	t.Parallel()
	rules, err := policy.New(policy.Config{EnforceNewDefaults: true, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)

	things := map[string]string{
		"device_profiles": "device_profile", "devices": "device", "deployables": "deployable", "attributes": "attribute",
		"accelerator_requests": "arq",
	}

	for _, route := range routesV2() {
		segments := strings.Split(strings.TrimPrefix(route.Pattern, "/"), "/")
		verb := map[string]string{"GET": "get_one", "POST": "create", "PATCH": "update", "DELETE": "delete"}[route.Method]

		switch {
		case len(segments) == 3:
			verb = segments[2]
		case route.Method == http.MethodGet && len(segments) == 1:
			verb = "get_all"
		}

		require.Equal(t, "cyborg:"+things[segments[0]]+":"+verb, route.Rule, "%s %s", route.Method, route.Pattern)
		require.True(t, rules.Knows(route.Rule), route.Rule)
	}
}

// An event stream ends when its token was revoked, also while there are events all
// the time. It goes on while Keystone is away, like the requests of known tokens.
func TestEventStreamOfARevokedToken(t *testing.T) {
	t.Parallel()
	c := setupCloudWith(t, 10*time.Millisecond, v1.Config{SyncWait: waitLimit, Heartbeat: 20 * time.Millisecond})
	token := c.user("auditor")

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server.URL+"/v1/events", http.NoBody)
	require.NoError(t, err)
	request.Header.Set("X-Auth-Token", token)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusOK, answer.StatusCode)

	lines := bufio.NewScanner(answer.Body)
	beats := func(count int) {
		t.Helper()
		for count > 0 {
			require.True(t, lines.Scan(), "the stream has ended")
			if strings.HasPrefix(lines.Text(), ": still here") {
				count--
			}
		}
	}

	beats(3)
	c.keystone.Away()
	beats(3)
	c.keystone.Disturb(nil)
	beats(3)

	c.keystone.Revoke(token)
	for lines.Scan() { // until the server ends it
	}
	require.NoError(t, lines.Err())
	require.Contains(t, c.log.String(), "its caller may not read it any more")
}
