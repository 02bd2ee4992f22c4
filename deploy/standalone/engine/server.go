package engine

import (
	"sync/atomic"
	"time"

	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/temporal"
)

const (
	clusterName = "active" // Temporal's name for a cluster that is alone
	mainStore   = "main"
	// shards is how many parts Temporal divides its work into. It is fixed when the database is made. More run more at
	// once and cost more while idle; four suit a small machine.
	shards = 4
	// namespaceRefresh is how soon Temporal's services see a new or changed namespace while the engine starts.
	namespaceRefresh = 200 * time.Millisecond
)

// serverOptions is everything that Temporal is told.
func serverOptions(cfg Config, addrs addresses, id *identity, tuned *tuning, log *logger) []temporal.ServerOption {
	options := []temporal.ServerOption{
		temporal.WithConfig(serverConfig(cfg, addrs)),
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
		// Whoever can connect may do everything: on loopback this machine's users, else those with a certificate.
		temporal.WithAuthorizer(authorization.NewNoopAuthorizer()),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper { return authorization.NewNoopClaimMapper() }),
	}
	if id != nil {
		options = append(options, temporal.WithTLSConfigFactory(id))
	}
	return options
}

func serverConfig(cfg Config, addrs addresses) *config.Config {
	const archival = "disabled"
	return &config.Config{
		Global: config.Global{
			Membership: config.Membership{MaxJoinDuration: 30 * time.Second, BroadcastAddress: "127.0.0.1"},
		},
		Persistence: config.Persistence{
			DefaultStore: mainStore, VisibilityStore: visibilityDatabase, NumHistoryShards: shards,
			DataStores: map[string]config.DataStore{
				mainStore:          {SQL: sqlConfig(cfg.PostgresURL, mainDatabase, 20)},
				visibilityDatabase: {SQL: sqlConfig(cfg.PostgresURL, visibilityDatabase, 10)},
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

func service(a address) config.Service {
	return config.Service{RPC: config.RPC{GRPCPort: a.port, BindOnIP: a.ip.String()}}
}

// tuning is Temporal's dynamic configuration.
type tuning struct {
	settings dynamicconfig.StaticClient
	open     atomic.Bool
}

var _ dynamicconfig.Client = (*tuning)(nil)

// GetValue returns a setting; none where Temporal's default is right. Once the namespace is open, that is so of how often
// Temporal's four services look for changed namespaces.
func (t *tuning) GetValue(key dynamicconfig.Key) []dynamicconfig.ConstrainedValue {
	if key == dynamicconfig.NamespaceCacheRefreshInterval.Key() && t.open.Load() {
		return nil
	}
	return t.settings.GetValue(key)
}

// newTuning makes Temporal fast in one process with few shards, and lets ten thousand agents wait on queues of their own.
func newTuning() *tuning {
	const plenty = 20000
	return &tuning{settings: dynamicconfig.StaticClient{
		// At the default of 20 each shard looks for new work 20 times a second at most, and every step of a workflow waits
		// up to 50 ms for that; it is meant for hundreds of shards.
		dynamicconfig.TransferProcessorMaxPollRPS.Key(): 1000,
		dynamicconfig.TimerProcessorMaxPollRPS.Key():    1000,
		// A caller that waits for a result may miss its announcement, and looks again only then.
		dynamicconfig.HistoryLongPollExpirationInterval.Key(): 2 * time.Second,
		// Each host has a queue of its own, and each partition of a queue costs memory.
		dynamicconfig.MatchingNumTaskqueueReadPartitions.Key():  1,
		dynamicconfig.MatchingNumTaskqueueWritePartitions.Key(): 1,
		// So does what each queue does every few seconds to compare its partitions and the versions of its workers. The
		// first of the two must not be 0: a queue without it does not stop in v1.32, and keeps a core busy instead
		// (task_queue_partition_manager.go, updateEphemeralData).
		dynamicconfig.MatchingEphemeralDataUpdateInterval.Key(): 24 * time.Hour,
		dynamicconfig.MatchingBacklogMetricsEmitInterval.Key():  time.Duration(0),
		// And to look whether another process has taken it, or changed what is kept of its workers: nobody can.
		dynamicconfig.MatchingUpdateAckInterval.Key():  10 * time.Minute,
		dynamicconfig.MatchingGetUserDataRefresh.Key(): time.Hour,
		// A poll that found nothing is asked again. Workers wait for two and a half minutes.
		dynamicconfig.MatchingLongPollExpirationInterval.Key(): 2 * time.Minute,
		// The default lets 1200 long polls wait; each agent keeps one.
		dynamicconfig.FrontendMaxConcurrentLongRunningRequestsPerInstance.Key(): plenty,
		// Limits are for clusters that serve strangers; admission is bounded before it comes here.
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
		// Asks Temporal's maker for news of releases otherwise.
		dynamicconfig.EnableServerVersionCheck.Key(): false,
	}}
}
