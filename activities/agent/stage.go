package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/images"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// StagedFor is how long a staged image is kept for its operation, which may
// wait that long for an agent or an operator before it loads the image.
const StagedFor = 24 * time.Hour

// stage brings an image to the host and has the driver check that it fits the
// target. It does not touch the hardware.
func (a *Activities) stage(ctx context.Context, t *try, in workflows.StageInput) (workflows.StageResult, error) {
	var result workflows.StageResult
	if err := a.Journal.Raise(in.Assignment, subjectOf(in.Target)); err != nil {
		return result, err
	}

	found, err := a.findToChange(ctx, in.Target, freshEnough)
	if err != nil {
		return result, err
	}

	programmer, err := programmerOf(found)
	if err != nil {
		return result, err
	}

	request := images.Request{Image: in.Image, Fetch: in.Fetch, Once: in.Fetch != ""}
	if request.Fetch == "" {
		// Without a URL of its own, the image is fetched from the conductor, which
		// looks the source up by the operation.
		request.Fetch = workflows.ImagesPath + in.Operation.String()
	}

	image, err := a.Images.Stage(ctx, request, func(done, all int64) {
		if all > 0 {
			t.heartbeat.setProgress(int(100*done/all), fmt.Sprintf("%d of %d bytes", done, all))
		} else {
			t.heartbeat.setProgress(unknownProgress, fmt.Sprintf("%d bytes", done))
		}
	})
	if err != nil {
		return result, err
	}

	// Nothing is locked while the image comes, because others may use the device
	// meanwhile. If something later has passed, nobody waits for the image any more.
	if err := a.Journal.Raise(in.Assignment, subjectOf(in.Target)); err != nil {
		return result, err
	}

	// The journal must know the image before the check, or the cache might drop it
	// before the program step.
	staged := journal.Staged{Operation: in.Operation, SHA256: image.SHA256}
	if err := a.Journal.Write(journal.Change{Staged: []journal.Staged{staged}}); err != nil {
		return result, err
	}

	t.heartbeat.setProgress(unknownProgress, "checking the image")

	in.Image.SHA256 = image.SHA256
	err = t.guarded("check of the image", func() error {
		return programmer.CheckImage(ctx, found.Target, image.Path, in.Image)
	})
	if err != nil {
		return result, err
	}

	return workflows.StageResult{SHA256: image.SHA256, Size: image.Size}, nil
}

// programmerOf returns the driver as a Programmer. The error is of kind
// ErrUnsupported if the driver cannot load images.
func programmerOf(found inventory.Found) (drivers.Programmer, error) {
	programmer, ok := found.Driver.(drivers.Programmer)
	if !ok {
		return nil, cyborg.Errorf(cyborg.ErrUnsupported, "the driver of %s cannot load images", found.Deployable.Name)
	}
	return programmer, nil
}
