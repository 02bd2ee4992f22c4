package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// schedule is everything that will be done to a cluster, in rounds. It is a function of its seed and its size alone.
type schedule struct {
	seed    uint64
	wanted  int // kills
	manners []manner
	rounds  []round
}

// round is some work that begins at once, and what goes wrong meanwhile. After it everything is healed and checked.
type round struct {
	works  []work
	faults []fault
}

// stage is a step of an operation on the host, and the step of the fake hardware by which it can be held, or Nova's; none where
// nothing can be held.
type stage struct {
	kind cyborg.OperationKind
	step fake.Step
}

// kindDelete is the deletion of accelerator requests, which is no operation.
const kindDelete cyborg.OperationKind = "delete"

// stepReboot is the reboot of an instance, which is no step of hardware: it is held in Nova.
const stepReboot fake.Step = "reboot"

// stageTable are the steps of all operations.
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
	{cyborg.OperationBind, fake.StepProgram}, // of one with an image
	{cyborg.OperationUnbind, fake.StepInUse},
	{kindDelete, ""},
}

// ofRequests says that it is about accelerator requests, and that it begins with what Nova asks for.
func (s stage) ofRequests() bool {
	return slices.Contains([]cyborg.OperationKind{cyborg.OperationBind, cyborg.OperationUnbind, kindDelete, cyborg.OperationRescue}, s.kind)
}

// place is where such work is done: one piece of it in a round is done there.
func (s stage) place(host, card int) string {
	switch s.kind {
	case cyborg.OperationConfigure:
		return hostName(host) + ", its spare backend"
	case cyborg.OperationWhitelist:
		return hostName(host) + ", its whitelist"
	default:
		return fmt.Sprintf("%s, card %d", hostName(host), card)
	}
}

// work is one operation that a client asks for.
type work struct {
	stage

	host, card, api int
	holder          int  // 0 is the accelerator's own host
	async           bool // the client does not wait for the end
	rival           int  // another holder who wants the same at the same time; -1 for none
	cancel          bool // it is cancelled while its step is under way
	retry           bool // what failed or was cancelled is tried again
	force           bool // of a detach: by force, as soon as its host is silent
	requests        int  // of accelerator requests: how many there are
	admin           bool // of them: who asks is an administrator, not a user
	late            bool // of a bind: its requests are made amid the faults, too
	deleted         bool // of a bind: its requests are deleted while it is under way
	beside          bool // of a bind: another instance has the other handle already
	byName          bool // of a deletion: the requests are named, and not their instance
}

// moment is when a fault strikes, seen from a piece of work.
type moment string

const (
	before moment = "before" // its request has just been sent
	within moment = "within" // its step is under way on the host
	after  moment = "after"  // its step is let go, and is about to end or to be recorded
)

// manner is what goes wrong.
type manner string

const (
	kill    manner = "kill"    // kill -9
	freeze  manner = "freeze"  // stopped, and continued
	restart manner = "restart" // stopped in order, and started again
	reboot  manner = "reboot"  // an agent is killed, and its host has another boot id when it comes back
	cut     manner = "cut"     // a link resets every connection
	silence manner = "silence" // a link lets nothing through
	delay   manner = "delay"   // a link is slow
	full    manner = "full"    // a disk has no space left
	jump    manner = "jump"    // an agent's clock is off

	// What befalls a service of OpenStack.
	outage   manner = "outage"   // it refuses connections
	slow     manner = "slow"     // it takes its time for each request
	conflict manner = "conflict" // it answers 409
	broken   manner = "broken"   // it answers 500
	busy     manner = "busy"     // it answers 503
	lost     manner = "lost"     // it does what it is asked for, and breaks the connection
)

// The services of OpenStack.
const (
	keystone  = "keystone"
	placement = "placement"
	nova      = "nova"
	glance    = "glance"
)

func services() []string { return []string{keystone, placement, nova, glance} }

// processManners are the manners that go with every process; linkManners those of a link; serviceManners those of a service
// of OpenStack.
func processManners() []manner { return []manner{kill, freeze, restart} }
func linkManners() []manner    { return []manner{cut, silence, delay} }
func serviceManners() []manner { return []manner{outage, slow, conflict, broken, busy, lost} }

