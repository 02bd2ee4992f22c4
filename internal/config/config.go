// Package config defines the configuration of every process: the options, their
// defaults, and the checks that report what is wrong with the values.
//
// The struct tags below are the only definition of an option: its key, default,
// bounds and documentation. docs/configuration.md and
// deploy/cyborg.example.yaml are generated from them. This is the only package
// that uses viper; all others are given typed values. Of Cyborg it imports only
// the root package, internal/statedir, for the default of the state directory,
// and internal/identity and internal/pki, for certificates.
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

	"github.com/cyborg-project/cyborg"
)

// Config holds every option. Each of its fields is a section of the file.
type Config struct {
	Log           Log           `key:"log" doc:"What a process writes to its standard error."`
	Database      Database      `key:"database" doc:"The PostgreSQL that holds the records."`
	Temporal      Temporal      `key:"temporal" doc:"The Temporal cluster that runs the operations."`
	Server        Server        `key:"server" doc:"What one server process does."`
	API           API           `key:"api" doc:"The REST interface."`
	AgentEndpoint AgentEndpoint `key:"agent_endpoint" doc:"The listener that agents call, with inventory reports, heartbeats and image downloads."`
	Identity      Identity      `key:"identity" doc:"Who the certificates name that this process believes."`
	Agent         Agent         `key:"agent" doc:"The agent of one host."`
	Conductor     Conductor     `key:"conductor" doc:"How the server keeps its records."`
	Operations    Operations    `key:"operations" doc:"How long the steps of an operation may take. A change applies to operations that start after it."`
	Images        Images        `key:"images" doc:"Where images may come from."`
	Inventory     Inventory     `key:"inventory" doc:"What Cyborg does with hardware that appears and disappears."`
	Retention     Retention     `key:"retention" doc:"How long you can still read what has finished."`
	OpenStack     OpenStack     `key:"openstack" doc:"The OpenStack cloud that the server belongs to, and the server's own user there."`
	Keystone      Keystone      `key:"keystone" doc:"How the server validates the Keystone tokens of its callers."`
	Placement     Placement     `key:"placement" doc:"How Cyborg copies its records to OpenStack Placement."`
	Policy        Policy        `key:"policy" doc:"Who may do what on /v2."`
	Audit         Audit         `key:"audit" doc:"The audit trail: who was refused, and who changed something."`
	Glance        Glance        `key:"glance" doc:"Which images of OpenStack's Glance Cyborg accepts."`
	ARQs          ARQs          `key:"arqs" doc:"OpenStack's accelerator requests (ARQs)."`
	Nova          Nova          `key:"nova" doc:"OpenStack's Nova, which uses accelerator requests."`
	Standalone    Standalone    `key:"standalone" doc:"The standalone: one process that runs everything."`

	// origins holds, by key, the given value of each option that is not at its
	// default. Messages and dumps use it to say where a value comes from.
	origins map[string]given
}

// Given reports whether a value was given for the option with that key, even if
// it is the default.
func (c *Config) Given(key string) bool {
	_, ok := c.origins[key]
	return ok
}

// Log configures logging.
type Log struct {
	Level  slog.Level `key:"level" default:"info" oneof:"debug info warn error" doc:"The lowest level of messages that are written."`
	Format string     `key:"format" default:"text" oneof:"text json" doc:"How each message is written: one line of key=value pairs for people (text), or one JSON object for machines (json)."`
}

// Database is the server's PostgreSQL.
type Database struct {
	URL      DatabaseURL `key:"url" example:"postgres://cyborg@db.example.org/cyborg?sslmode=verify-full" doc:"URL of the database (PostgreSQL 15 or newer). You can put the password in the URL, or in a file that the URL's parameter passfile names; on the command line, only the latter. If this is empty, the standalone starts a private PostgreSQL."`
	MaxConns int32       `key:"max_conns" default:"16" min:"5" max:"1000" doc:"The most connections that one server keeps to the database. Even if you set only five, one stays free for heartbeats and the ends of operations, whatever the API does. Two more are not counted: one listens for new events, and one tells all servers of them."`
}

