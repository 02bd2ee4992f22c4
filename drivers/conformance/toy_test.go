package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/conformance"
)

// hardware is one card in memory, with two regions of two handles each. It
// outlives its drivers.
type hardware struct {
	sync.Mutex
	vanished  bool
	card      int           // the number of the card that is there now
	slow      chan struct{} // closed when steps are quick again; nil while they are
	installed map[string]bool
	attached  map[string]bool
	holders   map[string]cyborg.HolderKind // of what is attached
	set       map[string]map[string]string // the parameters of what is attached
	devices   map[string]uuid.UUID         // the mediated devices of what is attached
	users     map[string]string
	images    map[string]string
	traces    int
	changed   chan struct{} // closed at the next change that a watch tells of
	staged    int
	ill       map[string]bool
	left      map[string]residue // by handle
	cleans    int                // how often a clean has changed something
	sticks    bool
	layout    cyborg.Layout // nil while it is whole; empty while it is neither
	fewer     bool
	divided   int // how often a partition has changed something
}

// residue is what somebody has left on a handle.
type residue struct{ registers, stored bool }

// snapshot returns everything that a driver can change.
func (h *hardware) snapshot(*testing.T) string {
	h.Lock()
	defer h.Unlock()
	return fmt.Sprint(h.vanished, h.card, h.installed, h.attached, h.holders, h.set, h.devices, h.users, h.images, h.traces, h.cleans, h.layout == nil, h.layout, h.divided)
}

// setVanished takes the card off the bus or puts it back, with nothing
// attached.
func (h *hardware) setVanished(vanished bool) {
	h.Lock()
	defer h.Unlock()
	h.vanished, h.layout = vanished, nil
	h.detachAll()
	close(h.changed)
	h.changed = make(chan struct{})
}

// detachAll detaches everything. The caller holds the lock.
func (h *hardware) detachAll() {
	clear(h.attached)
	clear(h.holders)
	clear(h.set)
	clear(h.devices)
}

// shared is the function of the handles of deployable b.
var shared = cyborg.PCIAddress{Bus: 2}

// toy is a driver of hardware in memory. It is correct except for one defect.
type toy struct {
	bareToy
}

// bareToy is a driver that can only discover.
type bareToy struct {
	*hardware
	defect string
	memory *memory
}

// memory is the state of a toy that is lost when the driver restarts.
type memory struct {
	sync.Mutex
	asking atomic.Int64
	closed bool
	calls  int
	tries  map[string]bool
	wanted cyborg.Layout // by the last partition; guarded by the hardware's lock
	// pending is the image that was loaded last.
	pending string
}

// newDriver returns a toy with an empty memory, as after a restart.
func newDriver(h *hardware, defect string) toy {
	return toy{bareToy{h, defect, &memory{tries: map[string]bool{}}}}
}

