package fake

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"

	"github.com/cyborg-project/cyborg"
)

// options are the driver's options under their names in configuration.
// docs/drivers/fake.md describes each.
type options struct {
	// What stands in the park, and where its files are.
	Park        string `mapstructure:"park"`
	ParkDir     string `mapstructure:"park_dir"`
	Domain      string `mapstructure:"domain"`
	Deployables int    `mapstructure:"deployables"`
	Handles     int    `mapstructure:"handles"`
	// SameHolder has all parts of a card go to one holder.
	SameHolder bool `mapstructure:"same_holder"`
	// Whole has each card offered as a whole, too, which excludes its parts.
	Whole bool `mapstructure:"whole"`
	// Prepares has the host attach handles for instances and services, too, with
	// parameters.
	Prepares bool `mapstructure:"prepares"`
	// Companions is how many functions that are no handles go with each handle.
	Companions int `mapstructure:"companions"`
	// Mediated makes the handles mediated devices.
	Mediated bool `mapstructure:"mediated"`
	// Activation has images take effect later: reboot or power_cycle.
	Activation string `mapstructure:"activation"`
	// Partition makes the cards divisible.
	Partition bool `mapstructure:"partition"`
	// Clean is what the driver demands after every holder: none, reset or scrub.
	Clean string `mapstructure:"clean"`

	// How long each step takes.
	InstallLatency   time.Duration `mapstructure:"install_latency"`
	UninstallLatency time.Duration `mapstructure:"uninstall_latency"`
	AttachLatency    time.Duration `mapstructure:"attach_latency"`
	DetachLatency    time.Duration `mapstructure:"detach_latency"`
	ProgramLatency   time.Duration `mapstructure:"program_latency"`
	CleanLatency     time.Duration `mapstructure:"clean_latency"`
	PartitionLatency time.Duration `mapstructure:"partition_latency"`

	// What goes wrong.
	Fail   map[string]any `mapstructure:"fail"`
	Vanish []string       `mapstructure:"vanish"`
	InUse  []string       `mapstructure:"in_use"`
	// Stick lists handles from which no clean removes anything.
	Stick []string `mapstructure:"stick"`
	// Fewer is how often each card leaves out a part when it is divided: a number, or
	// always.
	Fewer any `mapstructure:"fewer"`
	// Exchange lists cards in whose place others stand.
	Exchange []exchangeOption `mapstructure:"exchange"`

	// Careless has the driver refuse nothing because somebody uses a handle.
	Careless bool `mapstructure:"careless"`

	BootIDFile string `mapstructure:"boot_id_file"`
}

// exchangeOption is another card in the place of one of the park.
type exchangeOption struct {
	Card    string         `mapstructure:"card"` // its identity
	Product string         `mapstructure:"product"`
	Serial  string         `mapstructure:"serial"`
	Unknown map[string]any `mapstructure:",remain"`
}

// PathOptions lists the options that name files or directories.
func PathOptions() []string { return []string{"park_dir", "boot_id_file"} }

// defaults returns the options of a backend that is given none: one FPGA with
// one handle.
func defaults() options {
	return options{Park: "1xfpga", Domain: "00fa", Deployables: 1, Handles: 1, Clean: cyborg.NoCleaning}
}

// mistakes collects what is wrong with the options, so that one error can name
// all mistakes at once.
type mistakes []string

// add adds one mistake.
func (m *mistakes) add(format string, args ...any) { *m = append(*m, fmt.Sprintf(format, args...)) }

// decode reads the options over the defaults. It adds a mistake for every
// unknown or wrong option.
func decode(raw map[string]any, wrong *mistakes) options {
	opts := defaults()
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result: &opts,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			mapstructure.StringToTimeDurationHookFunc(), durationsHaveUnits, wholeNumbers,
			mapstructure.StringToIntHookFunc(), mapstructure.StringToSliceHookFunc(","),
		),
	})
	if err == nil {
		err = decoder.Decode(raw)
	}

	for _, one := range flatten(err) {
		if named, ok := errors.AsType[*mapstructure.DecodeError](one); ok {
			wrong.add("%s: %v", named.Name(), named.Unwrap())
		} else {
			wrong.add("%v", one)
		}
	}

	// The decoder's own check for unused keys would not list the known ones. It
	// matches names without regard to case, so this check does the same.
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		known := func(name string) bool { return strings.EqualFold(name, key) }
		if !slices.ContainsFunc(optionNames(), known) {
			wrong.add("there is no option %q; the options are %s", key, strings.Join(optionNames(), ", "))
		}
	}

	return opts
}

// wholeNumbers is a decode hook that rejects 1.5 for an option that takes a
// whole number; the decoder would cut it down to 1. Numbers from JSON are
// floats, so a float as such is no mistake.
func wholeNumbers(_, to reflect.Type, value any) (any, error) {
	if number, ok := value.(float64); ok && to.Kind() == reflect.Int && number != float64(int64(number)) {
		return nil, fmt.Errorf("%v is not a whole number", number)
	}
	return value, nil
}