// Temporal configures the connection to a Temporal cluster.
type Temporal struct {
	Environment bool        `key:"environment" default:"true" doc:"Also read Temporal's own environment profile: the variables TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS_* and the file that TEMPORAL_CONFIG_FILE names. The options of this section override it."`
	Address     string      `key:"address" auto:"what the environment profile says, else 127.0.0.1:7233" check:"hostport" example:"temporal.example.org:7233" doc:"Host and port of the cluster's frontend."`
	Namespace   string      `key:"namespace" auto:"what the environment profile says, else cyborg" example:"cyborg" doc:"Namespace for everything that Cyborg runs in the cluster. Do not use it for anything else."`
	APIKey      Secret      `key:"api_key" doc:"API key, if the cluster requires one. Setting it turns TLS on."`
	TLS         TemporalTLS `key:"tls"`
}

// Identity configures who certificates name.
type Identity struct {
	TrustDomain string `key:"trust_domain" default:"cyborg" check:"trust_domain" doc:"Trust domain of this installation. A certificate counts only if its one URI is spiffe://TRUST_DOMAIN/ROLE/NAME. Set the same one for all servers and agents."`

	// How hosts get certificates of the servers themselves.
	Authority       string        `key:"authority" auto:"in the standalone with agent_endpoint.tls, the one in its state directory" check:"path" example:"/etc/cyborg/ca" doc:"Directory of the authority (cyborg ca init) by which hosts enroll. Servers with the role conductor sign the certificates of agents with its key. Its certificate must be in agent_endpoint.tls.client_ca, and the certificate of the agent endpoint must be from it. If this is empty, no host can enroll."`
	Revocations     string        `key:"revocations" auto:"revoked-hosts in identity.authority; in the standalone, in its state directory" check:"path" example:"/etc/cyborg/ca/revoked-hosts" doc:"File in which a server keeps which hosts were revoked, so that they stay out if the records are restored from an older backup. The server makes it, and must be able to write in its directory. Without one, only the records know it."`
	CertificateLife time.Duration `key:"certificate_life" default:"24h" min:"10s" doc:"How long the certificate of an enrolled host is valid. Its agent renews it after two thirds of this time."`
	RenewLate       time.Duration `key:"renew_late" default:"720h" min:"0s" doc:"How long after its end the certificate of an enrolled host can still be renewed. Until then, a host that was off enrolls by itself when it comes back; after that, it needs a new token."`
}

// TemporalTLS configures TLS for connections to the Temporal cluster.
type TemporalTLS struct {
	Enabled    bool   `key:"enabled" default:"false" doc:"Use TLS, even if nothing else in this section is set."`
	Cert       string `key:"cert" check:"file" example:"/etc/cyborg/temporal.crt" doc:"PEM file of the certificate that Cyborg shows to the cluster."`
	Key        string `key:"key" check:"file" example:"/etc/cyborg/temporal.key" doc:"PEM file of the certificate's private key."`
	CA         string `key:"ca" check:"file" example:"/etc/cyborg/temporal-ca.crt" doc:"PEM file of the certificate authorities that Cyborg trusts for the cluster's certificate, instead of the system's."`
	ServerName string `key:"server_name" example:"temporal.example.org" doc:"Name that the cluster's certificate must have, if it differs from the one in the address."`
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
	PprofListen string `key:"pprof_listen" check:"loopback" example:"127.0.0.1:6660" doc:"Address and port, on loopback, where you can profile this process with go tool pprof (/debug/pprof/). If this is empty, profiling is off."`
}

// Has reports whether the server plays the role.
func (s Server) Has(role Role) bool {
	return slices.Contains(s.Roles, role)
}

// ServerTLS configures TLS of a listener.
type ServerTLS struct {
	Cert     string `key:"cert" check:"file" example:"/etc/cyborg/server.crt" doc:"PEM file of the server's certificate, with its intermediate certificates."`
	Key      string `key:"key" check:"file" example:"/etc/cyborg/server.key" doc:"PEM file of the certificate's private key."`
	ClientCA string `key:"client_ca" check:"file" example:"/etc/cyborg/clients-ca.crt" doc:"PEM file of the certificate authorities that sign the certificates of clients."`
}

