package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// division is how the card of a host is divided, and how its driver divides it: after a
// note it removes all parts, and makes the new ones one by one.
type division struct {
	mu sync.Mutex
	// can says that the card can be divided.
	can bool
	// layout is how it is divided now.
	layout cyborg.Layout
	// users are who use which handles.
	users map[string]string
	// asked are the calls of the driver, in order, and changed is how often it has changed
	// the hardware.
	asked   []drivers.PartitionRequest
	changed int
	// bare says that the whole card is not offered.
	bare bool
	// protected is why the parts must not be touched; empty where they may.
	protected string
	// meanwhile, where set, is called instead of what the driver does; it returns true where
	// the driver then goes on.
	meanwhile func(ctx context.Context, request drivers.PartitionRequest) (bool, error)
}

// partOf is the name of the card's part with that number, and its handle.
func partOf(n int) (name, identity string) {
	return fmt.Sprintf("fake_vf_%d", n), fmt.Sprintf("00fa:01:10.%d", n)
}

// describe adds to the report of the card how it is divided.
func (d *division) describe(devices []cyborg.DeviceReport) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.can || len(devices) == 0 {
		return
	}

	device := &devices[0]
	device.Partitioning = &cyborg.Partitioning{
		Parts: []cyborg.PartKind{{Name: "vf", Most: 4}, {Name: "half", Most: 2}}, Layout: maps.Clone(d.layout),
	}
	if d.bare {
		device.Deployables = nil
	}
	if len(d.layout) == 0 {
		return
	}
	device.Deployables = nil
	for n := range d.layout["vf"] + d.layout["half"] {
		name, identity := partOf(n)
		device.Deployables = append(device.Deployables, cyborg.DeployableReport{
			Name: name, Handles: []cyborg.HandleReport{{Kind: cyborg.HandlePCI, Identity: identity}}, Protected: d.protected,
		})
	}
}

// isPart reports whether the handle is that of a part.
func (d *division) isPart(identity string) bool {
	for n := range cyborg.MaxParts {
		if _, part := partOf(n); part == identity {
			return true
		}
	}
	return false
}

// userOf returns who uses a handle.
func (d *division) userOf(identity string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.users[identity]
}

// set changes how the card is divided.
func (d *division) set(change func(layout cyborg.Layout)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d.layout)
	d.changed++
}

// now returns how the card is divided.
func (d *division) now() cyborg.Layout {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.layout)
}

// last returns the last call of the driver.
func (d *division) last() drivers.PartitionRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked[len(d.asked)-1]
}

func (s shim) CheckLayout(_ context.Context, _ cyborg.DeviceReport, layout cyborg.Layout) error {
	if layout["vf"] > 0 && layout["half"] > 0 {
		return cyborg.Errorf(cyborg.ErrInvalid, "these do not fit beside each other")
	}
	return nil
}

func (s shim) Partition(ctx context.Context, request drivers.PartitionRequest) error {
	d := &s.host.division
	d.mu.Lock()
	d.asked = append(d.asked, request)
	meanwhile := d.meanwhile
	d.mu.Unlock()

	return s.change("partition", func() error {
		if meanwhile != nil {
			if goesOn, err := meanwhile(ctx, request); err != nil || !goesOn {
				return err
			}
		}
		if d.now().Equal(request.Layout) {
			return nil
		}

		note, err := json.Marshal(map[string]any{"to": request.Layout.String()})
		if err != nil {
			return err
		}
		if err := request.Note(note); err != nil {
			return err
		}
		if err := s.fate.point(); err != nil {
			return err
		}
		d.set(func(layout cyborg.Layout) { clear(layout) })
		request.Progress(50, "made whole")
		for kind, count := range request.Layout {
			for range count {
				if err := s.fate.point(); err != nil {
					return err
				}
				d.set(func(layout cyborg.Layout) { layout[kind]++ })
			}
		}
		return nil
	})
}

// vfs is a layout of that many parts.
func vfs(count int) cyborg.Layout { return cyborg.Layout{"vf": count}.Normal() }

// deviceTarget is the card of the host, with these deployables as the records had them.
func deviceTarget(deployables ...string) cyborg.DeviceTarget {
	return cyborg.DeviceTarget{Backend: backend, Identity: card, Deployables: deployables}
}

// partition is the input that divides the card.
func partition(operation uuid.UUID, layout cyborg.Layout) workflows.PartitionInput {
	return workflows.PartitionInput{Operation: operation, Device: deviceTarget(region, other), Layout: layout}
}

// asBefore is the input of the undo.
func asBefore(operation uuid.UUID) workflows.RestoreLayoutInput {
	return workflows.RestoreLayoutInput{Operation: operation, Device: deviceTarget(region, other)}
}

// deviceKey is the card in the journal.
func deviceKey() journal.DeviceKey { return journal.DeviceKey{Backend: backend, Device: card} }

