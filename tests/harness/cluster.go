package harness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/porttest"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

// Client is the name of the test itself among the ends of links.
const Client = "client"

// ClusterOptions says what cluster to run.
type ClusterOptions struct {
	// Hosts are the names of the hosts with an agent, and Park is what stands in
	// each.
	Hosts []string
	Park  string
	// Env is added to the environment of every process.
	Env []string
	// Token is a static token of an admin. Without it, and where Env says of no
	// other credential, everybody is admin.
	Token string
	// Outside makes what is added to the environment of a server, so that it finds
	// what stands outside the cluster: to links it to an address there, under a
	// name, and returns where to connect.
	Outside func(to func(name, address string) string) []string
}

// Cluster is Cyborg in processes of its own: PostgreSQL, Temporal, two
// conductors, two APIs, and an agent of fake cards for each host. Whatever two
// of them say to each other goes through a link.
type Cluster struct {
	System // as seen by the first API, past the links

	Nodes []*Node
	Links []*Link
	// APIs are clients of each API, through the links.
	APIs []*apiclient.Client
	// URLs are those of each API, through the links.
	URLs []string
	// Directs are clients of each API, past the links.
	Directs []*apiclient.Client
	Disks   []*Disk
	Hosts   []string

	dir      string
	env      []string
	options  ClusterOptions
	records  string // URL of the database past the links
	temporal string // address past the links
	metrics  map[string]string
	cancel   context.CancelFunc
}

// StartCluster runs a cluster and returns when it is ready. The test's cleanup
// ends it; where the test has failed, what each process has said stays in a
// directory that the log names.
func StartCluster(t testing.TB, options ClusterOptions) *Cluster {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &Cluster{
		Hosts: options.Hosts, options: options, dir: Place(t), cancel: cancel, metrics: map[string]string{},
	}
	c.env = Environ(c.dir, options.Env...)
	c.StateDir, c.parks = filepath.Join(c.dir, "state"), filepath.Join(c.dir, "parks")
	c.database = func() (string, error) { return c.records, nil }
	t.Cleanup(func() { c.close(t) })
	c.sweepDisks(t)
	for _, dir := range []string{c.logs(), c.StateDir, c.parks} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	c.startPostgres(ctx, t)
	c.startTemporal(ctx, t)
	c.startServers(ctx, t)
	for _, host := range c.Hosts {
		c.startAgent(ctx, t, host)
	}
	ready, stop := context.WithTimeout(ctx, startLimit)
	defer stop()
	Until(t, ready, "ready", func() error { return c.Unready(ready) })
	return c
}

func (c *Cluster) logs() string { return filepath.Join(c.dir, "logs") }

func (c *Cluster) close(t testing.TB) {
	t.Helper()
	c.cancel()
	for _, client := range slices.Concat(c.APIs, c.Directs) {
		client.Close()
	}
	for _, node := range slices.Backward(c.Nodes) {
		node.Thaw()
		node.close()
	}
	for _, link := range c.Links {
		link.close()
	}
	if t.Failed() {
		kept, err := os.MkdirTemp("", "cyborg-logs-") //nolint:usetesting // it stays
		if err == nil {
			err = os.CopyFS(kept, os.DirFS(c.logs()))
		}
		t.Logf("what the processes said is in %s (%v)", kept, err)
	}
	for _, disk := range c.Disks {
		disk.unmount(t)
	}
}

// add puts a node under supervision and lets it run.
func (c *Cluster) add(ctx context.Context, node *Node) {
	c.Nodes = append(c.Nodes, node)
	go node.supervise(ctx)
	node.Up()
}

// Node finds a node by its name.
func (c *Cluster) Node(name string) *Node {
	for _, node := range c.Nodes {
		if node.Name == name {
			return node
		}
	}
	panic("there is no node " + name)
}

// Link finds the link between two nodes.
func (c *Cluster) Link(from, to string) *Link {
	for _, link := range c.Links {
		if link.From == from && link.To == to {
			return link
		}
	}
	panic(fmt.Sprintf("nothing links %s to %s", from, to))
}

