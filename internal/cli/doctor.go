package cli

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/english"
)

const (
	// answerTimeout is how long the doctor waits for each answer of the API.
	answerTimeout = 20 * time.Second

	// longOperation is the age from which an open operation is suspicious: images
	// usually take less.
	longOperation = time.Hour

	// needsOperatorWindow is for how long the doctor reports an operation that
	// needs an operator.
	needsOperatorWindow = 7 * 24 * time.Hour

	// longUnclean is the age from which a handle that is not cleaned is suspicious: a
	// conductor cleans it at once.
	longUnclean = time.Hour

	// clockBound is by how much an agent's clock may differ from the database's:
	// twice the time that a heartbeat may spend on its way.
	clockBound = 10 * time.Second
)

// doctorCommand is `cyborg doctor`.
func (s *shell) doctorCommand() *cobra.Command {
	return verb{
		examples: []string{
			"cyborg doctor",
			"cyborg doctor --profile lab -f json",
		},
		complete: doctor.Command("Check that everything works, and say what to do",
			"Asks the API about itself and about all that it knows: releases, clocks, services, hosts, backends, accelerators,\n"+
				"operations. `cyborg server doctor` and `cyborg-agent doctor` look at a server's and an agent's own set-up.",
			func(cmd *cobra.Command, f *doctor.Findings) { s.examine(cmd.Context(), f) }),
	}.command()
}

// examine checks the API and what it knows. A check that depends on an answer
// that did not come is left out; the missing answer is a finding itself.
func (s *shell) examine(ctx context.Context, f *doctor.Findings) {
	where, err := s.where()
	if err != nil {
		f.Error("connection", err, "Correct the flag, variable or profile that says where the API is.")
		return
	}

	client, err := s.connect()
	if err != nil {
		f.Error("connection", err, "Correct the flag, variable or profile that says where the API is.")
		return
	}

	if where.CACert != "" {
		f.CertificateFile("--cacert", where.CACert, time.Now())
	}

	// /v1 needs no credential, so a failure here is about the connection.
	version, ok := ask(ctx, f, "api", "Look at the server's log.", client.Version)
	if !ok {
		return
	}

	f.OKf("api", "answers at %s; credential: %s", client.URL(), version.Authentication)
	examineReleases(f, "client and server", cyborg.Version, map[string][]string{version.Release: {"the server"}})
	if certificate, ok := ask(ctx, f, "certificate of the API", "", client.ServerCertificate); ok && certificate != nil {
		f.Certificate("the API", certificate, time.Now())
	}

	if checks, ok := ask(ctx, f, "readiness", "Look at the server's log.", client.Readiness); ok {
		for _, check := range checks {
			if check.OK {
				f.OKf(check.Name, "answers the server in %.1f ms", check.TookMS)
			} else {
				f.Fail(check.Name, check.Detail, "Start it again. Until then the server does what it can without it; its log says why.")
			}
		}
	}

	// The time around the request bounds what its way can explain of a difference
	// between the clocks.
	asked := time.Now()
	caller, ok := ask(ctx, f, "caller", "Name a token that the server knows: with `cyborg profile set`, --token-file or CYBORG_TOKEN.", client.Caller)
	if !ok {
		return
	}

	f.OKf("caller", "is %s with the role %s", caller.Name, caller.Role)
	f.Clock("the server", asked, time.Now(), caller.Time)
	if (where.Token != "" || where.TokenFile != "") && sentUnencrypted(client.URL()) {
		f.Warn("token", "goes over the network without TLS", "Use https; what was sent may have been read.")
	}

	for _, warning := range caller.Warnings {
		f.Warn(warning.Check, warning.Found, warning.Do)
	}
	examineServices(ctx, f, client, version.Release)
	examineHosts(ctx, f, client, version.Release)
	examineBackends(ctx, f, client)
	examineAccelerators(ctx, f, client)
	examineDevices(ctx, f, client)
	examineOperations(ctx, f, client)
	examineNeedsOperator(ctx, f, client)
	examinePlacement(ctx, f, client)
}