// newToy returns a rig with new hardware and a toy that has this defect, or
// none.
func newToy(defect string) *conformance.Rig {
	h := &hardware{
		installed: map[string]bool{}, attached: map[string]bool{}, users: map[string]string{}, images: map[string]string{}, ill: map[string]bool{},
		holders: map[string]cyborg.HolderKind{}, set: map[string]map[string]string{}, changed: make(chan struct{}),
		left: map[string]residue{}, devices: map[string]uuid.UUID{},
	}

	rig := &conformance.Rig{
		Driver: newDriver(h, defect),
		Restart: func(*testing.T) drivers.Driver {
			h.Lock()
			defer h.Unlock()
			if defect == "forgets attachments at restart" {
				h.detachAll()
			}
			if defect == "forgets at restart" {
				h.traces++
			}
			if defect == "forgets its layout at restart" {
				h.layout = nil
			}
			return newDriver(h, defect)
		},
		Snapshot: h.snapshot,
		Use: func(_ *testing.T, _ drivers.Target, handle cyborg.HandleReport) func() {
			use := func(by string) {
				h.Lock()
				defer h.Unlock()
				h.users[handle.Identity] = by
				if by == "" {
					delete(h.users, handle.Identity)
				}
			}
			use("a test")
			return func() { use("") }
		},
		Leave: func(_ *testing.T, _ drivers.Target, handle cyborg.HandleReport) {
			h.Lock()
			defer h.Unlock()
			h.left[handle.Identity] = residue{registers: true, stored: true}
		},
		Left: func(_ *testing.T, _ drivers.Target, handle cyborg.HandleReport) (methods []cyborg.CleanMethod) {
			h.Lock()
			defer h.Unlock()
			if h.left[handle.Identity].registers {
				methods = append(methods, cyborg.CleanReset)
			}
			if h.left[handle.Identity].stored {
				methods = append(methods, cyborg.CleanScrub)
			}
			return methods
		},
		Stick: func(*testing.T, drivers.Target, cyborg.HandleReport) {
			h.Lock()
			defer h.Unlock()
			h.sticks = true
		},
		Fewer: func(*testing.T, cyborg.DeviceReport) {
			h.Lock()
			defer h.Unlock()
			h.fewer = true
		},
		GoodImage: func(t *testing.T, _ drivers.Target) (string, cyborg.Image) {
			t.Helper()
			h.Lock()
			defer h.Unlock()
			h.staged++
			return stage(t, "good", h.staged)
		},
		BadImage: func(t *testing.T, _ drivers.Target) (string, cyborg.Image) {
			t.Helper()
			return stage(t, "bad", 0)
		},
		FallIll: func(_ *testing.T, target drivers.Target) func() {
			set := func(ill bool) {
				h.Lock()
				defer h.Unlock()
				h.ill[target.Deployable.Name] = ill || defect == "stays ill"
			}
			set(true)
			return func() { set(false) }
		},
		Slow: func(*testing.T) func() {
			h.Lock()
			defer h.Unlock()
			h.slow = make(chan struct{})
			return func() {
				h.Lock()
				defer h.Unlock()
				close(h.slow)
				h.slow = nil
			}
		},
		Exchange: func(*testing.T, cyborg.DeviceReport) {
			h.Lock()
			defer h.Unlock()
			h.card++
			h.layout = nil
			clear(h.installed)
			h.detachAll()
		},
		Vanish: func(*testing.T, cyborg.DeviceReport) func() {
			h.setVanished(true)
			return func() { h.setVanished(false) }
		},
	}

	if defect == "lacks a service" {
		rig.Driver = withoutWatch{toy: newDriver(h, defect)}
	}

	return rig
}

// newBareToy returns a rig with a driver that can only discover, and has this defect, or
// none.
func newBareToy(defect string) *conformance.Rig {
	rig := newToy(defect)
	bare := rig.Driver.(toy).bareToy
	return &conformance.Rig{Driver: bare, Restart: func(*testing.T) drivers.Driver { return bare }}
}

// withoutWatch hides a toy's Watch.
type withoutWatch struct {
	drivers.Driver
	toy toy
}

// stage writes an image whose content is the word, with an id that is unique by
// its number.
func stage(t *testing.T, word string, number int) (string, cyborg.Image) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, []byte(word), 0o600))
	return path, cyborg.Image{Source: "image", ID: word + strconv.Itoa(number)}
}

// remember tells whether the driver has seen the word before.
func (d bareToy) remember(word string) bool {
	d.memory.Lock()
	defer d.memory.Unlock()
	before := d.memory.tries[word]
	d.memory.tries[word] = true
	return before
}

