package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// remedyWhitelist is the remedy where nobody knows which whitelist the host has.
const remedyWhitelist = "What it was to add or to remove stays Nova's in the records. Look at the file on its host, then whitelist again."

// WhitelistDevices has a host write the file that lists which of its PCI
// devices Nova gives out by itself. Until the operation has ended, the
// accelerators that are added and those that are removed stay claimed, so
// nobody else gets them. The undo restores the previous file.
func WhitelistDevices(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: whitelist, remedy: remedyWhitelist})
}

// whitelist holds the one step of a whitelist, and puts what was written into
// the result.
func whitelist(ctx workflow.Context, o *operation) error {
	var result WhitelistResult
	input := whitelistInput(o.work)

	undo := o.undoCall(call{
		activity: RestoreWhitelistActivity, summary: "restore the whitelist of " + o.work.Host, input: input, limit: o.in.Limits.Step,
	})

	if o.in.Abandoned {
		return o.abandon("write", undo)
	}

	err := o.step(ctx, "write", call{
		activity: WriteWhitelistActivity, summary: "whitelist on " + o.work.Host, input: input, result: &result, limit: o.in.Limits.Step,
	}, undo)
	if err != nil {
		return err
	}

	o.outcome.Result = map[string]any{
		"file": result.File, "changed": result.Changed, "sha256": result.SHA256, "notes": result.Notes,
	}
	return nil
}

// permittedWhitelist is PermittedBy for a whitelist.
func permittedWhitelist(work cyborg.Work) []Permitted {
	return []Permitted{{WriteWhitelistActivity, whitelistInput(work)}, {RestoreWhitelistActivity, whitelistInput(work)}}
}

// whitelistInput is the input of a write of the whitelist, and of its undo.
func whitelistInput(work cyborg.Work) *WhitelistInput {
	return &WhitelistInput{Operation: work.Operation, Host: work.Host, Work: *work.Whitelist}
}

// PreviewWhitelistInput asks a host what a whitelist would change.
type PreviewWhitelistInput struct {
	Host string               `json:"host"`
	Work cyborg.WhitelistWork `json:"work"`
	// AgentWait is how long to wait until the host's agent takes the request.
	AgentWait time.Duration `json:"agent_wait"`
	// Limit bounds the preview itself.
	Limit time.Duration `json:"limit"`
}

// PreviewWhitelist returns what a whitelist would change on its host, and
// changes nothing. The error is of kind ErrHostSilent where no agent took the
// request within AgentWait.
func PreviewWhitelist(ctx workflow.Context, in PreviewWhitelistInput) (cyborg.WhitelistPreview, error) {
	var out cyborg.WhitelistPreview
	err := askHost(ctx, in.Host, workflow.ActivityOptions{
		ScheduleToStartTimeout: in.AgentWait,
		StartToCloseTimeout:    in.Limit,
		Summary:                "preview the whitelist of " + in.Host,
	}, PreviewWhitelistActivity, WhitelistInput{Host: in.Host, Work: in.Work}, &out)
	return out, err
}
