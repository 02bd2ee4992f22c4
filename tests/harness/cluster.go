package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

// Client is the name of the test itself as an end of links.
const Client = "client"

// SharedCard is the identity of the card of ClusterOptions.Shared, which is in a PCI
// domain of its own.
const (
	SharedCard   = sharedDomain + ":01:00.0"
	sharedDomain = "02fa"
)

// DividedCard is the identity of the card of ClusterOptions.Divided, which is in a PCI
// domain of its own.
const (
	DividedCard   = dividedDomain + ":01:00.0"
	dividedDomain = "03fa"
)

// cleanLatency is for how long the hosts of a cluster clean a handle, so that faults meet it.
const cleanLatency = 200 * time.Millisecond

// ClusterOptions are the options of a cluster.
type ClusterOptions struct {
	// Hosts are the names of the hosts. Each has an agent.
	Hosts []string
	// Park is the text of the fake cards of each host, such as 2xfpga,1xgpu.
	Park string
	// Careless has the cards' driver refuse nothing because somebody uses a card, so
	// that only the agents look.
	Careless bool
	// Spare is the name of a second backend of each host, which is disabled and
	// which a test may install through the API; empty for none.
	Spare string
	// Prepares is the name of a host that prepares the handles of its cards for whoever
	// gets one; empty for none.
	Prepares string
	// Cleans has how the hosts, by their names, clean their cards after every holder. The
	// others do not.
	Cleans map[string]cyborg.CleanMethod
	// Shared is the name of a backend of each host with one card, SharedCard, whose two
	// parts go to one holder; empty for none.
	Shared string
	// Divided is the name of a backend of each host with one card, DividedCard, that can be
	// divided into parts; empty for none.
	Divided string
	// Env is added to the environment of every process.
	Env []string
	// Clocks, where not nil, gives each process a clock that Node.SetClock can
	// change. It has the offsets at the start, by the name of the node; 0 for those
	// that it does not name. See clock.Need.
	Clocks map[string]time.Duration
	// Certificates has conductors and agents prove who they are by certificates also
	// to each other, as they always do to Temporal. The API stays as it is.
	Certificates bool
	// Token is a static token of an admin. Where it is empty and Env configures no
	// other credentials, everybody is admin.
	Token string
	// Outside returns what is added to the environment of a server, so that the
	// server finds services outside the cluster. It is called once for each server.
	// Its argument makes a link from the server to an address outside, under a
	// name, and returns the address of the link; nil for no such services.
	Outside func(to func(name, address string) string) []string
}

// Cluster is a Cyborg whose parts are separate processes: PostgreSQL, Temporal,
// two conductors, two APIs, and an agent with fake cards for each host. Every
// connection between two of them goes through a link, so that a test can
// disturb it.
type Cluster struct {
	System // its API is the first one, past the links

	Nodes []*Node // in the order of their start
	Links []*Link

	// APIs are clients of each API, through the links.
	APIs []*apiclient.Client
	// URLs are the URLs of each API, through the links.
	URLs []string
	// Directs are clients of each API, past the links.
	Directs []*apiclient.Client

	// Disks are the file systems that can be filled. There are none where the test
	// may not mount.
	Disks []*Disk
	// Hosts are the names of the hosts.
	Hosts []string
	// Certificates are those of the processes.
	Certificates *Certificates

	health *http.Client // asks for the health of conductors

	seconds map[string]*Node // second agents, by host

	ticking sync.WaitGroup
	mu      sync.Mutex           // guards booted
	booted  map[string]time.Time // when the machine of a host was booted

	dir      string   // everything lies below it
	env      []string // of every process
	options  ClusterOptions
	postgres *primary           // PostgreSQL
	records  string             // URL of the database, past the links that are disturbed
	temporal string             // address of Temporal, past the links
	metrics  map[string]string  // addresses of the processes with HTTP endpoints, past the links, by name
	cancel   context.CancelFunc // ends the supervision of the nodes
}

