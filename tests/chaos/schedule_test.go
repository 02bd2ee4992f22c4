package chaos_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// schedule is the work and the faults of a test, in rounds. It depends only on
// its seed, the number of kills and the wanted faults.
type schedule struct {
	seed       uint64
	wanted     int // number of kills
	faultKinds []faultKind
	rounds     []round
}

// round is some work that begins at the same time, and the faults meanwhile.
// After a round everything is healed and checked.
type round struct {
	works  []work
	faults []fault
}

// stage is a kind of work, and the step at which it can be held: of the fake
// hardware, or of Nova. step is empty where nothing can be held.
type stage struct {
	kind cyborg.OperationKind
	step fake.Step
}

// kindDelete is the deletion of accelerator requests, which is not an
// operation.
const kindDelete cyborg.OperationKind = "delete"

// stepReboot is the reboot of an instance, which is held in Nova and not in the
// hardware.
const stepReboot fake.Step = "reboot"

// stageTable lists the steps of all operations.
var stageTable = []stage{
	{cyborg.OperationProvision, fake.StepInstall},
	{cyborg.OperationProgram, fake.StepCheckImage},
	{cyborg.OperationProgram, fake.StepProgram},
	{cyborg.OperationAttach, fake.StepAttach},
	{cyborg.OperationDetach, fake.StepDetach},
	{cyborg.OperationConfigure, fake.StepDiscover},
	{cyborg.OperationRetire, fake.StepUninstall},
	{cyborg.OperationWhitelist, fake.StepInUse},
	{cyborg.OperationRescue, stepReboot},
	{cyborg.OperationBind, ""},
	{cyborg.OperationBind, fake.StepProgram}, // a bind with an image
	{cyborg.OperationUnbind, fake.StepInUse},
	{kindDelete, ""},
	{cyborg.OperationClean, fake.StepClean},
	{cyborg.OperationPartition, fake.StepPartition},
}

// ofRequests reports whether the work is about accelerator requests, so that it
// begins with requests of Nova.
func (s stage) ofRequests() bool {
	return slices.Contains([]cyborg.OperationKind{cyborg.OperationBind, cyborg.OperationUnbind, kindDelete, cyborg.OperationRescue}, s.kind)
}

// hasRun reports whether the work has a run that somebody may terminate or
// reset, and nothing is lost by that. A rescue is not begun again.
func (s stage) hasRun() bool {
	return s.step != "" && s.kind != cyborg.OperationRescue
}

// place names what the work is done on. A round has one piece of work for each
// place.
func (s stage) place(host, card int) string {
	switch s.kind {
	case cyborg.OperationConfigure:
		return hostName(host) + ", its spare backend"
	case cyborg.OperationWhitelist:
		return hostName(host) + ", its whitelist"
	case kindShare:
		return hostName(host) + ", its shared card"
	case cyborg.OperationPartition:
		return hostName(host) + ", its divisible card"
	default:
		return fmt.Sprintf("%s, card %d", hostName(host), card)
	}
}

// work is one operation that a client requests.
type work struct {
	stage

	host, card, api int
	holder          int  // see holderOf; 0 is the accelerator's own host
	async           bool // the client does not wait for the end
	contender       int  // another holder that wants it at the same time; -1 for none
	cancel          bool // it is cancelled while its step is under way
	retry           bool // it is retried where it failed or was cancelled
	force           bool // detach: by force, as soon as its host is silent
	used            bool // somebody uses it meanwhile, so nothing may be done on the host; cross: somebody holds and uses a handle all the time

	lose bool // it begins when what is committed may be lost

	clients [][]move // cross and share: the moves of each client

	// For a clean.
	method   cyborg.CleanMethod // that is asked for; empty for what is needed
	declared bool               // somebody cleans it by hand, and declares it clean

	// For a partition.
	layout cyborg.Layout // that is asked for
	taken  bool          // somebody takes at the same time what there is of the card

	// For work on accelerator requests.
	requests int  // how many there are
	admin    bool // the client is an administrator, not a user
	late     bool // bind: the requests are created during the faults, too
	deleted  bool // bind: the requests are deleted while it is under way
	beside   bool // bind: another instance already has the other handle
	byName   bool // deletion: by the requests' UUIDs, not by their instance
}

// moment is when a fault strikes, relative to a piece of work.
type moment string

const (
	before moment = "before" // its request has just been sent
	within moment = "within" // its step is under way on the host
	after  moment = "after"  // its step was let go, and is about to end or to be recorded
)

