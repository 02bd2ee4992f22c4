package conductor_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/mocks"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/grant"
	"github.com/cyborg-project/cyborg/internal/openstack/glance"
	"github.com/cyborg-project/cyborg/internal/openstack/glance/glancetest"
	"github.com/cyborg-project/cyborg/workflows"
)

// signed are the records of an operation that runs, and of the keys that sign.
type signed struct {
	conductor.Store
	work  cyborg.Work
	to    db.Addressee
	keys  []cyborg.GrantKey
	found db.Disagreement
	begun int // how often the work was read
}

func (s *signed) Begin(context.Context, db.Run) (cyborg.Work, error) {
	s.begun++
	return s.work, nil
}

func (s *signed) CheckRun(context.Context, db.Run) (db.Addressee, error) { return s.to, nil }

func (s *signed) Record(context.Context, db.Run, []cyborg.Step) (db.Addressee, error) {
	return s.to, nil
}

func (s *signed) GrantKeys(context.Context, time.Duration) ([]cyborg.GrantKey, error) {
	return s.keys, nil
}

func (s *signed) Accelerator(_ context.Context, id uuid.UUID) (cyborg.Accelerator, error) {
	return cyborg.Accelerator{UUID: id, Host: s.to.Host}, nil
}

func (s *signed) GrantImage(_ context.Context, _ db.Run, url db.ImageURL, _ string) (db.ImageURL, error) {
	s.work.Found = map[uuid.UUID]cyborg.Image{url.Accelerator: url.Image}
	return url, nil
}

func (s *signed) Decide(context.Context, db.Disagreement) (db.Disagreement, error) {
	return s.found, nil
}

// newSigned returns the records of a program of an image of Glance.
func newSigned(image cyborg.Image) *signed {
	agent := cyborg.Agent{
		Instance: "agent-1", Journal: cyborg.JournalPosition{Opening: uuid.New(), Writes: 7}, BootID: "boot-1", Uptime: 10 * time.Hour,
	}
	target := cyborg.Target{Accelerator: uuid.New(), Backend: "b", Device: "d", Deployable: "d0", BitstreamID: "before"}
	return &signed{
		work: cyborg.Work{
			Operation: uuid.New(), Kind: cyborg.OperationProgram, Host: "h1", Agent: agent, Assignment: 3,
			Targets: []cyborg.Target{target}, Program: &cyborg.ProgramRequest{Image: image},
		},
		to: db.Addressee{Agent: agent, Host: "h1", Assignment: 4},
	}
}

// conducting is a conductor with these records.
type conducting struct {
	t      *testing.T
	acts   *conductor.Activities
	signer *grant.Signer
}

func (s *signed) conductor(t *testing.T, cloud conductor.Cloud, signer *grant.Signer) conducting {
	t.Helper()
	grants := conductor.Grants{Signer: signer, Valid: time.Minute}
	return conducting{t, conductor.New(s, &mocks.Client{}, conductor.Policy{}, cloud, grants, slog.New(slog.DiscardHandler)), signer}
}

// do calls an activity as the test's run.
func (c conducting) do(name string, in, out any) error {
	c.t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivityWithOptions(c.acts.All()[name], registered(name))
	value, err := env.ExecuteActivity(name, in)
	if err != nil {
		return workflows.FromFailure(err)
	}
	return value.Get(out)
}

// begin begins the operation.
func (c conducting) begin(id uuid.UUID) cyborg.Work {
	c.t.Helper()
	var work cyborg.Work
	require.NoError(c.t, c.do(workflows.BeginActivity, workflows.BeginInput{Operation: id}, &work))
	return work
}

// check asks what the next step has to carry.
func (c conducting) check(id uuid.UUID, earlier string) workflows.CheckRunResult {
	c.t.Helper()
	var next workflows.CheckRunResult
	require.NoError(c.t, c.do(workflows.CheckRunActivity, workflows.CheckRunInput{Operation: id, Grant: earlier}, &next))
	return next
}

// open verifies a grant of this conductor.
func (c conducting) open(text string) grant.Claims {
	c.t.Helper()
	claims, err := grant.Open(text, c.signer.Key())
	require.NoError(c.t, err)
	return claims
}

