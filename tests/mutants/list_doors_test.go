package mutants_test

// ofReports are about the reports of hosts where operations work meanwhile, and
// about the way to the conductors.
func ofReports() []mutant {
	const reports = "db/internal/ingest/reports.go"

	return []mutant{
		{
			breaks: "a report that an operation has overtaken is asked for again", file: reports, pkg: "db", test: "TestChangeThatIsTakenBackByHand",
			old: "if v.Unsettled || v.Overtaken {",
			new: "if v.Unsettled {",
		},
		{
			breaks: "a report that an operation has overtaken stays a base", file: reports, pkg: "db", test: "TestReportsOfABusyHost",
			old: "if v.Unsettled || len(v.Complaints) > 0 {",
			new: "if v.Unsettled || v.Overtaken || len(v.Complaints) > 0 {",
		},
		{
			breaks: "a difference need not mention what was observed after it", file: "db/internal/merge/merge.go", pkg: "db", test: "TestReportsOfABusyHost",
			old: "case sequence > r.Sequence:",
			new: "case sequence > r.Sequence+1<<40:",
		},
		{
			breaks: "a conductor that says nothing does not use up the time of the others", file: "workers/agent/endpoint.go", pkg: "workers/agent",
			test: "TestSilentConductorIsPassedBy",
			old:  "\tif left == 1 {",
			new:  "\tif left >= 1 {",
		},
	}
}

