package fake_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// partition is a partition of the park's first card, and the notes that it stores.
type partition struct {
	request drivers.PartitionRequest
	notes   []string
}

// partition returns a partition that follows the prior note.
func (p *park) partition(t *testing.T, layout cyborg.Layout, prior json.RawMessage) *partition {
	t.Helper()
	one := &partition{}
	one.request = drivers.PartitionRequest{
		Device: p.discover(t)[0], Layout: layout, Prior: prior,
		Note: func(note json.RawMessage) error {
			one.notes = append(one.notes, string(note))
			return nil
		},
		Progress: quiet,
	}
	return one
}

// divide divides the park's first card.
func (p *park) divide(t *testing.T, layout cyborg.Layout) error {
	t.Helper()
	return p.driver.(drivers.Partitioner).Partition(t.Context(), p.partition(t, layout, nil).request)
}

// parts maps the names of what the first card shows to their handles.
func (p *park) parts(t *testing.T) map[string]string {
	t.Helper()
	parts := map[string]string{}
	for _, deployable := range p.discover(t)[0].Deployables {
		for _, handle := range deployable.Handles {
			parts[deployable.Name] += handle.Identity
		}
	}
	return parts
}

// TestDividedCard: a card shows its parts, or what it has while it is whole. Each part keeps
// its name and address.
func TestDividedCard(t *testing.T) {
	t.Parallel()
	p := newPark(t, map[string]any{"park": "1xgpu", "partition": true})
	whole := map[string]string{"fake_gpu_00fb_01_00_0_r0": "00fb:01:00.0"}
	require.Equal(t, whole, p.parts(t))
	require.Equal(t, &cyborg.Partitioning{
		Parts: []cyborg.PartKind{
			{Name: "half", Most: 2, Description: "half of the card"},
			{Name: "quarter", Most: 4, Description: "a quarter of the card"},
		},
		Layout: cyborg.Layout{},
	}, p.discover(t)[0].Partitioning)

	for _, test := range []struct {
		layout cyborg.Layout
		want   map[string]string
	}{
		{cyborg.Layout{"half": 2}, map[string]string{"fake_gpu_00fb_01_00_0_half0": "00fb:01:00.1", "fake_gpu_00fb_01_00_0_half1": "00fb:01:00.2"}},
		{cyborg.Layout{"half": 1, "quarter": 2}, map[string]string{
			"fake_gpu_00fb_01_00_0_half0":    "00fb:01:00.1",
			"fake_gpu_00fb_01_00_0_quarter0": "00fb:01:00.3", "fake_gpu_00fb_01_00_0_quarter1": "00fb:01:00.4",
		}},
		{cyborg.Layout{"quarter": 1, "half": 0}, map[string]string{"fake_gpu_00fb_01_00_0_quarter0": "00fb:01:00.3"}},
		{cyborg.Layout{"half": 0}, whole},
	} {
		require.NoError(t, p.divide(t, test.layout))
		require.Equal(t, test.want, p.parts(t), test.layout)
		require.True(t, test.layout.Equal(p.discover(t)[0].Partitioning.Layout))
	}
	require.Nil(t, newPark(t, nil).discover(t)[0].Partitioning)
}

// halves is the layout of a card that is divided into two parts.
func halves() cyborg.Layout { return cyborg.Layout{"half": 2} }

// newDivisible returns a park of one GPU that can be divided, whose host has booted as the
// file says that is returned.
func newDivisible(t *testing.T, options map[string]any) (p *park, boot string) {
	t.Helper()
	boot = filepath.Join(t.TempDir(), "boot_id")
	require.NoError(t, os.WriteFile(boot, []byte("first\n"), 0o600))
	all := map[string]any{"park": "1xgpu", "partition": true, "boot_id_file": boot}
	maps.Copy(all, options)
	return newPark(t, all), boot
}

// gpu returns the state of the first GPU.
func (p *park) gpu(t *testing.T) fake.Card {
	t.Helper()
	card, err := p.bench.Card(t.Context(), "00fb:01:00.0")
	require.NoError(t, err)
	return card
}