// permits are the activities of a grant, in their order.
func permits(claims grant.Claims) (names []string) {
	for _, s := range claims.Steps {
		names = append(names, s.Activity)
	}
	return names
}

// What an operation has to do is signed when it begins, for its run and its
// host's agent, and from then on with what the records say of the host by then.
func TestWorkIsSigned(t *testing.T) {
	t.Parallel()
	records := newSigned(cyborg.Image{Source: "new.img"})
	c := records.conductor(t, conductor.Cloud{}, grant.NewSigner())
	op := records.work.Operation

	work := c.begin(op)
	claims := c.open(work.Grant)
	require.Equal(t, []string{workflows.RestoreActivity, workflows.StageActivity, workflows.ProgramActivity}, permits(claims))
	steps := claims.Steps
	claims.Steps = nil
	require.Equal(t, grant.Claims{
		Operation: op, Run: testRun, Host: "h1", Instance: "agent-1", Assignment: 3, Journal: records.work.Journal,
		BootID: "boot-1", Until: 10*time.Hour + time.Minute,
	}, claims)

	// The host has booted since, and shows the new image. The undo still brings back
	// the one from before.
	records.work.Targets[0].BitstreamID = "new"
	records.to.BootID, records.to.Uptime, records.to.Instance = "boot-2", time.Hour, "agent-2"
	next := c.check(op, work.Grant)
	require.Equal(t, "agent-2", next.Instance)
	claims = c.open(next.Grant)
	require.Equal(t, steps, claims.Steps)
	claims.Steps = nil
	require.Equal(t, grant.Claims{
		Operation: op, Run: testRun, Host: "h1", Instance: "agent-2", Assignment: 4, Journal: records.to.Journal,
		BootID: "boot-2", Until: time.Hour + time.Minute,
	}, claims)

	records.to.Uptime = 0 // of an agent that does not say
	var recorded workflows.CheckRunResult
	require.NoError(t, c.do(workflows.RecordActivity, workflows.RecordInput{Operation: op, Grant: next.Grant}, &recorded))
	claims = c.open(recorded.Grant)
	require.Equal(t, steps, claims.Steps)
	require.Zero(t, claims.Until)
	require.Equal(t, "boot-2", claims.BootID)
	require.Equal(t, 1, records.begun)
}

// Only a grant of this system, for this run of this operation, is signed anew.
// Otherwise the records are asked what there is to do.
func TestForeignGrantsAreNotSignedAnew(t *testing.T) {
	t.Parallel()
	records := newSigned(cyborg.Image{Source: "new.img"})
	signer, another, stranger := grant.NewSigner(), grant.NewSigner(), grant.NewSigner()
	records.keys = []cyborg.GrantKey{signer.Key(), another.Key()}
	c := records.conductor(t, conductor.Cloud{}, signer)
	op := records.work.Operation
	own := c.open(c.begin(op).Grant).Steps

	evil := grant.Claims{Operation: op, Run: testRun, Steps: []grant.Step{{Activity: workflows.AttachActivity, Input: "x"}}}
	for name, one := range map[string]struct {
		by     *grant.Signer
		change func(*grant.Claims)
	}{
		"of a stranger":        {stranger, func(*grant.Claims) {}},
		"of another operation": {signer, func(c *grant.Claims) { c.Operation = uuid.New() }},
		"of another run":       {another, func(c *grant.Claims) { c.Run = "another" }},
		"of a round":           {signer, func(c *grant.Claims) { c.Operation = uuid.Nil }},
	} {
		claims := evil
		one.change(&claims)
		text, err := one.by.Sign(claims)
		require.NoError(t, err)
		require.Equal(t, own, c.open(c.check(op, text).Grant).Steps, name)
	}
	for _, none := range []string{"", "x", signer.Key().ID + ".e30.AA"} {
		require.Equal(t, own, c.open(c.check(op, none).Grant).Steps, none)
	}

	// That of another conductor of this system is.
	text, err := another.Sign(evil)
	require.NoError(t, err)
	require.Equal(t, evil.Steps, c.open(c.check(op, text).Grant).Steps)
}

