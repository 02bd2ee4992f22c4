package temporalauth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workerpb "go.temporal.io/api/worker/v1"
	"go.temporal.io/api/workflowservice/v1"
	tokenspb "go.temporal.io/server/api/token/v1"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/tasktoken"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// settings are those of all guards here.
func settings() Config {
	return Config{TrustDomain: "lab", Namespace: "cyborg", SealKey: bytes.Repeat([]byte{7}, SealKeyLength)}
}

func newGuard(t testing.TB) *Guard {
	t.Helper()
	g, err := New(settings())
	require.NoError(t, err)
	return g
}

// as is a caller of the trust domain.
func as(role identity.Role, name string) caller {
	return caller{Identity: identity.Identity{TrustDomain: "lab", Role: role, Name: name}}
}

func TestGuardRefusesBadConfigurations(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(c *Config){
		"trust domain": func(c *Config) { c.TrustDomain = "Lab" },
		"namespace":    func(c *Config) { c.Namespace = "" },
		"no key":       func(c *Config) { c.SealKey = nil },
		"short key":    func(c *Config) { c.SealKey = c.SealKey[1:] },
	} {
		c := settings()
		change(&c)
		_, err := New(c)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), name)
	}
}

// certificate is one with this URI, of which the raw form is made up.
func certificate(t *testing.T, uri string) *x509.Certificate {
	t.Helper()
	parsed, err := url.Parse(uri)
	require.NoError(t, err)
	return &x509.Certificate{Raw: []byte("the certificate of " + uri), URIs: []*url.URL{parsed}, DNSNames: []string{"h1"}}
}

// shown is the connection of a client whose certificate was verified.
func shown(certificate *x509.Certificate) *credentials.TLSInfo {
	return &credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{certificate}}}}
}

// TestCallers: a verified certificate says who somebody is, and no header does.
func TestCallers(t *testing.T) {
	t.Parallel()
	c := settings()
	own := certificate(t, "spiffe://lab/reader/own")
	c.Self = sha256.Sum256(own.Raw)
	g, err := New(c)
	require.NoError(t, err)

	may := func(info *authorization.AuthInfo) error {
		mapper := claimMapper{g}
		require.False(t, mapper.AuthInfoRequired())
		claims, err := mapper.GetClaims(info)
		require.NoError(t, err)
		result, err := g.Authorize(t.Context(), claims, &authorization.CallTarget{APIName: workflowService + "GetSystemInfo"})
		require.NoError(t, err)
		if result.Decision == authorization.DecisionAllow {
			return nil
		}
		return cyborg.Errorf(cyborg.ErrForbidden, "%s", result.Reason)
	}

	require.NoError(t, may(&authorization.AuthInfo{TLSConnection: shown(certificate(t, "spiffe://lab/host/h1"))}))
	require.NoError(t, may(&authorization.AuthInfo{TLSConnection: shown(own)}))

	unverified := &credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{own}}}
	for says, info := range map[string]*authorization.AuthInfo{
		"shows no certificate":                    nil,
		"shows no certificate that":               {AuthToken: "Bearer admin", ExtraData: "admin"},
		"shows no certificate that this server":   {TLSConnection: unverified},
		"trust domain cyborg":                     {TLSConnection: shown(certificate(t, "spiffe://cyborg/host/h1"))},
		"has 0 URIs":                              {TLSConnection: shown(&x509.Certificate{DNSNames: []string{"h1"}})},
		"spiffe://lab/member/m may not call":      {TLSConnection: shown(certificate(t, "spiffe://lab/member/m"))},
		`there is no role "root"`:                 {TLSConnection: shown(certificate(t, "spiffe://lab/root/r"))},
		"spiffe://lab/member/h1 may not call Get": {TLSConnection: shown(certificate(t, "spiffe://lab/member/h1")), AuthToken: "x"},
	} {
		require.ErrorContains(t, may(info), says)
	}

	result, err := g.Authorize(t.Context(), nil, &authorization.CallTarget{APIName: workflowService + "GetSystemInfo"})
	require.NoError(t, err)
	require.Equal(t, authorization.DecisionDeny, result.Decision)

	_, err = claimMapper{g}.GetClaims(&authorization.AuthInfo{TLSConnection: shown(own)})
	require.NoError(t, err)
	require.True(t, g.callerOf(&authorization.AuthInfo{TLSConnection: shown(own)}).self)
}