// divisible makes the card one that can be divided, and is whole.
func (h *host) divisible() {
	h.t.Helper()
	h.division.can, h.division.layout, h.division.users = true, cyborg.Layout{}, map[string]string{}
	h.inventory.Scan(h.t.Context())
}

// newDivisibleHost is newHost with a card that can be divided.
func newDivisibleHost(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	h.divisible()
	return h
}

// divided is newDivisibleHost with a card that is divided into that many parts.
func divided(t *testing.T, count int) *host {
	t.Helper()
	h := newDivisibleHost(t)
	h.must(workflows.PartitionActivity, partition(uuid.New(), vfs(count)), nil)
	return h
}

// loadedImages are the images that the journal has in the card.
func (h *host) loadedImages() []string { return keys(h.journal.Images(time.Now().Add(time.Hour))) }

// usePart has somebody use a part; empty for nobody.
func (h *host) usePart(n int, by string) {
	h.division.mu.Lock()
	defer h.division.mu.Unlock()
	_, identity := partOf(n)
	h.division.users[identity] = by
}

// requireDivided requires that the hardware is divided like that, and that the journal has
// what a boot has to bring back; nil for nothing.
func (h *host) requireDivided(layout, wanted cyborg.Layout) {
	h.t.Helper()
	require.Equal(h.t, layout, h.division.now())
	entry, _ := h.journal.Layout(deviceKey())
	require.Equal(h.t, wanted == nil, entry.Wanted == nil)
	require.True(h.t, wanted.Equal(entry.Wanted), "%v", entry.Wanted)
}

// shownLayout is how a report says that the card is divided, and which deployables it has.
func (h *host) shownLayout() (layout string, names []string) {
	h.t.Helper()
	for _, device := range h.inventory.Content().Backends[0].Devices {
		layout = device.Partitioning.Layout.String()
		for _, one := range device.Deployables {
			names = append(names, one.Name)
		}
	}
	return layout, names
}

// partAttachment is an attachment of a part in the journal.
func partAttachment(n int) journal.Attachment {
	name, identity := partOf(n)
	return journal.Attachment{
		Backend: backend, Handle: identity, Device: card, Deployable: name, Operation: uuid.Max, HolderKind: "host", HolderID: hostName, State: journal.Attached,
	}
}

// TestPartition: the card is divided, and the result is what it shows then. A repeat returns
// that. The driver gets its last note, whichever operation's, until the host boots.
func TestPartition(t *testing.T) {
	t.Parallel()
	h := newDivisibleHost(t)
	h.ready()
	h.load(uuid.New(), region, "old")
	require.Len(t, h.loadedImages(), 1)

	op := uuid.New()
	in := partition(op, vfs(3))
	in.Layout["half"] = 0
	var first, again workflows.PartitionResult
	h.must(workflows.PartitionActivity, in, &first)
	require.Equal(t, vfs(3), first.Observation.Device.Partitioning.Layout)
	require.Len(t, first.Observation.Device.Deployables, 3)
	require.NotZero(t, first.Observation.Sequence)
	require.Empty(t, h.division.last().Prior)
	require.Equal(t, vfs(3), h.division.last().Layout)
	h.requireDivided(vfs(3), vfs(3))
	entry, _ := h.journal.Layout(deviceKey())
	require.Equal(t, op, entry.Operation)
	require.Equal(t, "boot-1", entry.BootID)
	require.Equal(t, "boot-1", entry.NoteBootID)
	layout, names := h.shownLayout()
	require.Equal(t, "vf=3", layout)
	require.Equal(t, []string{"fake_vf_0", "fake_vf_1", "fake_vf_2"}, names)
	require.Empty(t, h.loadedImages(), "what was loaded of the whole card is gone with it")

	h.start()
	h.must(workflows.PartitionActivity, in, &again)
	require.Equal(t, first, again)
	require.Zero(t, h.fate.count("partition"))

	h.must(workflows.PartitionActivity, partition(uuid.New(), cyborg.Layout{}), nil)
	require.JSONEq(t, `{"to": "vf=3"}`, string(h.division.last().Prior))
	h.requireDivided(cyborg.Layout{}, cyborg.Layout{})
	_, names = h.shownLayout()
	require.Equal(t, []string{region, other}, names)

	h.boot = "boot-2"
	h.start()
	h.must(workflows.PartitionActivity, partition(uuid.New(), cyborg.Layout{"half": 2}), nil)
	require.Empty(t, h.division.last().Prior, "a boot has made the note untrue")

	changed := h.division.changed
	h.must(workflows.PartitionActivity, partition(uuid.New(), cyborg.Layout{"half": 2}), nil)
	require.Equal(t, changed, h.division.changed)
}