// fault is one thing that goes wrong, at a moment of a piece of work, for a while.
type fault struct {
	manner manner
	target string // a node, a node's disk, a service, or FROM>TO
	work   int    // of the round
	when   moment
	after  time.Duration // how long after the moment
	lasts  time.Duration
	amount time.Duration // of a delay, or of a clock's jump
}

// kills says how often it kills a process.
func (f fault) kills() int {
	if f.manner == kill || f.manner == reboot {
		return 1
	}
	return 0
}

// The cluster that a schedule is for.
const (
	hosts = 3
	cards = 5 // on each host
	// handles are those of each card.
	handles = 2
	// novas are cards of each host that nobody takes into service: they are in the whitelist of its Nova, or not.
	novas = 2
	// holders are those an accelerator is attached to: its host, two instances, a service.
	holders = 4
)

func hostName(n int) string { return fmt.Sprintf("rack%d", n+1) }

// nodesOf are the names of the processes of a kind; those of agents are their hosts'.
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

func nodeKinds() []harness.NodeKind {
	return []harness.NodeKind{
		harness.NodePostgres, harness.NodeTemporal, harness.NodeConductor, harness.NodeAPI, harness.NodeAgent,
	}
}

// links are the names of all links.
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

// cell is one place of the systematic matrix: each step of each operation, each kind of process, each manner; and each
// service that the step has to do with.
type cell struct {
	stage   stage
	node    harness.NodeKind
	service string
	manner  manner
}

func matrix() []cell {
	var cells []cell
	for _, stage := range stageTable {
		for _, node := range nodeKinds() {
			for _, manner := range processManners() {
				cells = append(cells, cell{stage: stage, node: node, manner: manner})
			}
		}
	}
	return cells
}

// serviceMatrix is the part of the matrix in which nobody is killed.
func serviceMatrix() []cell {
	var cells []cell
	for _, stage := range stageTable {
		for _, service := range servicesOf(stage) {
			for _, manner := range serviceManners() {
				cells = append(cells, cell{stage: stage, service: service, manner: manner})
			}
		}
	}
	return cells
}

// servicesOf are those that are asked, or told, in the course of a stage.
func servicesOf(s stage) []string {
	switch {
	case s.kind == cyborg.OperationBind && s.step != "":
		return services()
	case s.kind == cyborg.OperationBind:
		return []string{keystone, nova}
	case s.kind == cyborg.OperationUnbind:
		return []string{keystone, placement}
	case s.kind == kindDelete:
		return []string{keystone}
	case s.kind == cyborg.OperationRescue:
		return []string{nova}
	case s.kind == cyborg.OperationProgram && s.step == fake.StepProgram, s.kind == cyborg.OperationRetire:
		return []string{placement}
	}
	return nil
}

// newSchedule plans rounds until so many kills are planned: by turns one with some cells of the matrix, until those are
// used up, and one of anything. Only manners that are wanted occur.
func newSchedule(seed uint64, kills int, wanted []manner) schedule {
	random := rand.New(rand.NewPCG(seed, 0))
	s := schedule{seed: seed, wanted: kills, manners: wanted}
	p := planner{random: random, wanted: wanted}
	unwanted := func(c cell) bool { return !p.wants(c.manner) }
	cells, others := slices.DeleteFunc(matrix(), unwanted), slices.DeleteFunc(serviceMatrix(), unwanted)
	for _, shuffled := range [][]cell{cells, others} {
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	}
	if !p.wants(kill) && !p.wants(reboot) { // there is nothing to count: the matrix, and as much again
		kills, s.wanted = 0, 0
	}
	for planned := 0; planned < kills || kills == 0 && len(cells)+len(others) > 0; {
		var r round
		if len(s.rounds)%2 == 0 && len(cells)+len(others) > 0 {
			n, m := min(6, len(cells)), min(3, len(others))
			r = p.systematic(slices.Concat(cells[:n], others[:m]))
			cells, others = cells[n:], others[m:]
		} else {
			r = p.anything()
		}
		s.rounds = append(s.rounds, r)
		for _, f := range r.faults {
			planned += f.kills()
		}
	}
	return s
}