// StartCluster runs a cluster and returns when it is ready. The test's cleanup
// ends it. Where the test has failed, the logs of the processes are kept in a
// directory that the test's log names.
func StartCluster(t testing.TB, options ClusterOptions) *Cluster {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &Cluster{
		Hosts: options.Hosts, options: options, dir: Place(t), cancel: cancel, metrics: map[string]string{}, health: http.DefaultClient,
		seconds: map[string]*Node{}, booted: map[string]time.Time{},
	}
	c.env = Environ(c.dir, options.Env...)
	c.StateDir, c.parks = filepath.Join(c.dir, "state"), filepath.Join(c.dir, "parks")
	c.database = func() (string, error) { return c.records, nil }
	t.Cleanup(func() { c.close(t) }) // before anything is mounted or runs, so that a failed start is cleaned up too

	c.sweepDisks(t)
	for _, dir := range []string{c.logs(), c.StateDir, c.parks} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}

	c.Certificates = certificates(t, filepath.Join(c.dir, "authority"), filepath.Join(c.dir, "certificates"))
	require.NoError(t, c.Certificates.ownCA())
	if options.Certificates {
		c.health = &http.Client{Transport: &http.Transport{TLSClientConfig: c.Certificates.Client(t, identity.Reader, "health")}}
	}

	c.startPostgres(ctx, t)
	c.startTemporal(ctx, t)
	c.startServers(ctx, t)
	for _, host := range c.Hosts {
		c.startAgent(ctx, t, host)
	}
	c.ticking.Go(func() { c.tick(ctx) })

	ready, stop := context.WithTimeout(ctx, startLimit)
	defer stop()
	Until(t, ready, "ready", func() error { return c.Unready(ready) })
	return c
}

// logs is the directory with the log of each node.
func (c *Cluster) logs() string { return filepath.Join(c.dir, "logs") }

// close ends every process and unmounts the disks.
func (c *Cluster) close(t testing.TB) {
	t.Helper()
	c.cancel()
	c.ticking.Wait()

	for _, client := range slices.Concat(c.APIs, c.Directs) {
		client.Close()
	}

	for _, node := range c.seconds {
		node.Thaw()
		node.close()
	}

	// Backward: the processes end before those that they need.
	for _, node := range slices.Backward(c.Nodes) {
		node.Thaw()
		node.close()
	}

	for _, link := range c.Links {
		link.close()
	}

	if t.Failed() {
		c.explain(t)
	}

	for _, disk := range c.Disks {
		disk.unmount(t)
	}
}

// explain tells which processes have ended without having been asked to, with
// their last words, and keeps the logs of all. Whoever reads the test's log may not
// have the machine with the files any more.
func (c *Cluster) explain(t testing.TB) {
	t.Helper()
	for _, node := range slices.Concat(c.Nodes, slices.Collect(maps.Values(c.seconds))) {
		unasked := slices.DeleteFunc(node.Exits(), func(e Exit) bool { return e.Asked })
		for _, exit := range unasked {
			t.Logf("%s ended unasked at %s: %s", node.Name, exit.At.Format(time.TimeOnly), exit.How)
		}
		if len(unasked) > 0 {
			const most = 8000
			t.Logf("%s said last:\n%s", node.Name, node.Said(most))
		}
	}

	kept, err := os.MkdirTemp("", "cyborg-logs-") //nolint:usetesting // it is to outlive the test
	if err == nil {
		err = os.CopyFS(kept, os.DirFS(c.logs()))
	}
	if err != nil {
		t.Logf("the logs of the processes are lost: %v", err)
		return
	}
	t.Logf("the logs of the processes are in %s", kept)
}

// node returns a node of this cluster, which is held down and not supervised yet.
func (c *Cluster) node(name string, kind NodeKind) *Node {
	node := newNode(name, kind, c.logs())
	if c.options.Clocks != nil {
		offset := c.options.Clocks[name]
		node.offset = &offset
	}
	return node
}

// add adds a node to the cluster, begins to supervise it, and lets it run.
func (c *Cluster) add(ctx context.Context, node *Node) {
	c.Nodes = append(c.Nodes, node)
	go node.supervise(ctx)
	node.Up()
}

// Node returns the node with this name, which is that of the host for an agent.
// It panics where there is none.
func (c *Cluster) Node(name string) *Node {
	for _, node := range c.Nodes {
		if node.Name == name {
			return node
		}
	}

	panic("there is no node " + name)
}

// Link returns the link from one node to another. It panics where there is
// none.
func (c *Cluster) Link(from, to string) *Link {
	for _, link := range c.Links {
		if link.From == from && link.To == to {
			return link
		}
	}

	panic(fmt.Sprintf("nothing links %s to %s", from, to))
}

// link makes a link to the address target and returns the address of the link.
func (c *Cluster) link(t testing.TB, from, to, target string) string {
	t.Helper()
	link, err := newLink(from, to, target)
	require.NoError(t, err)
	c.Links = append(c.Links, link)
	return link.Address()
}

// databaseFor returns the URL of the database for one of its clients, through a
// link of that client.
func (c *Cluster) databaseFor(t testing.TB, client string) string {
	t.Helper()
	return databaseURL(c.link(t, client, "postgres", c.postgres.socket()))
}