// TestPartitionThatChangesNothing: the card is divided like that already, or the driver fails
// before it has changed anything. What is loaded of it stays known.
func TestPartitionThatChangesNothing(t *testing.T) {
	t.Parallel()
	h := newDivisibleHost(t)
	h.load(uuid.New(), region, "old")
	h.must(workflows.PartitionActivity, partition(uuid.New(), cyborg.Layout{}), nil)
	require.Zero(t, h.division.changed)
	h.requireDivided(cyborg.Layout{}, cyborg.Layout{})
	require.Len(t, h.loadedImages(), 1)

	h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) {
		return false, cyborg.Errorf(cyborg.ErrHardware, "it smoked")
	}
	in := partition(uuid.New(), vfs(2))
	h.refused(cyborg.ErrHardware, workflows.PartitionActivity, in)
	h.division.meanwhile = nil
	h.must(workflows.RestoreLayoutActivity, asBefore(in.Operation), nil)
	require.Zero(t, h.division.changed)
	require.Len(t, h.loadedImages(), 1)
}

// TestPartitionInstallsAgain: what was in service, and is there afterwards, is installed again,
// by the undo as well. The agent may die in between.
func TestPartitionInstallsAgain(t *testing.T) {
	t.Parallel()
	h := newDivisibleHost(t)
	in, undo := partition(uuid.New(), vfs(3)), workflows.RestoreLayoutInput{}
	in.Device.Installed = []string{region}
	undo.Operation, undo.Device = in.Operation, in.Device
	h.must(workflows.PartitionActivity, in, nil)
	require.Zero(t, h.fate.count("install"), "it is not there")

	require.False(t, h.installed())
	for point, killed := 0, true; killed; point++ {
		require.Less(t, point, 30)
		h.startAs(&fate{dieAt: point})
		killed = h.try(workflows.RestoreLayoutActivity, undo)
	}
	require.True(t, h.installed())
	h.requireDivided(cyborg.Layout{}, nil)

	in = partition(uuid.New(), vfs(3))
	h.start()
	h.must(workflows.PartitionActivity, in, nil)
	h.edit(func(c *fake.Card) { c.Deployables["r0"].Installed = false })
	whole := partition(uuid.New(), cyborg.Layout{})
	whole.Device.Installed = []string{region}
	h.must(workflows.PartitionActivity, whole, nil)
	require.Equal(t, 1, h.fate.count("install"))
	require.True(t, h.installed())
}

// TestPartitionOfABareCard: a card that shows nothing that can be had can be divided.
func TestPartitionOfABareCard(t *testing.T) {
	t.Parallel()
	h := newDivisibleHost(t)
	h.division.bare = true
	in := partition(uuid.New(), vfs(1))
	in.Device = deviceTarget()
	h.must(workflows.PartitionActivity, in, nil)
	h.requireDivided(vfs(1), vfs(1))

	undone := asBefore(in.Operation)
	undone.Device = deviceTarget()
	h.must(workflows.RestoreLayoutActivity, undone, nil)
	h.requireDivided(cyborg.Layout{}, nil)
}

// TestPartitionIsRefused: nothing is touched of what somebody has or that cannot be divided
// like that, and the journal forgets that it was asked.
func TestPartitionIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(h *host, in *workflows.PartitionInput)
		kind    cyborg.ErrorKind
		says    string
	}{
		"in use": {
			func(h *host, _ *workflows.PartitionInput) { h.usePart(1, "qemu (pid 42)") },
			cyborg.ErrInUse, "in use by qemu (pid 42)",
		},
		"attached": {
			func(h *host, _ *workflows.PartitionInput) {
				require.NoError(h.t, h.journal.Write(journal.Change{Attachments: []journal.Attachment{partAttachment(1)}}))
			},
			cyborg.ErrInUse, "is attached since operation " + uuid.Max.String(),
		},
		"in doubt since before a boot": {
			func(h *host, _ *workflows.PartitionInput) {
				entry := partAttachment(0)
				entry.State, entry.BootID = journal.InDoubt, "boot-0"
				require.NoError(h.t, h.journal.Write(journal.Change{Attachments: []journal.Attachment{entry}}))
			},
			cyborg.ErrInUse, "is attached since operation " + uuid.Max.String(),
		},
		"attached, and not shown": {
			func(h *host, _ *workflows.PartitionInput) {
				require.NoError(h.t, h.journal.Write(journal.Change{Attachments: []journal.Attachment{partAttachment(3)}}))
			},
			cyborg.ErrInUse, "is attached since operation " + uuid.Max.String(),
		},
		"not cleaned to its end": {
			func(h *host, _ *workflows.PartitionInput) { h.unclean(1) },
			cyborg.ErrChanged, "was not cleaned to its end since operation " + uuid.Max.String(),
		},
		"protected": {
			func(h *host, _ *workflows.PartitionInput) { h.division.protected = "it has the root file system" },
			cyborg.ErrProtected, "it has the root file system",
		},
		"another card": {
			func(_ *host, in *workflows.PartitionInput) {
				in.Device.Fingerprint = cyborg.Fingerprint{Model: "fa:01", Serial: "of another"}
			},
			cyborg.ErrChanged, "there is now another card",
		},
		"gone": {
			func(h *host, _ *workflows.PartitionInput) { require.NoError(h.t, h.bench.Vanish(h.t.Context(), card)) },
			cyborg.ErrNotFound, `has no device "` + card + `"`,
		},
		"too many": {
			func(_ *host, in *workflows.PartitionInput) { in.Layout = vfs(5) },
			cyborg.ErrInvalid, "5 parts of kind vf are too many",
		},
		"no such part": {
			func(_ *host, in *workflows.PartitionInput) { in.Layout = cyborg.Layout{"third": 1} },
			cyborg.ErrInvalid, "no parts of kind",
		},
		"the driver refuses the layout": {
			func(_ *host, in *workflows.PartitionInput) { in.Layout = cyborg.Layout{"vf": 1, "half": 1} },
			cyborg.ErrInvalid, "do not fit beside each other",
		},
		"a card that cannot be divided": {
			func(h *host, _ *workflows.PartitionInput) { h.division.can = false },
			cyborg.ErrUnsupported, "cannot divide",
		},
		"a driver that cannot divide": {
			func(h *host, in *workflows.PartitionInput) {
				h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureInstall, "plain", "plain", nil), nil)
				in.Device = cyborg.DeviceTarget{Backend: "plain", Identity: "plain"}
			},
			cyborg.ErrUnsupported, "the driver of backend plain cannot divide devices",
		},
		"a disabled backend": {
			func(_ *host, in *workflows.PartitionInput) { in.Device.Backend = "off" },
			cyborg.ErrChanged, "is disabled",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := divided(t, 2)
			before, _ := h.journal.Layout(deviceKey())
			in := partition(uuid.New(), vfs(3))
			test.prepare(h, &in)
			calls, changed := h.fate.count("partition"), h.division.changed

			require.Contains(t, h.refused(test.kind, workflows.PartitionActivity, in).Message, test.says)
			require.Equal(t, calls, h.fate.count("partition"))
			require.Equal(t, changed, h.division.changed)
			after, _ := h.journal.Layout(deviceKey())
			require.Equal(t, before, after)
			_, known := h.journal.Step(journal.StepKey{Operation: in.Operation, Name: workflows.PartitionActivity})
			require.False(t, known)
		})
	}
}

