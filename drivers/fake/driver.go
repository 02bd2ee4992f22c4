package fake

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// Name is the name under which the driver is registered.
const Name = "fake"

// Register adds the driver to a registry.
func Register(registry *drivers.Registry) error {
	return registry.Register(Name, New, drivers.Own(PathOptions()...)...)
}

// mediatedType is the type of all mediated devices.
const mediatedType = "fake-1"

// lockTimeout bounds how long New waits for the locks of all cards. A lock is
// held for milliseconds, so a longer wait means that something hangs.
const lockTimeout = 10 * time.Second

// driver is one park. It keeps no state of the cards: each call reads their
// files.
type driver struct {
	bench      Bench
	slots      []*slot
	latency    map[Step]time.Duration
	bootIDFile string
	careless   bool // it does not look who uses a handle before a change
	log        *slog.Logger

	// lastReports is, as text, what the last Discover returned, or what Watch saw
	// when it last called for a Discover. Watch compares the present state with it.
	lastReports atomic.Pointer[string]
}

// The interfaces that the driver implements.
var (
	_ drivers.Inspector   = (*driver)(nil)
	_ drivers.Installer   = (*driver)(nil)
	_ drivers.Attacher    = (*driver)(nil)
	_ drivers.Programmer  = (*driver)(nil)
	_ drivers.Cleaner     = (*driver)(nil)
	_ drivers.Partitioner = (*driver)(nil)
	_ drivers.Users       = (*driver)(nil)
	_ drivers.Meter       = (*driver)(nil)
	_ drivers.Watcher     = (*driver)(nil)
)

// New makes the driver of a park and creates the files of cards that have none;
// it is a drivers.Factory. Wrong options are one error of kind ErrInvalid that
// names them all. A directory that cannot be used is an error of kind
// ErrUnavailable.
func New(env drivers.Environment, raw map[string]any) (drivers.Driver, error) {
	var wrong mistakes
	opts := decode(raw, &wrong)
	d := &driver{slots: opts.layout(&wrong), latency: opts.latencies(&wrong), log: env.Log}
	scripts := opts.scripts(d.slots, &wrong)
	parkDir, bootIDFile := opts.paths(env.Root, env.StateDir, &wrong)
	if len(wrong) > 0 {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "options of a fake driver: %s", strings.Join(wrong, "; "))
	}

	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}

	d.bench, d.bootIDFile, d.careless = NewBench(parkDir), bootIDFile, opts.Careless
	if err := os.MkdirAll(parkDir, 0o700); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the directory of the fake park cannot be made: %w", err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), lockTimeout)
	defer cancel()
	for _, s := range d.slots {
		s.setSerial(env.Host)
		if err := d.plug(ctx, s, scripts[s.identity()]); err != nil {
			return nil, err
		}
	}

	return d, nil
}

// plug creates the file of a card that has none, and applies the script of the
// options to the card unless it was applied before: a restart must not repeat
// failures that are used up.
func (d *driver) plug(ctx context.Context, s *slot, want script) error {
	checksum, err := want.checksum()
	if err != nil {
		return err
	}

	return d.update(ctx, s, func(card *Card) error {
		if card.Script == checksum {
			return nil
		}

		d.log.InfoContext(ctx, "the script of the options is laid over a fake card", "device", s.identity())

		if other := want.Exchange; card.Product != other.Product || card.Serial != other.Serial {
			card.exchange(other.Product, other.Serial)
		}
		card.Script, card.Vanished, card.Fewer = checksum, want.Vanished, want.Fewer
		clear(card.Fail)
		maps.Copy(card.Fail, want.Fail)
		card.eachHandle(func(h *Handle) { h.InUseBy, h.Sticks = "", false })

		for _, part := range s.regions {
			for _, handle := range want.InUse {
				if h := card.Deployables[part.key].Handles[handle]; h != nil {
					h.InUseBy = "the driver's options"
				}
			}
			for _, handle := range want.Stick {
				if h := card.Deployables[part.key].Handles[handle]; h != nil {
					h.Sticks = true
				}
			}
		}

		return nil
	})
}

// Discover reports the cards that are on the bus, in the order of their
// addresses.
func (d *driver) Discover(ctx context.Context) ([]cyborg.DeviceReport, error) {
	reports := make([]cyborg.DeviceReport, 0, len(d.slots))
	for _, s := range d.slots {
		card, err := d.readStep(ctx, s, StepDiscover)
		if err != nil {
			return nil, err
		}
		if !card.Vanished {
			reports = append(reports, s.report(card))
		}
	}

	text := textOfAll(reports)
	d.lastReports.Store(&text)
	return reports, nil
}

// Inspect reports one card. The error is of kind ErrNotFound where the card is
// not in the park or has vanished.
func (d *driver) Inspect(ctx context.Context, identity string) (cyborg.DeviceReport, error) {
	for _, s := range d.slots {
		if s.identity() != identity {
			continue
		}

		card, err := d.readStep(ctx, s, StepDiscover)
		if err != nil {
			return cyborg.DeviceReport{}, err
		}
		if !card.Vanished {
			return s.report(card), nil
		}
	}
	return cyborg.DeviceReport{}, cyborg.Errorf(cyborg.ErrNotFound, "the fake park shows no card %q", identity)
}