// TestLayoutsThatDoNotFit: the parts of a card share its units.
func TestLayoutsThatDoNotFit(t *testing.T) {
	t.Parallel()
	p, _ := newDivisible(t, nil)
	driver, device := p.driver.(drivers.Partitioner), p.discover(t)[0]
	for _, layout := range []cyborg.Layout{{}, {"half": 2}, {"quarter": 4}, {"half": 1, "quarter": 2}, {"half": 1, "quarter": 0}} {
		require.NoError(t, driver.CheckLayout(t.Context(), device, layout), layout)
	}
	for _, layout := range []cyborg.Layout{{"half": 3}, {"quarter": 5}, {"half": 1, "quarter": 3}, {"half": 2, "quarter": 1}, {"half": -1}, {"third": 1}} {
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(driver.CheckLayout(t.Context(), device, layout)), layout)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(p.divide(t, layout)), layout)
	}
	require.EqualError(t, driver.CheckLayout(t.Context(), device, cyborg.Layout{"half": 2, "quarter": 1}), "half=2 quarter=1 takes 5 units, and a fake card has 4")

	plain := newPark(t, nil)
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(plain.divide(t, halves())))
	device.Identity = "00fb:02:00.0"
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(driver.CheckLayout(t.Context(), device, halves())))
}