// unclean leaves a part in the middle of a clean.
func (h *host) unclean(n int) {
	h.t.Helper()
	name, identity := partOf(n)
	require.NoError(h.t, h.journal.Write(journal.Change{Cleanings: []journal.Cleaning{{
		Backend: backend, Handle: identity, Device: card, Deployable: name, Operation: uuid.Max, Method: "scrub",
	}}}))
}

// TestPartitionAfterABoot: what a boot has undone is no obstacle, and neither is what another
// card had. The clean of a part that is not there any more is forgotten: the records have
// called it clean.
func TestPartitionAfterABoot(t *testing.T) {
	t.Parallel()
	h := divided(t, 2)
	lost, others := partAttachment(0), partAttachment(1)
	lost.BootID, others.Fingerprint = "boot-0", journal.Fingerprint{Model: "another"}
	require.NoError(t, h.journal.Write(journal.Change{Attachments: []journal.Attachment{lost, others}}))
	h.unclean(3)
	in := partition(uuid.New(), vfs(4))
	in.Device.Fingerprint = h.look()
	h.must(workflows.PartitionActivity, in, nil)
	h.requireDivided(vfs(4), vfs(4))
	require.Empty(t, h.journal.Cleanings())
}

// TestPartitionMakesAPartWhoseCleanWasForgotten: the agent dies at each point of a partition
// that makes a part of which the journal has a clean that did not end. The records have called
// it clean, so the step can be repeated or undone, and the clean is forgotten.
func TestPartitionMakesAPartWhoseCleanWasForgotten(t *testing.T) {
	t.Parallel()
	for _, activity := range []string{workflows.PartitionActivity, workflows.RestoreLayoutActivity} {
		for point, killed := 0, true; killed; point++ {
			require.Less(t, point, 30)
			h := divided(t, 1)
			h.unclean(2)
			in := partition(uuid.New(), vfs(3))
			h.startAs(&fate{dieAt: point})
			killed = h.try(workflows.PartitionActivity, in)
			h.start()

			if activity == workflows.PartitionActivity {
				h.must(activity, in, nil)
				h.requireDivided(vfs(3), vfs(3))
				require.Empty(t, h.journal.Cleanings())
				continue
			}
			h.must(activity, asBefore(in.Operation), nil)
			h.requireDivided(vfs(1), vfs(1))
		}
	}
}