// API configures the REST interface.
type API struct {
	Listen string `key:"listen" default:"127.0.0.1:6666" check:"listen" doc:"Address and port of the REST API. On an address beyond loopback, the API needs tls.cert and tls.key, and also tokens, tls.client_ca or keystone.enabled."`

	// TLS.ClientCA makes client certificates valid credentials. The URI of the
	// certificate says the role and the name of the client (internal/identity).
	TLS            ServerTLS `key:"tls"`
	Tokens         []Token   `key:"tokens" doc:"Static bearer tokens. If you set no tokens, no tls.client_ca and no keystone.enabled, everybody on this machine may do everything."`
	PublicEndpoint string    `key:"public_endpoint" check:"url" example:"https://cloud.example.org" doc:"URL that the links in answers of /v2 begin with; /accelerator/v2 follows it. Set it if callers reach the server through another address, such as a proxy's."`

	// Bounds of the work for callers.
	SyncWait       time.Duration `key:"sync_wait" default:"30s" doc:"How long a request waits for its operation to end. After that, the server answers 202 and the operation's address."`
	MaxInFlight    int           `key:"max_in_flight" default:"0" min:"0" max:"100000" doc:"The most operations that this process has in flight for its callers at once. 0 means five for each processor core."`
	QueueWait      time.Duration `key:"queue_wait" default:"2s" doc:"How long a request waits for its turn: for a place among max_in_flight operations, or for a database connection of its class. If its turn does not come in this time, the server answers 429."`
	BodyLimit      Size          `key:"body_limit" default:"1MiB" min:"1KiB" max:"64MiB" doc:"The largest request body that the server accepts."`
	CensusWait     time.Duration `key:"census_wait" default:"5s" max:"5m" doc:"How long a census of usage waits for the hosts it asks."`
	MaxStreams     int           `key:"max_streams" default:"1000" min:"1" doc:"The most event streams that are served at once. A tenth of them is kept for admins, and each caller may have a tenth at most, but always 4."`
	MaxConnections int           `key:"max_connections" default:"10000" min:"10" doc:"The most connections that are open at once. The limit is never more than a sixth of the files that the process may open. At the limit, a new connection replaces the one that has been without a request for longest."`
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
	Name    string    `key:"name" doc:"Name of the client that uses the token. Histories show this name."`
	Role    TokenRole `key:"role" default:"reader" oneof:"reader member admin" doc:"What the client may do."`
	Project string    `key:"project" doc:"The client's project on /v2. If this is empty, a member has a project of its own, and all others none. Clients share accelerator requests only within a project."`
	// Token is the token itself. Load also sets it if the token is in TokenFile.
	Token     Secret `key:"token" doc:"The token itself. It must have 16 characters or more."`
	TokenFile string `key:"token_file" check:"file" doc:"A file that holds the token. Set it instead of token."`
}

// AgentEndpoint configures the listener that agents call.
type AgentEndpoint struct {
	Listen         string    `key:"listen" default:"127.0.0.1:6667" check:"listen" doc:"Address and port of the endpoint that agents call. On an address beyond loopback, the endpoint needs all of tls, and an agent's certificate must have the URI spiffe://TRUST_DOMAIN/host/HOST. On loopback without tls.client_ca, root and the user of this process can speak for every host, and nobody else. The standalone opens it only if you set this option: its own agents need no port."`
	TLS            ServerTLS `key:"tls"`
	MaxConnections int       `key:"max_connections" default:"50000" min:"10" doc:"The most connections that are open at once. The limit works like that of api.max_connections. An agent keeps one connection open, and a second one while it fetches an image."`
}