// ofDoors are about who may come in.
func ofDoors() []mutant {
	const (
		guard = standalone + "temporalauth/"
		pkg   = standalone + "temporalauth"
	)

	return []mutant{
		{
			breaks: "the host of a server's own process is not revoked", file: "db/internal/inventory/identities.go", pkg: "db",
			test: "TestRevokeHostInAServersProcess",
			old:  "case err == nil && agentapi.IsInProcess(instance):",
			new:  "case err != nil && agentapi.IsInProcess(instance):",
		},
		{
			breaks: "a host that was enrolled again is not shown as revoked", file: "db/internal/inventory/hosts.go", pkg: "api", test: "TestRevokeHost",
			old: "AND revoked_through = enrollment)",
			new: "AND revoked_through >= 0)",
		},
		{
			breaks: "a server that asks what is always refused keeps its connection", file: guard + "calls.go", pkg: pkg, test: "TestProbesAreNoAlarm",
			old: "ok && !unbounded(who) {",
			new: "ok {",
		},
		{
			breaks: "whoever has a bound loses the connection after many refused calls", file: guard + "calls.go", pkg: pkg,
			test: "TestRefusedCallsEndWithTheirConnection",
			old:  "ok && !unbounded(who) {",
			new:  "ok && unbounded(who) {",
		},
		{
			breaks: "what the doctors ask is no warning", file: guard + "authorize.go", pkg: pkg, test: "TestProbesAreNoAlarm",
			old: "method == probe && who.err == nil {",
			new: "method == probe && who.err != nil {",
		},
		{
			breaks: "services that show each other nothing close no connection", file: guard + "connections.go", pkg: pkg, test: "TestInsideServicesWithoutTLS",
			old: "err != nil || secured == nil {",
			new: "err != nil && secured == nil {",
		},
		{
			breaks: "a kernel that says nothing of TCP has its tables read", file: "internal/peeruser/peeruser.go", pkg: "internal/peeruser",
			test: "TestOfWithoutAnswers",
			old:  "known != nil {",
			new:  "known == nil {",
		},
		{
			breaks: "no agent outside is recorded as one in the server's process", file: "api/agents/reports.go", pkg: "api/agents",
			test: "TestNobodyElseIsInTheServersProcess",
			old:  "agentapi.IsInProcess(instance) && !inProcess(r)",
			new:  "agentapi.IsInProcess(instance) && inProcess(r) && !inProcess(r)",
		},
		{
			breaks: "nobody outside sends heartbeats of an agent in the server's process", file: "api/agents/heartbeats.go", pkg: "api/agents",
			test: "TestNobodyElseIsInTheServersProcess",
			old:  "if err := checkInProcess(r, heartbeat.Host, heartbeat.Instance); err != nil {",
			new:  "if err := error(nil); err != nil {",
		},
		{
			breaks: "a report of which the host was revoked meanwhile is not recorded", file: "api/agents/reports.go", pkg: "api/agents",
			test: "TestRevokedInTheMiddle",
			old:  "if err := e.refuseRevoked(r); err != nil {",
			new:  "if err := error(nil); err != nil {",
		},
		{
			breaks: "a heartbeat of which the host was revoked meanwhile is not recorded", file: "api/agents/heartbeats.go", pkg: "api/agents",
			test: "TestRevokedInTheMiddle",
			old:  "if err := e.refuseRevoked(r); err != nil {",
			new:  "if err := error(nil); err != nil {",
		},
		{
			breaks: "the size of a key is looked at before its signature", file: "internal/pki/authority.go", pkg: "internal/pki", test: "TestRequestOfAHugeKey",
			old: "bits >= minRSA && bits <= maxRSA",
			new: "bits >= minRSA && bits > 0*maxRSA",
		},
		{
			breaks: "a stream of a token that was revoked ends", file: "api/v1/stream.go", pkg: "api", test: "TestEventStreamOfARevokedToken",
			old: "	return auth.StillProven(ctx)",
			new: "	_ = auth.StillProven(ctx)\n	return nil",
		},
		{
			breaks: "a host is told apart from one that was revoked", file: "db/internal/inventory/revoked_hosts.go", pkg: "db", test: "TestNothingIsAskedOfARevokedHost",
			old: "i.revoked_through = i.enrollment)",
			new: "i.revoked_through >= 0)",
		},
		{
			breaks: "no revocation is about an agent in a server's process", file: "db/internal/inventory/revoked_hosts.go", pkg: "db",
			test: "TestNothingIsAskedOfARevokedHost",
			old:  `".instance) <> "`,
			new:  `".instance) > 0 * "`,
		},
		{
			breaks: "a look at a revoked host is refused, too", file: "api/v1/hosts.go", pkg: "api", test: "TestDiscover",
			old: "if host.Silent || !host.Revoked.IsZero() {",
			new: "if host.Silent {",
		},
		{
			breaks: "no change of a backend begins on a revoked host", file: "db/internal/operation/configure.go", pkg: "db",
			test: "TestNothingIsAskedOfARevokedHost",
			old:  "	return inventory.CheckEnrolled(ctx, tx, o.host)",
			new:  "	_ = inventory.CheckEnrolled(ctx, tx, o.host)\n	return nil",
		},
		{
			breaks: "a revoked host does not end the search for another", file: "db/internal/operation/fit.go", pkg: "db", test: "TestNothingIsAskedOfARevokedHost",
			old: "case cyborg.ErrorKindOf(err) == cyborg.ErrHostSilent:",
			new: "case err != nil && false:",
		},
		{
			breaks: "Reconcile asks nothing of a revoked host", file: "db/internal/inventory/accelerators.go", pkg: "db", test: "TestNothingIsAskedOfARevokedHost",
			old: `AND NOT ` + "`+RevokedSQL(\"h\")+`" + ` AND NOT EXISTS`,
			new: `AND ` + "`+RevokedSQL(\"h\")+`" + ` IS NOT NULL AND NOT EXISTS`,
		},
		{
			breaks: "for Placement a revoked host is silent", file: "db/internal/openstack/placement_due.go", pkg: "db", test: "TestARevokedHostIsSilentForPlacement",
			old: `OR ` + "`+inventory.RevokedSQL(\"h\")+`)",
			new: `OR false AND ` + "`+inventory.RevokedSQL(\"h\")+`)",
		},
		{
			breaks: "a body that a handler closes is none of a request that follows", file: "api/unread.go", pkg: "api", test: "TestClosedBodyIsNoRequest",
			old: "watched := r.WithContext(r.Context())",
			new: "watched := r",
		},
		{
			breaks: "a detach by force needs no silence of a revoked host", file: "db/internal/operation/detach.go", pkg: "db", test: "TestNothingIsAskedOfARevokedHost",
			old: "if revoked := a.Enrolled(); revoked != nil {",
			new: "if revoked := a.Enrolled(); revoked != nil && false {",
		},
		{
			breaks: "a revoked host is asked for no detach", file: "db/internal/operation/detach.go", pkg: "db", test: "TestNothingIsAskedOfARevokedHost",
			old: "	return t.Enrolled()",
			new: "	return nil",
		},
		{
			breaks: "a revocation is told once", file: "internal/revocation/revocation.go", pkg: "internal/revocation", test: "TestOnRevocation",
			old: "if l.grown != nil && before != nil && len(beyond(known, *before)) > 0 {",
			new: "if l.grown != nil && before != nil && len(known) > 0 {",
		},
		{
			breaks: "a connection with an unread body counts as idle", file: "api/unread.go", pkg: "api", test: "TestUnreadBodiesDoNotBlockOthers",
			old: "			c.markIdle(conn)",
			new: "			_ = conn",
		},
		{
			breaks: "a connection with an unread body is closed soon", file: "api/unread.go", pkg: "api", test: "TestUnreadBodiesAreNotWaitedFor",
			old: "time.Now().Add(c.rest)",
			new: "time.Now().Add(c.rest + time.Hour)",
		},
		{
			breaks: "an agent speaks only for the host of its certificate", file: "api/agents/identity.go", pkg: "api/agents", test: "TestCertificates",
			old: "who.Role != identity.Host || who.Name != host",
			new: "who.Role != identity.Host",
		},
		{
			breaks: "what Keystone repeats of a login is in no error", file: "internal/openstack/explain.go", pkg: "internal/openstack",
			test: "TestErrorsRepeatNoCredential",
			old:  "!strings.HasSuffix(path, tokensPath)",
			new:  "strings.HasSuffix(path, tokensPath)",
		},
		{
			breaks: "nothing behind a request in chunks is another one", file: "api/serve.go", pkg: "api", test: "TestAmbiguousRequests",
			old: "if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {",
			new: "if r.ProtoMajor == 1 && len(r.TransferEncoding) > 1 {",
		},
		{
			breaks: "another user of the machine speaks for no host", file: "api/agents/user.go", pkg: "api/agents", test: "TestOtherUsersAreNoAgents",
			old: "if user != 0 && user != own {",
			new: "if user != 0 && user == own {",
		},
		{
			breaks: "every path of an endpoint without certificates is for some users", file: "api/agents/enroll.go", pkg: "api/agents", test: "TestOtherUsersAreNoAgents",
			old: "&& r.URL.Path != HealthPath {",
			new: "&& r.URL.Path == ReportsPath {",
		},
		{
			breaks: "a connection whose other end is closed is not root's", file: "internal/peeruser/peeruser.go", pkg: "internal/peeruser", test: "TestOf",
			old: "case found.state != established || found.inode == 0:",
			new: "case found.state == 255:",
		},
		{
			breaks: "the user is that of the other end", file: "internal/peeruser/peeruser.go", pkg: "internal/peeruser", test: "TestOfAnotherUser",
			old: "found, err := ask(there, here)",
			new: "found, err := ask(here, there)",
		},
		{
			breaks: "only a host's certificate speaks for a host", file: "api/agents/identity.go", pkg: "api/agents", test: "TestCertificates",
			old: "who.Role != identity.Host || who.Name != host",
			new: "who.Name != host",
		},
		{
			breaks: "a certificate has exactly one identity", file: "internal/identity/identity.go", pkg: "internal/identity", test: "TestOfCertificate",
			old: "if len(certificate.URIs) != 1 {",
			new: "if len(certificate.URIs) == 0 {",
		},
		{
			breaks: "a certificate of another trust domain is nobody's", file: "internal/identity/identity.go", pkg: "internal/identity", test: "TestOfCertificate",
			old: "if i.TrustDomain != trustDomain {",
			new: "if i.TrustDomain == \"\" {",
		},
		{
			breaks: "Temporal refuses another namespace", file: guard + "authorize.go", pkg: pkg, test: "TestNobodyCallsAnythingElse",
			old: "case !r.anywhere && target.Namespace != g.config.Namespace:",
			new: "case false:",
		},
		{
			breaks: "a host polls its own queue only", file: guard + "queues.go", pkg: pkg, test: "TestQueues",
			old: "foreign = queue != agentQueues+who.Name",
			new: "foreign = queue == \"\"",
		},
		{
			breaks: "nobody polls a partition by its name", file: guard + "queues.go", pkg: pkg, test: "TestQueues",
			old: "if !foreign && !strings.HasPrefix(queue, reserved) {",
			new: "if !foreign {",
		},
		{
			breaks: "a host answers only what it has polled", file: guard + "seal.go", pkg: pkg, test: "TestEachAnswersWhatItPolled",
			old: "if !sealed || !hmac.Equal(seal, g.mac(inner, who.Identity)) {",
			new: "if !sealed || len(inner)+len(seal) == 0 {",
		},
		{
			breaks: "the seal is the host's own", file: guard + "seal.go", pkg: pkg, test: "TestEachAnswersWhatItPolled",
			old: "[]byte(who.String()), token}",
			new: "[]byte(who.Role), token}",
		},
		{
			breaks: "nobody makes up the token of a step", file: guard + "seal.go", pkg: pkg, test: "TestEachAnswersWhatItPolled",
			old: "if !sealed || !hmac.Equal(seal, g.mac(inner, who.Identity)) {",
			new: "if sealed && !hmac.Equal(seal, g.mac(inner, who.Identity)) {",
		},
		{
			breaks: "a step that comes with the answer to a workflow's task is sealed", file: guard + "seal.go", pkg: pkg, test: "TestEachAnswersWhatItPolled",
			old: "tasks = answer.GetActivityTasks()",
			new: "tasks = nil",
		},
		{
			breaks: "Temporal's own services take no client from outside", file: standalone + "engine/identity.go", pkg: standalone + "engine", test: "TestNoPortWithoutCertificate",
			old: "id.services = listenerTLS(self, own)",
			new: "id.services = &tls.Config{Certificates: []tls.Certificate{self}}",
		},
		{
			breaks: "only this process is what it says under its own name", file: standalone + "engine/identity.go", pkg: standalone + "engine", test: "TestTheNameInsideIsForThisProcess",
			old: "if hello.ServerName == insideName {",
			new: "if false {",
		},
	}
}