// TestARetriedPartitionIsRefused: an earlier try has begun, so it is no refusal any more.
func TestARetriedPartitionIsRefused(t *testing.T) {
	t.Parallel()
	h := divided(t, 2)
	in := partition(uuid.New(), vfs(3))
	h.startAs(&fate{dieAt: 7}) // it has made one of the parts
	require.True(t, h.try(workflows.PartitionActivity, in))
	h.start()
	require.Equal(t, vfs(1), h.division.now())
	h.requireDivided(vfs(1), vfs(2))

	h.usePart(0, "qemu")
	require.Contains(t, h.refused(cyborg.ErrHardware, workflows.PartitionActivity, in).Message, "in use by qemu")
	h.refused(cyborg.ErrInUse, workflows.RestoreLayoutActivity, asBefore(in.Operation))
	require.Equal(t, vfs(1), h.division.now())

	h.usePart(0, "")
	h.must(workflows.RestoreLayoutActivity, asBefore(in.Operation), nil)
	h.requireDivided(vfs(2), vfs(2))
	require.JSONEq(t, `{"to": "vf=3"}`, string(h.division.last().Prior))
}

// TestWhatServedIsInstalledAgain: what was in service, and is there afterwards, is installed
// again, also by the undo; the rest is not. Where that fails, the card is not what it was.
func TestWhatServedIsInstalledAgain(t *testing.T) {
	t.Parallel()
	serves := func(layout cyborg.Layout, names ...string) workflows.PartitionInput {
		in := partition(uuid.New(), layout)
		in.Device.Installed = names
		return in
	}
	h := divided(t, 2)
	h.must(workflows.PartitionActivity, serves(cyborg.Layout{}, other), nil)
	require.False(t, h.installed())
	h.must(workflows.PartitionActivity, serves(vfs(2), region), nil)
	require.False(t, h.installed(), "it is not there any more")
	h.must(workflows.PartitionActivity, serves(cyborg.Layout{}, region, "fake_vf_0"), nil)
	require.True(t, h.installed())

	h = newDivisibleHost(t)
	in := serves(vfs(3), region)
	h.must(workflows.PartitionActivity, in, nil)
	undone := asBefore(in.Operation)
	undone.Device = in.Device
	h.must(workflows.RestoreLayoutActivity, undone, nil)
	require.True(t, h.installed())

	h = divided(t, 2)
	h.edit(func(c *fake.Card) {
		c.Fail = map[fake.Step]fake.Failure{fake.StepInstall: {Times: 1, Kind: cyborg.ErrInUse, When: fake.Before, Message: "somebody was faster"}}
	})
	in = serves(cyborg.Layout{}, region)
	require.Contains(t, h.refused(cyborg.ErrHardware, workflows.PartitionActivity, in).Message, "somebody was faster")
	h.must(workflows.RestoreLayoutActivity, asBefore(in.Operation), nil)
	h.requireDivided(vfs(2), vfs(2))
}

// TestUndoOfARetriedPartition: the first try dies half-way and the second one fails; the undo
// divides the card as it was before the first.
func TestUndoOfARetriedPartition(t *testing.T) {
	t.Parallel()
	h := divided(t, 2)
	in := partition(uuid.New(), vfs(3))
	h.startAs(&fate{dieAt: 7})
	require.True(t, h.try(workflows.PartitionActivity, in))
	h.start()
	require.Equal(t, vfs(1), h.division.now())

	h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) {
		return false, cyborg.Errorf(cyborg.ErrHardware, "it smoked")
	}
	h.refused(cyborg.ErrHardware, workflows.PartitionActivity, in)
	h.division.meanwhile = nil
	h.must(workflows.RestoreLayoutActivity, asBefore(in.Operation), nil)
	h.requireDivided(vfs(2), vfs(2))
}

// TestDriverRefusesToPartition: a refusal alone leaves the journal as it was. After a note,
// the driver may have changed something.
func TestDriverRefusesToPartition(t *testing.T) {
	t.Parallel()
	refuses := func(note string) func(context.Context, drivers.PartitionRequest) (bool, error) {
		return func(_ context.Context, request drivers.PartitionRequest) (bool, error) {
			if note != "" {
				if err := request.Note(json.RawMessage(note)); err != nil {
					return false, err
				}
			}
			return false, cyborg.Errorf(cyborg.ErrInUse, "somebody was faster")
		}
	}

	h := newDivisibleHost(t)
	h.load(uuid.New(), region, "old")
	h.unclean(2)
	cleanings := h.journal.Cleanings()
	in := partition(uuid.New(), vfs(3))
	h.division.meanwhile = refuses("")
	for range 2 { // a repeat is no different
		require.Equal(t, "somebody was faster", h.refused(cyborg.ErrInUse, workflows.PartitionActivity, in).Message)
		require.Empty(t, h.journal.Layouts())
		require.Equal(t, cleanings, h.journal.Cleanings())
		require.Len(t, h.loadedImages(), 1)
	}

	h.division.meanwhile = nil
	h.must(workflows.PartitionActivity, partition(uuid.New(), vfs(2)), nil)
	before, _ := h.journal.Layout(deviceKey())
	h.division.meanwhile = refuses("")
	h.refused(cyborg.ErrInUse, workflows.PartitionActivity, in)
	after, _ := h.journal.Layout(deviceKey())
	require.Equal(t, before, after)

	// An equal note is a note.
	h.division.meanwhile = refuses(string(before.Note))
	require.Contains(t, h.refused(cyborg.ErrHardware, workflows.PartitionActivity, in).Message, "something may have been changed before")
	h.division.meanwhile = refuses("")
	h.refused(cyborg.ErrHardware, workflows.PartitionActivity, in) // as an earlier try has left it
	h.division.meanwhile = nil
	h.must(workflows.RestoreLayoutActivity, asBefore(in.Operation), nil)
	h.requireDivided(vfs(2), vfs(2))

	next := partition(uuid.New(), vfs(3)) // a refusal whose journal cannot be written
	h.startAs(&fate{dieAt: 4})
	h.division.meanwhile = refuses("")
	require.NotNil(t, h.do(workflows.PartitionActivity, next, nil))
	h.division.meanwhile = nil
	h.start()
	h.must(workflows.PartitionActivity, next, nil)
}