// Agent configures the agent of one host.
type Agent struct {
	Host      string    `key:"host" auto:"the name that the kernel has for this machine" check:"hostname" example:"compute-7.example.org" doc:"Name of the host. It is the hypervisor_hostname that Nova and Placement know, and the host's only identity."`
	StateDir  string    `key:"state_dir" auto:"/var/lib/cyborg-agent for root, else cyborg-agent in the XDG state directory" check:"path" example:"/var/lib/cyborg-agent" doc:"Directory of the agent's journal, its last inventory, its fetched images and the key by which it proves that it is this host's agent."`
	Root      string    `key:"root" default:"/" check:"path" doc:"Directory that the agent takes as the root of the host's file system. It looks for sysfs below this directory."`
	Endpoints []string  `key:"endpoints" default:"http://127.0.0.1:6667" check:"url" doc:"URLs of the servers' agent endpoints; the agent uses the first that answers."`
	TLS       ClientTLS `key:"tls"`
	Backends  []Backend `key:"backends" doc:"The drivers to run, and how. What an operator later installs, changes or uninstalls through the API overrides this. The agent keeps it in the state directory."`

	// What this host allows, whoever asks for it.
	Drivers    []string               `key:"drivers" default:"generic,pci" doc:"The drivers that this host allows at all: in its own configuration, through the API and through Temporal. A backend with another driver is refused. The standalone allows each host the driver that standalone.hosts gives it."`
	Activities []cyborg.OperationKind `key:"activities" default:"attach,configure,partition,program,provision,whitelist" oneof:"attach configure partition program provision whitelist" doc:"The kinds of work that this host allows at all, whoever asks: attach and detach handles (attach), install and change drivers (configure), divide devices into parts (partition), load images (program), take accelerators into and out of service (provision), write Nova's whitelist (whitelist). Each includes undoing and repairing the same. Any other step is refused before it touches anything, and its operation fails. With an empty list, the host can only be looked at."`

	// ImageDir stays empty after Load if it is not given. Each agent then uses the
	// directory image-files in its own state directory.
	ImageDir    string `key:"image_dir" auto:"image-files in the agent's state directory; in the standalone, images/HOST in the standalone's state directory" check:"path" example:"/srv/images" doc:"Directory for images that are given as a path on this host. Such a path must be below this directory."`
	NovaConfDir string `key:"nova_conf_dir" check:"path" example:"/etc/nova/nova.conf.d" doc:"Directory from which the host's nova-compute reads drop-in files. The agent writes cyborg-pci.conf there: the PCI devices that an operator gave to Nova. The directory must exist, and must not be a link. If this is empty, the agent never writes the file. The standalone writes into the subdirectory HOST."`
	ImageMax    Size   `key:"image_max" default:"4GiB" min:"1KiB" doc:"The largest image that the agent accepts."`
	ImageCache  Size   `key:"image_cache" default:"16GiB" min:"1KiB" doc:"The space for images that the agent keeps after use. It deletes the least recently used images first."`

	// Intervals and limits of the agent's work.
	Heartbeat     time.Duration `key:"heartbeat" default:"10s" min:"100ms" doc:"How often the agent sends a heartbeat to the server. Each one comes a little earlier or later. Less than half of conductor.silent_after."`
	FullScan      time.Duration `key:"full_scan" default:"5m" min:"1s" doc:"How often the agent makes a full scan of the hardware, in addition to the scans that kernel events cause."`
	Health        time.Duration `key:"health" default:"30s" min:"100ms" doc:"How often the agent asks drivers how their devices are (their health). What they say shows as conditions of the accelerators."`
	ScanTimeout   time.Duration `key:"scan_timeout" default:"30s" min:"1s" doc:"How long one backend may take for one scan of its hardware."`
	UsageTimeout  time.Duration `key:"usage_timeout" default:"5s" min:"100ms" doc:"How long the agent may take to answer a census, and to measure what its metrics have of the accelerators. The answer marks each accelerator that did not answer by then."`
	StopTimeout   time.Duration `key:"stop_timeout" default:"30s" doc:"How long running steps may continue after you stop the agent."`
	MetricsListen string        `key:"metrics_listen" default:"127.0.0.1:6668" check:"listen" doc:"Address and port of the agent's metrics (GET /metrics) and liveness (GET /healthz). An empty text in the file turns both off. On an address beyond loopback, the listener needs all of tls, and serves clients that show a certificate of the same authorities for the role server, admin or reader."`
	Slots         int           `key:"slots" default:"64" min:"1" max:"1024" doc:"The most steps that run on this host at once. Each device still runs only one step at a time. A step waits until it gets a slot. Of the images that steps load, a server gives one host 64 at once; what is beyond is tried again."`
}

// ClientTLS configures TLS for connections to a Cyborg server.
type ClientTLS struct {
	Cert string `key:"cert" check:"file" example:"/etc/cyborg/agent.crt" doc:"PEM file of the certificate that the agent shows to the server. Its URI must be spiffe://TRUST_DOMAIN/host/HOST."`
	Key  string `key:"key" check:"file" example:"/etc/cyborg/agent.key" doc:"PEM file of the certificate's private key."`
	CA   string `key:"ca" check:"file" example:"/etc/cyborg/ca.crt" doc:"PEM file of the certificate authorities that the agent trusts for the server's certificate, instead of the system's."`
}