// preparation is that of each of the toy's deployables.
func (d toy) preparation() *cyborg.Preparation {
	parameters := []cyborg.Parameter{
		{Name: "mac", Type: cyborg.ParameterMAC, Help: "The MAC address."},
		{Name: "vlan", Type: cyborg.ParameterInteger, Max: 4094, Help: "The VLAN; 0 for none."},
		{Name: "link", Type: cyborg.ParameterChoice, Values: []string{"auto", "up", "down"}, Help: "The state of the link."},
		{Name: "trust", Type: cyborg.ParameterBoolean, Help: "Whether it may do as it likes."},
	}

	switch d.defect {
	case "names a parameter badly":
		parameters[0].Name = "MAC address"
	case "has a parameter twice":
		parameters[0].Name = parameters[1].Name
	case "has a parameter of another type":
		parameters[0].Type = "text"
	case "does not explain a parameter":
		parameters[0].Help = ""
	case "has a parameter without values":
		parameters[2].Values = nil
	case "has an empty range":
		parameters[1].Min = 4095
	case "has a range of words":
		parameters[3].Max = 1
	}
	return &cyborg.Preparation{Parameters: parameters}
}

// cleaning is that of each of the toy's deployables.
func (d toy) cleaning() *cyborg.Cleaning {
	switch d.defect {
	case "cleans without saying so":
		return nil
	case "has no way to clean":
		return &cyborg.Cleaning{}
	case "cleans in a way that nobody knows":
		return &cyborg.Cleaning{Methods: []cyborg.CleanMethod{cyborg.CleanReset, "wash"}}
	case "names its strongest way first":
		return &cyborg.Cleaning{Methods: []cyborg.CleanMethod{cyborg.CleanScrub, cyborg.CleanReset}}
	case "names a way to clean twice":
		return &cyborg.Cleaning{Methods: []cyborg.CleanMethod{cyborg.CleanReset, cyborg.CleanReset}}
	case "demands what it cannot do":
		return &cyborg.Cleaning{Methods: []cyborg.CleanMethod{cyborg.CleanReset}, After: cyborg.CleanScrub}
	}
	return &cyborg.Cleaning{Methods: cyborg.CleanMethods(), After: cyborg.CleanReset}
}

// Discover adds to what every toy reports that the host prepares all handles, and cleans
// them, and shows the parts of a divided toy.
func (d toy) Discover(ctx context.Context) ([]cyborg.DeviceReport, error) {
	devices, err := d.bareToy.Discover(ctx)
	if err == nil {
		devices, err = d.withParts(devices)
	}
	for _, device := range devices {
		for i := range device.Deployables {
			device.Deployables[i].Preparation, device.Deployables[i].Cleaning = d.preparation(), d.cleaning()
		}
		for i := range device.Deployables {
			switch d.defect {
			case "gives one function to two":
				device.Deployables[i].Handles[0].With = []cyborg.PCIAddress{{Bus: 1}}
			case "gives a handle away with another":
				device.Deployables[0].Handles[0].With = []cyborg.PCIAddress{shared}
			}
		}
	}
	return devices, err
}

