package engine

import (
	"sync/atomic"
	"time"

	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/temporal"

	"github.com/cyborg-project/cyborg/deploy/standalone/temporalauth"
)

const (
	clusterName = "active" // Temporal's usual name for a single cluster
	mainStore   = "main"   // the name of the store in this configuration

	// shards is the number of parts that Temporal divides its work into. It cannot
	// be changed after the database has been made. With more shards more work runs
	// at once, but an idle engine costs more. Four suit a small machine.
	shards = 4
	// namespaceRefresh is how often Temporal's services look for new and changed
	// namespaces while the engine starts.
	namespaceRefresh = 200 * time.Millisecond
)

// newServer makes a Temporal with mutual TLS that obeys the guard.
func newServer(cfg Config, addrs addresses, id *identity, on timeline, tuned *tuning, log *logger) (temporal.Server, error) {
	if unguarded {
		return temporal.NewServer(optionsWithoutAuth(cfg, addrs, on, tuned, log)...)
	}

	guard, err := temporalauth.New(temporalauth.Config{
		TrustDomain: cfg.TrustDomain, Namespace: cfg.Namespace, SealKey: id.sealKey, Self: id.checksum, Refuse: id.refuse(cfg.Revocations), Log: log.out,
	})
	if err != nil {
		return nil, err
	}
	if cfg.Revocations != nil {
		cfg.Revocations.OnRevocation(guard.CloseRefused)
	}
	return guard.NewServer(append(optionsWithoutAuth(cfg, addrs, on, tuned, log), temporal.WithTLSConfigFactory(id))...)
}

// optionsWithoutAuth returns the options of a Temporal that speaks plain gRPC and
// obeys everybody. Temporal is started with no others only by tests, and by the
// benchmark of what TLS and the guard cost.
func optionsWithoutAuth(cfg Config, addrs addresses, on timeline, tuned *tuning, log *logger) []temporal.ServerOption {
	return []temporal.ServerOption{
		temporal.WithConfig(serverConfig(cfg, addrs, on)),
		temporal.ForServices(temporal.DefaultServices),
		temporal.WithStaticHosts(map[primitives.ServiceName]static.Hosts{
			primitives.FrontendService: static.SingleLocalHost(addrs.frontend.dial()),
			primitives.HistoryService:  static.SingleLocalHost(addrs.history.String()),
			primitives.MatchingService: static.SingleLocalHost(addrs.matching.String()),
			primitives.WorkerService:   static.SingleLocalHost(addrs.worker.String()),
		}),
		temporal.WithLogger(log),
		temporal.WithNamespaceLogger(log),
		temporal.WithDynamicConfigClient(tuned),
	}
}

// serverConfig returns Temporal's static configuration: one cluster with all
// four services in this process.
func serverConfig(cfg Config, addrs addresses, on timeline) *config.Config {
	const archival = "disabled"
	return &config.Config{
		Global: config.Global{
			Membership: config.Membership{MaxJoinDuration: 30 * time.Second, BroadcastAddress: "127.0.0.1"},
		},
		Persistence: config.Persistence{
			DefaultStore: mainStore, VisibilityStore: visibilityDatabase, NumHistoryShards: shards,
			DataStores: map[string]config.DataStore{
				mainStore:          {SQL: sqlConfig(cfg.PostgresURL, mainDatabase, 20, on)},
				visibilityDatabase: {SQL: sqlConfig(cfg.PostgresURL, visibilityDatabase, 10, on)},
			},
		},

		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        clusterName,
			CurrentClusterName:       clusterName,
			ClusterInformation: map[string]cluster.ClusterInformation{
				clusterName: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: addrs.frontend.dial()},
			},
		},
		DCRedirectionPolicy: config.DCRedirectionPolicy{Policy: "noop"},

		Services: map[string]config.Service{
			string(primitives.FrontendService): service(addrs.frontend),
			string(primitives.HistoryService):  service(addrs.history),
			string(primitives.MatchingService): service(addrs.matching),
			string(primitives.WorkerService):   service(addrs.worker),
		},

		Archival: config.Archival{
			History:    config.HistoryArchival{State: archival},
			Visibility: config.VisibilityArchival{State: archival},
		},
		NamespaceDefaults: config.NamespaceDefaults{Archival: config.ArchivalNamespaceDefaults{
			History:    config.HistoryArchivalNamespaceDefaults{State: archival},
			Visibility: config.VisibilityArchivalNamespaceDefaults{State: archival},
		}},

		PublicClient: config.PublicClient{HostPort: addrs.frontend.dial()},
	}
}

