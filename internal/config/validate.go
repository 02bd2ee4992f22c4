package config

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
)

// minTokenLength is the least number of bytes in a token. Shorter ones can be
// guessed.
const minTokenLength = 16

// validate makes the checks that concern more than one value. They come after
// all values have been decoded and completed.
func (d *decoder) validate(c *Config, process Process) {
	d.validateDatabase(c, process)
	d.validateTemporal(c)
	d.validateListeners(c, process)
	d.validateTokens(c, process)
	d.validateAgent(c, process)
	d.validateOpenStack(c, process)
	d.validateKeystone(c)
	d.validatePlacement(c)

	// A host must not count as silent because a single heartbeat was lost.
	// The mistake is where somebody has set something.
	if !d.failed("agent.heartbeat") && c.Conductor.SilentAfter <= 2*c.Agent.Heartbeat {
		if c.Given("conductor.silent_after") {
			d.wrongf(c, "conductor.silent_after", durationText(c.Conductor.SilentAfter),
				"expected more than twice agent.heartbeat, which is %s", durationText(c.Agent.Heartbeat))
		} else {
			d.wrongf(c, "agent.heartbeat", durationText(c.Agent.Heartbeat),
				"expected less than half of conductor.silent_after, which is %s", durationText(c.Conductor.SilentAfter))
		}
	}

	// A heartbeat timeout as long as the step could never be the first to expire.
	if !d.failed("operations.step") && c.Operations.Heartbeat >= c.Operations.Step {
		d.wrongf(c, "operations.heartbeat", durationText(c.Operations.Heartbeat),
			"expected less than operations.step, which is %s", durationText(c.Operations.Step))
	}

	// The cache must have space for the largest image that is accepted.
	if !d.failed("agent.image_max") && c.Agent.ImageCache < c.Agent.ImageMax {
		d.wrongf(c, "agent.image_cache", c.Agent.ImageCache.String(),
			"expected at least agent.image_max, which is %s", c.Agent.ImageMax)
	}
}

// wrongf records a problem with a well-formed value, at the place where the
// value was given. It does nothing if a problem with the value is known
// already: one mistake is reported once.
func (d *decoder) wrongf(c *Config, key, value, format string, args ...any) {
	if d.failed(key) {
		return
	}

	problem := Problem{Source: "default", Key: key, Value: value, Message: fmt.Sprintf(format, args...)}
	if g, ok := c.origins[key]; ok {
		problem = g.problem(g.node, problem)
	}

	d.problems = append(d.problems, problem)
}

// item records a problem with an item of the list at the key. The problem's own
// key may be below it, such as api.tokens[0].name.
func (d *decoder) item(c *Config, key string, index int, problem Problem) {
	if g, ok := c.origins[key]; ok {
		problem = g.problem(g.node.Content[index], problem)
	}

	d.problems = append(d.problems, problem)
}

// missingf records that a required value was not given. The message must end in
// a verb such as "set": missingf appends how.
func (d *decoder) missingf(key, format string, args ...any) {
	env := option{key: key}.env()
	d.problems = append(d.problems, Problem{Key: key, Message: fmt.Sprintf(format, args...) + " it in the file, or with " + env})
}

// failed reports whether a problem with the key, or with a key below it, is
// known already.
func (d *decoder) failed(key string) bool {
	for _, problem := range d.problems {
		if problem.Key == key || strings.HasPrefix(problem.Key, key+".") || strings.HasPrefix(problem.Key, key+"[") {
			return true
		}
	}

	return false
}

// validateDatabase requires a URL from the processes that cannot start a
// PostgreSQL of their own.
func (d *decoder) validateDatabase(c *Config, process Process) {
	d.databaseURL(c, "standalone.temporal_records", c.Standalone.TemporalRecords)

	const key = "database.url"
	if c.Database.URL == "" {
		if !d.failed(key) && slices.Contains([]Process{ProcessServer, ProcessMigrate, ProcessTemporal}, process) {
			d.missingf(key, "expected the URL of a PostgreSQL database, such as postgres://cyborg@127.0.0.1/cyborg; set")
		}
		return
	}
	d.databaseURL(c, key, c.Database.URL)
}

// databaseURL requires that the URL of a database, if there is one, can be read.
func (d *decoder) databaseURL(c *Config, key string, url DatabaseURL) {
	if _, err := parseDatabaseURL(url.Reveal()); url != "" && err != nil {
		d.wrongf(c, key, url.String(), "expected a URL such as postgres://cyborg@db.example.org/cyborg")
	}
}