// examinePlacement reports the differences between the records and OpenStack
// Placement. It reports nothing for an installation without Placement, which
// has no drift but that of devices; see examineDevices.
func examinePlacement(ctx context.Context, f *doctor.Findings, client *apiclient.Client) {
	found, ok := ask(ctx, f, "placement", "", func(ctx context.Context) ([]apiclient.Drift, error) {
		return apiclient.Collect(client.Drift(ctx, apiclient.DriftFilter{Open: true}, apiclient.Page{}))
	})
	found = slices.DeleteFunc(found, func(d apiclient.Drift) bool { return d.Class == cyborg.DriftLayout })
	if !ok || len(found) == 0 {
		return
	}

	texts := make([]string, len(found))
	for i, d := range found {
		texts[i] = strings.TrimSpace(fmt.Sprintf("%s on %s %s", d.Class, d.Host, d.Name))
	}

	f.Warn("placement", "differs from the records: "+english.Some(texts), "`cyborg drift list` says how, and docs/operations.md what to do about each.")
}

// sentUnencrypted reports whether requests to the URL travel over a network
// without TLS.
func sentUnencrypted(address string) bool {
	at, err := url.Parse(address)
	if err != nil || at.Scheme != "http" || at.Hostname() == "localhost" {
		return false
	}

	ip := net.ParseIP(at.Hostname())
	return ip == nil || !ip.IsLoopback()
}

// ask asks the API one question, and adds a finding where it does not answer in
// time.
func ask[T any](ctx context.Context, f *doctor.Findings, check, do string, question func(context.Context) (T, error)) (T, bool) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()

	answer, err := question(ctx)
	if err != nil {
		f.Error(check, err, do)
	}

	return answer, err == nil
}

// examineReleases compares the releases that were found, each with the names of
// its processes, with the one that all should have.
func examineReleases(f *doctor.Findings, check, want string, found map[string][]string) {
	var differing []string
	for release, who := range found {
		if release != want && release != "" {
			slices.Sort(who)
			differing = append(differing, fmt.Sprintf("%s has %s", english.Some(who), release))
		}
	}

	slices.Sort(differing)

	if len(differing) > 0 {
		f.Warn("release of "+check, fmt.Sprintf("is not the same: %s, not %s", strings.Join(differing, "; "), want),
			"Bring all to one release: servers first, then agents and clients.")
		return
	}

	f.OKf("release of "+check, "is %s", want)
}

// abandoned returns the processes that ended without deregistering and were not
// started again. A new process replaces at most one earlier process of its role
// and host, namely the last one that was seen before the new one started. The
// database's clock sets all of these times, so they can be compared.
func abandoned(all []cyborg.Service) []cyborg.Service {
	gone := slices.DeleteFunc(slices.Clone(all), func(s cyborg.Service) bool { return s.Alive })

	for _, next := range slices.SortedFunc(slices.Values(all), func(a, b cyborg.Service) int { return a.StartedAt.Compare(b.StartedAt) }) {
		replaced := -1
		for i, s := range gone {
			if s.Role == next.Role && s.Host == next.Host && s.LastSeen.Before(next.StartedAt) &&
				(replaced < 0 || s.LastSeen.After(gone[replaced].LastSeen)) {
				replaced = i
			}
		}

		if replaced >= 0 {
			gone = slices.Delete(gone, replaced, replaced+1)
		}
	}

	return gone
}

// examineServices reports roles without a living process, and processes that
// disappeared.
func examineServices(ctx context.Context, f *doctor.Findings, client *apiclient.Client, release string) {
	services, ok := ask(ctx, f, "services", "", func(ctx context.Context) ([]cyborg.Service, error) {
		return apiclient.Collect(client.Services(ctx, apiclient.Page{}))
	})

	if !ok {
		return
	}

	services = slices.DeleteFunc(services, func(s cyborg.Service) bool { return s.Role == "agent" }) // agents are checked with their hosts
	name := func(s cyborg.Service) string { return fmt.Sprintf("%s on %s", s.Role, s.Host) }
	alive, gone, releases := map[string]int{}, []string{}, map[string][]string{}

	for _, service := range services {
		if service.Alive {
			alive[service.Role]++
			releases[service.Version] = append(releases[service.Version], name(service))
		}
	}

	for _, service := range abandoned(services) {
		gone = append(gone, fmt.Sprintf("%s (since %s)", name(service), timeText(service.LastSeen)))
	}

	for _, role := range []string{"api", "conductor"} {
		if alive[role] == 0 {
			f.Fail("services", "no "+role+" lives", "Start one with: cyborg server --roles "+role)
		}
	}

	if alive["api"] > 0 && alive["conductor"] > 0 {
		f.OKf("services", "%s and %s live", english.Count(alive["api"], "api"), english.Count(alive["conductor"], "conductor"))
	}

	if len(gone) > 0 {
		f.Warn("services", english.Some(gone)+" disappeared without notice", "Start what should run. The rest leaves the list by itself.")
	}

	examineReleases(f, "servers", release, releases)
}

