package chaos_test

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// cell is one combination of the systematic matrix: a step of an operation with
// a kind of process or a service, and with a fault.
type cell struct {
	stage     stage
	node      harness.NodeKind
	service   string
	faultKind faultKind
}

// matrix returns all combinations of steps, processes and their faults.
func matrix() []cell {
	var cells []cell

	for _, stage := range stageTable {
		for _, node := range nodeKinds() {
			for _, faultKind := range processFaults() {
				cells = append(cells, cell{stage: stage, node: node, faultKind: faultKind})
			}
		}
	}

	return cells
}

// serviceMatrix returns all combinations of steps, the services that they use,
// and their faults. They kill nothing.
func serviceMatrix() []cell {
	var cells []cell

	for _, stage := range stageTable {
		for _, service := range servicesOf(stage) {
			for _, faultKind := range serviceFaults() {
				cells = append(cells, cell{stage: stage, service: service, faultKind: faultKind})
			}
		}
	}

	return cells
}

// servicesOf returns the services that a stage uses.
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

// newSchedule plans rounds until this many kills are planned. A round with
// cells of the matrix, until these are used up, and a random round alternate.
// Only wanted faults occur.
func newSchedule(seed uint64, kills int, wanted []faultKind) schedule {
	random := rand.New(rand.NewPCG(seed, 0))
	s := schedule{seed: seed, wanted: kills, faultKinds: wanted}
	p := planner{random: random, wanted: wanted}

	unwanted := func(c cell) bool { return !p.wants(c.faultKind) }
	cells, others := slices.DeleteFunc(matrix(), unwanted), slices.DeleteFunc(serviceMatrix(), unwanted)

	for _, shuffled := range [][]cell{cells, others} {
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	}

	if !slices.ContainsFunc(killingFaults(), p.wants) { // without kills to count, the matrix ends the schedule
		kills, s.wanted = 0, 0
	}

	for planned := 0; planned < kills || kills == 0 && len(cells)+len(others) > 0; {
		var r round
		switch {
		case len(s.rounds)%2 == 0 && len(cells)+len(others) > 0:
			n, m := min(7, len(cells)), min(3, len(others))
			r = p.matrixRound(slices.Concat(cells[:n], others[:m]))
			cells, others = cells[n:], others[m:]
		case slices.ContainsFunc(losingFaults(), p.wants) && p.often(20):
			r = p.lossRound()
		default:
			r = p.randomRound()
		}
		if !r.loses() && p.wants(failover) && p.often(15) {
			p.addFailover(&r)
		}

		s.rounds = append(s.rounds, r)
		for _, f := range r.faults {
			planned += f.kills()
		}
	}
	return s
}

// longer returns the same schedule with more rounds after it, for this many
// more kills.
func (s schedule) longer(kills int) schedule {
	out := newSchedule(s.seed, s.kills()+kills, s.faultKinds)
	out.wanted = s.wanted
	return out
}

// planner draws the work and the faults of a schedule.
type planner struct {
	random *rand.Rand
	wanted []faultKind
	bag    []faultKind // the disturbances that come next
}

// wants reports whether a kind of fault may occur.
func (p *planner) wants(m faultKind) bool { return slices.Contains(p.wanted, m) }

// chance returns true with the given probability in percent.
func (p *planner) chance(percent int) bool { return p.random.IntN(100) < percent }

// often is chance, but true where no process is killed otherwise.
func (p *planner) often(percent int) bool { return p.chance(percent) || !p.wants(kill) }

// between draws a duration, in whole milliseconds.
func (p *planner) between(least, most time.Duration) time.Duration {
	return (least + time.Duration(p.random.Int64N(int64(most-least)))).Round(time.Millisecond)
}

// pick draws one element.
func pick[T any](p *planner, from []T) T { return from[p.random.IntN(len(from))] }

// matrixRound returns a round with one piece of work and its fault for each
// cell.
func (p *planner) matrixRound(cells []cell) round {
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

		r.faults = append(r.faults, p.fault(c.faultKind, target, i))
	}
	if p.chance(40) {
		p.addDisturbance(&r)
	}
	if p.chance(50) {
		p.addCrossing(&r, used)
	}
	if p.chance(50) {
		p.addSharing(&r, used)
	}

	return r
}

// randomRound returns a random round: work, some kills and other faults.
func (p *planner) randomRound() round {
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

		if kind == harness.NodePostgres && p.wants(power) && p.chance(60) {
			m = power
		}

		r.faults = append(r.faults, p.fault(m, pick(p, nodesOf(kind)), p.random.IntN(len(r.works))))
	}
	if p.wants(power) && !p.wants(kill) {
		r.faults = append(r.faults, p.fault(power, "postgres", p.random.IntN(len(r.works))))
	}

	for range 1 + p.random.IntN(3) {
		p.addDisturbance(&r)
	}

	if p.wants(kill) && p.chance(30) {
		p.abandonHost(&r, used)
	}
	if p.chance(50) {
		p.addCrossing(&r, used)
	}
	if p.chance(50) {
		p.addSharing(&r, used)
	}

	return r
}