// ofEnrollment are about how hosts get their certificates.
func ofEnrollment() []mutant {
	const (
		enroll      = "api/agents/enroll.go"
		pkg         = "api/agents"
		identities  = "db/internal/inventory/identities.go"
		revocations = "internal/revocation/revocation.go"
	)

	return []mutant{
		{
			breaks: "nothing but the two requests is open to strangers", file: enroll, pkg: pkg, test: "TestDoorsAreClosed",
			old: "if e.config.Enrollment != nil && r.Method == http.MethodPost && (r.URL.Path",
			new: "if r.URL.Path == HealthPath || e.config.Enrollment != nil && r.Method == http.MethodPost && (r.URL.Path",
		},
		{
			breaks: "only who wants to enroll is let in without a certificate", file: "internal/pki/connection.go", pkg: pkg, test: "TestDoorsAreClosed",
			old: "if o.Enrolls != \"\" && slices.Contains(hello.SupportedProtos, enrollProtocol) {",
			new: "if o.Enrolls != \"\" && (len(hello.SupportedProtos) > 0 || slices.Contains(hello.SupportedProtos, enrollProtocol)) {",
		},
		{
			breaks: "a token is good once", file: identities, pkg: pkg, test: "TestTokens",
			old: "SET state = 'enrolled', token_hash = NULL, token_expires_at = NULL, enrollment = ",
			new: "SET enrollment = ",
		},
		{
			breaks: "a token ends", file: identities, pkg: pkg, test: "TestTokens",
			old: "AND token_expires_at > clock_timestamp() RETURNING",
			new: "RETURNING",
		},
		{
			breaks: "a token is for one host", file: identities, pkg: pkg, test: "TestTokens",
			old: "\tcase invited != host:\n\t\treturn 0,",
			new: "\tcase invited != host && host == \"\":\n\t\treturn 0,",
		},
		{
			breaks: "an agent knows the server by the authority's pin", file: "internal/pki/enroll.go", pkg: pkg, test: "TestWrongPin",
			old: "if one.IsCA && Pin(one) == pin {",
			new: "if one.IsCA {",
		},
		{
			breaks: "the pinned authority has signed for the server's name", file: "internal/pki/enroll.go", pkg: pkg, test: "TestWrongPin",
			old: "x509.VerifyOptions{Roots: roots, DNSName: serverName}",
			new: "x509.VerifyOptions{Roots: roots}",
		},
		{
			breaks: "a certificate cannot be renewed for ever", file: "internal/pki/enroll.go", pkg: pkg, test: "TestRenew",
			old: "if now.After(certificate.NotAfter.Add(late)) {",
			new: "if now.After(certificate.NotAfter.Add(2 * late)) {",
		},
		{
			breaks: "only what this authority has signed is renewed", file: "internal/pki/enroll.go", pkg: pkg, test: "TestRenew",
			old: "if err := a.Signed(certificate); err != nil ||",
			new: "if err := a.Signed(certificate); err != nil && a.key == nil ||",
		},
		{
			breaks: "only certificates of hosts are renewed", file: enroll, pkg: pkg, test: "TestRenew",
			old: "if who.Role != identity.Host {",
			new: "if who.Role == identity.Reader {",
		},
		{
			breaks: "what was revoked is not renewed", file: identities, pkg: pkg, test: "TestRevokedIsNotRenewed",
			old: "revoked_through >= $2",
			new: "revoked_through >= $2 + 1000000000000",
		},
		{
			breaks: "a revocation is also about the last enrollment", file: identities, pkg: "db", test: "TestALaterEnrollmentSurvivesARevocation",
			old: "revoked_through >= $2",
			new: "revoked_through > $2",
		},
		{
			breaks: "what the list knows to be revoked is not renewed, whatever the records say", file: enroll, pkg: pkg, test: "TestRevokedIsOut",
			old: "if err := e.config.Refuse(shown); err != nil {",
			new: "if err := e.config.Refuse(shown); err == nil {",
		},
		{
			breaks: "an enrollment is above those that the records have lost", file: identities, pkg: "db", test: "TestEnrollmentsAreNotDrawnAgain",
			old: "\"greatest(i.enrollment + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)\"",
			new: "\"i.enrollment + 1\"",
		},
		{
			breaks: "an enrollment is above the last one, also if a clock was set back", file: identities, pkg: "db", test: "TestEnrollmentsAreNotDrawnAgain",
			old: "\"greatest(i.enrollment + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)\"",
			new: "\"(extract(epoch FROM clock_timestamp()) * 1000)::bigint\"",
		},
		{
			breaks: "a revocation is about enrollments that the records have lost", file: identities, pkg: "db", test: "TestEnrollmentsAreNotDrawnAgain",
			old: "drawn AS (SELECT `+drawEnrollment+` AS number FROM i)",
			new: "drawn AS (SELECT i.enrollment AS number FROM i)",
		},
		{
			breaks: "a host whose revocation was lost is not invited any more", file: identities, pkg: "db", test: "TestRevocationsSurviveARestore",
			old: "state = CASE WHEN i.enrollment > EXCLUDED.enrollment THEN i.state ELSE 'revoked' END,\n" +
				"\t\t\t\ttoken_hash = CASE WHEN i.enrollment > EXCLUDED.enrollment THEN i.token_hash END,\n" +
				"\t\t\t\ttoken_expires_at = CASE WHEN i.enrollment > EXCLUDED.enrollment THEN i.token_expires_at END\n",
			new: "state = i.state\n",
		},
		{
			breaks: "a host that was enrolled after a lost revocation stays so", file: identities, pkg: "db", test: "TestALaterEnrollmentSurvivesARevocation",
			old: "state = CASE WHEN i.enrollment > EXCLUDED.enrollment THEN i.state ELSE 'revoked' END,\n" +
				"\t\t\t\ttoken_hash = CASE WHEN i.enrollment > EXCLUDED.enrollment THEN i.token_hash END,\n" +
				"\t\t\t\ttoken_expires_at = CASE WHEN i.enrollment > EXCLUDED.enrollment THEN i.token_expires_at END\n",
			new: "state = 'revoked', token_hash = NULL, token_expires_at = NULL\n",
		},
		{
			breaks: "the records know more than one that comes late", file: identities, pkg: "db", test: "TestRevocationsSurviveARestore",
			old: "WHERE i.revoked_through < EXCLUDED.revoked_through`",
			new: "`",
		},
		{
			breaks: "what a process knows to be revoked stays so when the records lose it", file: revocations, pkg: "internal/revocation", test: "TestDamagedFile",
			old: "known = union(known, *before)",
			new: "_ = *before",
		},
		{
			breaks: "what the file has stays revoked when the records lose it", file: revocations, pkg: "internal/revocation", test: "TestRestoredRecords",
			old: "known := union(kept, recorded)",
			new: "known := recorded",
		},
		{
			breaks: "records get back what they have lost", file: revocations, pkg: "internal/revocation", test: "TestRestoredRecords",
			old: "len(lost) > 0 {",
			new: "len(lost) > 1000 {",
		},
		{
			breaks: "the highest number of a host is the one that counts", file: revocations, pkg: "internal/revocation", test: "TestRestoredRecords",
			old: "!found || known < through",
			new: "!found || known < 0",
		},
		{
			breaks: "of several processes, each keeps what it knows", file: "internal/revocation/file.go", pkg: "internal/revocation", test: "TestSharedFile",
			old: "text, err := json.MarshalIndent(union(kept, revoked), ",
			new: "_ = kept\n\ttext, err := json.MarshalIndent(revoked, ",
		},
		{
			breaks: "records that do not answer in time are said to lack revocations", file: revocations, pkg: "internal/revocation", test: "TestUnrestoredIsSaid",
			old: "!l.unrestored && ctx.Err() == nil",
			new: "!l.unrestored && looking.Err() == nil",
		},
		{
			breaks: "a lock that is taken now and then is no news", file: revocations, pkg: "internal/revocation", test: "TestLockedNowAndThen",
			old: "if err == nil {\n\t\tl.unkept = 0",
			new: "if len(beyond(known, kept)) == 0 {\n\t} else if err == nil {\n\t\tl.unkept = 0",
		},
		{
			breaks: "one moment in which the file cannot be written is not worth a warning", file: revocations, pkg: "internal/revocation",
			test: "TestLockedFile",
			old:  "l.unkept == 2 {",
			new:  "l.unkept == 1 {",
		},
		{
			breaks: "a file that cannot be written is said once", file: revocations, pkg: "internal/revocation", test: "TestLockedFile",
			old: "l.unkept == 2 {",
			new: "l.unkept >= 2 {",
		},
		{
			breaks: "no page of another origin asks an open API", file: "api/web/browser.go", pkg: "api", test: "TestCrossSiteRequestsAreRefused",
			old: "if open && foreign(r) {",
			new: "if open && foreign(r) && r.Method == http.MethodConnect {",
		},
		{
			breaks: "a page of the same site is another's", file: "api/web/browser.go", pkg: "api", test: "TestCrossSiteRequestsAreRefused",
			old: "case \"\", \"same-origin\", \"none\":",
			new: "case \"\", \"same-origin\", \"same-site\", \"none\":",
		},
		{
			breaks: "a damaged file of revocations lets nobody in", file: "internal/revocation/file.go", pkg: "internal/revocation", test: "TestDamagedFile",
			old: "err = json.Unmarshal(text, &kept)",
			new: "_ = json.Unmarshal(text, &kept)",
		},
		{
			breaks: "a replaced openstack.ca_file counts without a restart", file: "internal/openstack/session.go", pkg: "internal/openstack", test: "TestReplacedAuthorities",
			old: "return trusting.Transport(base), nil",
			new: "base.TLSClientConfig.RootCAs = trusting.Config().RootCAs\n\treturn base, nil",
		},
		{
			breaks: "OpenStack is still shown the certificate of clouds.yaml", file: "internal/pki/connection.go", pkg: "internal/openstack", test: "TestReplacedAuthorities",
			old: "config.Certificates = own.Certificates",
			new: "_ = own",
		},
		{
			breaks: "what was revoked gets no answer on a connection that is open", file: enroll, pkg: pkg, test: "TestRevokedIsOut",
			old: "if err := e.refuseRevoked(r); err != nil { // the handshake may be long ago",
			new: "if err := error(nil); err != nil {",
		},
		{
			breaks: "what was revoked gets no connection", file: "internal/pki/connection.go", pkg: pkg, test: "TestRevokedIsOut",
			old: "if o.Refuse != nil {\n",
			new: "if o.Refuse == nil {\n",
		},
		{
			breaks: "a revocation is about all that a host has got until then", file: "internal/revocation/revocation.go", pkg: "internal/revocation", test: "TestCheck",
			old: "pki.Enrollment(certificate) <= through",
			new: "pki.Enrollment(certificate) == through",
		},
		{
			breaks: "nobody is let in before it is known what was revoked", file: "internal/revocation/revocation.go", pkg: "internal/revocation", test: "TestCheck",
			old: "return cyborg.Errorf(cyborg.ErrUnavailable, \"it is not known yet which certificates were revoked\").WithHint(\"Try again in a moment.\")",
			new: "return nil",
		},
		{
			breaks: "records that have gone revoke no revocation", file: standalone + "revocations.go",
			pkg: standalone + ".", test: "TestReadingRevocations",
			old: "== cyborg.ErrNotFound && !r.there",
			new: "== cyborg.ErrNotFound",
		},
		{
			breaks: "it is said that nothing is known of revocations", file: standalone + "revocations.go",
			pkg: standalone + ".", test: "TestReadingRevocations",
			old: "case absent && !r.began:",
			new: "case absent && r.there:",
		},
		{
			breaks: "Temporal asks at each call whether a certificate was revoked", file: standalone + "temporalauth/guard.go",
			pkg: standalone + "temporalauth", test: "TestRevokedIsRefused",
			old: "err = g.refuse(certificate)",
			new: "err = g.refuse(nil)",
		},
		{
			breaks: "a connection of a revoked host is closed", file: standalone + "temporalauth/connections.go",
			pkg: standalone + "temporalauth", test: "TestRefusedConnectionsAreClosed",
			old: "if refuse(certificate) != nil {",
			new: "if refuse(certificate) != nil && false {",
		},
		{
			breaks: "clients that ask for the namespace before it is made do not end the first start", file: standalone + "engine/namespace.go",
			pkg: standalone + "engine", test: "TestClientsBeforeTheNamespace",
			old: "(err); !unknown {",
			new: "(err); !unknown || unknown {",
		},
		{
			breaks: "Temporal learns that a host was revoked", file: standalone + "engine/server.go", pkg: standalone + "engine",
			test: "TestRevokedHostIsHandedNothing",
			old:  "cfg.Revocations.OnRevocation(guard.CloseRefused)",
			new:  "_ = guard.CloseRefused",
		},
		{
			breaks: "a poll that began before a revocation gets no step", file: standalone + "temporalauth/seal.go",
			pkg: standalone + "temporalauth", test: "TestRevokedIsRefused",
			old: "g.refuse(who.certificate)",
			new: "g.refuse(nil)",
		},
	}
}

