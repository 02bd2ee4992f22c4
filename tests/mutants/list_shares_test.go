package mutants_test

// ofShares are about what one caller, host or address may have, so that others
// get something, too.
func ofShares() []mutant {
	const (
		queue   = "api/limiter/queue.go"
		limiter = "api/limiter"
		agents  = "api/agents/"

		duplicates = "db/internal/ingest/duplicate_agents.go"
	)

	return []mutant{
		{
			breaks: "duplicates that were heard at the same time make room", file: duplicates, pkg: "db", test: "TestFreshInstancesLeaveNoRows",
			old: "(l.last_seen, l.instance) > (r.last_seen, r.instance)",
			new: "l.last_seen > r.last_seen",
		},
		{
			breaks: "callers that wait take turns", file: queue, pkg: limiter, test: "TestCallersTakeTurns",
			old: "q.lines = append(slices.Delete(q.lines, 0, 1), next)",
			new: "_ = next",
		},
		{
			breaks: "a request waits in the line of its caller", file: "api/auth/auth.go", pkg: "api", test: "TestCallersTakeTurnsAtTheDatabase",
			old: "ctx = limiter.WithCaller(ctx, cmp.Or(caller.Project, caller.ID))",
			new: "_, _ = limiter.WithCaller, cmp.Or(caller.ID)",
		},
		{
			breaks: "callers of one project have one line", file: "api/auth/auth.go", pkg: "api/auth", test: "TestCallersOfAProjectShareItsTurns",
			old: "cmp.Or(caller.Project, caller.ID))",
			new: "cmp.Or(caller.ID, caller.Project))",
		},
		{
			breaks: "the pace of others counts as far as they take turns", file: queue, pkg: limiter, test: "TestThePaceIsThatOfTheCallersOwnLine",
			old: "ahead += min(len(other.waiters), turns)",
			new: "ahead += len(other.waiters)",
		},
		{
			breaks: "a caller that gives up leaves its line", file: queue, pkg: limiter, test: "TestACallerThatGivesUpLeavesTheQueue",
			old: "\tif q.leave(caller, one) {\n",
			new: "\tif waiting.Err() != nil {\n",
		},
		{
			breaks: "so many requests of one caller wait", file: queue, pkg: limiter, test: "TestTooManyThatWait",
			old: "case own >= q.config.WaitingEach:",
			new: "case false:",
		},
		{
			breaks: "so many requests of all callers wait", file: queue, pkg: limiter, test: "TestTooManyThatWait",
			old: "case all < q.config.WaitingAll:",
			new: "case true:",
		},
		{
			breaks: "who has the most requests waiting makes room", file: queue, pkg: limiter, test: "TestTooManyThatWait",
			old: "case longest == nil || own+1 >= longest.refusable():",
			new: "default:",
		},
		{
			breaks: "what must not be refused makes no room", file: queue, pkg: limiter, test: "TestTooManyThatWait",
			old: "\t\tif !newest.neverRefused {\n",
			new: "\t\tif newest.refused == nil {\n",
		},
		{
			breaks: "a place that comes late is not lost", file: queue, pkg: limiter, test: "TestAPlaceIsNotLost",
			old: "\treturn one.refused\n}",
			new: "\tif ctx.Err() != nil {\n\t\treturn ctx.Err()\n\t}\n\treturn one.refused\n}",
		},
		{
			breaks: "a peer has a part of the reports that wait", file: agents + "held.go", pkg: "api/agents", test: "TestHeldIsSharedAmongPeers",
			old: "case !shared && h.byPeer[peer]+bytes > h.each:",
			new: "case false:",
		},
		{
			breaks: "the endpoint tells peers apart that share the reports", file: agents + "reports.go", pkg: "api/agents", test: "TestReportsOfOneHostThatWait",
			old: "e.held.take(w, peer(r), !told(r), outline.memory(body))",
			new: "e.held.take(w, peer(r), true || told(r), int64(len(body)))",
		},
		{
			breaks: "all certificates of a host are one peer", file: agents + "bodies.go", pkg: "api/agents", test: "TestPeer",
			old: "if len(certificate.URIs) == 1 {",
			new: "if len(certificate.URIs) > 1 {",
		},
		{
			breaks: "a machine is one network of IPv6", file: "api/web/network.go", pkg: "api/web", test: "TestClientNetwork",
			old: "const bits = 64",
			new: "const bits = 128",
		},
		{
			breaks: "a host fetches so many images at once", file: agents + "transfers.go", pkg: "api/agents", test: "TestTransfersOfOneHost",
			old: "if t.byHost[host] >= t.limit {",
			new: "if t.byHost[host] > t.limit<<8 {",
		},
		{
			breaks: "the transfers of images are counted", file: agents + "image.go", pkg: "api/agents", test: "TestTooManyTransfersOfOneHost",
			old: "e.images.begin(w, op.Host)",
			new: "e.images.begin(w, r.RemoteAddr+r.Header.Get(\"Date\"))",
		},
		{
			breaks: "a token ends by the database's clock", file: "db/internal/inventory/identities.go", pkg: "api", test: "TestInvitationIsGoodFor15Minutes",
			old: "AND token_expires_at > clock_timestamp() RETURNING",
			new: "AND token_expires_at > now() RETURNING",
		},
		{
			breaks: "a token is good for no more than 15 minutes", file: "api/v1/enroll.go", pkg: "api", test: "TestInvitationIsGoodFor15Minutes",
			old: "InviteHost(r.Context(), host, token, invitedFor, actor(r))",
			new: "InviteHost(r.Context(), host, token, invitedFor+1e9, actor(r))",
		},
		{
			breaks: "a revoked host is out on the connection that it has", file: agents + "enroll.go", pkg: "api/agents", test: "TestOneLookIsEnoughForARevokedHost",
			old: "if e.config.Refuse == nil || inProcess(r) ||",
			new: "if e.config.Refuse != nil || inProcess(r) ||",
		},
		{
			breaks: "so many elements of a body are decoded, and no more", file: agents + "outline.go", pkg: "api/agents", test: "TestManyEmptyElementsAreNotDecoded",
			old: "case o.elements > maxElements:",
			new: "case o.elements > 1<<62:",
		},
		{
			breaks: "so deep may a body nest", file: agents + "outline.go", pkg: "api/agents", test: "TestOutline",
			old: "case o.depth > maxDepth:",
			new: "case o.depth > 1<<62:",
		},
		{
			breaks: "what is in a string is no element", file: agents + "outline.go", pkg: "api/agents", test: "TestOutline",
			old: "case quoted:",
			new: "case false:",
		},
		{
			breaks: "a report counts for the memory that its elements take", file: agents + "outline.go", pkg: "api/agents", test: "TestEmptyElementsTakeMemory",
			old: "max(len(text), o.elements*elementMemory)",
			new: "max(len(text), o.elements)",
		},
		{
			breaks: "reports that wait count for what they take once they are decoded", file: agents + "reports.go", pkg: "api/agents", test: "TestReportsThatWaitAreBounded",
			old: "outline.memory(body))\n",
			new: "int64(len(body)))\n",
		},
		{
			breaks: "a report that is alone is never too large to wait", file: agents + "held.go", pkg: "api/agents", test: "TestHeldIsSharedAmongPeers",
			old: "bytes = min(bytes, most)",
			new: "bytes = max(bytes, 0*most)",
		},
		{
			breaks: "a report shows so much, and no more", file: "db/internal/ingest/check_report.go", pkg: "db/internal/ingest", test: "TestReportsAreBounded",
			old: "if has.many > has.most {",
			new: "if has.many < 0 {",
		},
		{
			breaks: "all rows of a report count in its batch", file: "db/internal/ingest/batch.go", pkg: "db/internal/ingest", test: "TestRowsWeigh",
			old: "return (devices + deployables + handles + 3) / 4",
			new: "return devices + 0*(deployables+handles)",
		},
		{
			breaks: "so many complaints are kept", file: "db/internal/merge/complaints.go", pkg: "db/internal/merge", test: "TestComplaintsAreBounded",
			old: "if len(c.first) == mostComplaints {",
			new: "if len(c.first) < 0 {",
		},
		{
			breaks: "so many duplicate agents of a host are recorded", file: duplicates, pkg: "db", test: "TestFreshInstancesLeaveNoRows",
			old: "WHERE NOT new OR nth <=",
			new: "WHERE true OR nth <=",
		},
		{
			breaks: "a duplicate agent that is recorded stays so where there is no room", file: duplicates, pkg: "db", test: "TestFreshInstancesLeaveNoRows",
			old: "count(*) FILTER (WHERE v.instance IS NULL) OVER",
			new: "20 + count(*) OVER",
		},
		{
			breaks: "duplicate agents that are silent make room", file: duplicates, pkg: "db", test: "TestFreshInstancesLeaveNoRows",
			old: "(r.last_seen, r.instance)) >= $3",
			new: "(r.last_seen, r.instance)) >= 9000 + $3",
		},
		{
			breaks: "duplicate agents of a host have one line a minute", file: "db/internal/ingest/lines.go", pkg: "db", test: "TestFreshInstancesLeaveNoRows",
			old: "now.Sub(h.began) < linesWindow",
			new: "now.Sub(h.began) < 0*linesWindow",
		},
		{
			breaks: "an agent is told so many duplicates", file: "db/internal/ingest/heartbeats.go", pkg: "db", test: "TestFreshInstancesLeaveNoRows",
			old: "ORDER BY address LIMIT $16)",
			new: "ORDER BY address LIMIT 100 * $16)",
		},
		{
			breaks: "an agent is told each address once", file: "db/internal/ingest/heartbeats.go", pkg: "db", test: "TestFreshInstancesLeaveNoRows",
			old: "SELECT DISTINCT address",
			new: "SELECT address",
		},
		{
			breaks: "a host shows so many duplicates", file: "db/internal/inventory/hosts.go", pkg: "db", test: "TestFreshInstancesLeaveNoRows",
			old: "ORDER BY instance LIMIT ` + strconv.Itoa(MaxDuplicateAgents)",
			new: "ORDER BY instance LIMIT ` + strconv.Itoa(100*MaxDuplicateAgents)",
		},
		{
			breaks: "an agent that is believed without proof is a stranger to the log", file: agents + "identity.go", pkg: "api/agents", test: "TestStrangersAreNotLogged",
			old: "\tcase !e.config.Certificates:\n",
			new: "\tcase !e.config.Certificates:\n\t\tweb.SetIdentity(r.Context(), web.Identity{Name: host})\n",
		},
		{
			breaks: "an agent that has proved who it is is none", file: agents + "image.go", pkg: "api/agents", test: "TestStrangersAreNotLogged",
			old: "\t\tweb.SetIdentity(r.Context(), web.Identity{Name: host.Name})\n",
			new: "",
		},
		{
			breaks: "bad reports are found by halves", file: "db/internal/ingest/reports.go", pkg: "db", test: "TestBadReportsAreFoundByHalves",
			old: "half := len(which) / 2",
			new: "half := 1",
		},
		{
			breaks: "a bad report has one line a minute", file: "db/internal/ingest/reports.go", pkg: "db", test: "TestBadReportsAreFoundByHalves",
			old: "s.badReports.count(host, time.Now()); line {",
			new: "s.badReports.count(host, time.Now()); line || true {",
		},
		{
			breaks: "only what is bad itself is logged", file: "db/internal/ingest/reports.go", pkg: "db", test: "TestBadReportsAreFoundByHalves",
			old: "if len(reports) > 1 {",
			new: "if len(reports) > 64 {",
		},
		{
			breaks: "so many hosts have lines of their own", file: "db/internal/ingest/lines.go", pkg: "db/internal/ingest", test: "TestLinesOfAHost",
			old: "\t\t\thost = \"\"\n",
			new: "",
		},
		{
			breaks: "a NUMA node fits the records", file: "db/internal/merge/devices.go", pkg: "db", test: "TestNumbersOutOfRange",
			old: "int(int32(*node)) != *node",
			new: "int(int64(*node)) != *node",
		},
		{
			breaks: "lists can read each number that a host has reported", file: "db/internal/inventory/listed_deployables.go", pkg: "db", test: "TestNumbersOutOfRange",
			old: "(d.specs->>'num')::bigint",
			new: "(d.specs->>'num')::int",
		},
		{
			breaks: "no host puts the assignment numbers of all others years ahead", file: "db/internal/ingest/assignments.go", pkg: "db", test: "TestAbsurdAssignmentsAreNotBelieved",
			old: "case number > max(furthest, last):",
			new: "case number > 1<<62:",
		},
		{
			breaks: "an absurd assignment number has one line a minute", file: "db/internal/ingest/assignments.go", pkg: "db", test: "TestAbsurdAssignmentsAreNotBelieved",
			old: "s.assignments.count(host, time.Now()); line {",
			new: "s.assignments.count(host, time.Now()); line || true {",
		},
		{
			breaks: "so much is recorded of a host", file: "db/internal/merge/merge.go", pkg: "db/internal/merge", test: "TestSoMuchIsRecordedOfAHost",
			old: "if recorded < most {",
			new: "if recorded < 2*most {",
		},
		{
			breaks: "so many deployables are recorded of a host", file: "db/internal/merge/deployables.go", pkg: "db/internal/merge", test: "TestSoMuchIsRecordedOfAHost",
			old: "MostRecorded().Deployables)",
			new: "2*MostRecorded().Deployables)",
		},
		{
			breaks: "so many handles are recorded of a host", file: "db/internal/merge/handles.go", pkg: "db/internal/merge", test: "TestSoManyHandlesAreRecordedOfAHost",
			old: "MostRecorded().Handles)",
			new: "2*MostRecorded().Handles)",
		},
		{
			breaks: "a difference counts what it does not mention", file: "db/internal/ingest/load.go", pkg: "db", test: "TestDifferencesFillNoHost",
			old: "Devices: all.Devices - len(v.Devices),",
			new: "Devices: 0 * all.Devices,",
		},
		{
			breaks: "a difference that shows something new is counted", file: "db/internal/ingest/load.go", pkg: "db", test: "TestDifferencesFillNoHost",
			old: "&& showsNew(",
			new: "&& !showsNew(",
		},
	}
}