// TestPartitionHasSeveralChanges: a partition that fails after a change leaves the card
// there. With its note the next one goes on, without it begins anew, and one into another
// layout always does. The notes count on.
func TestPartitionHasSeveralChanges(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		next  cyborg.Layout
		prior string
		notes int
		last  string
	}{
		{"goes on", halves(), `{"wanted":{"half":2},"number":2}`, 1, `{"wanted":{"half":2},"number":3}`},
		{"begins anew without a note", halves(), ``, 3, `{"wanted":{"half":2},"number":3}`},
		{"begins anew after another's note", halves(), `[7]`, 3, `{"wanted":{"half":2},"number":3}`},
		{"begins anew with another layout", cyborg.Layout{"quarter": 1}, `{"wanted":{"half":2},"number":2}`, 2, `{"wanted":{"quarter":1},"number":4}`},
		{"makes it whole", cyborg.Layout{}, `{"wanted":{"half":2},"number":2}`, 2, `{"wanted":{},"number":4}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p, _ := newDivisible(t, nil)
			p.failPartition(t, fake.After)
			require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(p.divide(t, halves())))
			require.Equal(t, cyborg.Layout{}, p.gpu(t).Layout, "it has no parts, and is not whole")
			require.Empty(t, p.parts(t))
			require.Equal(t, cyborg.Layout{}, p.discover(t)[0].Partitioning.Layout)

			p.failPartition(t, fake.After)
			require.Error(t, p.divide(t, halves()))
			require.Equal(t, cyborg.Layout{"half": 1}, p.gpu(t).Layout)
			require.Len(t, p.parts(t), 1)

			p.driver = p.restart(t)
			one := p.partition(t, test.next, json.RawMessage(test.prior))
			require.NoError(t, p.driver.(drivers.Partitioner).Partition(t.Context(), one.request))
			require.True(t, test.next.Equal(p.discover(t)[0].Partitioning.Layout))
			require.Len(t, one.notes, test.notes)
			require.JSONEq(t, test.last, one.notes[len(one.notes)-1])
		})
	}
}

// failPartition scripts the next partition of the first GPU to fail.
func (p *park) failPartition(t *testing.T, when fake.When) {
	t.Helper()
	require.NoError(t, p.bench.Edit(t.Context(), "00fb:01:00.0", func(card *fake.Card) {
		card.Fail[fake.StepPartition] = fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: when}
	}))
}

// TestFewerParts: a card that leaves out a part has one too few as often as its script says,
// and is never taken for divided.
func TestFewerParts(t *testing.T) {
	t.Parallel()
	p, _ := newDivisible(t, map[string]any{"fewer": 1})
	err := p.divide(t, halves())
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err))
	require.EqualError(t, err, "fake card 00fb:01:00.0 reads back half=1 after it was divided: half=2")
	require.NotEmpty(t, cyborg.AsError(err).Hint)
	require.Equal(t, cyborg.Layout{"half": 1}, p.discover(t)[0].Partitioning.Layout)
	p.driver = p.restart(t)
	require.NoError(t, p.divide(t, halves()), "the script is used up")

	p, _ = newDivisible(t, map[string]any{"fewer": "always"})
	for range 3 {
		require.ErrorContains(t, p.divide(t, cyborg.Layout{"quarter": 1}), "reads back no parts")
		require.Empty(t, p.parts(t))
	}
	require.NoError(t, p.divide(t, cyborg.Layout{}), "it can be made whole")
	require.Len(t, p.parts(t), 1)
}

// TestLayoutIsLostWithPower: a card is whole after a boot, and after it was pulled out. A
// part that it gets again is still installed, and nothing is attached to it.
func TestLayoutIsLostWithPower(t *testing.T) {
	t.Parallel()
	p, boot := newDivisible(t, nil)
	require.NoError(t, p.divide(t, halves()))
	driver, target, handle := p.attach(t)
	require.Equal(t, "fake_gpu_00fb_01_00_0_half0", target.Deployable.Name)

	for round, losePower := range []func(){
		func() { require.NoError(t, os.WriteFile(boot, []byte("second\n"), 0o600)) },
		func() {
			require.NoError(t, p.bench.Vanish(t.Context(), target.Device.Identity))
			require.NoError(t, p.bench.Return(t.Context(), target.Device.Identity))
		},
	} {
		losePower()
		require.Equal(t, map[string]string{"fake_gpu_00fb_01_00_0_r0": "00fb:01:00.0"}, p.parts(t), round)
		is, err := driver.Attached(t.Context(), drivers.AttachedRequest{Target: target, Handle: handle, Holder: cyborg.HolderHost})
		require.NoError(t, err)
		require.False(t, is)

		require.NoError(t, p.divide(t, halves()))
		is, err = driver.Attached(t.Context(), drivers.AttachedRequest{Target: target, Handle: handle, Holder: cyborg.HolderHost})
		require.NoError(t, err)
		require.False(t, is)
		require.NoError(t, driver.Attach(t.Context(), attach(target, handle)), "its holder gets it again")
	}

	require.NoError(t, p.bench.Exchange(t.Context(), target.Device.Identity, "", "2"))
	require.Equal(t, map[string]string{"fake_gpu_00fb_01_00_0_r0": "00fb:01:00.0"}, p.parts(t))
}

// TestWhatGoesWithItsPart: what was installed, attached or loaded is gone with its part,
// except the firmware of a card and what holders have left.
func TestWhatGoesWithItsPart(t *testing.T) {
	t.Parallel()
	for kind, keepsImage := range map[cyborg.DeviceType]bool{cyborg.DeviceTypeGPU: true, cyborg.DeviceTypeFPGA: false} {
		p := newPark(t, map[string]any{"park": "1x" + string(kind), "partition": true})
		_, target, handle := p.attach(t)
		p.program(t, 0, "aes", cyborg.Image{ID: "one", WholeDevice: true})
		image := p.bitstreams(t)[0]
		require.NoError(t, p.divide(t, halves()))
		require.Equal(t, keepsImage, p.bitstreams(t)[0] == image, "%s: the image of a new part", kind)

		p.program(t, 1, "rsa", cyborg.Image{ID: "two"})
		if keepsImage {
			require.Equal(t, p.bitstreams(t)[0], p.bitstreams(t)[1], "a card has one firmware")
		}
		image = p.bitstreams(t)[1]
		require.NoError(t, p.divide(t, cyborg.Layout{}))
		card, err := p.bench.Card(t.Context(), target.Device.Identity)
		require.NoError(t, err)
		require.False(t, card.Deployables["r0"].Installed)
		require.Equal(t, fake.Handle{Residue: leftBy("host")}, *card.Deployables["r0"].Handles[handle.Identity])
		require.Equal(t, keepsImage, p.bitstreams(t)[0] == image)

		require.NoError(t, p.divide(t, halves()))
		require.Equal(t, keepsImage, p.bitstreams(t)[1] == image)
	}
}

// TestPartThatIsGone: who comes too late with a part that his card no longer has is refused,
// and has nothing to undo.
func TestPartThatIsGone(t *testing.T) {
	t.Parallel()
	p, _ := newDivisible(t, nil)
	driver, target, handle := p.attach(t)
	require.NoError(t, p.divide(t, halves()))
	path, image := stage(t, fake.MakeImage(cyborg.DeviceTypeGPU, "aes", []byte("payload")))

	_, inUse := driver.InUse(t.Context(), target, handle)
	_, cleaned := driver.Clean(t.Context(), drivers.CleanRequest{Target: target, Handle: handle, Method: cyborg.CleanReset, Note: forget, Progress: quiet})
	for what, err := range map[string]error{
		"install": driver.Install(t.Context(), target),
		"attach":  driver.Attach(t.Context(), attach(target, handle)),
		"program": driver.Program(t.Context(), drivers.ProgramRequest{Target: target, Path: path, Image: image, Progress: quiet}),
		"in use":  inUse, "clean": cleaned,
	} {
		require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), what)
		require.EqualError(t, err, "fake card 00fb:01:00.0 no longer has fake_gpu_00fb_01_00_0_r0; it has: half=2", what)
	}
	before := p.gpu(t)
	require.NoError(t, driver.Detach(t.Context(), detach(target, handle)))
	require.NoError(t, driver.Uninstall(t.Context(), target))
	require.Equal(t, before, p.gpu(t))

	require.NoError(t, p.bench.Edit(t.Context(), target.Device.Identity, func(card *fake.Card) {
		card.Deployables["r0"].Handles[handle.Identity].Attached = true
		card.Deployables["r0"].Health = []cyborg.Condition{{Code: "too_hot", Level: cyborg.ConditionDegraded, Message: "open a window"}}
	}))
	is, err := driver.Attached(t.Context(), drivers.AttachedRequest{Target: target, Handle: handle, Holder: cyborg.HolderHost})
	require.NoError(t, err)
	require.False(t, is)
	ill, err := driver.Health(t.Context())
	require.NoError(t, err)
	require.Empty(t, ill)
	require.NoError(t, p.bench.Use(t.Context(), target.Device.Identity, handle.Identity, "qemu"))
	p.program(t, 0, "aes", cyborg.Image{ID: "one"}) // nobody uses what is gone

	said, err := driver.Metrics(t.Context(), target.Device)
	require.NoError(t, err)
	for _, sample := range said {
		require.Contains(t, sample.Deployable, "_half")
	}
}

// TestUsedCardIsNotDivided: nothing is taken from who uses it, unless the driver is
// careless. The tripwire notes that, and also who gets the whole card beside a part of it.
func TestUsedCardIsNotDivided(t *testing.T) {
	t.Parallel()
	for _, careless := range []bool{false, true} {
		p, _ := newDivisible(t, map[string]any{"careless": careless})
		const card, whole, half, quarter = "00fb:01:00.0", "00fb:01:00.0", "00fb:01:00.1", "00fb:01:00.3"
		require.NoError(t, p.bench.Use(t.Context(), card, whole, "qemu"))
		err := p.divide(t, halves())
		if !careless {
			require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err))
			require.ErrorContains(t, err, "qemu")
			require.Nil(t, p.gpu(t).Layout)
			require.Empty(t, p.trips(t))
			continue
		}
		require.NoError(t, err)
		want := []fake.Trip{{Card: card, What: "partitioned", Handle: whole, InUseBy: "qemu"}}
		require.Equal(t, want, p.trips(t))

		require.NoError(t, p.bench.Hold(t.Context(), card, half, "a guest", true))
		require.NoError(t, p.divide(t, halves()), "as it is")
		require.Equal(t, want, p.trips(t))
		require.NoError(t, p.divide(t, cyborg.Layout{"half": 1}))
		want = append(want, fake.Trip{Card: card, What: "partitioned", Handle: half, HeldBy: "a guest"})
		require.Equal(t, want, p.trips(t), "also where the part comes back")

		require.NoError(t, p.bench.Hold(t.Context(), card, "00fb:01:00.2", "another", false))
		require.Equal(t, want, p.trips(t), "two halves fit")
		require.NoError(t, p.bench.Hold(t.Context(), card, quarter, "a third", true))
		require.NoError(t, p.bench.Hold(t.Context(), card, quarter, "", true))
		require.NoError(t, p.bench.Hold(t.Context(), card, "00fb:01:00.2", "", true))
		require.NoError(t, p.bench.Hold(t.Context(), card, whole, "a fourth", false))
		want = append(want,
			fake.Trip{Card: card, What: "divided", Handle: quarter, HeldBy: "a third"},
			fake.Trip{Card: card, What: "divided", Handle: whole, HeldBy: "a fourth"})
		require.Equal(t, want, p.trips(t))
	}
}

// trips returns what the tripwire has noted.
func (p *park) trips(t *testing.T) []fake.Trip {
	t.Helper()
	trips, err := p.bench.Trips()
	require.NoError(t, err)
	return trips
}

// TestDividedByHand: somebody else may divide a card, and the driver finds that.
func TestDividedByHand(t *testing.T) {
	t.Parallel()
	p, boot := newDivisible(t, nil)
	card := p.identities(t)[0]
	require.NoError(t, p.bench.Divide(t.Context(), card, cyborg.Layout{"quarter": 3, "half": 0}))
	require.Equal(t, cyborg.Layout{"quarter": 3}, p.discover(t)[0].Partitioning.Layout)
	require.Len(t, p.parts(t), 3)
	require.NoError(t, p.bench.Divide(t.Context(), card, nil))
	require.Contains(t, p.parts(t), "fake_gpu_00fb_01_00_0_r0")
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(p.bench.Divide(t.Context(), card, cyborg.Layout{"half": 3})))
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(p.bench.Divide(t.Context(), "00fb:09:00.0", halves())))

	require.NoError(t, p.bench.Divide(t.Context(), card, halves()))
	one := p.partition(t, cyborg.Layout{"half": 1}, json.RawMessage(`{"wanted":{"half":1},"number":2}`))
	require.NoError(t, p.driver.(drivers.Partitioner).Partition(t.Context(), one.request), "the note is of a layout that is gone")
	require.Equal(t, cyborg.Layout{"half": 1}, p.discover(t)[0].Partitioning.Layout)
	driver, err := fake.New(p.environment(), map[string]any{"park": "1xgpu", "boot_id_file": boot})
	require.NoError(t, err)
	p.driver = driver
	require.Len(t, p.parts(t), 1, "without the option the card is whole")
}

// TestPartsHaveAddressesOfTheirOwn: parts have functions behind those of the whole card, and
// companions of their own.
func TestPartsHaveAddressesOfTheirOwn(t *testing.T) {
	t.Parallel()
	options := map[string]any{"deployables": 2, "handles": 3, "whole": true, "companions": 1}
	before := newPark(t, options).discover(t)[0].Deployables
	options["partition"] = true
	p := newPark(t, options)
	require.Equal(t, before, p.discover(t)[0].Deployables, "the whole card is as without the option")

	functions := map[string]bool{}
	for _, layout := range []cyborg.Layout{{}, {"half": 2}, {"quarter": 4}} {
		require.NoError(t, p.divide(t, layout))
		for _, deployable := range p.discover(t)[0].Deployables {
			for _, handle := range deployable.Handles {
				require.Len(t, handle.With, 1)
				for _, function := range []string{handle.Identity, handle.With[0].String()} {
					require.False(t, functions[function], function)
					functions[function] = true
				}
			}
		}
	}
	require.True(t, functions["00fa:01:00.7"] && functions["00fa:01:01.4"], "the first and the last part")
}

// TestPartitionHangsUntilItIsAllowed: a partition that its card makes slow tells its
// progress, and goes on when the card is quick again.
func TestPartitionHangsUntilItIsAllowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPark(t, map[string]any{"partition": true, "partition_latency": "30s"})
		one := p.partition(t, halves(), nil)
		var percents []int
		one.request.Progress = func(percent int, note string) {
			require.NotEmpty(t, note)
			percents = append(percents, percent)
		}
		answer := make(chan error, 1)
		go func() { answer <- p.driver.(drivers.Partitioner).Partition(t.Context(), one.request) }()

		<-time.After(25 * time.Second)
		require.Equal(t, cyborg.Layout{"half": 1}, p.card(t).Layout)
		require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) { card.Latency[fake.StepPartition] = 0 }))
		<-time.After(time.Second)
		require.NoError(t, <-answer)
		require.Contains(t, percents, 50)
		require.IsNonDecreasing(t, percents)
		require.Equal(t, 100, percents[len(percents)-1])
	})
}