// ofWarnings are about what is said of a set-up that leaves something open.
func ofWarnings() []mutant {
	return []mutant{
		{
			breaks: "a server gets no certificate that everybody refuses", file: "internal/cacmd/cacmd.go",
			pkg: "internal/cacmd", test: "TestMistakes",
			old: "who.Role == identity.Server && len(i.dns)", new: "who.Role == \"\" && len(i.dns)",
		},
		{
			breaks: "who enrolls learns that the server is not believed", file: "workers/agent/enroll.go",
			pkg: "workers/agent", test: "TestEnrollSaysThatThePinIsWrong",
			old: "disbelieved.Store(&err)", new: "_ = &err",
		},
		{
			breaks: "a client learns that its certificate is missing", file: "internal/apiclient/problem.go",
			pkg: "internal/apiclient", test: "TestMutualTLS",
			old: "alert.Op == \"remote error\" &&", new: "alert.Op == \"\" &&",
		},
		{
			breaks: "the doctor finds the authority that the start refuses", file: "internal/server/enrollment.go",
			pkg: "internal/server", test: "TestDoctorChecksTheEnrollment",
			old: "\treturn CheckEnrollment(c)\n", new: "\treturn nil\n",
		},
		{
			breaks: "a server says at its start that grants are off", file: "internal/server/grants.go",
			pkg: "internal/server", test: "TestStepsAreSignedWhileGrantsAreOff",
			old: "config.GrantsOff {\n\t\ts.Log.Warn",
			new: "\"\" {\n\t\ts.Log.Warn",
		},
		{
			breaks: "an agent says that grants are off, also the first time", file: "workers/agent/reporter.go",
			pkg: "workers/agent", test: "TestGrantsAreWhatTheLastServerSaid",
			old: "case !told.Required && (before || first):",
			new: "case !told.Required && before && !first:",
		},
		{
			breaks: "an agent's doctor can learn that grants are off", file: "api/agents/host.go",
			pkg: "api/agents", test: "TestInstanceIsNotTold",
			old: "e.config.GrantsValid == 0",
			new: "e.config.GrantsValid < 0",
		},
		{
			breaks: "an agent's doctor says that grants are off", file: "internal/agentcmd/doctor.go",
			pkg: "internal/agentcmd", test: "TestDoctorWarnsWhereGrantsAreOff",
			old: "if err == nil && host.GrantsOff {",
			new: "if err != nil && host.GrantsOff {",
		},
		{
			breaks: "what is open is for admins to know", file: "api/v1/caller.go", pkg: "api", test: "TestCaller",
			old: "if caller.Role == auth.Admin &&",
			new: "if caller.Role != \"\" &&",
		},
		{
			breaks: "a host's whitelist steers no terminal", file: "internal/cli/whitelist.go", pkg: "internal/cli", test: "TestHostsTextSteersNoTerminal",
			old: "s.write(clean(preview.Diff))",
			new: "s.write(preview.Diff)",
		},
		{
			breaks: "a host's whitelist that is only shown steers no terminal", file: "internal/cli/whitelist.go", pkg: "internal/cli",
			test: "TestHostsTextSteersNoTerminal",
			old:  "p.write(clean(preview.Diff))",
			new:  "p.write(preview.Diff)",
		},
		{
			breaks: "a text from elsewhere begins no line of ours", file: "internal/cli/exit.go", pkg: "internal/cli", test: "TestHostsTextSteersNoTerminal",
			old: "return strings.ReplaceAll(clean(text), \"\\n\", \"\\n  \")",
			new: "return clean(text)",
		},
		{
			breaks: "values and csv steer no terminal", file: "internal/cli/output.go", pkg: "internal/cli", test: "TestTerminalControlCharactersAreEscaped",
			old: "if p.shell.OutWidth > 0 && p.format != formatTable {",
			new: "if false {",
		},
		{
			breaks: "JSON steers no terminal", file: "internal/cli/json.go", pkg: "internal/cli", test: "TestTerminalControlCharactersAreEscaped",
			old: "[\\u007f-\\u009f]",
			new: "[\\u007f]",
		},
		{
			breaks: "the doctor says what the server leaves open", file: "internal/cli/doctor.go", pkg: "internal/cli", test: "TestDoctorFindings",
			old: "range caller.Warnings {",
			new: "range caller.Warnings[:0] {",
		},
		{
			breaks: "a Temporal that refuses in other words is not ours", file: "internal/temporalclient/guard.go",
			pkg: "internal/temporalclient", test: "TestForeignTemporalIsWarnedOf",
			old: "return strings.Contains(refused.Reason+refused.Message, refusedToAll), nil",
			new: "return !strings.Contains(refused.Reason+refused.Message, refusedToAll+refusedToAll), nil",
		},
		{
			breaks: "nothing is said of a Temporal that does not answer", file: "internal/temporalclient/guard.go",
			pkg: "internal/temporalclient", test: "TestForeignTemporalIsWarnedOf",
			old: "if err != nil || guarded {",
			new: "if err == nil && guarded {",
		},
	}
}

