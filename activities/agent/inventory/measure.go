package inventory

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// maxSamples is how many samples of one device count.
const maxSamples = 4096

// sampleNamePattern matches words in lower case, the last of which is a unit.
var sampleNamePattern = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)+$`)

// measuring are the measurements that a driver makes now, one of each device at a time.
// The zero value is ready.
type measuring struct {
	mu       sync.Mutex
	byDevice map[string]*measurement
}

// measurement is one that has begun. It is for all who ask before the driver has
// returned.
type measurement struct {
	until   time.Time     // when it counts as one that hangs
	ended   chan struct{} // closed when the driver has returned, and the rest says what
	samples []drivers.Sample
	err     error
}

// of returns the measurement of a device that is under way, or begins one.
func (m *measuring) of(device string, until time.Time, measure func() ([]drivers.Sample, error)) *measurement {
	m.mu.Lock()
	defer m.mu.Unlock()
	if one := m.byDevice[device]; one != nil {
		return one
	}

	if m.byDevice == nil {
		m.byDevice = map[string]*measurement{}
	}
	one := &measurement{until: until, ended: make(chan struct{})}
	m.byDevice[device] = one
	go func() {
		defer close(one.ended)
		one.samples, one.err = measure()
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.byDevice, device)
	}()
	return one
}

// wait waits for the measurement as long as the context allows, and not for one that
// hangs.
func (m *measurement) wait(ctx context.Context, what string) ([]drivers.Sample, error) {
	late := time.NewTimer(time.Until(m.until))
	defer late.Stop()
	select {
	case <-m.ended:
		return m.samples, m.err
	case <-ctx.Done():
		return nil, errors.New(cyborg.UsageUnanswered)
	case <-late.C:
		return nil, hangs(what)
	}
}

// measure asks the driver of a device what it measures now, and does not ask again while
// a question has no answer: others may have asked, too, so nobody's context ends it. There
// is no sample where the driver measures nothing. The samples that make sense count even
// where others do not, of which the error tells.
func (i *Inventory) measure(ctx context.Context, backendName, identity string) ([]drivers.Sample, error) {
	i.mu.Lock()
	var in *instance
	var device seen
	var there bool
	if b := i.backends[backendName]; b != nil && b.instance != nil {
		in = b.instance
		device, there = b.devices[identity]
	}
	i.mu.Unlock()
	if !there {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "device %s of backend %s is not there now", identity, backendName)
	}

	meter, ok := in.driver.(drivers.Meter)
	if !ok {
		return nil, nil
	}

	what, limit := "measurement of "+identity, i.config.UsageTimeout
	one := in.measuring.of(identity, time.Now().Add(limit+grace), func() (samples []drivers.Sample, err error) {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		err = in.ask(limited, what, func(ctx context.Context) error {
			samples, err = meter.Metrics(ctx, device.report)
			return err
		})
		if err != nil && limited.Err() != nil {
			err = cyborg.Errorf(cyborg.ErrTimeout, "%s did not end within %s", what, limit)
		}
		return samples, err
	})

	samples, err := one.wait(ctx, what)
	if err != nil {
		return nil, err
	}
	return sensible(device.report, samples)
}

// sensible returns the samples that can be shown, and what is wrong with the others.
func sensible(device cyborg.DeviceReport, samples []drivers.Sample) ([]drivers.Sample, error) {
	type key struct{ deployable, name, sensor string }
	var out []drivers.Sample
	var wrong []error
	seen := map[key]bool{}
	for _, s := range samples {
		this := key{s.Deployable, s.Name, s.Sensor}
		var why string
		switch {
		case !slices.ContainsFunc(device.Deployables, func(d cyborg.DeployableReport) bool { return d.Name == s.Deployable }):
			why = "the device has no such deployable"
		case !sampleNamePattern.MatchString(s.Name):
			why = "its name is none"
		case s.Sensor != "" && !cyborg.IsName(s.Sensor):
			why = "the name of its sensor is none"
		case math.IsNaN(s.Value) || math.IsInf(s.Value, 0):
			why = fmt.Sprintf("%v is no measurement", s.Value)
		case seen[this]:
			why = "it is there twice"
		case len(out) == maxSamples:
			return out, errors.Join(append(wrong, fmt.Errorf("of %d samples of %s only %d count", len(samples), device.Identity, maxSamples))...)
		default:
			seen[this] = true
			out = append(out, s)
			continue
		}

		if len(wrong) < 3 { // more would say no more
			wrong = append(wrong, fmt.Errorf("the sample %.64q of %.64q is left out: %s", s.Name, s.Deployable, why))
		}
	}
	return out, errors.Join(wrong...)
}

// measuredAtOnce is how many devices are measured at the same time.
const measuredAtOnce = 16

// Measured is what a device measures, or why there is no answer, or not all of it.
type Measured struct {
	Backend string
	Device  string // its identity
	Samples []drivers.Sample
	Err     error
}

// MeasureAll measures the devices of these deployables until the context ends. A driver
// that does not return by then is left behind. Devices of backends that have failed are
// left out, and those of drivers that measure nothing.
func (i *Inventory) MeasureAll(ctx context.Context, known []Known) []Measured {
	var all []Measured
	for _, one := range known {
		_, measures := one.Driver.(drivers.Meter)
		listed := slices.ContainsFunc(all, func(m Measured) bool { return m.Backend == one.Backend && m.Device == one.Device.Identity })
		if measures && one.Failure == "" && !listed {
			all = append(all, Measured{Backend: one.Backend, Device: one.Device.Identity})
		}
	}

	type answer struct {
		at      int
		samples []drivers.Sample
		err     error
	}
	answers := make(chan answer, len(all)) // nobody waits to say what nobody hears any more
	turns := make(chan struct{}, measuredAtOnce)
	for n := range all {
		go func() {
			select {
			case turns <- struct{}{}:
				defer func() { <-turns }()
				samples, err := i.measure(ctx, all[n].Backend, all[n].Device)
				answers <- answer{n, samples, err}
			case <-ctx.Done():
			}
		}()
	}

	open := make(map[int]bool, len(all))
	for n := range all {
		open[n] = true
	}
	for len(open) > 0 {
		select {
		case a := <-answers:
			delete(open, a.at)
			all[a.at].Samples, all[a.at].Err = a.samples, a.err
		case <-ctx.Done():
			for n := range open {
				all[n].Err = errors.New(cyborg.UsageUnanswered)
			}
			for len(answers) > 0 { // what has come in time counts
				a := <-answers
				all[a.at].Samples, all[a.at].Err = a.samples, a.err
			}
			return all
		}
	}
	return all
}