// durationsHaveUnits is a decode hook that rejects a number without a unit; the
// decoder would read 5 as five nanoseconds.
func durationsHaveUnits(from, to reflect.Type, value any) (any, error) {
	duration := reflect.TypeFor[time.Duration]()
	if to == duration && from != duration {
		if number := fmt.Sprint(value); number != "0" {
			return nil, fmt.Errorf("%s has no unit; write it as 250ms or 2m", number)
		}
	}
	return value, nil
}

// flatten returns the single errors that are joined or wrapped in err. A
// DecodeError stays as it is, because it names the option.
func flatten(err error) []error {
	switch one := err.(type) { //nolint:errorlint // each error itself, not what it wraps
	case nil:
		return nil
	case *mapstructure.DecodeError:
		return []error{one}
	case interface{ Unwrap() []error }:
		var all []error
		for _, inner := range one.Unwrap() {
			all = append(all, flatten(inner)...)
		}
		return all
	case interface{ Unwrap() error }:
		return flatten(one.Unwrap())
	default:
		return []error{err}
	}
}

// optionNames lists the names of all options.
func optionNames() []string {
	var names []string
	for field := range reflect.TypeFor[options]().Fields() {
		names = append(names, field.Tag.Get("mapstructure"))
	}
	return names
}

// layout checks the options that describe the park and returns its cards. It
// returns none where a count is wrong: a huge count would make a huge list.
func (o *options) layout(wrong *mistakes) []*slot {
	park, err := ParsePark(o.Park)
	if err != nil {
		wrong.add("park: %v", err)
	}

	// Each type of card has a PCI domain of its own, counted from this one, so the
	// last type must still have a valid domain.
	domain, err := strconv.ParseUint(o.Domain, 16, 32)
	if last := uint64(1<<32 - len(models())); err != nil || len(o.Domain) < 4 || domain > last {
		wrong.add("domain: %q is not a PCI domain; write 4 to 8 hexadecimal digits, such as 00fa", o.Domain)
	}

	for _, count := range []struct {
		name  string
		value int
	}{{"deployables", o.Deployables}, {"handles", o.Handles}} {
		if count.value < 1 || count.value > maxHandles {
			wrong.add("%s: %d is not from 1 to %d", count.name, count.value, maxHandles)
			return nil
		}
	}

	if o.Deployables*o.Handles > maxHandles {
		wrong.add("deployables × handles: %d × %d is more than the %d functions of a card", o.Deployables, o.Handles, maxHandles)
		return nil
	}

	all := o.Deployables * o.Handles
	if o.Whole {
		all++
	}
	if all > maxHandles {
		wrong.add("whole: deployables × handles leave none of the %d functions of a card for it", maxHandles)
		return nil
	}
	firstPart := all
	if o.Partition {
		all += partsOfCard()
	}
	if all > maxHandles {
		wrong.add("partition: of the %d functions of a card, fewer than %d are left for its parts", maxHandles, partsOfCard())
		return nil
	}
	if most := maxHandles/all - 1; o.Companions < 0 || o.Companions > most {
		wrong.add("companions: %d is not from 0 to %d, which the %d functions of a card leave for each of its %d handles", o.Companions, most, maxHandles, all)
		return nil
	}

	cleaning, activation := o.cleaning(wrong), o.activation(wrong)
	slots := park.slots(uint32(domain), o.Deployables, o.Handles)
	for _, s := range slots {
		s.together = o.SameHolder
		if o.Whole {
			s.addWhole(o.Deployables * o.Handles)
		}
		if o.Partition {
			s.addParts(firstPart)
		}
		s.addCompanions(o.Companions)
		s.preparation, s.cleaning = o.preparation(), cleaning
		if activation != "" { // its flash memory keeps the image
			s.activation, s.volatile = activation, false
		}
		if s.mediated = o.Mediated; s.mediated && s.kind == cyborg.DeviceTypeGPU {
			s.class = "VGPU"
		}
	}

	return slots
}

// latencies checks and returns how long each step takes.
func (o *options) latencies(wrong *mistakes) map[Step]time.Duration {
	all := map[Step]time.Duration{
		StepInstall: o.InstallLatency, StepUninstall: o.UninstallLatency, StepAttach: o.AttachLatency,
		StepDetach: o.DetachLatency, StepProgram: o.ProgramLatency, StepClean: o.CleanLatency, StepPartition: o.PartitionLatency,
	}

	for _, step := range Steps() {
		if all[step] < 0 {
			wrong.add("%s_latency: %v is negative", step, all[step])
		}
	}

	return all
}

// script is what the options want applied to one card.
type script struct {
	Fail     map[Step]Failure `json:"fail"`
	Vanished bool             `json:"vanished"`
	InUse    []string         `json:"in_use"`
	Stick    []string         `json:"stick,omitempty"`
	Fewer    Times            `json:"fewer,omitzero"`
	Exchange exchange         `json:"exchange,omitzero"`
}