// TestRefusalsSayWhatToDo: what helps depends on who is refused, and from what.
func TestRefusalsSayWhatToDo(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	polls := func(queue string) *workflowservice.PollActivityTaskQueueRequest {
		return &workflowservice.PollActivityTaskQueueRequest{TaskQueue: &taskqueuepb.TaskQueue{Name: queue}}
	}

	for says, test := range map[string]struct {
		who     caller
		method  string
		request any
	}{
		"Use a certificate with the role server or admin.":                           {as(reader, "rob"), "TerminateWorkflowExecution", nil},
		"Use a certificate with the role server.":                                    {as(host, "h1"), "PollWorkflowTaskQueue", nil},
		"Use a certificate with the role host or server.":                            {as(admin, "ann"), "PollActivityTaskQueue", nil},
		"with exactly the name of this host (agent.host).":                           {as(host, "H1"), "PollActivityTaskQueue", polls("agent.h1")},
		"Only the agent of this host may: give it a certificate with the role host.": {as(server, "s1"), "PollActivityTaskQueue", polls("agent.h1")},
		`spiffe://lab/server/s1 may not use the task queue "/_sys/conductor/1"`:      {as(server, "s1"), "PollActivityTaskQueue", polls("/_sys/conductor/1")},
		`spiffe://lab/admin/ann may not call UpdateActivityOptions: nobody may`:      {as(admin, "ann"), "UpdateActivityOptions", nil},
	} {
		err := g.decide(test.who, &authorization.CallTarget{APIName: workflowService + test.method, Namespace: "cyborg", Request: test.request})
		require.Error(t, err, says)
		require.Truef(t, strings.HasSuffix(sentence(err), says), "%s, not %s", sentence(err), says)
	}
}

// TestQueues: a host polls its own queue under its own name, and a server polls
// none of a host.
func TestQueues(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	const (
		normal = enumspb.TASK_QUEUE_KIND_NORMAL
		sticky = enumspb.TASK_QUEUE_KIND_STICKY
	)

	for name, test := range map[string]struct {
		who    caller
		method string
		queue  *taskqueuepb.TaskQueue
		ok     bool
	}{
		"its own":                      {as(host, "h1"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "agent.h1", Kind: normal}, true},
		"its own, of no kind":          {as(host, "h1"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "agent.h1"}, true},
		"another host's":               {as(host, "h1"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "agent.h2", Kind: normal}, false},
		"upper case":                   {as(host, "h1"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "agent.H1"}, false},
		"one that begins like it":      {as(host, "h1"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "agent.h11"}, false},
		"the conductors'":              {as(host, "h1"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "conductor"}, false},
		"a partition of another":       {as(host, "h1"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "/_sys/agent.h2/1"}, false},
		"a partition of its own":       {as(host, "h1"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "/_sys/agent.h1/1"}, false},
		"sticky":                       {as(host, "h1"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "agent.h1", Kind: sticky}, false},
		"with another normal name":     {as(host, "h1"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "agent.h1", NormalName: "agent.h2"}, false},
		"none":                         {as(host, "h1"), "PollActivityTaskQueue", nil, false},
		"workflows":                    {as(host, "h1"), "PollWorkflowTaskQueue", &taskqueuepb.TaskQueue{Name: "agent.h1"}, false},
		"a server, conductor":          {as(server, "s"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "conductor"}, true},
		"a server, a host's":           {as(server, "s"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "agent.h1"}, false},
		"a server, workflows":          {as(server, "s"), "PollWorkflowTaskQueue", &taskqueuepb.TaskQueue{Name: "conductor"}, true},
		"a server, its worker's queue": {as(server, "s"), "PollWorkflowTaskQueue", &taskqueuepb.TaskQueue{Name: "s:1", Kind: sticky, NormalName: "conductor"}, true},
		"a server, a partition":        {as(server, "s"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "/_sys/agent.h1/1"}, false},
		"a server by a normal name":    {as(server, "s"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "x", NormalName: "agent.h1"}, false},
		"an admin":                     {as(admin, "a"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "conductor"}, false},
		"a reader":                     {as(reader, "r"), "PollActivityTaskQueue", &taskqueuepb.TaskQueue{Name: "conductor"}, false},
	} {
		var request any = &workflowservice.PollActivityTaskQueueRequest{Namespace: "cyborg", TaskQueue: test.queue, Identity: "agent@" + test.who.Name}
		if test.method == "PollWorkflowTaskQueue" {
			request = &workflowservice.PollWorkflowTaskQueueRequest{Namespace: "cyborg", TaskQueue: test.queue}
		}
		err := g.decide(test.who, &authorization.CallTarget{APIName: workflowService + test.method, Namespace: "cyborg", Request: request})
		require.Equal(t, test.ok, err == nil, "%s: %v", name, err)
	}

	start := &workflowservice.StartWorkflowExecutionRequest{TaskQueue: &taskqueuepb.TaskQueue{Name: "agent.h1"}}
	target := &authorization.CallTarget{APIName: workflowService + "StartWorkflowExecution", Namespace: "cyborg", Request: start}
	require.Error(t, g.decide(as(server, "s"), target), "no workflow runs on an agent's queue")
	start.TaskQueue.Name = "conductor"
	require.NoError(t, g.decide(as(server, "s"), target))
	require.Error(t, g.decide(as(admin, "a"), target))
}