func (d bareToy) Discover(ctx context.Context) ([]cyborg.DeviceReport, error) {
	if ctx.Err() != nil && d.defect != "ignores its context" {
		return nil, ctx.Err()
	}
	if asking := d.memory.asking.Add(1); asking > 1 && d.defect == "answers one at a time" {
		return nil, cyborg.Errorf(cyborg.ErrHardware, "someone else is asking")
	}
	runtime.Gosched() // gives concurrent calls a chance to overlap
	defer d.memory.asking.Add(-1)

	d.Lock()
	defer d.Unlock()
	if d.vanished && d.defect != "shows what vanished" {
		return []cyborg.DeviceReport{}, nil
	}
	if d.defect == "shows nothing while attached" && len(d.attached) > 0 {
		return []cyborg.DeviceReport{}, nil
	}

	device := cyborg.DeviceReport{
		Identity: "toy", Type: cyborg.DeviceTypeFPGA, VendorID: "toy", ProductID: "toy", Vendor: "Toys", Model: "T", Fingerprint: d.fingerprint(),
		ControlPath: cyborg.ControlPath{Kind: "DEV", Info: map[string]string{"path": "/dev/toy"}},
	}

	for _, name := range []string{"a", "b"} {
		deployable := cyborg.DeployableReport{
			Name: name, ProgramSet: name, BitstreamID: d.images[name],
			Specs:      cyborg.Specs{Num: 2, DeviceType: cyborg.DeviceTypeFPGA},
			Attributes: []cyborg.Attribute{{Key: "rc", Value: "FPGA"}, {Key: "trait0", Value: "CUSTOM_TOY"}},
		}
		for _, suffix := range []string{"0", "1"} {
			deployable.Handles = append(deployable.Handles, cyborg.HandleReport{
				Kind: cyborg.HandleDEV, Identity: name + suffix, Info: map[string]string{"path": "/dev/toy/" + name + suffix},
			})
		}
		if name == "b" { // its handles are shares of one function
			for i := range deployable.Handles {
				deployable.Handles[i].Kind, deployable.Handles[i].Info = cyborg.HandleTestPCI, shared.HandleInfo()
			}
		}
		device.Deployables = append(device.Deployables, deployable)
	}

	if d.defect == "reports parts that it cannot make" {
		device.Partitioning = &cyborg.Partitioning{Parts: []cyborg.PartKind{{Name: "piece", Most: 1}}, Layout: cyborg.Layout{}}
	}
	if d.defect == "reports what it cannot do" {
		device.Deployables[1].Cleaning = &cyborg.Cleaning{Methods: cyborg.CleanMethods()}
	}
	if d.defect == "reports an image that it cannot load" {
		device.Deployables[1].PendingImage = &cyborg.PendingImage{BitstreamID: "next", Until: cyborg.ActivationReboot}
	}
	if d.defect == "names a deployable twice" {
		device.Deployables[1].Name = device.Deployables[0].Name
	}
	if d.defect == "excludes itself" {
		device.Deployables[0].Excludes = []string{device.Deployables[0].Name}
	}
	if d.defect == "changes what it excludes" && len(d.attached) > 0 {
		device.Deployables[0].Excludes = []string{device.Deployables[1].Name}
	}
	if d.memory.calls++; d.defect == "lists in another order" && d.memory.calls%2 == 0 {
		slices.Reverse(device.Deployables)
	}

	return []cyborg.DeviceReport{device}, nil
}

// fingerprint is that of the card that is there now. The caller holds the lock.
func (d bareToy) fingerprint() cyborg.Fingerprint {
	if d.defect == "looks like another card while attached" && len(d.attached) > 0 {
		return cyborg.Fingerprint{Model: "toy in use"}
	}
	if d.defect == "looks like another card once cleaned" && d.cleans > 0 {
		return cyborg.Fingerprint{Model: "clean toy"}
	}
	if d.defect == "looks like another card once divided" && d.layout != nil {
		return cyborg.Fingerprint{Model: "broken toy"}
	}
	return cyborg.Fingerprint{Model: "toy", Serial: strconv.Itoa(d.card)}
}

// checkCard refuses another card than the target's, unless the driver has the
// defect.
func (d toy) checkCard(target drivers.Target, defect string) error {
	d.Lock()
	defer d.Unlock()
	if target.Device.Fingerprint.Other(d.fingerprint()) && d.defect != defect {
		return cyborg.Errorf(cyborg.ErrChanged, "it is another toy")
	}
	return nil
}

// begin checks before each change that the context has not ended and that the
// hardware is there. Each of the two defects leaves one check out.
func (d toy) begin(ctx context.Context, carelessly, touchesGhosts string) error {
	if ctx.Err() != nil && d.defect != carelessly {
		return ctx.Err()
	}

	d.Lock()
	defer d.Unlock()
	if d.vanished && d.defect != touchesGhosts {
		return cyborg.Errorf(cyborg.ErrHardware, "the toy is gone")
	}
	return nil
}

