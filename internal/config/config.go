// Package config defines the configuration of every process: the options, their
// defaults, and the checks that report what is wrong with the values.
//
// The struct tags below are the only definition of an option: its key, default,
// bounds and documentation. docs/configuration.md and
// deploy/cyborg.example.yaml are generated from them. This is the only package
// that uses viper; all others are given typed values. Of Cyborg it imports only
// the root package and internal/statedir, for the default of the state
// directory.
//
// The tags of a field:
//
//	key      the name in the file
//	doc      what the option does; the first sentence is also the help of its flag
//	default  the value if none is given
//	auto     what an empty value becomes on this machine, in words
//	example  a value for the example file if the default is empty
//	oneof    the allowed words
//	min, max the bounds of a number, a duration or a size; a duration without min must be positive
//	check    a further rule, by its name in check.go
//	sep      the separator of list items in an environment variable or a flag; a comma without this tag
package config

import (
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Config holds every option. Each of its fields is a section of the file.
type Config struct {
	Log           Log           `key:"log" doc:"What a process writes to its standard error."`
	Database      Database      `key:"database" doc:"The PostgreSQL that holds the records."`
	Temporal      Temporal      `key:"temporal" doc:"The Temporal cluster that runs the operations."`
	Server        Server        `key:"server" doc:"What one server process does."`
	API           API           `key:"api" doc:"The REST interface."`
	AgentEndpoint AgentEndpoint `key:"agent_endpoint" doc:"Where the server hears from its agents: inventory reports, heartbeats, image downloads."`
	Agent         Agent         `key:"agent" doc:"The agent of one host."`
	Conductor     Conductor     `key:"conductor" doc:"How the server keeps its records."`
	Operations    Operations    `key:"operations" doc:"How long the steps of an operation may take. They apply to operations that start after a change."`
	Images        Images        `key:"images" doc:"Where images may come from."`
	Inventory     Inventory     `key:"inventory" doc:"What becomes of hardware that appears and disappears."`
	Retention     Retention     `key:"retention" doc:"How long finished things can be read."`
	OpenStack     OpenStack     `key:"openstack" doc:"The OpenStack cloud that the server belongs to, and who the server is there."`
	Keystone      Keystone      `key:"keystone" doc:"Who callers are, by Keystone's tokens."`
	Placement     Placement     `key:"placement" doc:"How OpenStack Placement follows the records."`
	Policy        Policy        `key:"policy" doc:"Who may do what on /v2."`
	Audit         Audit         `key:"audit" doc:"The trail of who was refused and who changed something."`
	Glance        Glance        `key:"glance" doc:"Images in OpenStack's Glance."`
	ARQs          ARQs          `key:"arqs" doc:"Accelerator requests of OpenStack."`
	Nova          Nova          `key:"nova" doc:"OpenStack's Nova, which uses accelerator requests."`
	Standalone    Standalone    `key:"standalone" doc:"The one process that holds everything."`

	// origins holds, by key, the given value of each option that is not at its
	// default. Messages and dumps use it to say where a value comes from.
	origins map[string]given
}

// Log configures logging.
type Log struct {
	Level  slog.Level `key:"level" default:"info" oneof:"debug info warn error" doc:"The least important message that is written."`
	Format string     `key:"format" default:"text" oneof:"text json" doc:"One line of key=value pairs for people, or one JSON object for machines."`
}

// Database is the server's PostgreSQL.
type Database struct {
	URL      DatabaseURL `key:"url" example:"postgres://cyborg@db.example.org/cyborg?sslmode=verify-full" doc:"URL of the database (PostgreSQL 15 or newer). The password may stand in it, or in a file that the parameter passfile names. The standalone starts a private PostgreSQL where this is empty."`
	MaxConns int32       `key:"max_conns" default:"16" min:"5" max:"1000" doc:"The most connections one server keeps to it; of five, one is left for heartbeats and the ends of operations whatever the API does."`
}

// Temporal configures the connection to a Temporal cluster.
type Temporal struct {
	Environment bool        `key:"environment" default:"true" doc:"Also read Temporal's own environment profile: the variables TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS_* and the file that TEMPORAL_CONFIG_FILE names. The options of this section override it."`
	Address     string      `key:"address" auto:"what the environment profile says, else 127.0.0.1:7233" check:"hostport" example:"temporal.example.org:7233" doc:"Host and port of the cluster's frontend."`
	Namespace   string      `key:"namespace" auto:"what the environment profile says, else cyborg" example:"cyborg" doc:"Namespace for everything of ours. Give it to nobody else."`
	APIKey      Secret      `key:"api_key" doc:"API key, where the cluster wants one; it turns TLS on."`
	TLS         TemporalTLS `key:"tls"`
}

// TemporalTLS configures TLS for connections to the Temporal cluster.
type TemporalTLS struct {
	Enabled    bool   `key:"enabled" default:"false" doc:"Use TLS, also where nothing else of this section is set."`
	Cert       string `key:"cert" check:"file" example:"/etc/cyborg/temporal.crt" doc:"PEM file of the certificate shown to the cluster."`
	Key        string `key:"key" check:"file" example:"/etc/cyborg/temporal.key" doc:"PEM file of its private key."`
	CA         string `key:"ca" check:"file" example:"/etc/cyborg/temporal-ca.crt" doc:"PEM file of the authorities that may have signed the cluster's certificate, instead of the system's."`
	ServerName string `key:"server_name" example:"temporal.example.org" doc:"Name that the cluster's certificate must carry, where it is not the one of the address."`
}

// Role is a part that a server process plays.
type Role string

// The roles. A process may play both.
const (
	RoleAPI       Role = "api"
	RoleConductor Role = "conductor"
)

// Server configures what one server process does.
type Server struct {
	Roles       []Role `key:"roles" default:"api,conductor" oneof:"api conductor" doc:"What this process does: answer the REST interface (api), run operations and hear from agents (conductor), or both."`
	PprofListen string `key:"pprof_listen" check:"loopback" example:"127.0.0.1:6660" doc:"Address and port, on loopback, where this process can be profiled with go tool pprof (/debug/pprof/). Empty means nowhere."`
}

// Has reports whether the server plays the role.
func (s Server) Has(role Role) bool {
	return slices.Contains(s.Roles, role)
}

// ServerTLS configures TLS of a listener.
type ServerTLS struct {
	Cert     string `key:"cert" check:"file" example:"/etc/cyborg/server.crt" doc:"PEM file of the certificate, with its intermediates."`
	Key      string `key:"key" check:"file" example:"/etc/cyborg/server.key" doc:"PEM file of its private key."`
	ClientCA string `key:"client_ca" check:"file" example:"/etc/cyborg/clients-ca.crt" doc:"PEM file of the authorities that sign the certificates of clients."`
}

// API configures the REST interface.
type API struct {
	Listen string `key:"listen" default:"127.0.0.1:6666" check:"listen" doc:"Address and port of the REST API. Beyond loopback it needs tls.cert and tls.key, and tokens, tls.client_ca or keystone.enabled."`

	// TLS.ClientCA makes client certificates valid credentials. The common name of
	// the certificate is the name of the client. An organizational unit that is
	// reader, member or admin is its role.
	TLS            ServerTLS `key:"tls"`
	Tokens         []Token   `key:"tokens" doc:"Static bearer tokens. Without any, and without tls.client_ca and keystone.enabled, everybody on this machine may do everything."`
	PublicEndpoint string    `key:"public_endpoint" check:"url" example:"https://cloud.example.org" doc:"URL with which the links in answers of /v2 begin, where callers reach it under another address than the one they ask, such as a proxy's; /accelerator/v2 follows it."`

	// Bounds of the work for callers.
	SyncWait       time.Duration `key:"sync_wait" default:"30s" doc:"How long a request waits for its operation to end before it answers 202 and the operation's address."`
	MaxInFlight    int           `key:"max_in_flight" default:"0" min:"0" max:"100000" doc:"The most operations that this process has in flight for its callers at once; 0 means five for each processor core."`
	QueueWait      time.Duration `key:"queue_wait" default:"2s" doc:"How long a request waits for one of those places before it answers 429."`
	BodyLimit      Size          `key:"body_limit" default:"1MiB" min:"1KiB" max:"64MiB" doc:"The largest request body."`
	CensusWait     time.Duration `key:"census_wait" default:"5s" max:"5m" doc:"How long a census of usage waits for the hosts it asks."`
	MaxStreams     int           `key:"max_streams" default:"1000" min:"1" doc:"The most event streams that are served at once."`
	MaxConnections int           `key:"max_connections" default:"10000" min:"10" doc:"The most connections that are open at once, and never more than half of the files that the process may open. At the bound, a new one takes the place of the one that has been without a request for longest."`
}

// TokenRole names what the bearer of a token may do.
type TokenRole string

// The roles of tokens. Each also allows what the one before it allows.
const (
	Reader TokenRole = "reader" // read everything
	Member TokenRole = "member" // attach, detach, program
	Admin  TokenRole = "admin"  // everything else
)

// Token is a static bearer token.
type Token struct {
	Name string    `key:"name" doc:"Who bears it, as histories will name them."`
	Role TokenRole `key:"role" default:"reader" oneof:"reader member admin" doc:"What they may do."`
	// Token is the token itself. Load also sets it if the token is in TokenFile.
	Token     Secret `key:"token" doc:"The token itself; 16 characters or more."`
	TokenFile string `key:"token_file" check:"file" doc:"A file that holds it instead."`
}

// AgentEndpoint configures the listener that agents call.
type AgentEndpoint struct {
	Listen         string    `key:"listen" default:"127.0.0.1:6667" check:"listen" doc:"Address and port of the endpoint that agents call. Beyond loopback it needs all of tls; an agent's certificate must name its host."`
	TLS            ServerTLS `key:"tls"`
	MaxConnections int       `key:"max_connections" default:"50000" min:"10" doc:"The most connections that are open at once, as api.max_connections; an agent keeps one, and another while it fetches an image."`
}

// Agent configures the agent of one host.
type Agent struct {
	Host      string    `key:"host" auto:"the name that the kernel has for this machine" check:"hostname" example:"compute-7.example.org" doc:"Name of the host, its only identity: the hypervisor_hostname that Nova and Placement know."`
	StateDir  string    `key:"state_dir" auto:"/var/lib/cyborg-agent for root, else cyborg-agent in the XDG state directory" check:"path" example:"/var/lib/cyborg-agent" doc:"Directory of the agent's journal, its last inventory and its fetched images."`
	Root      string    `key:"root" default:"/" check:"path" doc:"Directory that stands for the root of the host's file system; sysfs is looked for below it."`
	Endpoints []string  `key:"endpoints" default:"http://127.0.0.1:6667" check:"url" doc:"URLs of the servers' agent endpoints; the agent uses the first that answers."`
	TLS       ClientTLS `key:"tls"`
	Backends  []Backend `key:"backends" doc:"The drivers to run and how. What an operator installs, changes or uninstalls later through the API is kept in the state directory and overrides this."`

	// ImageDir stays empty after Load if it is not given. Each agent then uses the
	// directory image-files in its own state directory.
	ImageDir    string `key:"image_dir" auto:"image-files in the state directory; the standalone: images/HOST in its own" check:"path" example:"/srv/images" doc:"Directory below which images given as a path must lie on this host."`
	NovaConfDir string `key:"nova_conf_dir" check:"path" example:"/etc/nova/nova.conf.d" doc:"Directory from which the host's nova-compute reads drop-ins, where the agent writes cyborg-pci.conf: the PCI devices that an operator gave to Nova. It must be there, and be no link. Empty means never; the standalone writes into HOST in it."`
	ImageMax    Size   `key:"image_max" default:"4GiB" min:"1KiB" doc:"The largest image that is accepted."`
	ImageCache  Size   `key:"image_cache" default:"16GiB" min:"1KiB" doc:"The space for images kept after use; the least recently used go first."`

	// Intervals and limits of the agent's work.
	Heartbeat     time.Duration `key:"heartbeat" default:"10s" min:"100ms" doc:"Interval of heartbeats to the server, each a little earlier or later."`
	FullScan      time.Duration `key:"full_scan" default:"5m" min:"1s" doc:"Interval of full looks at the hardware, besides those that kernel events cause."`
	ScanTimeout   time.Duration `key:"scan_timeout" default:"30s" min:"1s" doc:"Limit of one look of one backend at its hardware."`
	UsageTimeout  time.Duration `key:"usage_timeout" default:"5s" min:"100ms" doc:"Limit of the answer to a census; what did not answer by then is marked."`
	StopTimeout   time.Duration `key:"stop_timeout" default:"30s" doc:"How long running steps may go on when the agent is told to stop."`
	MetricsListen string        `key:"metrics_listen" default:"127.0.0.1:6668" check:"listen" doc:"Address and port of the agent's metrics (GET /metrics) and liveness (GET /healthz); an empty text in the file turns them off. Beyond loopback it needs all of tls, and serves whoever shows a certificate of the same authorities."`
	Slots         int           `key:"slots" default:"64" min:"1" max:"1024" doc:"The most steps that run on this host at once; each device still has only one. A step for which there is no slot waits."`
}

// ClientTLS configures TLS for connections to a Cyborg server.
type ClientTLS struct {
	Cert string `key:"cert" check:"file" example:"/etc/cyborg/agent.crt" doc:"PEM file of the certificate shown to the server; it must name the host."`
	Key  string `key:"key" check:"file" example:"/etc/cyborg/agent.key" doc:"PEM file of its private key."`
	CA   string `key:"ca" check:"file" example:"/etc/cyborg/ca.crt" doc:"PEM file of the authorities that may have signed the server's certificate, instead of the system's."`
}

// Backend is one named instance of a driver. Load sets an empty Name to the
// name of the driver.
type Backend struct {
	Name    string         `key:"name" doc:"Its name on this host; the driver's where empty."`
	Driver  string         `key:"driver" doc:"The driver, as cyborg-agent drivers lists them."`
	Enabled bool           `key:"enabled" default:"true" doc:"Whether it runs."`
	Options map[string]any `key:"options" doc:"Options of the driver's own."`
}

// Conductor configures how the records are kept.
type Conductor struct {
	FlushInterval     time.Duration `key:"flush_interval" default:"100ms" max:"10s" doc:"How long heartbeats, and reports that arrive while others are written, are gathered before they are written together. Longer costs the database less; what is gathered is answered that much later. A lone report is written at once."`
	BatchSize         int           `key:"batch_size" default:"500" min:"1" max:"10000" doc:"The most of them that are written in one transaction; a full batch does not wait. Larger costs less for each and holds row locks for longer."`
	SilentAfter       time.Duration `key:"silent_after" default:"25s" doc:"A host whose last heartbeat is older is silent: a discovery or a census of it fails at once, and an operation once it has waited operations.agent_wait for the agent to come back. It must be more than twice agent.heartbeat, so that one lost heartbeat does no harm."`
	ReconcileInterval time.Duration `key:"reconcile_interval" default:"30s" min:"1s" doc:"Interval of the comparison of records, hosts and operations."`
	OrphanAfter       time.Duration `key:"orphan_after" default:"15s" min:"1s" doc:"An operation that was admitted this long ago and does not run is started by that comparison."`
}

// Operations bounds the steps of operations. Its fields are the same as those
// of workflows.Limits, so that a conversion is enough.
type Operations struct {
	AgentWait time.Duration `key:"agent_wait" default:"30s" min:"1s" doc:"How long a step waits for its host's agent to take it."`
	Step      time.Duration `key:"step" default:"2m" min:"1s" doc:"Limit of one try of install, attach, detach and configure."`
	Stage     time.Duration `key:"stage" default:"30m" min:"1s" doc:"Limit of one try of bringing an image to its host."`
	Program   time.Duration `key:"program" default:"30m" min:"1s" doc:"Limit of one try of loading an image."`
	Heartbeat time.Duration `key:"heartbeat" default:"15s" min:"1s" doc:"How long an agent may stay mute about a step before the step is given to it again."`
	Undo      time.Duration `key:"undo" default:"5m" min:"1s" doc:"Limit of all tries of undoing one step, the agent's absence included."`
	Attempts  int32         `key:"attempts" default:"5" min:"1" max:"100" doc:"How often a step is tried whose failure may pass."`
}

// Images configures where images may come from.
type Images struct {
	Allow []string `key:"allow" example:"https://images.example.org/cyborg/" check:"url" doc:"URLs (http or https) below which images may be fetched by the server. None means none; paths on the host are the agent's matter (agent.image_dir)."`
	Max   Size     `key:"max" default:"4GiB" min:"1KiB" doc:"The largest image that the server fetches."`
}

// Admission selects what is done with new hardware.
type Admission string

// The ways to admit new hardware.
const (
	AdmitManually      Admission = "manual"
	AdmitAutomatically Admission = "auto"
)

// Inventory configures what is done with hardware that appears and disappears.
type Inventory struct {
	Admission          Admission     `key:"admission" default:"manual" oneof:"manual auto" doc:"New hardware stays inactive until an operator makes it ready (manual), or is made ready at once (auto), as OpenStack Cyborg does."`
	DeployableName     string        `key:"deployable_name" default:"{host}_{name}" check:"deployable_name" doc:"Name of a new deployable, and of its Placement resource provider: {host} is its host, {name} what its driver calls it. Deployables that have a name keep it."`
	ReloadLostImages   bool          `key:"reload_lost_images" default:"false" doc:"The images that accelerators have lost when their host booted are loaded again, once, where nobody holds them. Else that is only told, as drift of the class lost_image."`
	ForgetMissingAfter time.Duration `key:"forget_missing_after" default:"24h" min:"1m" doc:"Hardware that is missing for this long, and that nobody holds, is forgotten."`
}

// NameDeployable returns the name of a new deployable, made from its host and
// from the name that its driver has for it.
func (i Inventory) NameDeployable(host, local string) string {
	return strings.NewReplacer("{host}", host, "{name}", local).Replace(i.DeployableName)
}

// Retention configures how long finished things can be read.
type Retention struct {
	Events      time.Duration `key:"events" default:"2160h" min:"1h" doc:"Events: the history of every device, and how far back a stream can resume."`
	Operations  time.Duration `key:"operations" default:"2160h" min:"1h" doc:"Operations that have ended."`
	Histories   time.Duration `key:"histories" default:"168h" min:"24h" doc:"Temporal's histories of them. It is set on the namespace that the standalone makes; an external cluster's namespace keeps its own."`
	Idempotency time.Duration `key:"idempotency" default:"24h" min:"1m" doc:"Idempotency keys: for this long a repeated request is answered with the first one's operation."`
}

// Standalone configures the process that runs everything.
type Standalone struct {
	StateDir       string   `key:"state_dir" auto:"/var/lib/cyborg for root, else cyborg in the XDG state directory" check:"path" example:"/var/lib/cyborg" doc:"Directory of everything that outlives the process."`
	Hosts          []string `key:"hosts" default:"sysfs:/" sep:" " doc:"The hosts to run agents for: fake:8xfpga,2xgpu (pretended devices), sysfs:/ (this machine), sysfs:DIR or sysfs:FILE.tar.gz (the recorded sysfs of a machine), each with NAME= before it to give it a name."`
	TemporalListen string   `key:"temporal_listen" default:"127.0.0.1:7233" check:"listen" doc:"Address and port of the embedded Temporal. Beyond loopback it needs all of temporal_tls."`

	// TemporalTLS protects the embedded Temporal. A client with a certificate of
	// TemporalTLS.ClientCA may do everything in it.
	TemporalTLS      ServerTLS `key:"temporal_tls"`
	TemporalUIListen string    `key:"temporal_ui_listen" default:"127.0.0.1:8233" check:"loopback" doc:"Address and port of Temporal's Web UI, on loopback always: it asks nobody who they are."`
}