// TestWorkers: nobody speaks for workers of others.
func TestWorkers(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	decide := func(who caller, request any) error {
		method := "ShutdownWorker"
		if _, ok := request.(*workflowservice.RecordWorkerHeartbeatRequest); ok {
			method = "RecordWorkerHeartbeat"
		}
		return g.decide(who, &authorization.CallTarget{APIName: workflowService + method, Namespace: "cyborg", Request: request})
	}

	beat := func(queue string) *workerpb.WorkerHeartbeat { return &workerpb.WorkerHeartbeat{TaskQueue: queue} }
	h1, s := as(host, "h1"), as(server, "s")

	require.NoError(t, decide(h1, &workflowservice.ShutdownWorkerRequest{TaskQueue: "agent.h1", Identity: "agent@h1/boot", WorkerInstanceKey: "k"}))
	require.NoError(t, decide(s, &workflowservice.ShutdownWorkerRequest{TaskQueue: "conductor", StickyTaskQueue: "s:1", WorkerHeartbeat: beat("conductor")}))
	require.NoError(t, decide(s, &workflowservice.RecordWorkerHeartbeatRequest{WorkerHeartbeat: []*workerpb.WorkerHeartbeat{beat("conductor")}}))

	for name, request := range map[string]any{
		"another's":              &workflowservice.ShutdownWorkerRequest{TaskQueue: "agent.h2", Identity: "agent@h1"},
		"of no queue":            &workflowservice.ShutdownWorkerRequest{Identity: "agent@h1", WorkerInstanceKey: "k"},
		"as another":             &workflowservice.ShutdownWorkerRequest{TaskQueue: "agent.h1", Identity: "agent@h2"},
		"a foreign sticky one":   &workflowservice.ShutdownWorkerRequest{TaskQueue: "agent.h1", StickyTaskQueue: "s:1", Identity: "agent@h1"},
		"an invented worker":     &workflowservice.ShutdownWorkerRequest{TaskQueue: "agent.h1", WorkerHeartbeat: beat("agent.h1"), Identity: "agent@h1"},
		"invented workers":       &workflowservice.RecordWorkerHeartbeatRequest{Identity: "agent@h1", WorkerHeartbeat: []*workerpb.WorkerHeartbeat{beat("agent.h1"), beat("")}},
		"a partition's unload":   &workflowservice.ShutdownWorkerRequest{StickyTaskQueue: "/_sys/agent.h1/1", Identity: "agent@h1"},
		"a request of no worker": &workflowservice.PollActivityTaskQueueRequest{},
	} {
		require.Error(t, decide(h1, request), name)
	}
	require.Error(t, decide(s, &workflowservice.RecordWorkerHeartbeatRequest{WorkerHeartbeat: []*workerpb.WorkerHeartbeat{beat("conductor"), beat("agent.h1")}}))
	require.Error(t, decide(s, &workflowservice.ShutdownWorkerRequest{TaskQueue: "agent.h1"}))
	require.Error(t, decide(s, &workflowservice.ShutdownWorkerRequest{StickyTaskQueue: "agent.h1"}))
}

// token is one as Temporal makes it.
func token(t testing.TB, workflow string) []byte {
	t.Helper()
	text, err := tasktoken.NewSerializer().Serialize(&tokenspb.Task{
		NamespaceId: "n", WorkflowId: workflow, RunId: "r", ScheduledEventId: 5, ActivityId: "5", ActivityType: "AttachHandle", Attempt: 1,
	})
	require.NoError(t, err)
	return text
}

// polled returns what a caller gets who polls a task with this token.
func polled(t testing.TB, g *Guard, who caller, token []byte) []byte {
	t.Helper()
	ctx := context.WithValue(t.Context(), authorization.MappedClaims, &authorization.Claims{Extensions: who})
	answer, err := g.sealPolled(ctx, &workflowservice.PollActivityTaskQueueRequest{}, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
		return &workflowservice.PollActivityTaskQueueResponse{TaskToken: bytes.Clone(token)}, nil
	})
	require.NoError(t, err)
	return answer.(*workflowservice.PollActivityTaskQueueResponse).GetTaskToken()
}