// wait waits as long as the hardware is slow.
func (d toy) wait(ctx context.Context) error {
	d.Lock()
	slow := d.slow
	d.Unlock()
	if slow == nil {
		return nil
	}

	select {
	case <-slow:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d toy) Install(ctx context.Context, target drivers.Target) error {
	if err := d.begin(ctx, "begins an install without a context", "installs what vanished"); err != nil {
		return err
	}
	if err := d.checkCard(target, "installs another card"); err != nil {
		return err
	}
	if err := d.wait(ctx); err != nil {
		return err
	}

	if d.remember("install") && d.defect == "installs once only" {
		return cyborg.Errorf(cyborg.ErrHardware, "it is installed already")
	}

	d.Lock()
	defer d.Unlock()
	d.installed[target.Deployable.Name] = true
	return nil
}

func (d toy) Uninstall(_ context.Context, target drivers.Target) error {
	d.Lock()
	defer d.Unlock()
	if d.defect != "does not uninstall" {
		delete(d.installed, target.Deployable.Name)
	}
	return nil
}

func (d toy) Attach(ctx context.Context, request drivers.AttachRequest) error {
	if err := d.begin(ctx, "begins an attach without a context", "attaches what vanished"); err != nil {
		return err
	}
	if err := d.checkCard(request.Target, "attaches another card"); err != nil {
		return err
	}

	guest := request.Holder.Kind != cyborg.HolderHost
	if guest && d.defect == "attaches to its host only" {
		return nil
	}
	if guest && request.Prior != nil && d.defect == "prepares once only" {
		return cyborg.Errorf(cyborg.ErrHardware, "it is prepared already")
	}
	if d.defect == "resets before it looks at parameters" {
		d.Lock()
		delete(d.set, request.Handle.Identity)
		d.Unlock()
	}
	if d.defect != "takes any parameter" {
		if err := d.preparation().Check(request.Parameters); err != nil {
			return err
		}
	}

	if d.defect == "attaches nothing that was cleaned" && d.hasCleaned() {
		return cyborg.Errorf(cyborg.ErrHardware, "its driver is unbound")
	}
	if _, part := strings.CutPrefix(request.Target.Deployable.Name, "toy-"); part && d.defect == "makes parts that cannot be attached" {
		return cyborg.Errorf(cyborg.ErrHardware, "it is a part")
	}
	if d.defect == "fails to attach over a note" && request.Prior != nil {
		return cyborg.Errorf(cyborg.ErrHardware, "there is a note already")
	}
	if d.remember("attach") && d.defect == "attaches once only" {
		return cyborg.Errorf(cyborg.ErrHardware, "it is attached already")
	}

	if err := d.checkTaken(request); err != nil {
		return err
	}

	touch := func() {
		d.Lock()
		defer d.Unlock()
		d.give(request)
		if d.defect == "attaches all handles" {
			for _, handle := range request.Target.Deployable.Handles {
				d.attached[handle.Identity], d.holders[handle.Identity] = true, request.Holder.Kind
			}
		}
	}

	if d.defect == "touches before it notes" {
		touch()
	}
	if err := request.Note(json.RawMessage(`{"handle": "toy"}`)); err != nil && d.defect != "attaches without its note" {
		return err
	}

	if d.defect == "stays half attached" {
		d.Lock()
		d.traces++
		d.Unlock()
	}

	if err := d.wait(ctx); err != nil {
		if d.defect == "stays between two choices" && request.Prior != nil {
			d.Lock()
			defer d.Unlock()
			d.traces++
		}
		return err
	}

	touch()
	return nil
}

// checkTaken refuses to give what somebody uses to another kind of holder.
func (d toy) checkTaken(request drivers.AttachRequest) error {
	d.Lock()
	defer d.Unlock()
	handle := request.Handle.Identity
	if d.attached[handle] && d.holders[handle] != request.Holder.Kind && d.users[handle] != "" && d.defect != "gives another holder what is used" {
		return cyborg.Errorf(cyborg.ErrInUse, "%s is in use by %s", handle, d.users[handle])
	}
	return nil
}

// give attaches the handle of the request. The caller holds the lock.
func (d toy) give(request drivers.AttachRequest) {
	handle, again := request.Handle.Identity, d.attached[request.Handle.Identity]
	d.attached[handle] = true
	if !again || d.defect != "keeps its first holder" {
		d.holders[handle] = request.Holder.Kind
	}

	switch {
	case d.defect == "keeps its first parameters" && again:
	case d.defect == "ignores parameters":
	case d.defect == "drops the parameters of its host" && request.Holder.Kind == cyborg.HolderHost:
	case slices.Contains([]string{"keeps parameters that are left out", "detaches without its parameters", "needs its note to forget"}, d.defect):
		if d.set[handle] == nil {
			d.set[handle] = map[string]string{}
		}
		maps.Copy(d.set[handle], request.Parameters)
	default:
		d.set[handle] = maps.Clone(request.Parameters)
	}
}

func (d toy) Detach(ctx context.Context, request drivers.DetachRequest) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}

	d.Lock()
	defer d.Unlock()
	handle := request.Handle.Identity
	switch d.defect {
	case "cannot detach what vanished":
		if d.vanished {
			return cyborg.Errorf(cyborg.ErrHardware, "the toy is gone")
		}
	case "cannot detach from another card":
		if request.Target.Device.Fingerprint.Other(d.fingerprint()) {
			return cyborg.Errorf(cyborg.ErrChanged, "it is another toy")
		}
	case "detaches only what is attached":
		if !d.attached[handle] {
			return cyborg.Errorf(cyborg.ErrHardware, "it is not attached")
		}
	case "undoes nothing":
		if request.Undo {
			return nil
		}
	case "undoes nothing of an instance":
		if request.Undo && request.Holder.Kind == cyborg.HolderInstance {
			return nil
		}
	case "takes handles from guests":
		if request.Holder.Kind != cyborg.HolderHost {
			delete(d.users, handle)
		}
	case "detaches from its host only":
		if request.Holder.Kind == cyborg.HolderService {
			return nil
		}
	case "detaches before it asks for users":
		delete(d.attached, handle)
	case "takes handles from their user":
		delete(d.users, handle)
	case "leaves a trace of each attach":
		d.traces++
	}

	if d.users[handle] != "" {
		return cyborg.Errorf(cyborg.ErrInUse, "it is in use by %s", d.users[handle])
	}
	delete(d.attached, handle)
	delete(d.holders, handle)
	if d.defect != "detaches without its parameters" && (request.Prior != nil || d.defect != "needs its note to forget") {
		delete(d.set, handle)
	}
	return nil
}