// TestPartitionFails: where the driver fails, panics or has not done what was asked for, the
// next report shows what is there, and the undo divides the card as it was before.
func TestPartitionFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		meanwhile func(h *host) (bool, error)
		kind      cyborg.ErrorKind
		says      string
	}{
		"it fails":      {func(*host) (bool, error) { return false, cyborg.Errorf(cyborg.ErrHardware, "it smoked") }, cyborg.ErrHardware, "it smoked"},
		"it panics":     {func(*host) (bool, error) { panic("what a day") }, cyborg.ErrInternal, "what a day"},
		"too few":       {func(*host) (bool, error) { return false, nil }, cyborg.ErrHardware, "device " + card + " was divided (vf=3), and shows vf=1"},
		"nothing of it": {func(h *host) (bool, error) { h.division.can = false; return false, nil }, cyborg.ErrHardware, "and shows nothing of that"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := divided(t, 2)
			h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) {
				h.division.set(func(layout cyborg.Layout) { layout["vf"] = 1 })
				return test.meanwhile(h)
			}
			in := partition(uuid.New(), vfs(3))
			require.Contains(t, h.refused(test.kind, workflows.PartitionActivity, in).Message, test.says)
			if h.division.can {
				layout, _ := h.shownLayout()
				require.Equal(t, "vf=1", layout)
			}

			h.division.meanwhile, h.division.can = nil, true
			var seen workflows.ChangeResult
			h.must(workflows.RestoreLayoutActivity, asBefore(in.Operation), &seen)
			require.Equal(t, vfs(2), seen.Observation.Device.Partitioning.Layout)
			h.requireDivided(vfs(2), vfs(2))
			h.refused(cyborg.ErrCancelled, workflows.PartitionActivity, in)
		})
	}
}

// TestRestoreLayoutWhereNothingIsToDo: the step never began, or the card is divided as it was
// before, whoever uses it. A late try of the step does not begin.
func TestRestoreLayoutWhereNothingIsToDo(t *testing.T) {
	t.Parallel()
	h := divided(t, 2)
	in := partition(uuid.New(), vfs(3))
	changed := h.division.changed
	h.usePart(0, "qemu")
	var seen workflows.ChangeResult
	h.must(workflows.RestoreLayoutActivity, asBefore(in.Operation), &seen)
	require.Equal(t, card, seen.Observation.Device.Identity)
	h.refused(cyborg.ErrCancelled, workflows.PartitionActivity, in)

	h.usePart(0, "")
	next := partition(uuid.New(), vfs(3))
	h.startAs(&fate{dieAt: 2}) // the step has begun, and nothing is changed
	require.True(t, h.try(workflows.PartitionActivity, next))
	h.start()
	h.usePart(0, "qemu")
	h.must(workflows.RestoreLayoutActivity, asBefore(next.Operation), nil)
	require.Equal(t, changed, h.division.changed)
	h.requireDivided(vfs(2), vfs(2))

	require.NoError(t, h.bench.Vanish(t.Context(), card))
	var nothing workflows.ChangeResult
	h.must(workflows.RestoreLayoutActivity, asBefore(uuid.New()), &nothing)
	require.Zero(t, nothing)
	h.refused(cyborg.ErrCancelled, workflows.PartitionActivity, next)
}

// TestRestoreLayoutOfAnotherCard: a card that came into the place of the divided one is not
// touched.
func TestRestoreLayoutOfAnotherCard(t *testing.T) {
	t.Parallel()
	h := newDivisibleHost(t)
	in := partition(uuid.New(), vfs(3))
	in.Device.Fingerprint = h.look()
	h.must(workflows.PartitionActivity, in, nil)
	changed := h.division.changed
	require.NoError(t, h.bench.Exchange(t.Context(), card, "", otherSerial))

	undone := asBefore(in.Operation)
	undone.Device = in.Device
	require.Contains(t, h.refused(cyborg.ErrChanged, workflows.RestoreLayoutActivity, undone).Message, "there is now another card")
	require.Equal(t, changed, h.division.changed)

	now := partition(uuid.New(), vfs(1))
	now.Device.Fingerprint = h.look()
	h.must(workflows.PartitionActivity, now, nil)
	require.Empty(t, h.division.last().Prior, "the note is about the former card")
}