// faultKind is a kind of fault.
type faultKind string

const (
	kill    faultKind = "kill"    // kill -9
	freeze  faultKind = "freeze"  // suspended, and resumed
	restart faultKind = "restart" // stopped in order, and started again
	reboot  faultKind = "reboot"  // a host loses its power, and has a new boot id when it comes back
	power   faultKind = "power"   // the machine of PostgreSQL loses its power
	cut     faultKind = "cut"     // a link resets every connection
	silence faultKind = "silence" // a link lets nothing through
	delay   faultKind = "delay"   // a link is slow
	full    faultKind = "full"    // a disk has no space left
	jump    faultKind = "jump"    // the clock of a server or an agent is wrong
	stall   faultKind = "stall"   // a process is suspended for longer than an undo may take
	sever   faultKind = "sever"   // a conductor reaches everything except Temporal, for as long
	second  faultKind = "second"  // an agent reaches Temporal but no conductor, while a second one runs under its name

	// A standby takes the place of PostgreSQL, which is killed and never comes back.
	failover faultKind = "failover" // the standby has every commit
	lag      faultKind = "lag"      // the standby lacks the commits of the last moments

	// A backup is taken, and put back a while later.
	restore faultKind = "restore"

	old faultKind = "old" // an agent is killed, and its state directory is put back from an older copy

	rotate faultKind = "rotate" // the servers are restarted one by one, and so the keys change that sign steps

	renew faultKind = "renew" // another authority of certificates takes the place of the present one

	forge faultKind = "forge" // Temporal gives the agent of a host steps that nobody has sent

	// What somebody may do to the run of an operation in Temporal.
	terminate faultKind = "terminate"
	reset     faultKind = "reset"

	// The faults of a service of OpenStack.
	outage   faultKind = "outage"   // it refuses connections
	slow     faultKind = "slow"     // it answers late
	conflict faultKind = "conflict" // it answers 409
	broken   faultKind = "broken"   // it answers 500
	busy     faultKind = "busy"     // it answers 503
	lost     faultKind = "lost"     // it handles the request, and breaks the connection
)

// The services of OpenStack.
const (
	keystone  = "keystone"
	placement = "placement"
	nova      = "nova"
	glance    = "glance"
)

// services returns the names of all services.
func services() []string { return []string{keystone, placement, nova, glance} }

// The faults that any process, any link and any service can have.
func processFaults() []faultKind { return []faultKind{kill, freeze, restart} }
func linkFaults() []faultKind    { return []faultKind{cut, silence, delay} }
func runFaults() []faultKind     { return []faultKind{terminate, reset} }
func killingFaults() []faultKind {
	return []faultKind{kill, reboot, power, failover, lag, restore, old}
}
func losingFaults() []faultKind  { return []faultKind{lag, restore} }
func serviceFaults() []faultKind { return []faultKind{outage, slow, conflict, broken, busy, lost} }

// fault is one fault, at a moment of a piece of work, with its duration.
type fault struct {
	faultKind faultKind
	target    string // a node, a node's disk, a service, FROM>TO, or the run of the work
	work      int    // index of the work in its round
	when      moment
	after     time.Duration // how long after the moment
	lasts     time.Duration
	amount    time.Duration // size of a delay or of a clock's jump; how far a standby is behind; how old a backup is
}

// What is put back from a backup: the whole PostgreSQL with the databases of
// Temporal, or the records alone, which Temporal then is ahead of.
const (
	allData     = "postgres"
	recordsOnly = "the records"
)

// kills returns how many processes the fault kills.
func (f fault) kills() int {
	if slices.Contains(killingFaults(), f.faultKind) && f.target != recordsOnly {
		return 1
	}
	return 0
}

// failsOver returns the fault of the round by which a standby takes the place of
// PostgreSQL. There is at most one.
func (r round) failsOver() (fault, bool) {
	i := slices.IndexFunc(r.faults, func(f fault) bool { return f.faultKind == failover || f.faultKind == lag })
	if i < 0 {
		return fault{}, false
	}
	return r.faults[i], true
}

// loses reports whether commits are lost in the round.
func (r round) loses() bool {
	return slices.ContainsFunc(r.faults, func(f fault) bool { return slices.Contains(losingFaults(), f.faultKind) })
}

// The cluster that a schedule is for.
const (
	hosts = 3
	cards = 5 // on each host
	// handles is the number of handles of each card.
	handles = 2
	// novaCards is the number of cards of each host that are never taken into
	// service: they go into Nova's whitelist and out of it.
	novaCards = 2
	// holders is the number of holders that holderOf knows: the host, two
	// instances, a service.
	holders = 4
)