// hasCleaned says whether anything was cleaned.
func (d toy) hasCleaned() bool {
	d.Lock()
	defer d.Unlock()
	return d.cleans > 0
}

// Clean removes what each method up to that of the request removes, with a note before
// each.
func (d toy) Clean(ctx context.Context, request drivers.CleanRequest) (cyborg.Evidence, error) {
	none := cyborg.Evidence{}
	if err := d.begin(ctx, "begins a clean without a context", "cleans what vanished"); err != nil {
		return none, err
	}
	if err := d.checkCard(request.Target, "cleans another card"); err != nil {
		return none, err
	}
	if d.defect == "cleans before it asks for users" {
		d.wipe(request, cyborg.CleanReset)
	}
	if err := d.checkUnused(request.Handle.Identity); err != nil {
		return none, err
	}

	switch before := string(request.Prior); {
	case d.defect == "cleans once only" && d.hasCleaned():
		return none, cyborg.Errorf(cyborg.ErrHardware, "it is clean already")
	case d.defect == "takes what it has noted for done" && before != "":
		return d.evidence(request.Method), nil
	case d.defect == "fails to clean over a note" && before != "":
		return none, cyborg.Errorf(cyborg.ErrHardware, "a clean has begun")
	case d.defect == "goes on as it has begun" && before != "" && before != string(d.cleanNote(request.Method)):
		request.Method = cyborg.CleanReset
	}

	for part, method := range cyborg.CleanMethods() {
		if !request.Method.Covers(method) {
			break
		}
		if d.defect == "cleans before it notes" {
			d.wipe(request, method)
		}
		if err := request.Note(d.cleanNote(request.Method)); err != nil && d.defect != "cleans without its note" {
			return none, err
		}

		percent := 50 * (part + 1)
		if d.defect == "cleans backwards" {
			percent = 100 - percent
		}
		request.Progress(percent, string(method))

		if err := d.wait(ctx); err != nil && d.defect != "takes an interrupted clean for done" {
			return none, err
		} else if err == nil {
			d.wipe(request, method)
		}
	}
	return d.evidence(request.Method), d.readBack()
}