// validateTemporal requires that a certificate and its key are set together.
func (d *decoder) validateTemporal(c *Config) {
	d.pair(c, "temporal.tls.cert", c.Temporal.TLS.Cert, "temporal.tls.key", c.Temporal.TLS.Key)
}

// pair records a problem if only one of two options is set that need each
// other.
func (d *decoder) pair(c *Config, firstKey, first, secondKey, second string) {
	switch {
	case first != "" && second == "" && !d.failed(secondKey):
		d.wrongf(c, firstKey, first, "expected %s beside it", secondKey)
	case first == "" && second != "" && !d.failed(firstKey):
		d.wrongf(c, secondKey, second, "expected %s beside it", firstKey)
	}
}

// listener is an address that a process listens on, with the key of its option.
type listener struct{ key, address string }

// validateListeners requires that listeners which other machines can reach are
// protected, and that listeners of the same process have different ports.
func (d *decoder) validateListeners(c *Config, process Process) {
	d.pair(c, "api.tls.cert", c.API.TLS.Cert, "api.tls.key", c.API.TLS.Key)
	d.pair(c, "agent_endpoint.tls.cert", c.AgentEndpoint.TLS.Cert, "agent_endpoint.tls.key", c.AgentEndpoint.TLS.Key)

	d.guarded(c, listener{"api.listen", c.API.Listen}, lacking(
		need{"api.tls.cert and api.tls.key", c.API.TLS.Cert != "" && c.API.TLS.Key != ""},
		need{"api.tokens, api.tls.client_ca or keystone.enabled", len(c.API.Tokens) > 0 || c.API.TLS.ClientCA != "" || c.Keystone.Enabled},
	))

	d.guarded(c, listener{"agent_endpoint.listen", c.AgentEndpoint.Listen}, lacking(
		need{"agent_endpoint.tls.cert and agent_endpoint.tls.key", c.AgentEndpoint.TLS.Cert != "" && c.AgentEndpoint.TLS.Key != ""},
		need{"agent_endpoint.tls.client_ca", c.AgentEndpoint.TLS.ClientCA != ""},
	))

	d.guarded(c, listener{"agent.metrics_listen", c.Agent.MetricsListen}, lacking(
		need{"agent.tls.cert and agent.tls.key", c.Agent.TLS.Cert != "" && c.Agent.TLS.Key != ""},
		need{"agent.tls.ca", c.Agent.TLS.CA != ""},
	))

	t := c.Standalone.TemporalTLS
	d.pair(c, "standalone.temporal_tls.cert", t.Cert, "standalone.temporal_tls.key", t.Key)
	d.pair(c, "standalone.temporal_tls.cert", t.Cert, "standalone.temporal_tls.client_ca", t.ClientCA)
	d.guarded(c, listener{"standalone.temporal_listen", c.Standalone.TemporalListen}, lacking(
		need{"standalone.temporal_tls.cert and standalone.temporal_tls.key", t.Cert != "" && t.Key != ""},
		need{"standalone.temporal_tls.client_ca", t.ClientCA != ""},
	))

	if c.API.TLS.ClientCA != "" && c.API.TLS.Cert == "" {
		d.wrongf(c, "api.tls.client_ca", c.API.TLS.ClientCA, "expected api.tls.cert beside it")
	}
	if c.AgentEndpoint.TLS.ClientCA != "" && c.AgentEndpoint.TLS.Cert == "" {
		d.wrongf(c, "agent_endpoint.tls.client_ca", c.AgentEndpoint.TLS.ClientCA, "expected agent_endpoint.tls.cert beside it")
	}

	// Only listeners that the same process opens can be in each other's way.
	var listeners []listener
	if process != ProcessTemporal {
		listeners = []listener{{"api.listen", c.API.Listen}, {"agent_endpoint.listen", c.AgentEndpoint.Listen}}
	}
	if process == ProcessStandalone || process == ProcessTemporal {
		listeners = append(listeners, listener{"standalone.temporal_listen", c.Standalone.TemporalListen},
			listener{"standalone.temporal_ui_listen", c.Standalone.TemporalUIListen})
	}

	for i, later := range listeners {
		for _, earlier := range listeners[:i] {
			if clash(earlier.address, later.address) {
				d.wrongf(c, later.key, later.address, "expected another port than that of %s (%s)", earlier.key, earlier.address)
			}
		}
	}
}

// need is a condition, with the options that fulfil it.
type need struct {
	options string
	met     bool
}

// lacking returns the options of the needs that are not met.
func lacking(needs ...need) []string {
	var missing []string
	for _, n := range needs {
		if !n.met {
			missing = append(missing, n.options)
		}
	}
	return missing
}

