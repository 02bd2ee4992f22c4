package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/config"
)

// TestRulesAcrossOptions: options that are valid each by itself may be unsafe
// or contradictory together.
func TestRulesAcrossOptions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		process config.Process
		text    string
		want    []string
	}{
		"loopback needs nothing": {text: "api: {listen: 'localhost:1'}\nagent_endpoint: {listen: '[::1]:2'}"},
		"Keystone is authentication": {
			text: "api: {listen: '10.0.0.1:6666', tls: {cert: a, key: b}}\nopenstack: {auth_url: 'https://k'}\nkeystone: {enabled: true}",
		},
		"Keystone without OpenStack": {
			text: "keystone: {enabled: true}",
			want: []string{`cyborg.yaml:1: keystone.enabled = "true": expected openstack.auth_url beside it`},
		},
		"service tokens of nobody": {
			text: "openstack: {auth_url: 'https://k'}\nkeystone:\n  enabled: true\n  service_token_roles: []",
			want: []string{`cyborg.yaml:4: keystone.service_token_roles: expected one role or more`},
		},
		"the cloud's user and services": {
			process: config.ProcessServer,
			text: "database: {url: 'postgres://x@y/z'}\nopenstack:\n  auth_url: https://k\n  username: ''\n  interface: secret\n" +
				"  endpoints: [{service: compute, url: 'http://n'}, {service: compute, url: 'http://m'}, {service: image}]",
			want: []string{
				`cyborg.yaml:5: openstack.interface = "secret": expected public, internal or admin`,
				`cyborg.yaml:6: openstack.endpoints[1].service = "compute": expected another service than that of openstack.endpoints[0]`,
				`cyborg.yaml:6: openstack.endpoints[2]: expected service and url`,
				`openstack.username: expected the name of the server's own user; set it in the file, or with CYBORG_OPENSTACK_USERNAME`,
				`openstack.password: expected the password of the server's own user; set openstack.password_file, or give it in the file, or with CYBORG_OPENSTACK_PASSWORD`,
			},
		},
		"an application credential needs its secret, and nothing else": {
			process: config.ProcessServer,
			text:    "database: {url: 'postgres://x@y/z'}\nopenstack: {auth_url: 'https://k', username: '', application_credential_id: abc}",
			want:    []string{`openstack.application_credential_secret: expected the secret of the application credential; set openstack.application_credential_secret_file, or give it in the file, or with CYBORG_OPENSTACK_APPLICATION_CREDENTIAL_SECRET`},
		},
		"clouds.yaml has it all": {
			process: config.ProcessServer,
			text:    "database: {url: 'postgres://x@y/z'}\nopenstack: {cloud: mine, username: ''}\nplacement: {enabled: true}",
		},
		"clouds.yaml or not": {
			process: config.ProcessServer,
			text:    "database: {url: 'postgres://x@y/z'}\nopenstack: {cloud: mine, auth_url: 'https://k'}",
			want:    []string{`cyborg.yaml:2: openstack.cloud = "mine": expected either openstack.auth_url or this`},
		},
		"all addresses": {
			text: "api: {listen: ':6666'}",
			want: []string{`cyborg.yaml:1: api.listen = ":6666": others can reach this address: set api.tls.cert and api.tls.key, and api.tokens, api.tls.client_ca or keystone.enabled, or listen on 127.0.0.1`},
		},
		"TLS without authentication": {
			text: "api: {listen: '10.0.0.1:6666', tls: {cert: a, key: b}}",
			want: []string{`cyborg.yaml:1: api.listen = "10.0.0.1:6666": others can reach this address: set api.tokens, api.tls.client_ca or keystone.enabled, or listen on 127.0.0.1`},
		},
		"TLS and tokens": {
			text: "api: {listen: '10.0.0.1:6666', tls: {cert: a, key: b}, tokens: [{name: x, token: 0123456789abcdef}]}",
		},
		"agents must show certificates": {
			text: "agent_endpoint: {listen: '0.0.0.0:6667', tls: {cert: a, key: b}}",
			want: []string{`cyborg.yaml:1: agent_endpoint.listen = "0.0.0.0:6667": others can reach this address: set agent_endpoint.tls.client_ca, or listen on 127.0.0.1`},
		},
		"metrics too": {
			text: "agent: {metrics_listen: '0.0.0.0:6668'}",
			want: []string{`cyborg.yaml:1: agent.metrics_listen = "0.0.0.0:6668": others can reach this address: set agent.tls.cert and agent.tls.key, and agent.tls.ca, or listen on 127.0.0.1`},
		},
		"metrics off": {text: "agent: {metrics_listen: ''}"},
		"embedded Temporal stays here": {
			text: "standalone: {temporal_listen: '0.0.0.0:7233', temporal_ui_listen: 'temporal:8233'}",
			want: []string{
				`cyborg.yaml:1: standalone.temporal_ui_listen = "temporal:8233": expected an address of this machine only and a port, such as 127.0.0.1:8233`,
				`cyborg.yaml:1: standalone.temporal_listen = "0.0.0.0:7233": others can reach this address: set standalone.temporal_tls.cert and standalone.temporal_tls.key, and standalone.temporal_tls.client_ca, or listen on 127.0.0.1`,
			},
		},
		"embedded Temporal with certificates": {
			text: "standalone: {temporal_listen: '0.0.0.0:7233', temporal_tls: {cert: a, key: b, client_ca: c}}",
		},
		"Temporal alone": {
			process: config.ProcessTemporal,
			text:    "api: {listen: '127.0.0.1:7233'}\nstandalone: {temporal_ui_listen: '127.0.0.1:7233', temporal_records: 'mysql://cyborg:canary@h/cyborg'}",
			want: []string{
				`cyborg.yaml:2: standalone.temporal_records = "******": expected a URL such as postgres://cyborg@db.example.org/cyborg`,
				`cyborg.yaml:2: standalone.temporal_ui_listen = "127.0.0.1:7233": expected another port than that of standalone.temporal_listen (127.0.0.1:7233)`,
				`database.url: expected the URL of a PostgreSQL database, such as postgres://cyborg@127.0.0.1/cyborg; set it in the file, or with CYBORG_DATABASE_URL`,
			},
		},
		"one port twice": {
			process: config.ProcessStandalone,
			text:    "api: {listen: '127.0.0.1:7233'}\nagent_endpoint: {listen: 'localhost:7233'}\nstandalone: {temporal_ui_listen: '127.0.0.1:7233'}",
			want: []string{
				`cyborg.yaml:3: standalone.temporal_ui_listen = "127.0.0.1:7233": expected another port than that of api.listen (127.0.0.1:7233)`,
				`default: standalone.temporal_listen = "127.0.0.1:7233": expected another port than that of api.listen (127.0.0.1:7233)`,
			},
		},
		"any free port, several times": {
			process: config.ProcessStandalone,
			text:    "api: {listen: '127.0.0.1:0'}\nagent_endpoint: {listen: '127.0.0.1:0'}\nstandalone: {temporal_listen: '127.0.0.1:0', temporal_ui_listen: '127.0.0.1:0'}",
		},
		"ports that are none": {
			text: "api: {listen: 127.0.0.1}\nagent_endpoint: {listen: '127.0.0.1:65536'}\ntemporal: {address: ':7233'}",
			want: []string{
				`cyborg.yaml:1: api.listen = "127.0.0.1": expected an address and a port such as 127.0.0.1:6666`,
				`cyborg.yaml:2: agent_endpoint.listen = "127.0.0.1:65536": expected an address and a port such as 127.0.0.1:6666`,
				`cyborg.yaml:3: temporal.address = ":7233": expected a host and a port such as temporal.example.org:7233`,
			},
		},
		"certificate without key": {
			text: "api: {tls: {cert: /a}}\ntemporal: {tls: {key: /b}}",
			want: []string{
				`cyborg.yaml:1: api.tls.cert = "/a": expected api.tls.key beside it`,
				`cyborg.yaml:2: temporal.tls.key = "/b": expected temporal.tls.cert beside it`,
			},
		},
		"heartbeats rarer than silence": {
			text: "agent: {heartbeat: 20s}",
			want: []string{`cyborg.yaml:1: agent.heartbeat = "20s": expected less than half of conductor.silent_after, which is 25s`},
		},
		"silence sooner than two heartbeats": {
			text: "conductor: {silent_after: 20s}",
			want: []string{`cyborg.yaml:1: conductor.silent_after = "20s": expected more than twice agent.heartbeat, which is 10s`},
		},
		"tokens": {
			text: `api:
  tokens:
    - {name: a, token: 0123456789abcdef}
    - {name: a, token: 0123456789abcdeX}
    - {name: b, token: 0123456789abcdef}
    - {name: c, token: short}
    - {name: d}
    - {token: 0123456789abcdeY}
    - {name: e, token: 0123456789abcdeZ, token_file: f}
`,
			want: []string{
				`cyborg.yaml:4: api.tokens[1].name = "a": expected another name than that of api.tokens[0]`,
				`cyborg.yaml:5: api.tokens[2].token: expected another token than that of api.tokens[0]`,
				`cyborg.yaml:6: api.tokens[3].token: expected 16 characters or more`,
				`cyborg.yaml:7: api.tokens[4]: expected either token or token_file`,
				`cyborg.yaml:8: api.tokens[5].name: expected a name, which histories will show`,
				`cyborg.yaml:9: api.tokens[6]: expected either token or token_file`,
			},
		},
		"backends": {
			text: "agent:\n  backends:\n    - {name: a}\n    - {driver: fake}\n    - {name: fake, driver: generic}\n    - fake\n",
			want: []string{
				`cyborg.yaml:3: agent.backends[0].driver: expected the name of a driver`,
				`cyborg.yaml:5: agent.backends[2].name = "fake": expected another name than that of agent.backends[1]`,
				`cyborg.yaml:6: agent.backends[3]: expected keys with values, of name, driver, enabled, options`,
			},
		},
		"agents go through TLS": {
			text: "agent: {endpoints: ['http://10.0.0.1:6667', 'ftp://x', 'https://u:p@x']}",
			want: []string{
				`cyborg.yaml:1: agent.endpoints[1] = "ftp://x": expected a URL such as https://cyborg.example.org:6667`,
				`cyborg.yaml:1: agent.endpoints[2] = "******": expected a URL without user and password`,
				`cyborg.yaml:1: agent.endpoints[0] = "http://10.0.0.1:6667": goes over the network: expected https`,
			},
		},
		"deployable names": {
			text: "inventory: {deployable_name: 'cloud-{host}'}",
			want: []string{`cyborg.yaml:1: inventory.deployable_name = "cloud-{host}": expected a text with {host} and {name} in it`},
		},
		"host names": {
			text: "agent: {host: 'a b'}",
			want: []string{`cyborg.yaml:1: agent.host = "a b": expected a host name: at most 253 letters, digits, dots, hyphens and underscores, beginning and ending with a letter or digit`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			o := config.LoadOptions{Process: test.process, File: write(t, test.text)}
			if test.want == nil {
				load(t, o)
				return
			}

			require.Equal(t, test.want, problems(t, o))
		})
	}
}