// cleanNote is what the toy notes of a clean.
func (d toy) cleanNote(method cyborg.CleanMethod) json.RawMessage {
	return json.RawMessage(strconv.Quote(string(method)))
}

// wipe removes what the method removes, from the handle of the request.
func (d toy) wipe(request drivers.CleanRequest, method cyborg.CleanMethod) {
	d.Lock()
	defer d.Unlock()
	d.cleans++
	if d.sticks {
		return
	}

	handles := []string{request.Handle.Identity}
	switch d.defect {
	case "cleans all handles":
		handles = slices.Collect(maps.Keys(d.left))
	case "detaches whoever is beside":
		d.detachAll()
	case "keeps what is in registers":
		if method == cyborg.CleanReset {
			return
		}
	case "keeps what is stored":
		if method == cyborg.CleanScrub {
			return
		}
	}

	for _, handle := range handles {
		left := d.left[handle]
		if method == cyborg.CleanReset {
			left.registers = false
		} else {
			left.stored = false
		}
		d.left[handle] = left
	}
}

// checkUnused refuses to clean what somebody uses.
func (d toy) checkUnused(handle string) error {
	d.Lock()
	defer d.Unlock()
	if d.users[handle] == "" || d.defect == "cleans what is used" {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrInUse, "%s is in use by %s", handle, d.users[handle])
}

// readBack fails where something sticks to the toy.
func (d toy) readBack() error {
	d.Lock()
	defer d.Unlock()
	if d.sticks && d.defect != "takes for clean what sticks" {
		return cyborg.Errorf(cyborg.ErrHardware, "there is still something on it")
	}
	return nil
}

// evidence says how a handle was cleaned.
func (d toy) evidence(method cyborg.CleanMethod) cyborg.Evidence {
	out := cyborg.Evidence{Method: method, Tool: "a cloth", ReadBack: "it shines"}
	switch d.defect {
	case "says that it has done less":
		out.Method = cyborg.CleanReset
	case "says nothing of its tool":
		out.Tool = ""
	case "reads nothing back":
		out.ReadBack = ""
	case "says too much":
		out.ReadBack = strings.Repeat("ä", cyborg.LongestEvidence+1)
	}
	return out
}

func (d toy) Close() error {
	d.memory.Lock()
	defer d.memory.Unlock()
	d.memory.closed = true
	return nil
}

func (d toy) Attached(_ context.Context, request drivers.AttachedRequest) (bool, error) {
	d.memory.Lock()
	closed := d.memory.closed
	d.memory.Unlock()
	if closed && d.defect == "crashes once it is closed" {
		panic("it is closed")
	}

	d.Lock()
	defer d.Unlock()
	return d.attached[request.Handle.Identity] && (d.holders[request.Handle.Identity] == request.Holder || d.defect == "keeps its first holder"), nil
}

