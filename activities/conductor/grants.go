package conductor

import (
	"context"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/activity"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/grant"
	"github.com/cyborg-project/cyborg/workflows"
)

// Grants signs what operations may have their hosts do. The zero value signs
// nothing.
type Grants struct {
	// Signer has this process's key; nil where nothing is signed.
	Signer *grant.Signer
	// Valid is for how long a host may begin what is signed: at least as long as a
	// step may wait for its agent.
	Valid time.Duration
	// Kept is for how long the key of a process that has ended is known.
	Kept time.Duration
}

// sign returns a grant for the run that has called this activity; empty where
// nothing is signed.
func (a *Activities) sign(ctx context.Context, operation uuid.UUID, host string, agent cyborg.Agent, assignment int64, steps []grant.Step) (string, error) {
	if a.grants.Signer == nil {
		return "", nil
	}

	claims := grant.Claims{
		Operation: operation, Run: activity.GetInfo(ctx).WorkflowExecution.RunID,
		Host: host, Instance: agent.Instance, Assignment: assignment, Journal: agent.Journal, BootID: agent.BootID, Steps: steps,
	}
	if agent.Uptime > 0 {
		claims.Until = agent.Uptime + a.grants.Valid
	}
	return a.grants.Signer.Sign(claims)
}

// stepsOf returns what is permitted in the form in which it is signed.
func stepsOf(permitted []workflows.Permitted) ([]grant.Step, error) {
	steps := make([]grant.Step, 0, len(permitted))
	for _, p := range permitted {
		step, err := grant.StepOf(p.Activity, p.Input)
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return steps, nil
}

// signWork signs what the work of an operation permits.
func (a *Activities) signWork(ctx context.Context, work *cyborg.Work) error {
	steps, err := stepsOf(workflows.PermittedBy(*work))
	if err == nil {
		work.Grant, err = a.sign(ctx, work.Operation, work.Host, work.Agent, work.Assignment, steps)
	}
	return err
}

// signAgain signs anew what an earlier grant of the same run permits, for what
// the records say of the host now. The earlier grant says what followed from the
// records when the operation began, and which images were found since. Where it
// cannot be trusted, the work is read again.
func (a *Activities) signAgain(ctx context.Context, operation uuid.UUID, earlier string, to db.Addressee) (string, error) {
	if a.grants.Signer == nil {
		return "", nil
	}

	steps, err := a.permittedSteps(ctx, operation, earlier)
	if err != nil {
		return "", err
	}
	return a.sign(ctx, operation, to.Host, to.Agent, to.Assignment, steps)
}

// permittedSteps returns what the calling run of the operation may do.
func (a *Activities) permittedSteps(ctx context.Context, operation uuid.UUID, earlier string) ([]grant.Step, error) {
	claims, err := a.openGrant(ctx, earlier)
	if err == nil && claims.Operation == operation && claims.Run == activity.GetInfo(ctx).WorkflowExecution.RunID {
		return claims.Steps, nil
	}
	if err != nil && cyborg.ErrorKindOf(err) != cyborg.ErrNotGranted {
		return nil, err
	}

	// A running operation has the same work as when it began, and the records know
	// which images were found for it since.
	work, err := a.store.Begin(ctx, runOf(ctx, operation))
	if err != nil {
		return nil, err
	}
	return stepsOf(workflows.PermittedBy(work))
}

// openGrant verifies a grant that this process or another one has signed.
func (a *Activities) openGrant(ctx context.Context, text string) (grant.Claims, error) {
	id := grant.KeyOf(text)
	if own := a.grants.Signer.Key(); own.ID == id {
		return grant.Open(text, own)
	}

	keys, err := a.store.GrantKeys(ctx, a.grants.Kept)
	if err != nil {
		return grant.Claims{}, err
	}
	for _, key := range keys {
		if key.ID == id {
			return grant.Open(text, key)
		}
	}
	return grant.Claims{}, cyborg.Errorf(cyborg.ErrNotGranted, "no process of this system has the key %q", id)
}
