package fake

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// Name is the name to register the driver under.
const Name = "fake"

// handOver bounds how long New waits for the cards' locks, which are held for milliseconds.
const handOver = 10 * time.Second

// driver keeps no state of the cards: each call asks their files.
type driver struct {
	bench      Bench
	slots      []*slot
	latency    map[Step]time.Duration
	bootIDFile string
	log        *slog.Logger
	// told is what the last Discover returned, or Watch saw when it last called for one, as text.
	told atomic.Pointer[string]
}

var (
	_ drivers.Inspector  = (*driver)(nil)
	_ drivers.Installer  = (*driver)(nil)
	_ drivers.Attacher   = (*driver)(nil)
	_ drivers.Programmer = (*driver)(nil)
	_ drivers.Users      = (*driver)(nil)
	_ drivers.Meter      = (*driver)(nil)
	_ drivers.Watcher    = (*driver)(nil)
)

// New makes the driver of a park and puts cards as new into the slots that have none; it is a drivers.Factory. Wrong
// options are one error of kind ErrInvalid that names them all; a directory that cannot be used is one of kind ErrUnavailable.
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
	d.bench, d.bootIDFile = NewBench(parkDir), bootIDFile
	if err := os.MkdirAll(parkDir, 0o755); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the directory of the fake park cannot be made: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOver)
	defer cancel()
	for _, s := range d.slots {
		if err := d.plug(ctx, s, scripts[s.identity()]); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// plug puts a card as new into an empty slot, and lays the options' script over the card where it was not yet: a
// restart does not repeat failures that are used up.
func (d *driver) plug(ctx context.Context, s *slot, want script) error {
	fingerprint, err := want.fingerprint()
	if err != nil {
		return err
	}
	return d.update(ctx, s, func(card *Card) error {
		if card.Script == fingerprint {
			return nil
		}
		d.log.InfoContext(ctx, "the script of the options is laid over a fake card", "device", s.identity())
		card.Script, card.Vanished = fingerprint, want.Vanished
		clear(card.Fail)
		maps.Copy(card.Fail, want.Fail)
		card.eachHandle(func(h *Handle) { h.InUseBy = "" })
		for _, part := range s.regions {
			for _, handle := range want.InUse {
				if h := card.Deployables[part.key].Handles[handle]; h != nil {
					h.InUseBy = "the driver's options"
				}
			}
		}
		return nil
	})
}

// Discover reports the cards that are on the bus, in the order of their addresses.
func (d *driver) Discover(ctx context.Context) ([]cyborg.DeviceReport, error) {
	reports := make([]cyborg.DeviceReport, 0, len(d.slots))
	for _, s := range d.slots {
		card, err := d.inspect(ctx, s, StepDiscover)
		if err != nil {
			return nil, err
		}
		if !card.Vanished {
			reports = append(reports, s.report(card))
		}
	}
	text := textOf(reports)
	d.told.Store(&text)
	return reports, nil
}

// Inspect reports one card.
func (d *driver) Inspect(ctx context.Context, identity string) (cyborg.DeviceReport, error) {
	for _, s := range d.slots {
		if s.identity() != identity {
			continue
		}
		card, err := d.inspect(ctx, s, StepDiscover)
		if err != nil {
			return cyborg.DeviceReport{}, err
		}
		if !card.Vanished {
			return s.report(card), nil
		}
	}
	return cyborg.DeviceReport{}, cyborg.Errorf(cyborg.ErrNotFound, "the fake park shows no card %q", identity)
}

// reports is Discover without its script.
func (d *driver) reports(ctx context.Context) ([]cyborg.DeviceReport, error) {
	reports := make([]cyborg.DeviceReport, 0, len(d.slots))
	for _, s := range d.slots {
		card, err := d.look(ctx, s)
		if err != nil {
			return nil, err
		}
		if !card.Vanished {
			reports = append(reports, s.report(card))
		}
	}
	return reports, nil
}

// bootID is the host's boot; empty where the host has no such file, as the captured root of another machine.
func (d *driver) bootID() (string, error) {
	text, err := os.ReadFile(d.bootIDFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "the boot id cannot be read: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// look returns the card as it is at this moment, and changes nothing.
func (d *driver) look(ctx context.Context, s *slot) (*Card, error) {
	if err := interruption(ctx); err != nil {
		return nil, err
	}
	bootID, err := d.bootID()
	if err != nil {
		return nil, err
	}
	card, _, err := d.bench.read(ctx, s.identity())
	if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound { // someone threw its file away
		card, err = newCard(), nil
	}
	if err != nil {
		return nil, err
	}
	card.settle(s, bootID)
	return card, nil
}

// update changes the card as it is at this moment, under its lock.
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
		return change(card)
	})
}

func (s *slot) report(card *Card) cyborg.DeviceReport {
	report := cyborg.DeviceReport{
		Identity: s.identity(), Type: s.kind,
		VendorID: vendorID, ProductID: s.product, Vendor: "Cyborg", Model: s.name,
		NUMANode: new(s.number % 2), BoardInfo: cyborg.JSONObject{"simulated": true},
		ControlPath: cyborg.ControlPath{Kind: "PCI", Info: s.address.HandleInfo()},
	}
	for _, part := range s.regions {
		state := card.Deployables[part.key]
		deployable := cyborg.DeployableReport{
			Name: part.name, Attributes: s.attributes(state), BitstreamID: state.BitstreamID, ProgramSet: s.programSet(part),
			Specs: cyborg.Specs{
				Num: len(part.handles), DeviceType: s.kind, Type: s.does, Capability: maps.Clone(s.capability),
				VendorID: vendorID, ProductID: s.product,
			},
		}
		for _, address := range part.handles {
			deployable.Handles = append(deployable.Handles, cyborg.HandleReport{
				Kind: cyborg.HandleTestPCI, Info: address.HandleInfo(), Identity: address.String(),
			})
		}
		report.Deployables = append(report.Deployables, deployable)
	}
	return report
}

// attributes are named as OpenStack Cyborg's drivers name them.
func (s *slot) attributes(state *Region) []cyborg.Attribute {
	attributes := []cyborg.Attribute{{Key: "rc", Value: s.class}}
	traits := []string{"CUSTOM_FAKE_DEVICE"}
	if s.kind == cyborg.DeviceTypeFPGA && state.Function != "" {
		traits = append(traits, "CUSTOM_FPGA_FUNCTION_ID_FAKE_"+traitWord(state.Function))
	}
	for i, trait := range traits {
		attributes = append(attributes, cyborg.Attribute{Key: "trait" + strconv.Itoa(i), Value: trait})
	}
	return attributes
}

// programSet says what one image disturbs: the regions of an FPGA are programmed one by one, the firmware of any other
// card is one for all its parts.
func (s *slot) programSet(part region) string {
	if s.kind == cyborg.DeviceTypeFPGA {
		return part.key
	}
	return "card"
}

// find is the card and the part of it that a call is about.
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

// findHandle is find for a call about a handle.
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