// hostName returns the name of a host.
func hostName(n int) string { return fmt.Sprintf("rack%d", n+1) }

// nodesOf returns the names of the processes of a kind. An agent has the name
// of its host.
func nodesOf(kind harness.NodeKind) []string {
	switch kind {
	case harness.NodeConductor:
		return []string{"conductor1", "conductor2"}
	case harness.NodeAPI:
		return []string{"api1", "api2"}
	case harness.NodeAgent:
		names := make([]string, hosts)
		for i := range names {
			names[i] = hostName(i)
		}
		return names
	default:
		return []string{string(kind)}
	}
}

// nodeKinds returns the kinds of processes.
func nodeKinds() []harness.NodeKind {
	return []harness.NodeKind{
		harness.NodePostgres, harness.NodeTemporal, harness.NodeConductor, harness.NodeAPI, harness.NodeAgent,
	}
}

// links returns the names of all links.
func links() []string {
	var all []string
	for _, server := range slices.Concat(nodesOf(harness.NodeConductor), nodesOf(harness.NodeAPI)) {
		all = append(all, server+">postgres", server+">temporal")
		for _, service := range services() {
			all = append(all, server+">"+service)
		}
	}

	for _, api := range nodesOf(harness.NodeAPI) {
		all = append(all, harness.Client+">"+api)
	}

	for _, agent := range nodesOf(harness.NodeAgent) {
		all = append(all, agent+">temporal", agent+">conductor1", agent+">conductor2")
	}

	return append(all, "temporal>postgres")
}

// kills returns how many kills are planned.
func (s schedule) kills() int {
	n := 0
	for _, r := range s.rounds {
		n += r.kills()
	}
	return n
}

// kills returns how many kills are planned.
func (r round) kills() int {
	n := 0
	for _, f := range r.faults {
		n += f.kills()
	}
	return n
}

// String returns the whole schedule, as it is logged and kept.
func (s schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d rounds with %d kills\n", s.seed, len(s.rounds), s.kills())
	for i, r := range s.rounds {
		fmt.Fprintf(&b, "round %d\n%s", i+1, r)
	}

	return b.String()
}

// String returns the round, one piece of work or fault a line.
func (r round) String() string {
	var b strings.Builder
	for i, w := range r.works {
		fmt.Fprintf(&b, "  work %d: %s\n", i, w)
	}

	for _, f := range r.faults {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	return b.String()
}

// String describes the work.
func (w work) String() string {
	text := fmt.Sprintf("%s on %s, card %d, through api%d", w.kind, hostName(w.host), w.card, w.api+1)
	for _, more := range []struct {
		is   bool
		text string
	}{
		{w.step != "", "held at " + string(w.step)},
		{w.requests > 0, fmt.Sprintf("requests %d", w.requests)},
		{w.admin, "by an administrator"},
		{w.late, "created during the faults"},
		{w.deleted, "deleted meanwhile"},
		{w.beside, "beside another instance"},
		{w.byName && (w.deleted || w.kind == kindDelete), "by name"},
		{w.method != "", "with a " + string(w.method)},
		{w.declared, "declared clean"},
		{w.kind == cyborg.OperationPartition, "into " + w.layout.String()},
		{w.taken, "while somebody takes what there is"},
	} {
		if more.is {
			text += ", " + more.text
		}
	}

	if w.kind == cyborg.OperationAttach || w.kind == cyborg.OperationDetach || w.kind == cyborg.OperationClean {
		text += fmt.Sprintf(", holder %d", w.holder)
	}
	if w.contender >= 0 {
		text += fmt.Sprintf(", with a contender: holder %d", w.contender)
	}
	if w.force {
		text += ", by force"
	}
	if len(w.clients) > 0 {
		text += ": " + describe(w.clients)
	}
	if w.used {
		text += ", while in use"
	}
	if w.lose {
		text += ", begun when it may be lost"
	}
	if w.async {
		text += ", async"
	}
	if w.cancel {
		text += ", cancelled"
	}
	if w.retry {
		text += ", retried"
	}

	return text
}

// String describes the fault.
func (f fault) String() string {
	text := fmt.Sprintf("%s %s %s after the moment %q of work %d, for %s", f.faultKind, f.target, f.after, f.when, f.work, f.lasts)
	if f.amount != 0 {
		text += fmt.Sprintf(", by %s", f.amount)
	}
	return text
}