// bootID returns the boot id of the host. It is empty where the host has no
// such file, as a recording of another machine.
func (d *driver) bootID() (string, error) {
	text, err := os.ReadFile(d.bootIDFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "the boot id cannot be read: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// currentCard returns the card as it is at this moment. It writes nothing, so
// it needs no lock.
func (d *driver) currentCard(ctx context.Context, s *slot) (*Card, error) {
	if err := interruption(ctx); err != nil {
		return nil, err
	}

	bootID, err := d.bootID()
	if err != nil {
		return nil, err
	}

	card, _, err := d.bench.read(ctx, s.identity())
	if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound { // somebody deleted its file
		card, err = newCard(), nil
	}

	if err != nil {
		return nil, err
	}

	card.settle(s, bootID)
	return card, nil
}

// update calls change with the card as it is at this moment, under its lock,
// and stores the result. What change takes from somebody is noted first; see
// Trip.
func (d *driver) update(ctx context.Context, s *slot, change func(card *Card) error) error {
	if err := interruption(ctx); err != nil {
		return err
	}

	bootID, err := d.bootID()
	if err != nil {
		return err
	}

	return d.bench.update(ctx, s.identity(), true, func(card *Card) error {
		card.settle(s, bootID)
		before := card.clone()
		err := change(card)
		return errors.Join(err, d.bench.note(before.trips(s.identity(), card)))
	})
}

// report describes a card that is on the bus.
func (s *slot) report(card *Card) cyborg.DeviceReport {
	report := cyborg.DeviceReport{
		Identity: s.identity(), Type: s.kind,
		VendorID: vendorID, ProductID: cmp.Or(card.Product, s.product), Vendor: "Cyborg", Model: s.name, Fingerprint: s.fingerprint(card),
		NUMANode: new(s.number % 2), BoardInfo: cyborg.JSONObject{"simulated": true},
		ControlPath: cyborg.ControlPath{Kind: "PCI", Info: s.address.HandleInfo()}, Partitioning: s.partitioning(card),
	}

	for _, part := range s.there(card) {
		state := card.Deployables[part.key]

		deployable := cyborg.DeployableReport{
			Name: part.name, Attributes: s.attributes(part, state), BitstreamID: state.BitstreamID, PendingImage: state.pendingImage(), ProgramSet: s.programSet(part),
			Specs: cyborg.Specs{
				Num: len(part.handles), DeviceType: s.kind, Type: s.purpose, Capability: maps.Clone(s.capability),
				VendorID: vendorID, ProductID: report.ProductID,
			},
		}

		deployable.Conditions = slices.Clone(state.Conditions)
		if s.together {
			deployable.SameHolder = "card/" + s.identity()
		}
		deployable.Excludes = slices.Clone(part.excludes)
		deployable.Preparation, deployable.Cleaning = s.preparation, s.cleaning

		for i, address := range part.handles {
			handle := cyborg.HandleReport{Kind: cyborg.HandleTestPCI, Info: address.HandleInfo(), Identity: address.String(), With: slices.Clone(part.with[i])}
			if s.mediated {
				handle.Kind, handle.Info = cyborg.HandleMDEV, s.mediatedInfo(i)
			}
			deployable.Handles = append(deployable.Handles, handle)
		}

		report.Deployables = append(report.Deployables, deployable)
	}

	return report
}

// mediatedInfo is what consumers of a mediated device get: its parent, which is the card, and
// of what type it is, as OpenStack Cyborg's drivers say it.
func (s *slot) mediatedInfo(number int) map[string]string {
	info := s.address.HandleInfo()
	info["asked_type"], info["vgpu_mark"] = mediatedType, mediatedType+"_"+strconv.Itoa(number)
	return info
}

// attributes returns the resource class and the traits of a part, under the
// keys that OpenStack Cyborg's drivers use.
func (s *slot) attributes(part region, state *Region) []cyborg.Attribute {
	attributes := []cyborg.Attribute{{Key: "rc", Value: s.class}}
	traits := []string{"CUSTOM_FAKE_DEVICE"}
	if kind, _ := partOfKey(part.key); kind != "" {
		traits = append(traits, "CUSTOM_FAKE_"+traitWord(kind))
	}
	if s.kind == cyborg.DeviceTypeFPGA && state.Function != "" {
		traits = append(traits, "CUSTOM_FPGA_FUNCTION_ID_FAKE_"+traitWord(state.Function))
	}

	for i, trait := range traits {
		attributes = append(attributes, cyborg.Attribute{Key: "trait" + strconv.Itoa(i), Value: trait})
	}

	return attributes
}

// programSet names the set of parts that one image disturbs. The regions of an
// FPGA are programmed one by one, unless the FPGA is offered whole; any other card has
// one firmware for all its parts.
func (s *slot) programSet(part region) string {
	if s.kind == cyborg.DeviceTypeFPGA && !s.offersWhole {
		return part.key
	}
	return "card"
}

// find returns the card and the part of it that a call is about. The error is
// of kind ErrNotFound.
func (d *driver) find(target drivers.Target) (*slot, *region, error) {
	for _, s := range d.slots {
		if s.identity() != target.Device.Identity {
			continue
		}
		if part := s.region(target.Deployable.Name); part != nil {
			return s, part, nil
		}
	}

	return nil, nil, cyborg.Errorf(cyborg.ErrNotFound, "the fake park has no deployable %q on a card %q",
		target.Deployable.Name, target.Device.Identity)
}

// findHandle does the same as find for a call about a handle, and checks that
// the part has that handle.
func (d *driver) findHandle(target drivers.Target, handle cyborg.HandleReport) (*slot, *region, error) {
	s, part, err := d.find(target)
	if err != nil {
		return nil, nil, err
	}

	for _, address := range part.handles {
		if address.String() == handle.Identity {
			return s, part, nil
		}
	}

	return nil, nil, cyborg.Errorf(cyborg.ErrNotFound, "fake deployable %s has no handle %q", part.name, handle.Identity)
}