// service returns the configuration of a service that listens on the address.
func service(a address) config.Service {
	return config.Service{RPC: config.RPC{GRPCPort: a.port, BindOnIP: a.ip.String()}}
}

// tuning is Temporal's dynamic configuration. It never changes, except for what
// open turns off.
type tuning struct {
	settings dynamicconfig.StaticClient
	open     atomic.Bool // the namespace is open, so the fast refresh of namespaces can end
}

var _ dynamicconfig.Client = (*tuning)(nil)

// GetValue returns the value of a setting, or none where Temporal's default is
// right. Once the namespace is open, the default is also right for how often
// Temporal's four services look for changed namespaces.
func (t *tuning) GetValue(key dynamicconfig.Key) []dynamicconfig.ConstrainedValue {
	if key == dynamicconfig.NamespaceCacheRefreshInterval.Key() && t.open.Load() {
		return nil
	}
	return t.settings.GetValue(key)
}

// newTuning returns the settings that make Temporal fast in one process with
// few shards, and that let ten thousand agents wait on queues of their own.
func newTuning() *tuning {
	const plenty = 20000
	return &tuning{settings: dynamicconfig.StaticClient{
		// With the default of 20, each shard looks for new work at most 20 times a
		// second, so every step of a workflow waits up to 50 ms. The default is meant
		// for hundreds of shards.
		dynamicconfig.TransferProcessorMaxPollRPS.Key(): 1000,
		dynamicconfig.TimerProcessorMaxPollRPS.Key():    1000,

		// A caller that waits for a result may miss its announcement. It looks again
		// only after this time.
		dynamicconfig.HistoryLongPollExpirationInterval.Key(): 2 * time.Second,

		// Each host has a queue of its own, and each partition of a queue costs memory.
		dynamicconfig.MatchingNumTaskqueueReadPartitions.Key():  1,
		dynamicconfig.MatchingNumTaskqueueWritePartitions.Key(): 1,

		// Each queue also compares its partitions and the versions of its workers every
		// few seconds, which costs CPU. The first of the two intervals must not be 0:
		// in v1.32 a queue without it does not stop, and keeps a core busy
		// (task_queue_partition_manager.go, updateEphemeralData).
		dynamicconfig.MatchingEphemeralDataUpdateInterval.Key(): 24 * time.Hour,
		dynamicconfig.MatchingBacklogMetricsEmitInterval.Key():  time.Duration(0),

		// Each queue also checks whether another process has taken it over or changed
		// its data about workers. Here there is no other process.
		dynamicconfig.MatchingUpdateAckInterval.Key():  10 * time.Minute,
		dynamicconfig.MatchingGetUserDataRefresh.Key(): time.Hour,

		// A longer poll means fewer polls that find nothing. It must stay below the two
		// and a half minutes that workers wait for an answer.
		dynamicconfig.MatchingLongPollExpirationInterval.Key(): 2 * time.Minute,

		// The default allows 1200 long polls at once, and each agent keeps one open.
		dynamicconfig.FrontendMaxConcurrentLongRunningRequestsPerInstance.Key(): plenty,

		// Rate limits are for clusters that serve strangers. Cyborg limits its work
		// before it reaches Temporal.
		dynamicconfig.FrontendRPS.Key():                                  plenty,
		dynamicconfig.FrontendMaxNamespaceRPSPerInstance.Key():           plenty,
		dynamicconfig.FrontendMaxNamespaceVisibilityRPSPerInstance.Key(): 1000,
		dynamicconfig.MatchingRPS.Key():                                  plenty,
		dynamicconfig.HistoryRPS.Key():                                   plenty,
		dynamicconfig.FrontendPersistenceMaxQPS.Key():                    plenty,
		dynamicconfig.MatchingPersistenceMaxQPS.Key():                    plenty,
		dynamicconfig.HistoryPersistenceMaxQPS.Key():                     plenty,
		dynamicconfig.HistoryCacheHostLevelMaxSize.Key():                 8096,
		dynamicconfig.NamespaceCacheRefreshInterval.Key():                namespaceRefresh,

		// The check would ask Temporal's maker for new releases.
		dynamicconfig.EnableServerVersionCheck.Key(): false,
	}}
}