// TestUndoInstallsNothingUnderAUser: where the operation has changed nothing, its undo touches
// nothing, whoever uses the card. Where it has, what was in service is installed again, but
// not under anybody.
func TestUndoInstallsNothingUnderAUser(t *testing.T) {
	t.Parallel()
	serves := func(layout cyborg.Layout) (workflows.PartitionInput, workflows.RestoreLayoutInput) {
		in := partition(uuid.New(), layout)
		in.Device.Installed = []string{region}
		return in, workflows.RestoreLayoutInput{Operation: in.Operation, Device: in.Device}
	}
	uses := func(h *host, by string) {
		h.division.mu.Lock()
		defer h.division.mu.Unlock()
		h.division.users[handle] = by
	}

	h := newDivisibleHost(t)
	in, undone := serves(vfs(3))
	h.startAs(&fate{dieAt: 2}) // the step has begun, and nothing is changed
	require.True(t, h.try(workflows.PartitionActivity, in))
	h.start()
	uses(h, "qemu")
	h.must(workflows.RestoreLayoutActivity, undone, nil)
	require.Empty(t, h.fate.calls)
	h.requireDivided(cyborg.Layout{}, nil)

	// An earlier operation has changed it, and not this one.
	uses(h, "")
	h.must(workflows.PartitionActivity, partition(uuid.New(), vfs(2)), nil)
	h.must(workflows.PartitionActivity, partition(uuid.New(), cyborg.Layout{}), nil)
	in, undone = serves(vfs(3))
	h.startAs(&fate{dieAt: 2})
	require.True(t, h.try(workflows.PartitionActivity, in))
	h.start()
	uses(h, "qemu")
	h.must(workflows.RestoreLayoutActivity, undone, nil)
	require.Empty(t, h.fate.calls)

	// It was divided, and made whole again by an undo that was killed before it could install.
	for earlier, boots := range map[bool]string{false: "boot-1", true: "boot-2"} {
		h = newDivisibleHost(t)
		in, undone = serves(vfs(1))
		h.must(workflows.PartitionActivity, in, nil)
		if earlier { // an earlier release does not say which operation has changed the card
			entry, _ := h.journal.Layout(deviceKey())
			require.Equal(t, in.Operation, entry.Changed)
			entry.Changed = uuid.Nil
			require.NoError(t, h.journal.Write(journal.Change{Layouts: []journal.Layout{entry}}))
		}
		h.division.set(func(layout cyborg.Layout) { clear(layout) })
		h.boot = boots
		h.start()
		uses(h, "qemu")
		require.Contains(t, h.refused(cyborg.ErrInUse, workflows.RestoreLayoutActivity, undone).Message, "in use by qemu")
		require.Zero(t, h.fate.count("install"))
		uses(h, "")
		h.must(workflows.RestoreLayoutActivity, undone, nil)
		require.Equal(t, 1, h.fate.count("install"))
		require.True(t, h.installed())
	}
}

// TestPartitionInstallsWhatAnotherHasLeft: the card is divided like that already, by a
// partition that has failed before it could install anything.
func TestPartitionInstallsWhatAnotherHasLeft(t *testing.T) {
	t.Parallel()
	h := newDivisibleHost(t)
	in := partition(uuid.New(), cyborg.Layout{})
	in.Device.Installed = []string{region}
	h.must(workflows.PartitionActivity, in, nil)
	require.Zero(t, h.division.changed)
	require.True(t, h.installed())
}

// TestUndoByTheRecords: where the journal was lost, the undo divides the card as the records
// had it, with the same guards, and installs again what was in service. Nothing is touched of
// a card that is as they had it, whoever uses it.
func TestUndoByTheRecords(t *testing.T) {
	t.Parallel()
	for _, tries := range []string{"undo", "again and undo"} {
		for point, killed := 0, true; killed; point++ {
			require.Less(t, point, 30)
			h := newDivisibleHost(t)
			in := partition(uuid.New(), vfs(3))
			in.Device.Layout, in.Device.Installed = cyborg.Layout{}, []string{region}
			undone := workflows.RestoreLayoutInput{Operation: in.Operation, Device: in.Device}
			h.startAs(&fate{dieAt: point})
			killed = h.try(workflows.PartitionActivity, in)
			h.lose()
			require.NoError(t, h.journal.Restart(journal.Position{Opening: uuid.New(), Writes: 7}))
			require.NoError(t, h.journal.SetFloor(journal.Floor{}))
			if tries == "again and undo" {
				h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) {
					return false, cyborg.Errorf(cyborg.ErrHardware, "it smoked")
				}
				h.refused(cyborg.ErrHardware, workflows.PartitionActivity, in)
				h.division.meanwhile = nil
			}

			whole := h.division.now().Equal(nil)
			h.usePart(0, "qemu")
			if !whole {
				require.Contains(t, h.refused(cyborg.ErrInUse, workflows.RestoreLayoutActivity, undone).Message, "in use by qemu")
				h.usePart(0, "")
			}
			h.must(workflows.RestoreLayoutActivity, undone, nil)
			h.requireDivided(cyborg.Layout{}, nil)
			require.Equal(t, !whole, h.installed(), "what was not made anew is left alone")
			h.refused(cyborg.ErrCancelled, workflows.PartitionActivity, in)
		}
	}

	// The layout is the same, and something of it is not there: an interrupted partition.
	h := newDivisibleHost(t)
	require.NoError(t, h.journal.Restart(journal.Position{Opening: uuid.New(), Writes: 7}))
	require.NoError(t, h.journal.SetFloor(journal.Floor{}))
	h.division.bare = true
	in := asBefore(uuid.New())
	in.Device.Layout = cyborg.Layout{}
	h.must(workflows.RestoreLayoutActivity, in, nil)
	require.Equal(t, 1, h.fate.count("partition"))
}

