package drivers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// Example uses a driver as a library, on a host without a server, a database or
// an agent: it finds the devices, attaches a handle and detaches it again.
func Example() {
	dir, err := os.MkdirTemp("", "cyborg")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()

	if err := attachAndDetach(context.Background(), dir); err != nil {
		fmt.Println(err)
	}

	// Output:
	// services: [discover install attach program clean partition in_use usage health watch]
	// found GPU 00fb:01:00.0 with 1 handle
	// attached: true
	// attached: false
}

// attachAndDetach attaches the first handle of the fake driver and detaches it.
// All files are in the directory.
func attachAndDetach(ctx context.Context, dir string) error {
	driver, err := fake.New(drivers.Environment{
		Host: "node1", Backend: "fake", Root: "/", StateDir: dir,
	}, map[string]any{"park": "1xgpu", "attach_latency": "10ms"})
	if err != nil {
		return err
	}
	fmt.Println("services:", drivers.Services(driver))

	devices, err := driver.Discover(ctx)
	if err != nil {
		return err
	}
	device := devices[0]
	target := drivers.Target{Device: device, Deployable: device.Deployables[0]}
	handle := target.Deployable.Handles[0]
	fmt.Println("found", device.Type, device.Identity, "with", len(target.Deployable.Handles), "handle")

	// What a driver can do beyond Discover is optional, so it is asked for.
	if installer, ok := driver.(drivers.Installer); ok {
		if err := installer.Install(ctx, target); err != nil {
			return err
		}
	}
	attacher, ok := driver.(drivers.Attacher)
	if !ok {
		return errors.New("this driver attaches nothing")
	}

	noteFile := filepath.Join(dir, "note.json")
	if err := attacher.Attach(ctx, drivers.AttachRequest{
		Target: target,
		Handle: handle,
		Holder: cyborg.Holder{Kind: cyborg.HolderHost, ID: "node1"},
		Note:   noteIn(noteFile),
	}); err != nil {
		return err
	}
	if err := printAttached(ctx, attacher, target, handle); err != nil {
		return err
	}

	// The note is read back, because the detach may happen in another process.
	prior, err := os.ReadFile(noteFile)
	if err != nil {
		return err
	}
	if err := attacher.Detach(ctx, drivers.DetachRequest{Target: target, Handle: handle, Prior: prior}); err != nil {
		return err
	}

	return printAttached(ctx, attacher, target, handle)
}

// noteIn returns a Note that stores the note in a file. The file is synced,
// because the note must survive a crash of the host.
func noteIn(path string) drivers.Note {
	return func(note json.RawMessage) error {
		file, err := os.Create(path)
		if err != nil {
			return err
		}

		_, err = file.Write(note)
		return errors.Join(err, file.Sync(), file.Close())
	}
}

// printAttached prints what the hardware says about the handle.
func printAttached(ctx context.Context, attacher drivers.Attacher, target drivers.Target, handle cyborg.HandleReport) error {
	attached, err := attacher.Attached(ctx, drivers.AttachedRequest{Target: target, Handle: handle, Holder: cyborg.HolderHost})
	if err != nil {
		return err
	}

	fmt.Println("attached:", attached)
	return nil
}