// eager is polled for a step that Temporal gives out at once.
func eager(t testing.TB, g *Guard, who caller, token []byte) []byte {
	t.Helper()
	ctx := context.WithValue(t.Context(), authorization.MappedClaims, &authorization.Claims{Extensions: who})
	answer, err := g.sealPolled(ctx, nil, nil, func(context.Context, any) (any, error) {
		return &workflowservice.RespondWorkflowTaskCompletedResponse{
			ActivityTasks: []*workflowservice.PollActivityTaskQueueResponse{{TaskToken: bytes.Clone(token)}},
		}, nil
	})
	require.NoError(t, err)
	return answer.(*workflowservice.RespondWorkflowTaskCompletedResponse).GetActivityTasks()[0].GetTaskToken()
}

// answer decides about the answer to a task.
func answer(g *Guard, who caller, token []byte) error {
	var all []error
	name := "agent@" + who.Name
	for method, request := range map[string]any{
		"RespondActivityTaskCompleted": &workflowservice.RespondActivityTaskCompletedRequest{TaskToken: token, Identity: name},
		"RespondActivityTaskFailed":    &workflowservice.RespondActivityTaskFailedRequest{TaskToken: token, Identity: name},
		"RespondActivityTaskCanceled":  &workflowservice.RespondActivityTaskCanceledRequest{TaskToken: token, Identity: name},
		"RecordActivityTaskHeartbeat":  &workflowservice.RecordActivityTaskHeartbeatRequest{TaskToken: token, Identity: name},
	} {
		if err := g.decide(who, &authorization.CallTarget{APIName: workflowService + method, Namespace: "cyborg", Request: request}); err != nil {
			all = append(all, err)
		}
	}
	if len(all) == 0 {
		return nil
	}
	if len(all) < 4 {
		panic("the four methods differ")
	}
	return all[0]
}

// TestEachAnswersWhatItPolled: hosts and servers answer their own steps only, and
// Temporal reads a sealed token as the same task.
func TestEachAnswersWhatItPolled(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	h1, h2 := as(host, "h1"), as(host, "h2")
	plain := token(t, "attach/1")
	sealed := polled(t, g, h1, plain)

	read, err := tasktoken.NewSerializer().Deserialize(sealed)
	require.NoError(t, err)
	require.Equal(t, "attach/1", read.GetWorkflowId())
	require.EqualValues(t, 5, read.GetScheduledEventId())
	require.Equal(t, "AttachHandle", read.GetActivityType())

	require.NoError(t, answer(g, h1, sealed))
	again, err := New(settings())
	require.NoError(t, err)
	require.NoError(t, answer(again, h1, sealed), "after a restart with the same key")

	foreign := settings()
	foreign.SealKey = bytes.Repeat([]byte{8}, SealKeyLength)
	stranger, err := New(foreign)
	require.NoError(t, err)

	altered := bytes.Replace(sealed, []byte("attach/1"), []byte("attach/2"), 1)
	require.NotEqual(t, sealed, altered)
	for name, bad := range map[string][]byte{
		"not sealed":       plain,
		"empty":            nil,
		"altered":          altered,
		"the seal alone":   sealed[len(plain):],
		"cut":              sealed[:len(sealed)-1],
		"longer":           append(bytes.Clone(sealed), 0),
		"another's seal":   polled(t, g, h2, plain),
		"with another key": polled(t, stranger, h1, plain),
		"of another task":  append(token(t, "attach/2"), sealed[len(plain):]...),
		"sealed twice":     polled(t, g, h1, polled(t, g, h2, plain))[:len(sealed)],
	} {
		require.Error(t, answer(g, h1, bad), name)
	}

	require.Error(t, answer(g, h2, sealed), "another host's step")
	require.Error(t, answer(g, as(server, "h1"), sealed), "a server answers no step of a host")
	require.Error(t, answer(g, as(admin, "a"), sealed))

	// A server answers what servers have polled, and cannot make up the token of a
	// host's step, whose parts it knows.
	s1 := as(server, "s1")
	require.Error(t, answer(g, s1, plain))
	require.NoError(t, answer(g, s1, polled(t, g, s1, plain)))
	require.Error(t, answer(g, as(server, "s2"), polled(t, g, s1, plain)))
	require.NoError(t, answer(g, s1, eager(t, g, s1, plain)), "a step that came with the answer to a workflow's task")
	require.Equal(t, plain, polled(t, g, caller{self: true}, plain))

	require.Empty(t, polled(t, g, h1, nil), "no task came")
}

