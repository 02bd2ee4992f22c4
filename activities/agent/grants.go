package agent

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"go.temporal.io/sdk/converter"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/grant"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// addressed is the input of a step; see workflows.Addressee.
type addressed interface {
	AgentInstance() string
	SentBy() string
	Number() int64
	JournalHeld() cyborg.JournalPosition
	Granted() string
}

// ungrantedTable has the activities that need no grant, because they only look.
var ungrantedTable = []string{
	workflows.DiscoverActivity, workflows.UsageActivity, workflows.CheckUseActivity, workflows.PreviewWhitelistActivity,
}

// admit decodes the input of an activity, and makes sure that this agent may take
// it from this run, now. Temporal has carried it, and nothing of it is believed
// before that.
func admit[In any](ctx context.Context, a *Activities, name string, raw converter.RawValue, run string) (in In, err error) {
	// The same text is decoded that the grant is compared with: two decoders could
	// read a text with doubled fields in two ways.
	text, digest, err := grant.Canonical(raw.Payload().GetData())
	if err != nil {
		return in, err
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return in, cyborg.Errorf(cyborg.ErrInvalid, "the input of %s cannot be read: %w", name, err)
	}

	step, ok := any(&in).(addressed)
	if ok {
		if err := a.requireMine(step, run); err != nil {
			return in, err
		}
	}
	if !slices.Contains(ungrantedTable, name) {
		if err := a.requireGrant(ctx, name, digest, step, run); err != nil {
			return in, err
		}
	}
	if ok {
		if err := a.requireTrueJournal(ctx, step); err != nil {
			return in, err
		}
	}
	return in, a.checkAllowed(name)
}

// requireMine refuses a step that the conductor has sent to another agent of
// this host: this one was replaced, or speaks for a host that is not its own,
// and may still reach Temporal where it no longer reaches a conductor. It also
// refuses a step that another run had sent: Temporal gives the steps of a run
// that is reset to the agent once more, for the run that follows.
func (a *Activities) requireMine(step addressed, run string) error {
	switch {
	case step.AgentInstance() != "" && step.AgentInstance() != a.Instance:
		return cyborg.Errorf(cyborg.ErrOtherAgent, "the step is for agent %s of host %s, and this one is %s",
			step.AgentInstance(), a.Inventory.Host(), a.Instance).
			WithHint("Two agents run under this host's name, or this one was replaced. See duplicate agents in the runbook.")
	case step.SentBy() != "" && step.SentBy() != run:
		return cyborg.Errorf(cyborg.ErrSuperseded, "run %s sent the step, and run %s has taken its place", step.SentBy(), run)
	}
	return nil
}

// requireGrant refuses a step that no conductor has signed for this host, this
// run and this time.
func (a *Activities) requireGrant(ctx context.Context, name, digest string, step addressed, run string) error {
	if !a.Grants().Required {
		return nil
	}
	if step == nil || step.Granted() == "" {
		return cyborg.Errorf(cyborg.ErrNotGranted, "host %s does %s only with a grant, and this step has none", a.Inventory.Host(), name).
			WithHint("Somebody who can write to Temporal has sent it, or a server of a release that signs no steps.")
	}

	key, err := a.grantKey(ctx, grant.KeyOf(step.Granted()))
	if err != nil {
		return err
	}
	claims, err := grant.Open(step.Granted(), key)
	if err != nil {
		return err
	}

	bad := func(format string, args ...any) error {
		return cyborg.Errorf(cyborg.ErrNotGranted, "host "+a.Inventory.Host()+" does not do "+name+": "+format, args...)
	}
	switch {
	case claims.Host != a.Inventory.Host() || claims.Instance != a.Instance:
		return bad("its grant is for agent %s of host %s, and this one is %s", claims.Instance, claims.Host, a.Instance)
	case claims.Run != run:
		return bad("its grant is for run %s, and run %s has sent it", claims.Run, run)
	case claims.Instance != step.AgentInstance() || claims.Run != step.SentBy() || claims.Assignment != step.Number() || claims.Journal != step.JournalHeld():
		return bad("it was changed after its grant was signed")
	case !claims.Permits(name, digest):
		return bad("its grant has no such step with this input")
	case claims.BootID != "" && claims.BootID != a.Journal.BootID():
		return bad("its grant is for another boot of the host")
	case claims.Until > 0 && a.Uptime != nil && a.Uptime() > claims.Until:
		return bad("its grant has expired %s ago", (a.Uptime() - claims.Until).Round(time.Second))
	}
	return nil
}

// grantKey returns the key of a conductor. One that has just started is known
// after the next answer from a conductor, so one is asked for.
func (a *Activities) grantKey(ctx context.Context, id string) (cyborg.GrantKey, error) {
	if key, ok := keyOf(a.Grants(), id); ok {
		return key, nil
	}

	short, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	_, _, err := a.Reporter.Report(short)
	if key, ok := keyOf(a.Grants(), id); ok {
		return key, nil
	}

	if err != nil {
		return cyborg.GrantKey{}, cyborg.Errorf(cyborg.ErrNotGranted, "no conductor has told host %s of the key %.80q, and none answers now: %w", a.Inventory.Host(), id, err)
	}
	return cyborg.GrantKey{}, cyborg.Errorf(cyborg.ErrNotGranted, "the step has a grant of the key %.80q, which no conductor has", id)
}

func keyOf(grants agentapi.Grants, id string) (cyborg.GrantKey, bool) {
	for _, key := range grants.Keys {
		if key.ID == id {
			return key, true
		}
	}
	return cyborg.GrantKey{}, false
}

// requireTrueJournal refuses a step while the journal is an old copy: it does not
// hold the position that an earlier report of this host has told. A report is
// sent first, because in its course the journal is emptied.
func (a *Activities) requireTrueJournal(ctx context.Context, step addressed) error {
	held := step.JournalHeld()
	position := journal.Position{Opening: held.Opening, Writes: held.Writes}
	if a.Journal.Ready(position) {
		return nil
	}

	short, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	_, _, err := a.Reporter.Report(short)
	if a.Journal.Ready(position) {
		return nil
	}

	if err == nil {
		err = errors.New("the one that was asked does not know it")
	}
	return cyborg.Errorf(cyborg.ErrNotGranted, "the journal of host %s is an old copy, and no conductor has said what counts now: %w", a.Inventory.Host(), err)
}