// What the host may do with an image of Glance is signed when it was found, and
// only images that the operation is about are looked for.
func TestFoundImageIsSigned(t *testing.T) {
	t.Parallel()
	g := glancetest.Start(t)
	wanted, other := g.Add([]byte("content"), nil), g.Add([]byte("evil"), nil)
	records := newSigned(cyborg.GlanceImage(wanted))
	c := records.conductor(t, conductor.Cloud{Images: glance.New(g, glance.Options{Max: 1 << 20})}, grant.NewSigner())
	op := records.work.Operation

	work := c.begin(op)
	require.Equal(t, []string{workflows.RestoreActivity, workflows.FindImageActivity}, permits(c.open(work.Grant)))

	in := workflows.FindImageInput{
		Operation: op, JournalID: op, Target: records.work.Targets[0], Image: cyborg.GlanceImage(wanted), Valid: time.Hour, Grant: work.Grant,
	}
	var found workflows.FindImageResult
	require.NoError(t, c.do(workflows.FindImageActivity, in, &found))
	claims := c.open(found.Grant)
	require.Equal(t, []string{workflows.RestoreActivity, workflows.FindImageActivity, workflows.StageActivity, workflows.ProgramActivity}, permits(claims))
	stage, err := grant.StepOf(workflows.StageActivity, workflows.StageInput{Operation: op, Target: in.Target, Image: found.Image, Fetch: found.Fetch})
	require.NoError(t, err)
	require.True(t, claims.Permits(stage.Activity, stage.Input))
	require.Equal(t, claims.Steps, c.open(c.check(op, found.Grant).Grant).Steps)

	// Where the key that has signed this was forgotten, the records know the image.
	require.Equal(t, claims.Steps, c.open(c.check(op, "").Grant).Steps)

	for _, change := range []func(*workflows.FindImageInput){
		func(in *workflows.FindImageInput) { in.Image = cyborg.GlanceImage(other) },
		func(in *workflows.FindImageInput) { in.Target.Accelerator = uuid.New() },
		func(in *workflows.FindImageInput) { in.JournalID = uuid.New() },
	} {
		changed := in
		change(&changed)
		require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(c.do(workflows.FindImageActivity, changed, &found)))
	}

	// A server of 0.1, which runs the workflow while others were upgraded, gets its
	// image, and no grant.
	in.JournalID, in.Grant, found = uuid.Nil, "", workflows.FindImageResult{}
	require.NoError(t, c.do(workflows.FindImageActivity, in, &found))
	require.NotEmpty(t, found.Fetch)
	require.Empty(t, found.Grant)
}

// What Reconcile decides is signed for its round.
func TestDecisionIsSigned(t *testing.T) {
	t.Parallel()
	records := newSigned(cyborg.Image{})
	records.found = db.Disagreement{
		Host: "h1", Backend: "b", Deployable: "d0", Handle: cyborg.WorkHandle{Identity: "h"}, Operation: uuid.New(), Attach: true,
		Assignment: 9, Agent: records.to.Agent,
	}
	c := records.conductor(t, conductor.Cloud{}, grant.NewSigner())

	var decided workflows.DecideResult
	require.NoError(t, c.do(workflows.DecideActivity, workflows.DecideInput{}, &decided))
	claims := c.open(decided.Grant)
	require.Equal(t, uuid.Nil, claims.Operation)
	require.Equal(t, testRun, claims.Run)
	require.EqualValues(t, 9, claims.Assignment)
	require.Equal(t, records.to.Journal, claims.Journal)

	settle, err := grant.StepOf(workflows.SettleActivity, workflows.SettleInput{Host: "h1", Entries: []workflows.SettleEntry{decided.Disagreement.Entry}})
	require.NoError(t, err)
	require.Equal(t, []grant.Step{settle}, claims.Steps)
}

// Without a key nothing is signed.
func TestNothingIsSignedWithoutAKey(t *testing.T) {
	t.Parallel()
	records := newSigned(cyborg.Image{Source: "new.img"})
	c := records.conductor(t, conductor.Cloud{}, nil)
	op := records.work.Operation
	require.Empty(t, c.begin(op).Grant)
	require.Empty(t, c.check(op, "").Grant)
	var decided workflows.DecideResult
	require.NoError(t, c.do(workflows.DecideActivity, workflows.DecideInput{}, &decided))
	require.Empty(t, decided.Grant)
}