// TestPollsOfNobodyAreNotHandedOut: a task never leaves without the claims of
// whoever polled it.
func TestPollsOfNobodyAreNotHandedOut(t *testing.T) {
	t.Parallel()
	_, err := newGuard(t).sealPolled(t.Context(), nil, nil, func(context.Context, any) (any, error) {
		return &workflowservice.PollActivityTaskQueueResponse{TaskToken: []byte("t")}, nil
	})
	require.Error(t, err)
}

// TestRefusalsAreLoggedOnce: a client that is refused again and again costs one
// line a minute for each call.
func TestRefusalsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	c := settings()
	c.Log = slog.New(slog.NewTextHandler(&said, nil))
	g, err := New(c)
	require.NoError(t, err)

	for range 100 {
		for _, method := range []string{workflowService + "ListWorkflowExecutions", workflowService + "StartWorkflowExecution", "/made/up", "/made/up2"} {
			result, err := g.Authorize(t.Context(), &authorization.Claims{Extensions: as(host, "h1")}, &authorization.CallTarget{APIName: method, Namespace: "cyborg"})
			require.NoError(t, err)
			require.Equal(t, authorization.DecisionDeny, result.Decision)
			require.NotEmpty(t, result.Reason)
		}
	}
	require.Equal(t, 3, strings.Count(said.String(), "\n"), said.String()) // the invented ones together
	require.Contains(t, said.String(), "spiffe://lab/host/h1")
}

// FuzzUnseal reads tokens as any client may send them. None passes that was not
// sealed with the key.
func FuzzUnseal(f *testing.F) {
	g := newGuard(f)
	h1 := as(host, "h1")
	sealed := g.seal(token(f, "attach/1"), h1.Identity)
	for _, text := range [][]byte{nil, {0}, token(f, "x"), sealed, sealed[1:], sealed[:len(sealed)-1], bytes.Repeat([]byte{0xff}, sealLength())} {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		inner, seal, ok := unseal(text)
		if !ok {
			require.Equal(t, text, inner)
			return
		}
		require.Len(t, seal, sha256.Size)
		require.Equal(t, !bytes.Equal(text, sealed), answer(g, h1, text) != nil)
	})
}

// TestRevokedIsRefused: a certificate that was revoked may do nothing more, and a
// poll that began before gets no step.
func TestRevokedIsRefused(t *testing.T) {
	t.Parallel()
	stolen, good := certificate(t, "spiffe://lab/host/h1"), certificate(t, "spiffe://lab/host/h2")
	revoked := false
	c := settings()
	c.Refuse = func(one *x509.Certificate) error {
		if revoked && one == stolen {
			return cyborg.Errorf(cyborg.ErrForbidden, "it was revoked")
		}
		return nil
	}
	g, err := New(c)
	require.NoError(t, err)

	claimsOf := func(one *x509.Certificate) *authorization.Claims {
		claims, err := claimMapper{g}.GetClaims(&authorization.AuthInfo{TLSConnection: shown(one)})
		require.NoError(t, err)
		return claims
	}
	may := func(one *x509.Certificate) authorization.Decision {
		result, err := g.Authorize(t.Context(), claimsOf(one), &authorization.CallTarget{APIName: workflowService + "GetSystemInfo"})
		require.NoError(t, err)
		return result.Decision
	}
	poll := func(one *x509.Certificate, meanwhile func()) (any, error) {
		ctx := context.WithValue(t.Context(), authorization.MappedClaims, claimsOf(one))
		return g.sealPolled(ctx, &workflowservice.PollActivityTaskQueueRequest{}, nil, func(context.Context, any) (any, error) {
			meanwhile()
			return &workflowservice.PollActivityTaskQueueResponse{TaskToken: []byte("token")}, nil
		})
	}

	require.Equal(t, authorization.DecisionAllow, may(stolen))
	_, err = poll(stolen, func() {})
	require.NoError(t, err)
	answer, err := poll(stolen, func() { revoked = true })
	require.ErrorContains(t, err, "it was revoked")
	require.Nil(t, answer)

	require.Equal(t, authorization.DecisionDeny, may(stolen))
	require.Equal(t, authorization.DecisionAllow, may(good))
	_, err = poll(good, func() {})
	require.NoError(t, err)
}