// guarded records a problem if other machines can reach the listener while an
// option is missing that would protect it.
func (d *decoder) guarded(c *Config, l listener, missing []string) {
	host, _, ok := splitAddress(l.address)
	if !ok || loopback(host) || len(missing) == 0 {
		return
	}

	d.wrongf(c, l.key, l.address, "others can reach this address: set %s, or listen on 127.0.0.1", strings.Join(missing, ", and "))
}

// clash reports whether two listeners want the same port of the same address.
// Port 0 is never the same, because the kernel picks a free port for each. An
// empty or unspecified host means all addresses of the machine.
func clash(a, b string) bool {
	hostA, portA, okA := splitAddress(a)
	hostB, portB, okB := splitAddress(b)
	if !okA || !okB || portA != portB || portA == "0" {
		return false
	}

	everywhere := func(host string) bool { ip := net.ParseIP(host); return host == "" || ip != nil && ip.IsUnspecified() }
	return hostA == hostB || everywhere(hostA) || everywhere(hostB)
}

// validateTokens checks that the names and the secrets of tokens differ, and
// reads secrets from their files.
func (d *decoder) validateTokens(c *Config, process Process) {
	names, secrets := map[string]int{}, map[Secret]int{}
	for i := range c.API.Tokens {
		token := &c.API.Tokens[i]
		key := fmt.Sprintf("api.tokens[%d]", i)
		add := func(field, value, format string, args ...any) {
			d.item(c, "api.tokens", i, Problem{Key: key + field, Value: value, Message: fmt.Sprintf(format, args...)})
		}

		// After most problems the other fields of the token would only give rise to
		// further messages about the same mistake. A wrong role does not.
		illFormed := func(p Problem) bool {
			return p.Key == key || strings.HasPrefix(p.Key, key+".") && p.Key != key+".role"
		}

		if slices.ContainsFunc(d.problems, illFormed) {
			continue
		}

		if token.Name == "" {
			add(".name", "", "expected a name, which histories will show")
		} else if first, ok := names[token.Name]; ok {
			add(".name", token.Name, "expected another name than that of api.tokens[%d]", first)
		}
		names[token.Name] = i

		if (token.Token == "") == (token.TokenFile == "") {
			add("", "", "expected either token or token_file")
			continue
		}

		if token.TokenFile != "" {
			// Only the API needs the secrets, so only there the file must be readable.
			if !process.uses("api") {
				continue
			}
			text, err := os.ReadFile(token.TokenFile)
			if err != nil {
				add(".token_file", token.TokenFile, "cannot be read: %v", err)
				continue
			}
			token.Token = Secret(strings.TrimSpace(string(text)))
		}

		if len(token.Token) < minTokenLength {
			add(".token", "", "expected %d characters or more", minTokenLength)
		} else if first, ok := secrets[token.Token]; ok {
			add(".token", "", "expected another token than that of api.tokens[%d]", first)
		}
		secrets[token.Token] = i
	}
}

// validateAgent checks the agent's endpoints and the names of its backends.
func (d *decoder) validateAgent(c *Config, process Process) {
	d.pair(c, "agent.tls.cert", c.Agent.TLS.Cert, "agent.tls.key", c.Agent.TLS.Key)

	if process == ProcessAgent && len(c.Agent.Endpoints) == 0 && !d.failed("agent.endpoints") {
		d.missingf("agent.endpoints", "expected the URL of an agent endpoint; set")
	}

	for i, endpoint := range c.Agent.Endpoints {
		// An endpoint on another machine needs TLS.
		parsed, err := url.Parse(endpoint)
		if err == nil && parsed.Scheme == "http" && parsed.Hostname() != "" && !loopback(parsed.Hostname()) {
			d.item(c, "agent.endpoints", i, Problem{
				Key: fmt.Sprintf("agent.endpoints[%d]", i), Value: endpoint, Message: "goes over the network: expected https",
			})
		}
	}

	names := map[string]int{}
	for i, backend := range c.Agent.Backends {
		key := fmt.Sprintf("agent.backends[%d]", i)
		if d.failed(key) {
			continue
		}

		switch first, taken := names[backend.Name]; {
		case backend.Driver == "":
			d.item(c, "agent.backends", i, Problem{Key: key + ".driver", Message: "expected the name of a driver"})
		case taken:
			d.item(c, "agent.backends", i, Problem{
				Key: key + ".name", Value: backend.Name,
				Message: fmt.Sprintf("expected another name than that of agent.backends[%d]", first),
			})
		}

		names[backend.Name] = i
	}
}