// program returns a node that runs one of Cyborg's binaries. An empty kind is for
// a program that is not a node of the cluster.
func (c *Cluster) program(t testing.TB, name string, kind NodeKind, binary string, env []string, args ...string) *Node {
	t.Helper()
	path := Binary(t, binary)
	node, env := c.node(name, kind), slices.Concat(c.env, env)
	node.launch = func(context.Context) (*instance, error) {
		return runProgram(path, node.Log, node.clock(), env, args...)
	}
	return node
}

// startTemporal runs Temporal, with the program of the standalone.
func (c *Cluster) startTemporal(ctx context.Context, t testing.TB) {
	t.Helper()
	ports := porttest.Ports(t, 2)
	c.temporal = fmt.Sprintf("127.0.0.1:%d", ports[0])

	env := settings("CYBORG_STANDALONE_TEMPORAL_TLS", "CLIENT_CA", c.Certificates.Of(t, identity.Server, "temporal"))
	env = append(env, "CYBORG_DATABASE_URL="+c.databaseFor(t, "temporal"))
	c.add(ctx, c.program(t, "temporal", NodeTemporal, "cyborg-standalone", env, "temporal",
		"--temporal-listen", c.temporal, "--temporal-ui-listen", fmt.Sprintf("127.0.0.1:%d", ports[1])))
}

// startServers migrates the database, runs two conductors and two APIs, and
// makes the clients of each API.
func (c *Cluster) startServers(ctx context.Context, t testing.TB) {
	t.Helper()
	migrate := c.program(t, "migrate", "", "cyborg", []string{"CYBORG_DATABASE_URL=" + c.records}, "migrate")
	run, err := migrate.launch(ctx)
	require.NoError(t, err)

	<-run.done
	code, _ := run.exit()
	require.Zero(t, code, migrate.Said(1000))

	for i, port := range porttest.Ports(t, 2) {
		name, address := fmt.Sprintf("conductor%d", i+1), fmt.Sprintf("127.0.0.1:%d", port)
		env := c.serverEnv(t, name)
		if c.options.Certificates {
			env = append(env, settings("CYBORG_AGENT_ENDPOINT_TLS", "CLIENT_CA", c.Certificates.Of(t, identity.Server, name))...)
		}
		c.add(ctx, c.program(t, name, NodeConductor, "cyborg", env,
			"server", "--roles", "conductor", "--agent-listen", address, "--temporal-address", c.link(t, name, "temporal", c.temporal)))
		c.metrics[name] = address
	}

	for i, port := range porttest.Ports(t, 2) {
		name, address := fmt.Sprintf("api%d", i+1), fmt.Sprintf("127.0.0.1:%d", port)
		c.add(ctx, c.program(t, name, NodeAPI, "cyborg", c.serverEnv(t, name),
			"server", "--roles", "api", "--listen", address, "--temporal-address", c.link(t, name, "temporal", c.temporal)))
		c.metrics[name] = address

		direct, err := apiclient.New(apiclient.Options{URL: "http://" + address, Token: c.options.Token})
		require.NoError(t, err)

		url := "http://" + c.link(t, Client, name, address)
		linked, err := apiclient.New(apiclient.Options{URL: url, Token: c.options.Token})
		require.NoError(t, err)

		c.Directs, c.APIs, c.URLs = append(c.Directs, direct), append(c.APIs, linked), append(c.URLs, url)
	}

	c.API = c.Directs[0]
}

// serverEnv returns what only servers have in their environment: the database,
// the credentials, and the services outside the cluster.
func (c *Cluster) serverEnv(t testing.TB, name string) []string {
	t.Helper()
	env := append([]string{"CYBORG_DATABASE_URL=" + c.databaseFor(t, name)}, c.Certificates.Environ(t, identity.Server, name)...)

	if c.options.Token != "" {
		env = append(env, fmt.Sprintf("CYBORG_API_TOKENS=[{name: tests, role: admin, token: %q}]", c.options.Token))
	}
	if c.options.Outside != nil {
		env = append(env, c.options.Outside(func(to, address string) string { return c.link(t, name, to, address) })...)
	}

	return env
}