// ofWordsOfAgents are about what a host's certificate can say of itself to Temporal.
func ofWordsOfAgents() []mutant {
	const (
		guard = standalone + "temporalauth/"
		pkg   = standalone + "temporalauth"
		test  = "TestHostsAreTheirAgents"
	)

	return []mutant{
		{
			breaks: "a host polls and answers under its own name", file: guard + "queues.go", pkg: pkg, test: test,
			old: "if name != agentIdentity+who.Name {",
			new: "if name == \"\" {",
		},
		{
			breaks: "a host is a worker of no version", file: guard + "queues.go", pkg: pkg, test: test,
			old: "if versioned {",
			new: "if versioned && who.self {",
		},
		{
			breaks: "a host has its commands sent to nobody else", file: guard + "queues.go", pkg: pkg, test: test,
			old: "commandQueues+g.config.Namespace+\"/\")",
			new: "\"\")",
		},
		{
			breaks: "a poll says whose it is", file: guard + "methods.go", pkg: pkg, test: test,
			old: "checked(ownPoll, host, server)",
			new: "checked(ownQueue, host, server)",
		},
		{
			breaks: "an answer says whose it is", file: guard + "seal.go", pkg: pkg, test: test,
			old: "if who.Role == identity.Host {\n\t\treturn asAgent(",
			new: "if who.Role == identity.Reader {\n\t\treturn asAgent(",
		},
		{
			breaks: "a host invents no worker when it stops", file: guard + "queues.go", pkg: pkg, test: "TestWorkers",
			old: "if who.Role == identity.Host {\n\t\t\treturn cyborg.Errorf(cyborg.ErrForbidden, \"%s may not tell of workers\"",
			new: "if who.Role == identity.Reader {\n\t\t\treturn cyborg.Errorf(cyborg.ErrForbidden, \"%s may not tell of workers\"",
		},
		{
			breaks: "a host invents no workers", file: guard + "methods.go", pkg: pkg, test: "TestHostsPollAndAnswer",
			old: "checked(ownWorker, server)",
			new: "checked(ownWorker, host, server)",
		},
		{
			breaks: "a host stops no worker of another queue", file: guard + "queues.go", pkg: pkg, test: "TestWorkers",
			old: "if queue == \"\" && who.Role != identity.Host {",
			new: "if queue == \"\" {",
		},
	}
}