// Backend is one named instance of a driver. Load sets an empty Name to the
// name of the driver.
type Backend struct {
	Name    string         `key:"name" doc:"Name of the backend on this host. If this is empty, it is the driver's name."`
	Driver  string         `key:"driver" doc:"Name of the driver. The command cyborg-agent drivers lists all drivers."`
	Enabled bool           `key:"enabled" default:"true" doc:"Whether the backend runs."`
	Options map[string]any `key:"options" doc:"The driver's own options."`
}

// Conductor configures how the records are kept.
type Conductor struct {
	FlushInterval     time.Duration `key:"flush_interval" default:"100ms" max:"10s" doc:"How long the server collects heartbeats before it writes them together. It also collects reports that arrive while others are being written. A longer time costs the database less, but what the server collects is answered that much later. The server writes a lone report at once."`
	BatchSize         int           `key:"batch_size" default:"500" min:"1" max:"10000" doc:"The most heartbeats or reports that the server writes in one transaction. A full batch does not wait. A larger batch costs less for each of them, and holds row locks for longer."`
	SilentAfter       time.Duration `key:"silent_after" default:"25s" doc:"A host is silent if its last heartbeat is older than this. A discovery or a census of a silent host fails at once. An operation waits operations.agent_wait for the agent to come back, and then fails. The value must be more than twice agent.heartbeat, so that one lost heartbeat does no harm."`
	ReconcileInterval time.Duration `key:"reconcile_interval" default:"30s" min:"1s" doc:"How often Reconcile compares the records, the hosts and the operations."`
	OrphanAfter       time.Duration `key:"orphan_after" default:"15s" min:"1s" doc:"If an operation was admitted this long ago and does not run, Reconcile starts it."`
	Grants            string        `key:"grants" default:"required" oneof:"required off" doc:"Whether agents take only steps that a server has signed (required), so that whoever can write to Temporal can have no host do anything. With off, an agent does whatever Temporal tells it: all servers then warn about it. An agent goes by the server that it has heard last."`
}

// The values of Conductor.Grants.
const (
	GrantsRequired = "required"
	GrantsOff      = "off"
)

// Operations bounds the steps of operations. Its fields are the same as those
// of workflows.Limits, so that a conversion is enough.
type Operations struct {
	AgentWait time.Duration `key:"agent_wait" default:"30s" min:"1s" doc:"How long a step waits for its host's agent to take it."`
	Step      time.Duration `key:"step" default:"2m" min:"1s" doc:"How long one try of install, attach, detach or configure may take."`
	Stage     time.Duration `key:"stage" default:"30m" min:"1s" doc:"How long one try to bring an image to its host may take."`
	Program   time.Duration `key:"program" default:"30m" min:"1s" doc:"How long one try to load an image, or to divide a device into parts, may take."`
	Clean     time.Duration `key:"clean" default:"24h" min:"1s" doc:"How long one try to clean a handle after its last holder may take. To overwrite a large disk takes hours."`
	Heartbeat time.Duration `key:"heartbeat" default:"15s" min:"1s" doc:"How long an agent may say nothing about a step that it runs. After that, Cyborg gives the step to it again."`
	Undo      time.Duration `key:"undo" default:"5m" min:"1s" doc:"How long Cyborg begins new tries to undo one step, including the time that the agent is away. It makes as many tries as operations.attempts in any case. The last one may wait operations.agent_wait for the agent, and then takes as long as a try of such a step may."`
	Attempts  int32         `key:"attempts" default:"5" min:"1" max:"100" doc:"How often Cyborg tries a step whose failure may be temporary."`
}

// Images configures where images may come from.
type Images struct {
	Allow []string `key:"allow" example:"https://images.example.org/cyborg/" check:"url" doc:"URLs (http or https) below which the server may fetch images. If the list is empty, no URL is allowed. The agent handles paths on the host (agent.image_dir)."`
	Max   Size     `key:"max" default:"4GiB" min:"1KiB" doc:"The largest image that the server fetches."`
}

// Admission selects what is done with new hardware.
type Admission string