// startAgent runs the agent of a host, with links to both conductors and to
// Temporal.
func (c *Cluster) startAgent(ctx context.Context, t testing.TB, host string) {
	t.Helper()
	c.disk(t, host, filepath.Dir(c.agentState(host)), 32<<20)
	images, park := filepath.Join(c.dir, "images", host), filepath.Join(c.parks, host)
	for _, dir := range []string{images, park, c.NovaConfDir(host), filepath.Join(c.StateDir, "seconds")} {
		require.NoError(t, os.MkdirAll(dir, 0o700))
	}
	require.NoError(t, c.boot(host))

	var endpoints, direct []string
	for _, conductor := range []string{"conductor1", "conductor2"} {
		endpoints = append(endpoints, c.agentScheme()+c.link(t, host, conductor, c.metrics[conductor]))
		direct = append(direct, c.agentScheme()+c.metrics[conductor])
	}
	if len(c.Links)%2 == 0 {
		slices.Reverse(endpoints) // so that not all agents begin with the same conductor
	}

	// The directory of the cards is not on the disk of the agent's state, which can
	// be filled. Only the host's own configuration can say so.
	backends := fmt.Sprintf("{driver: fake, options: {park: %q, handles: 2, park_dir: %q, careless: %t, prepares: %t, clean: %s, clean_latency: %s}}",
		c.options.Park, park, c.options.Careless, host == c.options.Prepares, cmp.Or(c.options.Cleans[host], "none"), cleanLatency)
	if c.options.Spare != "" {
		backends += fmt.Sprintf(", {name: %s, driver: fake, enabled: false, options: {park_dir: %q}}", c.options.Spare, park)
	}

	if c.options.Shared != "" {
		backends += fmt.Sprintf(", {name: %s, driver: fake, options: {park: 1xfpga, domain: %q, deployables: 2, handles: 2, same_holder: true, park_dir: %q, careless: %t}}",
			c.options.Shared, sharedDomain, park, c.options.Careless)
	}

	if c.options.Divided != "" {
		backends += fmt.Sprintf(", {name: %s, driver: fake, options: {park: 1xfpga, domain: %q, partition: true, park_dir: %q, careless: %t}}",
			c.options.Divided, dividedDomain, park, c.options.Careless)
	}

	env := append([]string{allowFake, "CYBORG_AGENT_NOVA_CONF_DIR=" + c.NovaConfDir(host)}, c.Certificates.Environ(t, identity.Host, host)...)
	if c.options.Certificates {
		env = append(env, settings("CYBORG_AGENT_TLS", "CA", c.Certificates.Of(t, identity.Host, host))...)
	}

	c.metrics[host] = porttest.Address(t)
	args := []string{"--host", host, "--root", c.root(host), "--image-dir", images, "--backends", "[" + backends + "]"}
	c.add(ctx, c.program(t, host, NodeAgent, testAgent, env, append(slices.Clone(args),
		"--state-dir", c.agentState(host), "--endpoints", strings.Join(endpoints, ","),
		"--temporal-address", c.link(t, host, "temporal", c.temporal), "--metrics-listen", c.metrics[host])...))

	second := c.program(t, host+"-second", NodeAgent, testAgent, env, append(slices.Clone(args),
		"--state-dir", filepath.Join(c.StateDir, "seconds", host), "--endpoints", strings.Join(direct, ","),
		"--temporal-address", c.temporal, "--metrics-listen", porttest.Address(t))...)
	c.seconds[host] = second
	go second.supervise(ctx)
}

// Second returns the second agent of a host. It is held down until Up. It runs
// on the same machine, with the same cards, under the same name and with the
// same certificate as the first one, as where somebody starts the agent once
// more in a container. It has a state directory of its own, and no links. It is
// none of the Nodes.
func (c *Cluster) Second(host string) *Node { return c.seconds[host] }

// NovaConfDir returns the directory from which the nova-compute of a host would
// read configuration files. The agent writes there.
func (c *Cluster) NovaConfDir(host string) string { return filepath.Join(c.dir, "nova.conf.d", host) }

// Image writes an image into the image directory of a host, and returns the
// source by which an operation names it.
func (c *Cluster) Image(host, name string, content []byte) (string, error) {
	return name, os.WriteFile(filepath.Join(c.dir, "images", host, name), content, 0o600)
}

// root is the directory that stands for / of a host's machine.
func (c *Cluster) root(host string) string { return filepath.Join(c.dir, "roots", host) }

// Reboot cuts the power of a host, see LosePower, and gives it a new boot id, which
// the next process of its agent reads. The boot id changes only while no process of the
// agent runs, also where others start the agent or boot the host at the same
// time, so no process sees two boots. ran is whether the agent ran. Node.Up
// lets it run again.
func (c *Cluster) Reboot(host string) (ran bool, err error) {
	return c.losePower(host, func() error { return c.boot(host) })
}