// lossRound returns a round in which a standby takes the place of PostgreSQL that
// lacks some commits, or a backup is put back. A rescue is left out, because one
// that was lost is done again: see settle. So is the whitelist, because a file
// that is not as it was written is left to an operator.
func (p *planner) lossRound() round {
	var settled []stage
	for _, s := range stageTable {
		if s.kind != cyborg.OperationRescue && s.kind != cyborg.OperationWhitelist {
			settled = append(settled, s)
		}
	}

	var r round
	used := map[string]bool{}
	for range 3 + p.random.IntN(4) {
		w := p.work(pick(p, settled), used)
		w.late = false // a request that nobody knows is judged by its age
		w.lose = p.chance(60)
		r.works = append(r.works, w)
	}

	if p.wants(kill) && p.chance(70) {
		r.faults = append(r.faults, p.fault(kill, pick(p, nodesOf(pick(p, nodeKinds()))), p.random.IntN(len(r.works))))
	}
	for range p.random.IntN(3) {
		p.addDisturbance(&r)
	}

	chosen, target := pick(p, slices.DeleteFunc(losingFaults(), func(k faultKind) bool { return !p.wants(k) })), allData
	if chosen == restore && p.chance(40) {
		target = recordsOnly
	}
	r.faults = append(r.faults, p.fault(chosen, target, p.random.IntN(len(r.works))))
	r.faults = spareDisk(r.faults)
	return r
}

// addFailover has a standby take the place of PostgreSQL, without a loss.
func (p *planner) addFailover(r *round) {
	r.faults = append(r.faults, p.fault(failover, "postgres", p.random.IntN(len(r.works))))
	r.faults = spareDisk(r.faults)
}

// spareDisk takes out what the standby or the backup would not survive, which are on
// the disk of PostgreSQL: that it is full, or loses its power.
func spareDisk(faults []fault) []fault {
	return slices.DeleteFunc(faults, func(f fault) bool {
		return f.target == "postgres" && (f.faultKind == full || f.faultKind == power)
	})
}

// abandonHost adds the kill of an agent that stays away for so long that
// somebody detaches by force.
func (p *planner) abandonHost(r *round, used map[string]bool) {
	w := p.work(stage{cyborg.OperationDetach, fake.StepDetach}, used)
	w.holder, w.cancel, w.retry, w.force, w.used = 0, false, false, true, p.chance(50)
	r.works = append(r.works, w)

	f := p.fault(kill, hostName(w.host), len(r.works)-1)
	f.when, f.lasts = before, p.between(8*time.Second, 10*time.Second)

	r.faults = append(r.faults, f)
}

// Targets of faults that strike what is no process.
const (
	theServers   = "the servers" // all of them
	theAuthority = "the authority"
)

// theRun is the target of a fault that strikes the run of its work.
const theRun = "the run"

// addDisturbance adds a fault that is neither a kill nor a boot.
func (p *planner) addDisturbance(r *round) {
	if len(p.bag) == 0 {
		p.bag = p.disturbances()
	}
	if len(p.bag) == 0 {
		return
	}

	m, about := p.bag[0], p.random.IntN(len(r.works))
	p.bag = p.bag[1:]
	var target string

	switch {
	case slices.Contains(linkFaults(), m):
		target = pick(p, links())
	case slices.Contains(serviceFaults(), m):
		target = pick(p, services())
	case slices.Contains(runFaults(), m):
		target = theRun
		var eligible []int
		for i, w := range r.works {
			if w.hasRun() {
				eligible = append(eligible, i)
			}
		}
		if len(eligible) == 0 {
			return
		}
		about = pick(p, eligible)
	case m == full:
		target = pick(p, append(nodesOf(harness.NodeAgent), "postgres"))
	case m == sever:
		target = pick(p, nodesOf(harness.NodeConductor))
	case m == second, m == old, m == forge:
		target = hostName(r.works[about].host)
	case m == rotate:
		target = theServers
	case m == renew:
		target = theAuthority
	case m == jump:
		target = pick(p, nodesOf(pick(p, []harness.NodeKind{
			harness.NodeConductor, harness.NodeAPI, harness.NodeAgent, harness.NodePostgres, harness.NodePostgres, harness.NodeTemporal,
		})))
	default:
		target = pick(p, nodesOf(pick(p, nodeKinds())))
	}

	r.faults = append(r.faults, p.fault(m, target, about))
}