// longer is the same schedule with more rounds after it, for so many kills more.
func (s schedule) longer(kills int) schedule {
	out := newSchedule(s.seed, s.kills()+kills, s.manners)
	out.wanted = s.wanted
	return out
}

// planner draws what a schedule is made of.
type planner struct {
	random *rand.Rand
	wanted []manner
}

func (p *planner) wants(m manner) bool { return slices.Contains(p.wanted, m) }

func (p *planner) chance(percent int) bool { return p.random.IntN(100) < percent }

func (p *planner) between(least, most time.Duration) time.Duration {
	return (least + time.Duration(p.random.Int64N(int64(most-least)))).Round(time.Millisecond)
}

func pick[T any](p *planner, from []T) T { return from[p.random.IntN(len(from))] }

// systematic is a round with one piece of work, and its fault, for each cell.
func (p *planner) systematic(cells []cell) round {
	var r round
	used := map[string]bool{}
	for i, c := range cells {
		r.works = append(r.works, p.work(c.stage, used))
		target := c.service
		switch c.node {
		case "":
		case harness.NodeAgent:
			target = hostName(r.works[i].host)
		case harness.NodeAPI:
			target = nodesOf(c.node)[r.works[i].api]
		default:
			target = pick(p, nodesOf(c.node))
		}
		r.faults = append(r.faults, p.fault(c.manner, target, i))
	}
	if p.chance(40) {
		p.disturb(&r)
	}
	return r
}

// anything is a round of anything.
func (p *planner) anything() round {
	var r round
	used := map[string]bool{}
	for range 3 + p.random.IntN(3) {
		r.works = append(r.works, p.work(pick(p, stageTable), used))
	}
	for range 2 + p.random.IntN(2) {
		m := kill
		if p.chance(20) {
			m = reboot
		}
		if !p.wants(m) {
			continue
		}
		kind := pick(p, nodeKinds())
		if m == reboot {
			kind = harness.NodeAgent
		}
		r.faults = append(r.faults, p.fault(m, pick(p, nodesOf(kind)), p.random.IntN(len(r.works))))
	}
	for range 1 + p.random.IntN(3) {
		p.disturb(&r)
	}
	if p.wants(kill) && p.chance(30) {
		p.forsake(&r, used)
	}
	return r
}

// forsake adds a host that is away for so long that somebody takes back by force what it has.
func (p *planner) forsake(r *round, used map[string]bool) {
	w := p.work(stage{cyborg.OperationDetach, fake.StepDetach}, used)
	w.holder, w.cancel, w.retry, w.force = 0, false, false, true
	r.works = append(r.works, w)
	f := p.fault(kill, hostName(w.host), len(r.works)-1)
	f.when, f.lasts = before, p.between(8*time.Second, 10*time.Second)
	r.faults = append(r.faults, f)
}

// disturb adds a fault that kills nobody.
func (p *planner) disturb(r *round) {
	var others []manner
	for _, m := range slices.Concat([]manner{freeze, restart, cut, cut, silence, silence, delay, delay, full, jump}, serviceManners()) {
		if p.wants(m) {
			others = append(others, m)
		}
	}
	if len(others) == 0 {
		return
	}
	m, about := pick(p, others), p.random.IntN(len(r.works))
	var target string
	switch {
	case slices.Contains(linkManners(), m):
		target = pick(p, links())
	case slices.Contains(serviceManners(), m):
		target = pick(p, services())
	case m == full:
		target = pick(p, append(nodesOf(harness.NodeAgent), "postgres"))
	case m == jump:
		target = pick(p, nodesOf(harness.NodeAgent)) // the others go by the database's clock
	default:
		target = pick(p, nodesOf(pick(p, nodeKinds())))
	}
	r.faults = append(r.faults, p.fault(m, target, about))
}

