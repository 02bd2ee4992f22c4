package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/grant"
	"github.com/cyborg-project/cyborg/workflows"
)

// theRun is that of Temporal's test environment.
const theRun = "default-test-run-id"

// requireGrants has the host take only steps that are signed with the returned
// key.
func (h *host) requireGrants() *grant.Signer {
	h.t.Helper()
	signer := grant.NewSigner()
	h.reporter.grants = agentapi.Grants{Required: true, Keys: []cyborg.GrantKey{grant.NewSigner().Key(), signer.Key()}}
	return signer
}

// claims are those of a grant for the inputs of attaches.
func claims(t *testing.T, operation uuid.UUID, inputs ...workflows.AttachInput) grant.Claims {
	t.Helper()
	out := grant.Claims{Operation: operation, Run: theRun, Host: hostName, Instance: instance, Assignment: 7, BootID: "boot-1", Until: time.Hour}
	for _, in := range inputs {
		step, err := grant.StepOf(workflows.AttachActivity, in)
		require.NoError(t, err)
		out.Steps = append(out.Steps, step)
	}
	return out
}

// granted is the input with the grant.
func granted(t *testing.T, in workflows.AttachInput, by *grant.Signer, c grant.Claims) workflows.AttachInput {
	t.Helper()
	text, err := by.Sign(c)
	require.NoError(t, err)
	in.Addressee = workflows.Addressee{Instance: c.Instance, Run: c.Run, Assignment: c.Assignment, Journal: c.Journal, Grant: text}
	return in
}

// A host whose conductor signs steps takes none that changes something without a
// grant, whatever it is. To look needs none.
func TestStepsNeedAGrant(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.requireGrants()
	before := slices.Clone(h.fate.calls)

	op := uuid.New()
	for name, in := range map[string]any{
		workflows.InstallActivity:       workflows.InstallInput{Operation: op, Target: target()},
		workflows.UninstallActivity:     workflows.InstallInput{Operation: op, Target: target()},
		workflows.AttachActivity:        attach(op, handle),
		workflows.DetachActivity:        detach(op, handle),
		workflows.StageActivity:         workflows.StageInput{Operation: op, Target: target()},
		workflows.ProgramActivity:       workflows.ProgramInput{Operation: op, Target: target()},
		workflows.RestoreActivity:       workflows.RestoreInput{Operation: op, Target: target()},
		workflows.CleanActivity:         clean(op, handle),
		workflows.PartitionActivity:     workflows.PartitionInput{Operation: op, Device: deviceTarget(), Layout: vfs(2)},
		workflows.RestoreLayoutActivity: workflows.RestoreLayoutInput{Operation: op, Device: deviceTarget()},
		workflows.ConfigureActivity:     workflows.ConfigureInput{Operation: op},
		workflows.SettleActivity: workflows.SettleInput{Host: hostName, Entries: []workflows.SettleEntry{{
			Backend: backend, Deployable: target().Deployable, Handle: workHandle(handle), Operation: op, Want: workflows.GoalAttached,
		}}},
		workflows.WriteWhitelistActivity:   workflows.WhitelistInput{Operation: op},
		workflows.RestoreWhitelistActivity: workflows.WhitelistInput{Operation: op},
	} {
		err := h.refused(cyborg.ErrNotGranted, name, in)
		require.Contains(t, err.Message, "this step has none", name)
		require.NotEmpty(t, err.Hint)
	}
	require.Equal(t, before, h.fate.calls)
	require.Empty(t, h.attachments())
	require.Empty(t, h.reporter.reports, "no conductor is troubled")

	h.must(workflows.DiscoverActivity, workflows.DiscoverInput{Host: hostName}, nil)
	h.must(workflows.UsageActivity, workflows.UsageInput{Host: hostName}, nil)
	h.must(workflows.CheckUseActivity, checkUse(handle), nil)
	h.must(workflows.PreviewWhitelistActivity, workflows.WhitelistInput{Host: hostName}, nil)
}