// boot gives a host another boot id, and has it be up since now.
func (c *Cluster) boot(host string) error {
	c.mu.Lock()
	c.booted[host] = time.Now()
	c.mu.Unlock()
	return errors.Join(writeBootID(c.root(host)), c.writeUptime(host))
}

// writeUptime writes for how long a host is up, where its programs read it.
func (c *Cluster) writeUptime(host string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return replaceFile(filepath.Join(c.root(host), "proc/uptime"), fmt.Sprintf("%.2f 0\n", time.Since(c.booted[host]).Seconds()))
}

// tick lets the uptime of every host go on.
func (c *Cluster) tick(ctx context.Context) {
	for clock.Sleep(ctx, 200*time.Millisecond) == nil {
		for _, host := range c.Hosts {
			_ = c.writeUptime(host) // the next one succeeds
		}
	}
}

// writeBootID gives a machine a new boot id. root is the directory that the
// programs of the machine take for /.
func writeBootID(root string) error {
	return replaceFile(bootFile(root), uuid.NewString()+"\n")
}

// Unready returns an error that names the first thing that is not ready: a node
// that does not run, a process that does not answer, or a host that has not
// reported its devices lately. It is nil where the cluster is ready. It uses no
// link.
func (c *Cluster) Unready(ctx context.Context) error {
	for _, node := range c.Nodes {
		if node.PID() == 0 {
			return fmt.Errorf("%s does not run; it said:\n%s", node.Name, node.Said(500))
		}
	}

	// LastSeen is a time of the database, so it is compared with its clock.
	now, err := c.now(ctx)
	if err != nil {
		return err
	}

	for name := range c.metrics {
		if err := c.Answers(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}

	hosts, err := apiclient.Collect(c.API.Hosts(ctx, apiclient.Page{}))
	if err != nil {
		return err
	}

	for _, name := range c.Hosts {
		i := slices.IndexFunc(hosts, func(h cyborg.Host) bool { return h.Name == name })
		if i < 0 || hosts[i].Devices == 0 || now.Sub(hosts[i].LastSeen) > 4*time.Second {
			return fmt.Errorf("host %s has not been heard", name)
		}

		// For a while after a boot the servers still hear the agent of before. What is
		// bound then would count as lost at a boot that came first.
		boot, err := os.ReadFile(bootFile(c.root(name)))
		if err != nil {
			return err
		}
		if hosts[i].BootID != strings.TrimSpace(string(boot)) {
			return fmt.Errorf("host %s has been booted, and the servers do not know it yet", name)
		}
	}

	return nil
}

// Answers returns an error unless the process of an API, a conductor or an agent
// says that it is ready. It uses no link.
func (c *Cluster) Answers(ctx context.Context, name string) error {
	scheme, path := "http://", "/healthz"
	if strings.HasPrefix(name, "api") {
		path = "/readyz?verbose"
	}
	if strings.HasPrefix(name, "conductor") {
		scheme = c.agentScheme()
	}
	return answers(ctx, c.health, scheme+c.metrics[name]+path)
}

// bootFile is the file with the boot id of the machine below root.
func bootFile(root string) string { return filepath.Join(root, "proc/sys/kernel/random/boot_id") }

// AwaitDatabase waits until PostgreSQL takes work. It uses no link. The error is that
// of ctx.
func (c *Cluster) AwaitDatabase(ctx context.Context) error {
	for {
		if _, err := c.now(ctx); err == nil {
			return nil
		}
		if err := clock.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// now returns the time of the database.
func (c *Cluster) now(ctx context.Context) (now time.Time, err error) {
	conn, err := pgx.Connect(ctx, c.records)
	if err != nil {
		return now, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written

	return now, conn.QueryRow(ctx, "SELECT now()").Scan(&now)
}

// answers returns an error unless the URL answers with status 200 within 5
// seconds.
func answers(ctx context.Context, through *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}

	response, err := through.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()

	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", response.Status)
	}
	return nil
}

// agentScheme is how the URLs of the agents' endpoints begin.
func (c *Cluster) agentScheme() string {
	if c.options.Certificates {
		return "https://"
	}
	return "http://"
}

// Temporal returns the address of Temporal's frontend, past the links.
func (c *Cluster) Temporal() string { return c.temporal }

// Metrics returns the URLs of the metrics of the APIs and agents, by name. They
// lead past the links. The conductors are left out: their addresses are those
// of the agent endpoints, which serve no metrics.
func (c *Cluster) Metrics() map[string]string {
	urls := map[string]string{}
	for name, address := range c.metrics {
		if !strings.HasPrefix(name, "conductor") {
			urls[name] = "http://" + address + "/metrics"
		}
	}

	return urls
}