// disturbances returns the wanted ones, each as often as its share is, in a random
// order. All are drawn before one is drawn again, so that none is missed.
func (p *planner) disturbances() (all []faultKind) {
	for _, m := range slices.Concat([]faultKind{
		freeze, restart, cut, cut, silence, silence, delay, delay, full, jump, jump, stall, sever, second, second, terminate, terminate, reset, reset, old, old, forge, forge, rotate, rotate, renew,
	}, serviceFaults()) {
		if p.wants(m) {
			all = append(all, m)
		}
	}

	p.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// work draws a piece of work on a place that the round does not use yet.
func (p *planner) work(s stage, used map[string]bool) work {
	w := work{stage: s, api: p.random.IntN(2), holder: 0, contender: -1, async: p.chance(50)}

	for tries := 0; ; tries++ {
		if tries == 100 { // each host has only one spare backend and one whitelist
			w.stage = stageTable[0]
			s = w.stage
		}

		w.host, w.card = p.random.IntN(hosts), p.random.IntN(cards)
		if s.kind == cyborg.OperationClean && !cleans(w.host) {
			continue
		}
		if place := s.place(w.host, w.card); !used[place] {
			used[place] = true
			break
		}
	}

	if p.chance(25) { // mostly the host itself: only then the agent has work to do
		w.holder = 1 + p.random.IntN(holders-1)
	}

	if s.kind == cyborg.OperationAttach && p.chance(40) {
		w.contender = p.random.IntN(holders)
	}
	w.cancel, w.retry = p.chance(12), p.chance(50)
	onHost := s.kind == cyborg.OperationAttach && w.contender < 0 || s.kind == cyborg.OperationDetach
	if s.kind == cyborg.OperationProgram || s.kind == cyborg.OperationRetire || onHost && w.holder == 0 {
		w.used = p.chance(30)
	}

	if s.kind == cyborg.OperationClean {
		w.method, w.declared = pick(p, []cyborg.CleanMethod{"", "", cyborg.CleanReset, cyborg.CleanScrub}), p.chance(15)
		if w.declared {
			w.method = ""
		}
	}

	if s.kind == cyborg.OperationPartition {
		w.layout, w.taken = pick(p, layouts()), p.chance(60)
	}

	if !s.ofRequests() {
		return w
	}

	w.holder, w.async, w.retry = 0, false, false                            // these are for operations of /v1
	w.cancel = w.cancel && s.step != "" && s.kind != cyborg.OperationRescue // a cancelled rescue would leave instances without accelerators
	w.requests, w.admin, w.byName = 1+p.random.IntN(handles), p.chance(50), p.chance(50)
	w.late = s.kind == cyborg.OperationBind && p.chance(30)
	w.deleted = s.kind == cyborg.OperationBind && p.chance(30)
	w.beside = s.kind == cyborg.OperationBind && s.step == "" && w.requests < handles

	return w
}

// fault draws the moment and the duration of a fault.
func (p *planner) fault(m faultKind, target string, about int) fault {
	f := fault{
		faultKind: m, target: target, work: about, when: pick(p, []moment{before, within, after}),
		after: p.between(0, 80*time.Millisecond),
	}

	switch m {
	case kill, restart, reboot, power, failover, old, rotate:
		f.lasts = p.between(50*time.Millisecond, 1500*time.Millisecond)
	case lag:
		f.lasts, f.amount = p.between(50*time.Millisecond, 1500*time.Millisecond), p.between(100*time.Millisecond, 4*time.Second)
	case restore:
		f.lasts, f.amount = p.between(50*time.Millisecond, 1500*time.Millisecond), p.between(100*time.Millisecond, 8*time.Second)
	case freeze:
		f.lasts = p.between(300*time.Millisecond, 5*time.Second)
	case second:
		f.lasts = p.between(9*time.Second, 14*time.Second)
	case stall, sever:
		f.lasts = p.between(undoLimit+time.Second, undoLimit+7*time.Second)
	case terminate, reset:
		f.when = pick(p, []moment{within, after})
	case cut:
		f.lasts = p.between(200*time.Millisecond, 4*time.Second)
	case silence:
		f.lasts = p.between(500*time.Millisecond, 6*time.Second)
	case delay:
		f.lasts, f.amount = p.between(2*time.Second, 6*time.Second), p.between(20*time.Millisecond, 400*time.Millisecond)
	case forge, renew:
		f.lasts = p.between(2*time.Second, 6*time.Second)
	case full:
		f.lasts = p.between(500*time.Millisecond, 4*time.Second)
	case slow:
		f.lasts, f.amount = p.between(2*time.Second, 6*time.Second), p.between(100*time.Millisecond, 3*time.Second)
	case outage, conflict, broken, busy, lost:
		f.lasts = p.between(500*time.Millisecond, 6*time.Second)
	case jump:
		f.lasts, f.amount = p.between(2*time.Second, 5*time.Second), p.jump(target)
	}

	return f
}

// jump draws how far the clock of a process jumps. Certificates are valid from an
// hour before they were made; who is further behind trusts nobody. Temporal is
// only ahead, because its timers wait until it has caught up: that is what
// happens at the end of the round, when it is set back.
func (p *planner) jump(target string) time.Duration {
	most := 6 * time.Hour
	switch target {
	case string(harness.NodePostgres):
		most = 5 * time.Minute
	case string(harness.NodeTemporal):
		return p.between(5*time.Second, time.Minute)
	}

	amount := p.between(time.Minute, most).Round(time.Second)
	if p.chance(50) {
		amount = -min(amount, 50*time.Minute)
	}
	return amount
}