// The ways to admit new hardware.
const (
	AdmissionManual Admission = "manual"
	AdmissionAuto   Admission = "auto"
)

// Inventory configures what is done with hardware that appears and disappears.
type Inventory struct {
	Admission          Admission     `key:"admission" default:"manual" oneof:"manual auto" doc:"What Cyborg does with new hardware: it stays inactive until an operator makes it ready (manual), or Cyborg makes it ready at once, as OpenStack Cyborg does (auto)."`
	DeployableName     string        `key:"deployable_name" default:"{host}_{name}" check:"deployable_name" doc:"Name of a new deployable, and of its resource provider in Placement. {host} stands for its host, and {name} for the name that its driver has for it. Deployables that already have a name keep it."`
	ReloadLostImages   bool          `key:"reload_lost_images" default:"false" doc:"Load the images again that accelerators lost when their host booted. Cyborg does this once, and only for accelerators that nobody holds. If this is false, Cyborg only reports the loss, as drift of the class lost_image."`
	ForgetMissingAfter time.Duration `key:"forget_missing_after" default:"24h" min:"1m" doc:"Cyborg forgets hardware that has been missing for this long and that nobody holds, unless it has still to be cleaned."`
}

// NameDeployable returns the name of a new deployable, made from its host and
// from the name that its driver has for it.
func (i Inventory) NameDeployable(host, local string) string {
	return strings.NewReplacer("{host}", host, "{name}", local).Replace(i.DeployableName)
}

// Retention configures how long finished things can be read.
type Retention struct {
	Events      time.Duration `key:"events" default:"2160h" min:"1h" doc:"How long Cyborg keeps events. They are the history of every device. A stream can resume as far back as the events go."`
	Operations  time.Duration `key:"operations" default:"2160h" min:"1h" doc:"How long Cyborg keeps operations that have ended."`
	Histories   time.Duration `key:"histories" default:"168h" min:"24h" doc:"How long Temporal keeps its histories of operations that have ended. The standalone sets this on the namespace that it creates. The namespace of an external cluster keeps its own value."`
	Idempotency time.Duration `key:"idempotency" default:"24h" min:"1m" doc:"How long Cyborg keeps idempotency keys. For this long, it answers a repeated request with the operation of the first one."`
}

// Standalone configures the process that runs everything.
type Standalone struct {
	StateDir       string   `key:"state_dir" auto:"/var/lib/cyborg for root, else cyborg in the XDG state directory" check:"path" example:"/var/lib/cyborg" doc:"Directory for everything that must survive the end of the process."`
	Hosts          []string `key:"hosts" default:"sysfs:/" sep:" " doc:"The hosts to run agents for: fake:8xfpga,2xgpu (fake devices), sysfs:/ (this machine), sysfs:DIR or sysfs:FILE.tar.gz (the recorded sysfs of a machine). To give a host a name, put NAME= before it."`
	TemporalListen string   `key:"temporal_listen" default:"127.0.0.1:7233" check:"listen" doc:"Address and port of the embedded Temporal, which asks every client for a certificate. On an address beyond loopback, it needs all of temporal_tls."`

	// TemporalTLS are the certificates of the embedded Temporal; without them it makes
	// its own. What a client may do there depends on the identity in its certificate.
	TemporalTLS      ServerTLS   `key:"temporal_tls"`
	TemporalUIListen string      `key:"temporal_ui_listen" default:"127.0.0.1:8233" check:"loopback" doc:"Address and port of Temporal's Web UI, which must be on loopback, because the UI speaks plain HTTP. Where the API asks for a credential, the UI asks for one of api.tokens, as the password."`
	TemporalRecords  DatabaseURL `key:"temporal_records" auto:"database.url" example:"postgres://cyborg@db.example.org/cyborg?sslmode=verify-full" doc:"For cyborg-standalone temporal: URL of the database with the records, if that is another one than Temporal's. Temporal reads there which hosts were revoked. The role needs USAGE on the schema and SELECT on the table host_identities."`
	TemporalUIWrites bool        `key:"temporal_ui_writes" default:"false" doc:"Let Temporal's Web UI signal, cancel, reset and terminate runs. Otherwise it only shows them. Where the API asks for a credential, this needs a token with the role admin."`
}