// A grant is good for the steps that it names, from its run, on its host, as long
// as it is valid, and as often as they are tried.
func TestGrant(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	signer := h.requireGrants()
	op := uuid.New()
	in, also := attach(op, handle), attach(op, second)
	good := claims(t, op, also, in)

	stranger := grant.NewSigner()
	for reason, step := range map[string]workflows.AttachInput{
		"which no conductor has": granted(t, in, stranger, good),
		"was not signed by the conductor": func() workflows.AttachInput {
			forged := granted(t, in, stranger, good)
			_, rest, _ := strings.Cut(forged.Grant, ".")
			forged.Grant = signer.Key().ID + "." + rest
			return forged
		}(),
		"is for agent agent-1 of host node-2": granted(t, in, signer, with(good, func(c *grant.Claims) { c.Host = "node-2" })),
		"is for run another": func() workflows.AttachInput {
			reused := granted(t, in, signer, with(good, func(c *grant.Claims) { c.Run = "another" }))
			reused.Run = theRun
			return reused
		}(),
		"was changed after its grant was signed": func() workflows.AttachInput {
			raised := granted(t, in, signer, good)
			raised.Assignment = 1000
			return raised
		}(),
		"has no such step with this input": func() workflows.AttachInput {
			changed := granted(t, in, signer, good)
			changed.Handle.Holder.ID = "somebody else"
			return changed
		}(),
		"is for another boot": granted(t, in, signer, with(good, func(c *grant.Claims) { c.BootID = "boot-0" })),
		"expired 1s ago": func() workflows.AttachInput {
			h.uptime.Store(int64(11 * time.Second))
			return granted(t, in, signer, with(good, func(c *grant.Claims) { c.Until = 10 * time.Second }))
		}(),
	} {
		err := h.refused(cyborg.ErrNotGranted, workflows.AttachActivity, step)
		require.Contains(t, err.Message, reason)
		require.Empty(t, h.attachments())
	}
	// The same inputs are good for nothing else.
	h.refused(cyborg.ErrNotGranted, workflows.DetachActivity, workflows.DetachInput{
		Addressee: granted(t, in, signer, good).Addressee, Operation: op, Target: in.Target, Handles: []cyborg.WorkHandle{in.Handle},
	})
	require.Zero(t, h.fate.count("attach"))

	for range 2 {
		h.must(workflows.AttachActivity, granted(t, in, signer, good), nil)
	}
	require.Equal(t, 1, h.fate.count("attach"), "the second is a repeat")

	// The conductor does not know for how long this host is up.
	h.must(workflows.AttachActivity, granted(t, also, signer, with(good, func(c *grant.Claims) { c.Until = 0 })), nil)
}

// with returns the claims with a change.
func with(c grant.Claims, change func(*grant.Claims)) grant.Claims {
	change(&c)
	return c
}

// A text that says a thing twice is read as it is signed: what comes first is not
// mixed into what comes last.
func TestDoubledFieldsAreReadOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	signer := h.requireGrants()
	in := workflows.RestoreInput{Operation: uuid.New(), Target: target()}
	step, err := grant.StepOf(workflows.RestoreActivity, in)
	require.NoError(t, err)
	signed := claims(t, in.Operation)
	signed.Steps = []grant.Step{step}
	in.Addressee = granted(t, workflows.AttachInput{}, signer, signed).Addressee

	payload, err := converter.GetDefaultDataConverter().ToPayload(in)
	require.NoError(t, err)
	doubled := func(more string) converter.RawValue {
		return converter.NewRawValue(&commonpb.Payload{Metadata: payload.GetMetadata(), Data: []byte("{" + more + "," + string(payload.GetData()[1:]))})
	}

	// What is mixed in says that the card had an image, which it does not have.
	evil := `{"bitstream_id":"evil"}`
	for _, more := range []string{`"Target":` + evil, `"TARGET":` + evil, `"others":[` + evil + `]`, `"INSTANCE":"x"`} {
		h.refused(cyborg.ErrNotGranted, workflows.RestoreActivity, doubled(more))
	}
	h.must(workflows.RestoreActivity, doubled(`"target":`+evil), nil)
}

// The key of a conductor that has just started is asked for.
func TestGrantOfANewConductor(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.requireGrants()
	op, another := uuid.New(), grant.NewSigner()
	step := granted(t, attach(op, handle), another, claims(t, op, attach(op, handle)))

	h.reporter.failure = cyborg.Errorf(cyborg.ErrUnavailable, "nobody answers")
	require.Contains(t, h.refused(cyborg.ErrNotGranted, workflows.AttachActivity, step).Message, "nobody answers")

	h.reporter.failure = nil
	h.reporter.answered = func() { h.reporter.grants.Keys = []cyborg.GrantKey{another.Key()} }
	h.must(workflows.AttachActivity, step, nil)
}