// examineHosts reports silent and revoked hosts, duplicate agents, skewed clocks and
// different releases.
func examineHosts(ctx context.Context, f *doctor.Findings, client *apiclient.Client, release string) {
	hosts, ok := ask(ctx, f, "hosts", "", func(ctx context.Context) ([]cyborg.Host, error) {
		return apiclient.Collect(client.Hosts(ctx, apiclient.Page{}))
	})
	if !ok {
		return
	}

	silent, revoked, skewed, duplicates := []string{}, []string{}, []string{}, []string{}
	heard, releases := 0, map[string][]string{}
	for _, host := range hosts {
		for _, duplicate := range host.DuplicateAgents {
			duplicates = append(duplicates, fmt.Sprintf("%s (one at %s, while its own is at %s)", host.Name, duplicate.Address, host.Address))
		}

		isRevoked := !host.Revoked.IsZero()
		if isRevoked {
			since := "since " + timeText(host.Revoked)
			if !host.Silent {
				since += ", and is heard"
			}
			revoked = append(revoked, fmt.Sprintf("%s (%s)", host.Name, since))
		}

		switch {
		case host.Silent && isRevoked:
			continue // as it should be
		case host.Silent:
			since := "never heard"
			if !host.LastSeen.IsZero() {
				since = "since " + timeText(host.LastSeen)
			}
			silent = append(silent, fmt.Sprintf("%s (%s)", host.Name, since))
			continue
		}

		heard++
		releases[host.AgentVersion] = append(releases[host.AgentVersion], host.Name)
		if by := clockOffset(host); by.Abs() > clockBound {
			skewed = append(skewed, fmt.Sprintf("%s (%s)", host.Name, offsetText(by)))
		}
	}

	if len(duplicates) > 0 {
		f.Fail("agents", "a second agent speaks for a host and is refused: "+english.Some(duplicates),
			"Give that machine a name of its own (agent.host), or stop its agent.")
	}

	if len(revoked) > 0 {
		f.Warn("revoked hosts", fmt.Sprintf("%d of %d: %s", len(revoked), len(hosts), english.Some(revoked)),
			"If it was a mistake, stop its agent, enroll it again with `cyborg host enroll`, and start the agent. If the host is gone for good, free what it holds, and `cyborg host forget` it.")
	}

	switch {
	case len(hosts) == 0:
		f.Warn("hosts", "none has ever reported", "Start cyborg-agent on each, with --endpoints naming this system's servers.")
		return
	case len(silent) > 0:
		f.Fail("hosts", fmt.Sprintf("%d of %d silent: %s", len(silent), len(hosts), english.Some(silent)),
			"Run `cyborg-agent doctor` there, and start its agent.")
	default:
		f.OKf("hosts", "none of %d is silent that should be heard", len(hosts))
	}

	if heard > 0 {
		examineSteps(ctx, f, client, hosts)
	}

	const check = "clocks of agents"
	if len(skewed) > 0 {
		f.Warn(check, fmt.Sprintf("differ from the database's by more than %s on %s", clockBound, english.Some(skewed)),
			"Let NTP set the clocks there: certificates and images depend on them, and histories are hard to read side by side.")
	} else {
		f.OKf(check, "none differs from the database's by more than %s", clockBound)
	}

	examineReleases(f, "agents", release, releases)
}

// examineSteps asks every host something by way of Temporal. A host without a
// certificate for Temporal, for one, is heard and yet takes no step. It is a warning,
// because an agent with all its slots in use takes none either.
func examineSteps(ctx context.Context, f *doctor.Findings, client *apiclient.Client, hosts []cyborg.Host) {
	const check = "steps of hosts"
	census, ok := ask(ctx, f, check, "Look at the server's log.", func(ctx context.Context) (cyborg.Census, error) { return client.Usage(ctx) })
	if !ok {
		return
	}

	silent := map[string]bool{}
	for _, host := range hosts {
		silent[host.Name] = host.Silent
	}

	var idle []string
	answered, late := 0, 0
	for _, host := range census.Hosts {
		switch {
		case host.Error == cyborg.UsageNotTaken:
			idle = append(idle, host.Host)
		case host.Error == cyborg.UsageUnanswered || host.Error == cyborg.UsageNotAsked:
			late++
		case !silent[host.Host]:
			answered++ // also where it says what does not work there
		}
	}

	if len(idle) > 0 {
		f.Warn(check, fmt.Sprintf("%d heard, but no question is taken by way of Temporal: %s", len(idle), english.List(idle)),
			"Run `cyborg-agent doctor` there, and look at the agent's log: it may have no certificate for Temporal, not reach it, or be busy. Until it takes steps, all operations there wait.")
		return
	}

	found := english.Count(answered, "host") + " answered by way of Temporal"
	if late > 0 {
		found += fmt.Sprintf(", and there was no time for %d", late)
	}
	f.OKf(check, "%s", found)
}