// TestPartitionWithALostJournal: the first try is killed at each of its points, or completes,
// and then the journal is lost. The step can be repeated. Its undo does nothing where the
// card shows what the records had, and fails where nobody knows how it was divided, also after
// another try, which has found what the first one has left.
func TestPartitionWithALostJournal(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"again", "undo", "again and undo"} {
		for point, killed := 0, true; killed; point++ {
			h := newDivisibleHost(t)
			in := partition(uuid.New(), vfs(3))
			h.startAs(&fate{dieAt: point})
			killed = h.try(workflows.PartitionActivity, in)
			h.lose()
			require.NoError(t, h.journal.Restart(journal.Position{Opening: uuid.New(), Writes: 7}))
			require.NoError(t, h.journal.SetFloor(journal.Floor{}))
			if how == "again and undo" {
				h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) {
					return false, cyborg.Errorf(cyborg.ErrHardware, "it smoked")
				}
				h.refused(cyborg.ErrHardware, workflows.PartitionActivity, in)
				h.division.meanwhile = nil
			}

			switch {
			case how == "again":
				h.must(workflows.PartitionActivity, in, nil)
				h.requireDivided(vfs(3), vfs(3))
			case h.division.now().Equal(nil):
				h.must(workflows.RestoreLayoutActivity, asBefore(in.Operation), nil)
				h.refused(cyborg.ErrCancelled, workflows.PartitionActivity, in)
			default:
				before := h.division.now()
				err := h.refused(cyborg.ErrHardware, workflows.RestoreLayoutActivity, asBefore(in.Operation))
				require.Contains(t, err.Message, "nobody knows how device "+card+" was divided before")
				require.Equal(t, before, h.division.now())
				h.must(workflows.PartitionActivity, partition(uuid.New(), cyborg.Layout{}), nil)
			}
		}
	}

	// The journal that was lost long ago knows the card since.
	h := divided(t, 2)
	require.NoError(t, h.journal.Restart(journal.Position{Opening: uuid.New(), Writes: 7}))
	require.NoError(t, h.journal.SetFloor(journal.Floor{}))
	h.must(workflows.PartitionActivity, partition(uuid.New(), vfs(1)), nil)
	h.must(workflows.RestoreLayoutActivity, asBefore(uuid.New()), nil)
	h.requireDivided(vfs(1), vfs(1))
}

// TestLatePartition: nothing of a card, neither what it had nor what it has, is touched by
// what was decided before its partition, and no earlier partition divides it.
func TestLatePartition(t *testing.T) {
	t.Parallel()
	h := newDivisibleHost(t)
	h.ready()
	in := partition(uuid.New(), vfs(2))
	in.Addressee = numbered(10)
	h.must(workflows.PartitionActivity, in, nil)
	h.start()

	early := partition(uuid.New(), vfs(1))
	early.Addressee, early.Device.Deployables = numbered(9), nil
	h.requireLate(workflows.PartitionActivity, early, "number 9 comes too late for device "+card+": this host has seen 10")
	undone := asBefore(early.Operation)
	undone.Addressee = numbered(9)
	h.requireLate(workflows.RestoreLayoutActivity, undone, "number 9 comes too late for device "+card)

	name, identity := partOf(1)
	for deployable, handle := range map[string]string{region: handle, name: identity} {
		late := attach(uuid.New(), handle)
		late.Addressee, late.Target.Deployable = numbered(9), deployable
		h.requireLate(workflows.AttachActivity, late, "number 9 comes too late for "+deployable+": this host has seen 10")
	}

	// What a part has seen since keeps an earlier partition from dividing its card.
	used := workflows.InstallInput{Addressee: numbered(12), Operation: uuid.New(), Target: part(name)}
	h.refused(cyborg.ErrHardware, workflows.InstallActivity, used) // the fake park knows no parts
	between := partition(uuid.New(), vfs(1))
	between.Addressee = numbered(11)
	h.requireLate(workflows.PartitionActivity, between, "number 11 comes too late for "+name)
	require.Equal(t, vfs(2), h.division.now())
}