func (d toy) CheckImage(_ context.Context, target drivers.Target, path string, image cyborg.Image) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "%w", err)
	}

	if d.defect == "programs to check" {
		d.Lock()
		defer d.Unlock()
		d.images[target.Deployable.Name] = image.ID
	}

	if !bytes.Equal(content, []byte("good")) && d.defect != "loads anything" {
		return cyborg.Errorf(cyborg.ErrImageRejected, "the image is not good")
	}
	return nil
}

func (d toy) Program(ctx context.Context, request drivers.ProgramRequest) error {
	if err := d.begin(ctx, "begins a program without a context", "programs what vanished"); err != nil {
		return err
	}
	if err := d.CheckImage(ctx, request.Target, request.Path, request.Image); err != nil {
		return err
	}

	request.Progress(50, "half")
	if d.defect == "tells progress backwards" {
		request.Progress(25, "a quarter")
	}

	if err := d.wait(ctx); err != nil {
		d.Lock()
		defer d.Unlock()
		d.images["interrupted"] = request.Image.ID
		return err
	}

	d.Lock()
	defer d.Unlock()
	if d.defect == "programs once only after interruption" && d.images["interrupted"] != "" {
		return cyborg.Errorf(cyborg.ErrHardware, "it was interrupted")
	}

	delete(d.images, "interrupted")
	name := request.Target.Deployable.Name
	d.images[name] = request.Image.ID

	switch d.defect {
	case "records another id":
		d.images[name] = "another"
	case "programs every set":
		d.images["a"], d.images["b"] = request.Image.ID, request.Image.ID
	case "counts its loads":
		d.traces++
	}
	return nil
}

func (d toy) InUse(_ context.Context, target drivers.Target, handle cyborg.HandleReport) (string, error) {
	if err := d.checkCard(target, "asks whichever card is there"); err != nil {
		return "", err
	}

	d.Lock()
	defer d.Unlock()
	switch {
	case d.defect == "knows no users":
		return "", nil
	case d.defect == "takes attached for used" && d.attached[handle.Identity]:
		return "someone", nil
	}
	return d.users[handle.Identity], nil
}

func (d toy) Metrics(_ context.Context, device cyborg.DeviceReport) ([]drivers.Sample, error) {
	sample := drivers.Sample{Deployable: device.Deployables[0].Name, Name: "temperature_celsius", Value: 40}
	samples := []drivers.Sample{sample}
	switch d.defect {
	case "measures nonsense":
		sample.Name, sample.Value = "power_watts", math.NaN()
	case "measures a stranger":
		sample.Deployable = "stranger"
	case "measures twice":
	default:
		sample.Sensor = "memory"
	}
	return append(samples, sample), nil
}

func (d toy) Health(context.Context) (map[string][]cyborg.Condition, error) {
	d.Lock()
	defer d.Unlock()
	said := map[string][]cyborg.Condition{}
	for name, ill := range d.ill {
		if ill && d.defect != "is always well" {
			said[name] = append(said[name], cyborg.Condition{Code: "too_hot", Level: cyborg.ConditionUnready, Message: "let it cool"})
		}
	}

	switch odd := (cyborg.Condition{Code: "odd", Level: cyborg.ConditionNotice, Message: "it is odd"}); d.defect {
	case "knows a stranger":
		said["stranger"] = []cyborg.Condition{odd}
	case "says nothing to people":
		odd.Message = ""
		said["a"] = []cyborg.Condition{odd}
	case "says since when":
		odd.Since = time.Now()
		said["a"] = []cyborg.Condition{odd}
	}
	return said, nil
}

func (d toy) Watch(ctx context.Context, changed func()) error {
	done := ctx.Done()
	if d.defect == "watches for ever" {
		done = nil
	}

	for {
		d.Lock()
		next := d.changed
		d.Unlock()
		if d.defect != "watches nothing" {
			changed()
		}
		select {
		case <-done:
			return nil
		case <-next:
		}
	}
}