// clockOffset returns by how much a host's clock is ahead of the database's, or
// 0 where the host has not reported it.
func clockOffset(host cyborg.Host) time.Duration {
	if host.ClockOffset == nil {
		return 0
	}
	return time.Duration(*host.ClockOffset * float64(time.Second))
}

// offsetText formats an offset as "2s ahead" or "2s behind".
func offsetText(by time.Duration) string {
	text := english.Duration(by.Abs())
	if by < 0 {
		return text + " behind"
	}
	return text + " ahead"
}

// examineBackends reports backends that have failed.
func examineBackends(ctx context.Context, f *doctor.Findings, client *apiclient.Client) {
	backends, ok := ask(ctx, f, "backends", "", func(ctx context.Context) ([]cyborg.Backend, error) {
		return apiclient.Collect(client.Drivers(ctx, nil, apiclient.Page{}))
	})
	if !ok {
		return
	}

	failed, running := []string{}, 0
	for _, backend := range backends {
		switch backend.State {
		case cyborg.BackendFailed:
			failed = append(failed, fmt.Sprintf("%s on %s (%s)", backend.Name, backend.Host, backend.Error))
		case cyborg.BackendOK:
			running++
		case cyborg.BackendDisabled: // an operator has disabled it
		}
	}

	if len(failed) > 0 {
		f.Fail("backends", "cannot see their hardware: "+english.Some(failed), "Run `cyborg-agent doctor` there, and see `cyborg driver list` for the whole message.")
		return
	}

	f.OKf("backends", "none of %d has failed", running)
}