// TestFilesMustExistWhereTheyAreUsed: a process checks only the files that it
// will read, because the others may be on another machine.
func TestFilesMustExistWhereTheyAreUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := "temporal: {tls: {ca: " + dir + "/ca.crt}}\napi: {tls: {cert: " + dir + "/missing, key: " + dir + "}}\n"
	load(t, config.LoadOptions{File: write(t, text)})

	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.crt"), nil, 0o600))
	load(t, config.LoadOptions{Process: config.ProcessAgent, File: write(t, text)})
	require.Len(t, problems(t, config.LoadOptions{Process: config.ProcessStandalone, File: write(t, text)}), 2)
}

// TestTokensComeFromFilesToo: a token from a file must meet the same rules.
func TestTokensComeFromFilesToo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := "api: {tokens: [{name: ops, role: admin, token_file: " + dir + "/token}]}"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("0123456789abcdef\n"), 0o600))

	c := load(t, config.LoadOptions{Process: config.ProcessStandalone, File: write(t, text)})
	require.Equal(t, "0123456789abcdef", c.API.Tokens[0].Token.Reveal())

	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("short\n"), 0o600))
	require.Equal(t, []string{`cyborg.yaml:1: api.tokens[0].token: expected 16 characters or more`},
		problems(t, config.LoadOptions{Process: config.ProcessStandalone, File: write(t, text)}))
}

// TestPasswordFromAFile: a password comes from the configuration or from a
// file, never from both.
func TestPasswordFromAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("hush-hush\n"), 0o600))

	text := "database: {url: 'postgres://x@y/z'}\nopenstack:\n  auth_url: https://k\n  password_file: " + file + "\n"
	c := load(t, config.LoadOptions{Process: config.ProcessServer, File: write(t, text)})
	require.Equal(t, "hush-hush", c.OpenStack.Password.Reveal())
	require.True(t, c.OpenStack.Enabled())

	both := problems(t, config.LoadOptions{Process: config.ProcessServer, File: write(t, text+"  password: other\n")})
	require.Len(t, both, 1)
	require.Contains(t, both[0], "expected either openstack.password or this")
}