// work draws a piece of work on a card that no other of the round uses.
func (p *planner) work(s stage, used map[string]bool) work {
	w := work{stage: s, api: p.random.IntN(2), holder: 0, rival: -1, async: p.chance(50)}
	for tries := 0; ; tries++ {
		if tries == 100 { // each host has but one backend to configure, and one whitelist
			w.stage = stageTable[0]
			s = w.stage
		}
		w.host, w.card = p.random.IntN(hosts), p.random.IntN(cards)
		if place := s.place(w.host, w.card); !used[place] {
			used[place] = true
			break
		}
	}
	if p.chance(25) { // mostly its own host: only then there is something to do on the host
		w.holder = 1 + p.random.IntN(holders-1)
	}
	if s.kind == cyborg.OperationAttach && p.chance(40) {
		w.rival = p.random.IntN(holders)
	}
	w.cancel, w.retry = p.chance(12), p.chance(50)
	if !s.ofRequests() {
		return w
	}
	w.holder, w.async, w.retry = 0, false, false                            // which is for an operation of /v1
	w.cancel = w.cancel && s.step != "" && s.kind != cyborg.OperationRescue // whose instances would stay without
	w.requests, w.admin, w.byName = 1+p.random.IntN(handles), p.chance(50), p.chance(50)
	w.late = s.kind == cyborg.OperationBind && p.chance(30)
	w.deleted = s.kind == cyborg.OperationBind && p.chance(30)
	w.beside = s.kind == cyborg.OperationBind && s.step == "" && w.requests < handles
	return w
}

func (p *planner) fault(m manner, target string, about int) fault {
	f := fault{
		manner: m, target: target, work: about, when: pick(p, []moment{before, within, after}),
		after: p.between(0, 80*time.Millisecond),
	}
	switch m {
	case kill, restart, reboot:
		f.lasts = p.between(50*time.Millisecond, 1500*time.Millisecond)
	case freeze:
		f.lasts = p.between(300*time.Millisecond, 5*time.Second)
	case cut:
		f.lasts = p.between(200*time.Millisecond, 4*time.Second)
	case silence:
		f.lasts = p.between(500*time.Millisecond, 6*time.Second)
	case delay:
		f.lasts, f.amount = p.between(2*time.Second, 6*time.Second), p.between(20*time.Millisecond, 400*time.Millisecond)
	case full:
		f.lasts = p.between(500*time.Millisecond, 4*time.Second)
	case slow:
		f.lasts, f.amount = p.between(2*time.Second, 6*time.Second), p.between(100*time.Millisecond, 3*time.Second)
	case outage, conflict, broken, busy, lost:
		f.lasts = p.between(500*time.Millisecond, 6*time.Second)
	case jump:
		f.lasts, f.amount = p.between(2*time.Second, 5*time.Second), p.between(time.Minute, 6*time.Hour).Round(time.Second)
		if p.chance(50) {
			f.amount = -f.amount
		}
	}
	return f
}

func (s schedule) kills() int {
	n := 0
	for _, r := range s.rounds {
		n += r.kills()
	}
	return n
}

func (r round) kills() int {
	n := 0
	for _, f := range r.faults {
		n += f.kills()
	}
	return n
}

// String is the whole schedule, as it is printed and kept.
func (s schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d rounds with %d kills\n", s.seed, len(s.rounds), s.kills())
	for i, r := range s.rounds {
		fmt.Fprintf(&b, "round %d\n%s", i+1, r)
	}
	return b.String()
}

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

func (w work) String() string {
	text := fmt.Sprintf("%s on %s, card %d, through api%d", w.kind, hostName(w.host), w.card, w.api+1)
	for _, more := range []struct {
		is   bool
		text string
	}{
		{w.step != "", "held at " + string(w.step)},
		{w.requests > 0, fmt.Sprintf("requests %d", w.requests)},
		{w.admin, "by an administrator"},
		{w.late, "made amid the faults"},
		{w.deleted, "deleted meanwhile"},
		{w.beside, "beside another instance"},
		{w.byName && (w.deleted || w.kind == kindDelete), "by name"},
	} {
		if more.is {
			text += ", " + more.text
		}
	}
	if w.kind == cyborg.OperationAttach || w.kind == cyborg.OperationDetach {
		text += fmt.Sprintf(", holder %d", w.holder)
	}
	if w.rival >= 0 {
		text += fmt.Sprintf(", with a rival: holder %d", w.rival)
	}
	if w.force {
		text += ", by force"
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

func (f fault) String() string {
	text := fmt.Sprintf("%s %s %s after the moment %q of work %d, for %s", f.manner, f.target, f.after, f.when, f.work, f.lasts)
	if f.amount != 0 {
		text += fmt.Sprintf(", by %s", f.amount)
	}
	return text
}