// exchange is another card, of this model and with this serial number; see
// Bench.Exchange.
type exchange struct {
	Product string `json:"product,omitempty"`
	Serial  string `json:"serial,omitempty"`
}

// checksum identifies a script; that of an empty script is empty. It is a prefix
// of a checksum: it must only tell the few scripts apart that one card ever gets.
func (s script) checksum() (string, error) {
	if len(s.Fail) == 0 && !s.Vanished && len(s.InUse) == 0 && len(s.Stick) == 0 && s.Fewer == 0 && s.Exchange == (exchange{}) {
		return "", nil
	}

	text, err := json.Marshal(s)
	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrInternal, "the script of a fake card cannot be written: %w", err)
	}

	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6]), nil
}

// scripts checks the options that script the cards, and returns the script of
// each card by the card's identity.
func (o *options) scripts(slots []*slot, wrong *mistakes) map[string]script {
	fail := map[Step]Failure{}
	for _, name := range slices.Sorted(maps.Keys(o.Fail)) {
		if err := checkStep(Step(name)); err != nil {
			wrong.add("fail: %v", err)
			continue
		}

		var failure Failure

		text, err := json.Marshal(o.Fail[name])
		if err == nil {
			err = failure.UnmarshalJSON(text)
		}

		if err != nil {
			wrong.add("fail.%s: %v", name, err)
		}
		fail[Step(name)] = failure
	}

	fewer := o.fewerParts(wrong)
	all := map[string]script{}   // by the identity of the card
	owner := map[string]string{} // by the address of a handle: the card that has it

	for _, s := range slots {
		all[s.identity()] = script{Fail: fail, Fewer: fewer}
		for _, part := range s.regions {
			for _, handle := range part.handles {
				owner[handle.String()] = s.identity()
			}
		}
	}

	for _, identity := range o.Vanish {
		one, ok := all[identity]
		if !ok {
			wrong.add("vanish: there is no card %q in this park", identity)
			continue
		}

		one.Vanished = true
		all[identity] = one
	}

	for _, other := range o.Exchange {
		one, ok := all[other.Card]
		if !ok {
			wrong.add("exchange: there is no card %q in this park", other.Card)
			continue
		}
		if err := checkProduct(other.Product); err != nil {
			wrong.add("exchange: %v", err)
		}
		for _, key := range slices.Sorted(maps.Keys(other.Unknown)) {
			wrong.add("exchange: there is no key %q; the keys are card, product and serial", key)
		}
		if other.Product == "" && other.Serial == "" {
			wrong.add("exchange: the other card in the place of %s has neither a product nor a serial", other.Card)
		}

		one.Exchange = exchange{Product: other.Product, Serial: other.Serial}
		all[other.Card] = one
	}

	inUse, stick := handlesByCard("in_use", o.InUse, owner, wrong), handlesByCard("stick", o.Stick, owner, wrong)
	for identity, one := range all {
		one.InUse, one.Stick = inUse[identity], stick[identity]
		all[identity] = one
	}

	return all
}

// fewerParts checks and returns how often each card leaves out a part.
func (o *options) fewerParts(wrong *mistakes) (fewer Times) {
	if o.Fewer == nil {
		return 0
	}

	text, err := json.Marshal(o.Fewer)
	if string(text) != `"always"` {
		text = bytes.Trim(text, `"`) // a number as text, from an environment variable
	}
	if err == nil {
		err = fewer.UnmarshalJSON(text)
	}
	if err != nil {
		wrong.add("fewer: %v", err)
	}
	return fewer
}

// handlesByCard checks the handles that an option lists, and returns them by the identity
// of their card.
func handlesByCard(option string, handles []string, owner map[string]string, wrong *mistakes) map[string][]string {
	cards := map[string][]string{}
	for _, handle := range handles {
		identity, ok := owner[handle]
		if !ok {
			wrong.add("%s: there is no handle %q in this park", option, handle)
			continue
		}
		cards[identity] = append(cards[identity], handle)
	}
	return cards
}

// paths checks and returns the options that name files. Root and stateDir are
// those of the environment.
func (o *options) paths(root, stateDir string, wrong *mistakes) (parkDir, bootIDFile string) {
	parkDir = o.ParkDir
	switch {
	case parkDir == "" && stateDir == "":
		wrong.add("park_dir: the host gives this backend no state directory; name a directory")
	case parkDir == "":
		parkDir = stateDir
	case !filepath.IsAbs(parkDir):
		wrong.add("park_dir: %q is not an absolute path", parkDir)
	}

	bootIDFile = o.BootIDFile
	switch {
	case bootIDFile == "":
		bootIDFile = filepath.Join(cmp.Or(root, "/"), "proc/sys/kernel/random/boot_id")
	case !filepath.IsAbs(bootIDFile):
		wrong.add("boot_id_file: %q is not an absolute path", bootIDFile)
	default:
		if _, err := os.Stat(bootIDFile); err != nil {
			wrong.add("boot_id_file: %v", err)
		}
	}

	return parkDir, bootIDFile
}
