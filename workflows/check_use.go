package workflows

import (
	"errors"
	"strings"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// checkUse has the host make sure that nobody uses the handles that the
// operation gives to instances and services. It is the last look before they get
// them: the records may be minutes old. Nothing has to be undone, because the
// host only looks, and the end of a failed operation takes the handles back.
//
// An operation that release 0.1 has begun has no such handles in its work, and
// goes on without a look.
func (o *operation) checkUse(ctx workflow.Context) error {
	if len(o.work.Given) == 0 {
		return nil
	}

	const name = "check use"
	err := o.step(ctx, name, call{
		activity: CheckUseActivity, summary: "check that nobody uses " + givenNames(o.work.Given),
		input: &CheckUseInput{Operation: o.work.Operation, Given: o.work.Given},
		limit: o.in.Limits.Step,
	}, nil)

	// An agent of release 0.1 cannot look. Its host gives out handles as that release
	// did, or no accelerator of it could be used before it has the new agent.
	if isUnknownStep(err) {
		o.note(ctx, name, cyborg.StepDone, "not checked: the agent of host "+o.work.Host+" is of an earlier release, which cannot")
		return nil
	}

	return err
}

// givenNames lists the handles for people.
func givenNames(given []cyborg.GivenHandles) string {
	var names []string
	for _, g := range given {
		for _, handle := range g.Handles {
			names = append(names, handle.Identity)
		}
	}
	return strings.Join(names, ", ")
}

// isUnknownStep says that the host's agent is of a release that does not have
// the step. The SDK of its worker answers that.
func isUnknownStep(err error) bool {
	application, ok := errors.AsType[*temporal.ApplicationError](err)
	return ok && application.Type() == "ActivityNotRegisteredError"
}