// examineAccelerators reports accelerators that are in error, missing, fenced
// outside of an operation, not cleaned for long, or about which their drivers say that
// something is wrong; and which images do not take effect yet.
func examineAccelerators(ctx context.Context, f *doctor.Findings, client *apiclient.Client) {
	all, ok := ask(ctx, f, "accelerators", "", func(ctx context.Context) ([]apiclient.Accelerator, error) {
		return apiclient.Collect(client.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
	})
	if !ok {
		return
	}

	var broken, missing, fenced, shared, both, unwell, unclean, pending []string
	for _, a := range all {
		if a.PendingImage != nil && a.Presence != cyborg.PresenceMissing {
			pending = append(pending, fmt.Sprintf("%s (%s)", a.Name, pendingImageText(a)))
		}

		if c := worstCondition(a); c != nil && a.Presence != cyborg.PresenceMissing {
			unwell = append(unwell, fmt.Sprintf("%s (%s, %s)", a.Name, c.Level, c.Text()))
		}

		if notCleaned(a) {
			unclean = append(unclean, fmt.Sprintf("%s (%s)", a.Name, uncleanText(uncleanHandle(a).Unclean)))
		}

		switch {
		case a.Lifecycle == cyborg.LifecycleError:
			broken = append(broken, fmt.Sprintf("%s (%s)", a.Name, a.Reason))
		case a.Presence == cyborg.PresenceMissing:
			missing = append(missing, missingAccelerator(a))
		case a.Fence != nil && a.Claim == nil:
			fenced = append(fenced, fmt.Sprintf("%s (%s)", a.Name, a.Fence.Reason))
		case sharedByHolders(a):
			shared = append(shared, fmt.Sprintf("%s (%s)", a.Name, a.SameHolder))
		case (len(a.Holders) > 0 || a.Nova != nil) && len(a.ExcludedBy) > 0 && !a.ExcludedBy[0].Unclean: // those that are held come first
			both = append(both, fmt.Sprintf("%s (and %s, which %s)", a.Name, a.ExcludedBy[0].Name, a.ExcludedBy[0].Taken()))
		}
	}

	if len(broken) > 0 {
		f.Fail("accelerators", fmt.Sprintf("%d in error: %s", len(broken), english.Some(broken)),
			"`cyborg accelerator history` says how it came about. Repair that, then run `cyborg accelerator ready`.")
	}

	if len(missing) > 0 {
		f.Warn("accelerators", fmt.Sprintf("%d missing: %s", len(missing), english.Some(missing)), "Put the hardware back. What nobody holds is forgotten in time, unless it is unclean; take the rest from its holder with `cyborg accelerator detach`.")
	}

	if len(fenced) > 0 {
		f.Warn("accelerators", fmt.Sprintf("%d fenced: %s", len(fenced), english.Some(fenced)), "`cyborg accelerator show` says by which operation.")
	}

	if len(shared) > 0 {
		f.Warn("accelerators", fmt.Sprintf("%d go to one holder with others that somebody else has: %s", len(shared), english.Some(shared)),
			"They came into one group while they were held, as by a boot. `cyborg accelerator show` says who has them. Detach all but one holder's.")
	}

	if len(both) > 0 {
		f.Warn("accelerators", fmt.Sprintf("%d held although others that exclude them are as well: %s", len(both), english.Some(both)),
			"They were held before their driver said that they exclude each other, such as a card and a part of it. `cyborg accelerator show` says who has them. Detach one of the two, or take it out of Nova's whitelist.")
	}

	if len(unwell) > 0 {
		f.Warn("accelerators", fmt.Sprintf("%d unready or degraded: %s", len(unwell), english.Some(unwell)),
			"Their drivers say so; `cyborg accelerator show` has all of it, and since when. Nobody gets what is unready.")
	}

	if len(unclean) > 0 {
		f.Warn("accelerators", fmt.Sprintf("%d not clean after their last holder, and nobody gets them: %s", len(unclean), english.Some(unclean)),
			"`cyborg operation list --kind clean` says why it failed. Remove the cause, then run `cyborg accelerator clean`; docs/operations.md says what else you can do.")
	}

	if len(pending) > 0 { // nothing is wrong: somebody knows when the host may go down
		f.OKf("pending images", "%d not in effect yet: %s", len(pending), english.Some(pending))
	}

	if len(broken)+len(missing)+len(fenced)+len(shared)+len(both)+len(unwell)+len(unclean) == 0 {
		f.OKf("accelerators", "none of %d is in error, missing, fenced, unready, degraded or unclean for long", len(all))
	}
}

// examineDevices reports devices that are not divided as somebody has divided them. One that
// is missing is reported by its accelerators, and one that an operation divides just now is
// on its way.
func examineDevices(ctx context.Context, f *doctor.Findings, client *apiclient.Client) {
	total := 0
	others, ok := ask(ctx, f, "devices", "", func(ctx context.Context) ([]apiclient.Device, error) {
		all, err := apiclient.Collect(client.Devices(ctx, apiclient.DeviceFilter{}, apiclient.Page{}))
		total = len(all)
		others := slices.DeleteFunc(all, func(device apiclient.Device) bool {
			return device.WantedLayout == nil || device.Presence == cyborg.PresenceMissing || device.Layout().Equal(*device.WantedLayout)
		})
		if err != nil || len(others) == 0 {
			return nil, err
		}
		return withoutPartitions(ctx, client, others)
	})

	switch {
	case !ok:
	case len(others) > 0:
		texts := make([]string, len(others))
		for i, device := range others {
			texts[i] = fmt.Sprintf("%s on %s (%s, not %s)", device.Identity, device.Host, cmp.Or(layoutOf(device), "cannot be divided any more"), device.WantedLayout)
		}
		f.Warn("devices", fmt.Sprintf("%d not divided as wanted: %s", len(others), english.Some(texts)),
			fmt.Sprintf("The log of its agent says why its host did not divide it after a boot. `%s` does; docs/operations.md says what else you can do.",
				partitionCommand(others[0])))
	default:
		f.OKf("devices", "none of %d is divided otherwise than wanted", total)
	}
}

// withoutPartitions returns those of the devices that no operation divides now.
func withoutPartitions(ctx context.Context, client *apiclient.Client, devices []apiclient.Device) ([]apiclient.Device, error) {
	unended := true
	filter := apiclient.OperationFilter{Open: &unended, Kinds: []cyborg.OperationKind{cyborg.OperationPartition}}
	open, err := apiclient.Collect(client.Operations(ctx, filter, apiclient.Page{}))

	return slices.DeleteFunc(devices, func(device apiclient.Device) bool {
		return slices.ContainsFunc(open, func(o apiclient.Operation) bool { return o.Input["device"] == device.UUID.String() })
	}), err
}

// partitionCommand is the command line that divides a device as it is meant to be.
func partitionCommand(device apiclient.Device) string {
	words := device.WantedLayout.String()
	if len(*device.WantedLayout) == 0 {
		words = "--whole"
	}
	return fmt.Sprintf("cyborg device partition %s %s", device.UUID, words)
}

// notCleaned says that an accelerator has had to be cleaned for long, although it is there
// and no operation works on it. Who has it in maintenance knows that it waits.
func notCleaned(a apiclient.Accelerator) bool {
	h := uncleanHandle(a)
	return h != nil && time.Since(h.Unclean.Since) > longUnclean &&
		a.Presence == cyborg.PresencePresent && a.Claim == nil && a.Admin != cyborg.AdministrationMaintaining
}

// worstCondition returns the condition of an accelerator that somebody should look at
// first; nil where there is none.
func worstCondition(a apiclient.Accelerator) *cyborg.Condition {
	if len(a.Conditions) == 0 || a.Conditions[0].Level == cyborg.ConditionNotice {
		return nil
	}
	return &a.Conditions[0]
}

// missingAccelerator names a missing accelerator, and what is in its place.
func missingAccelerator(a apiclient.Accelerator) string {
	if a.ReplacedBy == "" {
		return a.Name
	}
	return fmt.Sprintf("%s (another card, %s, is in its place)", a.Name, a.ReplacedBy)
}

// sharedByHolders says that several have an accelerator and what goes to one holder
// with it.
func sharedByHolders(a apiclient.Accelerator) bool {
	return a.SameHolder != "" && len(a.Holders) > 1 || slices.ContainsFunc(a.HeldTogether, func(h cyborg.OtherHeld) bool {
		return !h.Unclean && slices.ContainsFunc(a.Holders, h.Precludes)
	})
}

// examineOperations reports operations that have been open for suspiciously
// long.
func examineOperations(ctx context.Context, f *doctor.Findings, client *apiclient.Client) {
	unended := true
	open, ok := ask(ctx, f, "operations", "", func(ctx context.Context) ([]apiclient.Operation, error) {
		return apiclient.Collect(client.Operations(ctx, apiclient.OperationFilter{Open: &unended}, apiclient.Page{}))
	})
	if !ok {
		return
	}

	var long []string
	for _, operation := range open {
		if time.Since(operation.CreatedAt) > longOperation {
			long = append(long, fmt.Sprintf("%s %s on %s (since %s)", operation.Kind, operation.ID, operation.Host, timeText(operation.CreatedAt)))
		}
	}

	if len(long) > 0 {
		f.Warn("operations", fmt.Sprintf("%d in flight for more than %s: %s", len(long), english.Duration(longOperation), english.Some(long)),
			"`cyborg operation show` says what they wait for; `cyborg operation cancel` ends them.")
		return
	}

	f.OKf("operations", "%d in flight, none for more than %s", len(open), english.Duration(longOperation))
}

// examineNeedsOperator reports the recent operations that could neither finish
// nor be undone.
func examineNeedsOperator(ctx context.Context, f *doctor.Findings, client *apiclient.Client) {
	const check = "needs_operator"
	unresolved, ok := ask(ctx, f, check, "", func(ctx context.Context) (found []string, err error) {
		filter := apiclient.OperationFilter{States: []cyborg.OperationState{cyborg.OperationNeedsOperator}}
		// They come newest first, so the first one that is too old ends the search.
		for operation, err := range client.Operations(ctx, filter, apiclient.Page{}) {
			if err != nil || time.Since(operation.CreatedAt) > needsOperatorWindow {
				return found, err
			}
			found = append(found, fmt.Sprintf("%s %s on %s (%s)", operation.Kind, operation.ID, operation.Host, timeText(operation.CreatedAt)))
		}

		return found, nil
	})

	switch {
	case !ok:
	case len(unresolved) > 0:
		f.Warn(check, fmt.Sprintf("%d of the last %d days could not be undone and need an operator: %s", len(unresolved), needsOperatorWindow/(24*time.Hour), english.Some(unresolved)),
			"`cyborg operation show` says where each stopped. If all is in order again, there is nothing to do; this line stays for that long.")
	default:
		f.OKf(check, "none of the last %d days needs an operator", needsOperatorWindow/(24*time.Hour))
	}
}