// ofWrongCertificates are about those who have none, or one that is not good, and
// about how they learn it.
func ofWrongCertificates() []mutant {
	const (
		guard   = standalone + "temporalauth/"
		pkg     = standalone + "temporalauth"
		explain = "internal/temporalclient/explain.go"
		held    = "internal/pki/held.go"
	)

	return []mutant{
		{
			breaks: "a host has a hundred open polls and no more", file: guard + "counts.go", pkg: pkg, test: "TestPollsOfOneHostAreBounded",
			old: "if c.of[who] >= most {",
			new: "if c.of[who] > most {",
		},
		{
			breaks: "the polls of servers have no bound", file: guard + "polls.go", pkg: pkg, test: "TestPollsOfOneHostAreBounded",
			old: "|| !known || who.Role != identity.Host {",
			new: "|| !known || who.Role == identity.Reader {",
		},
		{
			breaks: "a refused client costs one line, whatever it does wrong", file: standalone + "engine/handshakes.go",
			pkg: standalone + "engine", test: "TestRefusedConnectionsAreLoggedOnce",
			old: "h.due(address, time.Now())",
			new: "h.due(address+reason, time.Now())",
		},
		{
			breaks: "the certificate of another host is not a host's own", file: "internal/identity/identity.go", pkg: "internal/identity", test: "TestCheckOwn",
			old: "if named == wanted {",
			new: "if named.Role == wanted.Role {",
		},
		{
			breaks: "a certificate with two identities is nobody's own", file: "internal/identity/identity.go", pkg: "internal/identity", test: "TestCheckOwn",
			old: "if len(of.URIs) != 1 {",
			new: "if len(of.URIs) == 0 {",
		},
		{
			breaks: "a certificate is missed only where Temporal does not go on without", file: explain, pkg: "internal/temporalclient", test: "TestOptionalCertificate",
			old: "refused := requested && alert != nil && alert.Op == \"remote error\"",
			new: "refused := requested",
		},
		{
			breaks: "Temporal is asked by the name that the client uses", file: explain, pkg: "internal/temporalclient", test: "TestOptionalCertificate",
			old: "cmp.Or(secure.ServerName, e.name)",
			new: "cmp.Or(e.name, secure.ServerName)",
		},
		{
			breaks: "what gRPC said stays in the error", file: explain, pkg: "internal/temporalclient", test: "TestCallsWaitForTheAnswerAsLongAsTheyMay",
			old: "wrong, status.Convert(err).Message())",
			new: "wrong, e.name)",
		},
		{
			breaks: "the question to Temporal is asked again", file: explain, pkg: "internal/temporalclient", test: "TestCallsWaitForTheAnswerAsLongAsTheyMay",
			old: "if time.Since(e.asking.at) < askAgain {",
			new: "if time.Since(e.asking.at) < 2*askAgain {",
		},
		{
			breaks: "a renewed certificate keeps its key", file: held, pkg: "internal/pki", test: "TestHeldCertificateIsRenewedWhileItsHolderRuns",
			old: "\tif there == nil {\n",
			new: "\tif there == nil || there.Leaf != nil {\n",
		},
		{
			breaks: "nothing of another authority is kept", file: held, pkg: "internal/pki", test: "TestHeldCertificateIsRenewedWhileItsHolderRuns",
			old: " || pair.Leaf.CheckSignatureFrom(h.authority.certificate) != nil {",
			new: " {",
		},
		{
			breaks: "a file that cannot be read is not replaced", file: held, pkg: "internal/pki", test: "TestHeldCertificateThatCannotBeRead",
			old: "!errors.Is(err, fs.ErrNotExist) {",
			new: "!errors.Is(err, fs.ErrNotExist) && h == nil {",
		},
		{
			breaks: "a wrong clock stops nobody who has a certificate", file: held, pkg: "internal/pki", test: "TestAuthorityOfAnotherTime",
			old: "unread != nil || h.own(text) == nil {",
			new: "unread != nil || len(text) > 0 {",
		},
		{
			breaks: "a host that had no time is not blamed", file: "workflows/census.go", pkg: "workflows", test: "TestCensusSaysWhoTookNoQuestion",
			old: "failure.Kind == cyborg.ErrHostSilent && left/2 >= fairWait:",
			new: "failure.Kind == cyborg.ErrHostSilent:",
		},
	}
}