// link makes a link.
func (c *Cluster) link(t testing.TB, from, to, target string) string {
	t.Helper()
	link, err := newLink(from, to, target)
	require.NoError(t, err)
	c.Links = append(c.Links, link)
	return link.Address()
}

// startPostgres runs PostgreSQL with everything that keeps data safe, and makes
// our database.
func (c *Cluster) startPostgres(ctx context.Context, t testing.TB) {
	t.Helper()
	disk := c.disk(t, "postgres", filepath.Join(c.dir, "postgres"), 512<<20)
	require.NoError(t, os.Chmod(disk, 0o711))
	config := postgres.Config{
		Dir: filepath.Join(disk, "postgres"), TCP: true, Port: porttest.Ports(t, 1)[0], DieWithParent: true,
		Settings: map[string]string{"max_wal_size": "128MB", "min_wal_size": "32MB"},
	}
	node := newNode("postgres", NodePostgres, c.logs())
	node.launch = func(ctx context.Context) (*instance, error) {
		server, err := postgres.Start(ctx, config, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		if c.records == "" {
			if err := server.CreateDatabase(ctx, "cyborg"); err != nil {
				return nil, errors.Join(err, server.Stop(ctx))
			}
			c.records = server.TCPURL("cyborg")
		}
		return &instance{
			pid: server.PID(), done: server.Done(),
			end: func() error { return server.Stop(context.WithoutCancel(ctx)) },
			exit: func() (int, string) {
				if err := server.Err(); err != nil {
					return 1, err.Error()
				}
				return 0, "stopped"
			},
		}, nil
	}
	node.Log = filepath.Join(config.Dir, "postgres.log")
	run, err := node.launch(ctx)
	require.NoError(t, err)
	require.NoError(t, run.end())
	c.add(ctx, node)
	running, stop := context.WithTimeout(ctx, startLimit)
	defer stop()
	Until(t, running, "running", func() error { _, err := c.now(running); return err })
}

// databaseFor is the URL of the database for one of its clients.
func (c *Cluster) databaseFor(t testing.TB, client string) string {
	t.Helper()
	u, err := url.Parse(c.records)
	require.NoError(t, err)
	u.Host = c.link(t, client, "postgres", u.Host)
	return u.String()
}

// program is a node that is one of our binaries.
func (c *Cluster) program(t testing.TB, name string, kind NodeKind, binary string, env []string, args ...string) *Node {
	t.Helper()
	path := Binary(t, binary)
	node := newNode(name, kind, c.logs())
	require.NoError(t, node.SetClock(0))
	env = slices.Concat(c.env, []string{clock.FileVariable + "=" + node.clock}, env)
	node.launch = func(context.Context) (*instance, error) { return runProgram(path, node.Log, env, args...) }
	return node
}

func (c *Cluster) startTemporal(ctx context.Context, t testing.TB) {
	t.Helper()
	ports := porttest.Ports(t, 2)
	c.temporal = fmt.Sprintf("127.0.0.1:%d", ports[0])
	c.add(ctx, c.program(t, "temporal", NodeTemporal, "cyborg-standalone",
		[]string{"CYBORG_DATABASE_URL=" + c.databaseFor(t, "temporal")}, "temporal",
		"--temporal-listen", c.temporal, "--temporal-ui-listen", fmt.Sprintf("127.0.0.1:%d", ports[1])))
}

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
		c.add(ctx, c.program(t, name, NodeConductor, "cyborg", c.serverEnv(t, name),
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

// serverEnv is what the environment of a server has and those of others do not.
func (c *Cluster) serverEnv(t testing.TB, name string) []string {
	t.Helper()
	env := []string{"CYBORG_DATABASE_URL=" + c.databaseFor(t, name)}
	if c.options.Token != "" {
		env = append(env, fmt.Sprintf("CYBORG_API_TOKENS=[{name: tests, role: admin, token: %q}]", c.options.Token))
	}
	if c.options.Outside != nil {
		env = append(env, c.options.Outside(func(to, address string) string { return c.link(t, name, to, address) })...)
	}
	return env
}

func (c *Cluster) startAgent(ctx context.Context, t testing.TB, host string) {
	t.Helper()
	state := c.disk(t, host, filepath.Join(c.StateDir, "agents", host), 32<<20)
	images, park := filepath.Join(c.dir, "images", host), filepath.Join(c.parks, host)
	for _, dir := range []string{images, park, c.NovaConfDir(host)} {
		require.NoError(t, os.MkdirAll(dir, 0o700))
	}
	require.NoError(t, writeBootID(c.root(host)))
	var endpoints []string
	for _, conductor := range []string{"conductor1", "conductor2"} {
		endpoints = append(endpoints, "http://"+c.link(t, host, conductor, c.metrics[conductor]))
	}
	if len(c.Links)%2 == 0 {
		slices.Reverse(endpoints) // not all to the same
	}
	c.metrics[host] = porttest.Address(t)
	c.add(ctx, c.program(t, host, NodeAgent, "cyborg-agent", []string{"CYBORG_AGENT_NOVA_CONF_DIR=" + c.NovaConfDir(host)},
		"--host", host, "--root", c.root(host), "--image-dir", images, "--state-dir", filepath.Join(state, "agent"),
		"--backends", fmt.Sprintf("[{driver: fake, options: {park: %q, handles: 2, park_dir: %q}}]", c.options.Park, park),
		"--endpoints", strings.Join(endpoints, ","),
		"--temporal-address", c.link(t, host, "temporal", c.temporal),
		"--metrics-listen", c.metrics[host]))
}

// NovaConfDir is from where the nova-compute of a host would read drop-ins.
func (c *Cluster) NovaConfDir(host string) string { return filepath.Join(c.dir, "nova.conf.d", host) }

// Image makes an image that lies on a host, for cards of a type, and returns
// its source.
func (c *Cluster) Image(host, name string, content []byte) (string, error) {
	return name, os.WriteFile(filepath.Join(c.dir, "images", host, name), content, 0o600)
}

func (c *Cluster) root(host string) string { return filepath.Join(c.dir, "roots", host) }

// Reboot cuts a host's power and gives it a new boot id, which the next process
// of its agent finds: whoever else lets the agent run or boots the host
// meanwhile, no process sees two boots. It says whether the agent ran. Node.Up
// lets it run again.
func (c *Cluster) Reboot(host string) (ran bool, err error) {
	return c.Node(host).PowerCut(func() error { return writeBootID(c.root(host)) })
}

// writeBootID gives a machine a new boot id, where a program finds it that
// takes this directory for its root.
func writeBootID(root string) error {
	return replaceFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"), uuid.NewString()+"\n")
}

// Unready says what does not run as it should.
func (c *Cluster) Unready(ctx context.Context) error {
	for _, node := range c.Nodes {
		if node.PID() == 0 {
			return fmt.Errorf("%s does not run; it said:\n%s", node.Name, node.Said(500))
		}
	}
	now, err := c.now(ctx)
	if err != nil {
		return err
	}
	for name, address := range c.metrics {
		path := "/readyz?verbose"
		if !strings.HasPrefix(name, "api") {
			path = "/healthz"
		}
		if err := answers(ctx, "http://"+address+path); err != nil {
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
	}
	return nil
}

// now is the time of the database.
func (c *Cluster) now(ctx context.Context) (now time.Time, err error) {
	conn, err := pgx.Connect(ctx, c.records)
	if err != nil {
		return now, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it was only read
	return now, conn.QueryRow(ctx, "SELECT now()").Scan(&now)
}

func answers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", response.Status)
	}
	return nil
}

// Temporal is the address of its frontend, past the links.
func (c *Cluster) Temporal() string { return c.temporal }

// Metrics are the URLs of the metrics of the processes that have some.
func (c *Cluster) Metrics() map[string]string {
	urls := map[string]string{}
	for name, address := range c.metrics {
		if !strings.HasPrefix(name, "conductor") {
			urls[name] = "http://" + address + "/metrics"
		}
	}
	return urls
}
