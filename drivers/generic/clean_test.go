package generic_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/passthrough/passthroughtest"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// withReset returns the function with these ways to reset it.
func withReset(methods string, f simulator.Function) simulator.Function {
	f.Reset = methods
	return f
}

// clean cleans the target's handle with the last note.
func (b *bench) clean(ctx context.Context, t *testing.T) (cyborg.Evidence, error) {
	t.Helper()
	return b.driver.Clean(ctx, drivers.CleanRequest{
		Target: b.target, Handle: b.target.Deployable.Handles[0], Method: cyborg.CleanReset, Prior: b.prior(), Note: b.note,
		Progress: func(int, string) {},
	})
}

// leave leaves something on the target's handle.
func (b *bench) leave(t *testing.T) {
	t.Helper()
	passthroughtest.Leave(t, b.Root(), b.target.Deployable.Handles[0])
}

// requireLeft says whether something is left on the target's handle.
func (b *bench) requireLeft(t *testing.T, something bool) {
	t.Helper()
	require.Equal(t, something, passthroughtest.Left(t, b.Root(), b.target.Deployable.Handles[0]) != nil)
}

// watchedKernel calls a function around each reset.
type watchedKernel struct {
	sysfs.Kernel
	before, after func(attribute string)
}

// Write writes to the kernel.
func (k *watchedKernel) Write(attribute, text string) error {
	if filepath.Base(attribute) != "reset" {
		return k.Kernel.Write(attribute, text)
	}
	if k.before != nil {
		k.before(attribute)
	}
	err := k.Kernel.Write(attribute, text)
	if k.after != nil {
		k.after(attribute)
	}
	return err
}

// TestCleaningIsReported: a function can be reset if it can alone, with all that goes with
// it. Where the backend demands it and the kernel cannot, nobody gets the function.
func TestCleaningIsReported(t *testing.T) {
	t.Parallel()
	card := graphicsCard(t)
	for i := range card {
		card[i].Reset = "pm"
	}
	card[2].Reset = ""
	protected := sysfstest.SSD(t, "0000:c2:00.0", "nvme1n1", "259:1")
	host := passthroughtest.NewHost(t, append(card, withReset("flr bus", sysfstest.QAT(t, qat)), sysfstest.FPGA(t, fpga), protected)...)
	host.Mount("259:1", "/dev/nvme1n1", "/srv")
	ruledOut := "0000:c3:00.0"
	host.Add(withReset("flr", sysfstest.FPGA(t, ruledOut)))
	host.Set("sys/bus/pci/devices/"+ruledOut+"/reset_method", "\n")
	old := "0000:c4:00.0"
	host.Add(withReset("flr", sysfstest.FPGA(t, old)))
	require.NoError(t, os.Remove(filepath.Join(host.Root(), "sys/bus/pci/devices", old, "reset_method")))
	host.SetVFs(qat, "1")

	type said struct {
		cleaning *cyborg.Cleaning
		unready  []string // in the message of the condition
	}
	report := func(options map[string]any) map[string]said {
		options["device_spec"], options["simulate"] = []any{graphics, `{"class": "0b40"}`, `{"class": "1200"}`, `{"class": "0108"}`}, true
		driver, err := generic.New(environment(t, host), options)
		require.NoError(t, err)
		devices, err := driver.(*generic.Driver).WithAnswerLimit(passthroughtest.Patience).Discover(t.Context())
		require.NoError(t, err)

		all := map[string]said{}
		for _, device := range devices {
			for _, deployable := range device.Deployables {
				one := said{cleaning: deployable.Cleaning}
				for _, condition := range deployable.Conditions {
					require.Equal(t, "cannot_be_reset", condition.Code)
					require.Equal(t, cyborg.ConditionUnready, condition.Level)
					require.Contains(t, condition.Message, `backend "pci" demands a reset after every holder`)
					_, which, _ := strings.Cut(condition.Message, "no way to reset ")
					which, _, _ = strings.Cut(which, " alone")
					one.unready = append(one.unready, which)
				}
				all[deployable.Name] = one
			}
		}
		return all
	}

	methods := []cyborg.CleanMethod{cyborg.CleanReset}
	can, must := said{cleaning: &cyborg.Cleaning{Methods: methods}}, said{cleaning: &cyborg.Cleaning{Methods: methods, After: cyborg.CleanReset}}
	const vf = "0000:b1:01.0"
	require.Equal(t, map[string]said{gpu: {}, vf: can, fpga: {}, passthroughtest.Disk: {}, "0000:c2:00.0": {}, ruledOut: {}, old: can}, report(map[string]any{}))
	require.Equal(t, map[string]said{gpu: {}, vf: can, fpga: {}, passthroughtest.Disk: {}, "0000:c2:00.0": {}, ruledOut: {}, old: can}, report(map[string]any{"clean": "none"}))
	require.Equal(t, map[string]said{
		gpu: {unready: []string{usb}}, vf: must, fpga: {unready: []string{fpga}}, passthroughtest.Disk: {}, "0000:c2:00.0": {},
		ruledOut: {unready: []string{ruledOut}}, old: must,
	}, report(map[string]any{"clean": "reset"}))
}

// TestClean resets functions that differ in their drivers. A driver that has set up something
// does not have the function meanwhile, and has it again afterwards. The evidence says what
// was seen.
func TestClean(t *testing.T) {
	t.Parallel()
	host := func(t *testing.T) *sysfstest.Host {
		t.Helper()
		host := passthroughtest.NewHost(t, withReset("flr bus", sysfstest.GPU(t, gpu)), withReset("pm", sysfstest.FPGA(t, fpga)), withReset("flr bus", sysfstest.QAT(t, qat)))
		host.SetVFs(qat, "2")
		return host
	}
	for name, c := range map[string]struct {
		address, driver, meanwhile string
		byHand                     bool
		tool, readBack             string
	}{
		"its own driver": {
			gpu, "nvidia", "", false,
			"sysfs reset (flr, else bus)", gpu + " answers as 10de:20b0 again; no transactions pending, command and BARs as before",
		},
		"given to VFIO by hand": {
			gpu, "vfio-pci", "vfio-pci", true,
			"sysfs reset (flr, else bus)", gpu + " answers as 10de:20b0 again; no transactions pending, command and BARs as before",
		},
		"no driver": {
			fpga, "", "", false,
			"sysfs reset (pm)", fpga + " answers as 10ee:5004 again; no transactions pending, command and BARs as before",
		},
		"a virtual function": {
			"0000:b1:01.1", "c6xxvf", "", false,
			"sysfs reset (flr)", "0000:b1:01.1 answers again; no transactions pending, command and BARs as before",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, host(t), c.address)
			if c.byHand {
				passthroughtest.ToVFIO(t, b.Host, c.address)
			}
			before, meanwhile := passthroughtest.Snapshot(t, b.Root()), "not reset"
			b.restart(t, &watchedKernel{Kernel: b.Simulator, before: func(string) { meanwhile = b.has(t) }}, "30s")
			b.leave(t)

			evidence, err := b.clean(t.Context(), t)
			require.NoError(t, err)
			require.Equal(t, cyborg.Evidence{Method: cyborg.CleanReset, Tool: c.tool, ReadBack: c.readBack}, evidence)
			require.Equal(t, c.meanwhile, meanwhile)
			require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()), "only what was left is gone")
		})
	}
}

// TestCleanOfACard resets a graphics card with what goes with it.
func TestCleanOfACard(t *testing.T) {
	t.Parallel()
	card := graphicsCard(t)
	for i := range card {
		card[i].Reset = "pm"
	}
	card[0].Reset = "flr"
	b := newCardOf(t, cyborg.HolderInstance, card)
	before, bound := passthroughtest.Snapshot(t, b.Root()), []map[string]string{}
	b.restart(t, &watchedKernel{Kernel: b.Simulator, before: func(string) { bound = append(bound, b.bound(t)) }}, "30s")
	b.leave(t)

	evidence, err := b.clean(t.Context(), t)
	require.NoError(t, err)
	require.Equal(t, []map[string]string{{}, {}, {}, {}}, bound, "no driver sees one of them reset")
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
	require.Equal(t, fmt.Sprintf("sysfs reset (%s: pm; %s: pm; %s: pm; %s: flr)", audio, usb, ucsi, gpu), evidence.Tool)
	require.Equal(t, fmt.Sprintf("%s answers as 10de:1aef again, %s answers as 10de:1ad6 again, %s answers as 10de:1ad7 again, %s answers as 10de:20b0 again"+
		"; no transactions pending, command and BARs as before", audio, usb, ucsi, gpu), evidence.ReadBack)

	b.Open(812, "pipewire", "/dev/snd/controlC1")
	b.leave(t)
	before = passthroughtest.Snapshot(t, b.Root())
	_, err = b.clean(t.Context(), t)
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, audio+", which goes with "+gpu)
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// TestCleanIsRefused asks to clean what must not be touched. Nothing changes.
func TestCleanIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(b *bench)
		want   cyborg.ErrorKind
		says   string
	}{
		"in use through its driver": {
			func(b *bench) { b.Open(812, "Xorg", "/dev/dri/card1") }, cyborg.ErrInUse, "process 812 (Xorg)",
		},
		"a display that the host boots on since": {
			func(b *bench) { b.Set("sys/bus/pci/devices/"+gpu+"/boot_vga", "1\n") }, cyborg.ErrProtected, "boots on",
		},
		"all ways ruled out since": {
			func(b *bench) { b.Set("sys/bus/pci/devices/"+gpu+"/reset_method", "\n") }, cyborg.ErrUnsupported, "no way to reset " + gpu,
		},
		"pulled out": {
			func(b *bench) { b.Set("sys/bus/pci/devices/"+gpu+"/config", strings.Repeat("\xff", 4096)) }, cyborg.ErrHardware, "does not answer",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, passthroughtest.NewHost(t, withReset("flr", sysfstest.GPU(t, gpu))), gpu)
			b.leave(t)
			c.change(b)
			before := passthroughtest.Snapshot(t, b.Root())
			_, err := b.clean(t.Context(), t)
			require.Equal(t, c.want, cyborg.ErrorKindOf(err), err)
			require.ErrorContains(t, err, c.says)
			require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
			require.Empty(t, b.notes)
		})
	}

	b := newBench(t, passthroughtest.NewHost(t, withReset("flr", sysfstest.GPU(t, gpu))), gpu)
	_, err := b.driver.Clean(t.Context(), drivers.CleanRequest{
		Target: b.target, Handle: b.target.Deployable.Handles[0], Method: cyborg.CleanScrub, Note: b.note, Progress: func(int, string) {},
	})
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err), err)
}

// TestCleanReadsBack: a function that is not as the kernel should have restored it is not
// clean, whatever the kernel has said. Its driver gets it back all the same.
func TestCleanReadsBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at   int64
		now  []byte
		says string
	}{
		"it does not answer":        {0, []byte(strings.Repeat("\xff", 4096)), "it does not answer"},
		"it is another one":         {2, []byte{0xb5}, "its ids: de10b520, and before de10b020"},
		"it has another class":      {0x0a, []byte{0x00}, "its class"},
		"it is switched off":        {4, []byte{0}, "its command: 0000, and before 0600"},
		"it lost its memory":        {0x13, []byte{0}, "its BARs"},
		"it waits for somebody":     {0x4a, []byte{0x20}, "its transactions are still pending"},
		"it has lost a capability":  {0x34, []byte{0}, "its PCI Express capability"},
		"it lost all capabilities":  {6, []byte{0}, "its PCI Express capability"},
		"what it is allowed to say": {0x4a, []byte{0x0f}, ""}, // errors that it has seen
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, passthroughtest.NewHost(t, withReset("flr", sysfstest.GPU(t, gpu))), gpu)
			b.restart(t, &watchedKernel{Kernel: b.Simulator, after: func(attribute string) {
				file, err := os.OpenFile(filepath.Join(b.Root(), filepath.Dir(attribute), "config"), os.O_WRONLY, 0)
				require.NoError(t, err)
				_, err = file.WriteAt(c.now, c.at)
				require.NoError(t, err)
				require.NoError(t, file.Close())
			}}, "30s")

			_, err := b.clean(t.Context(), t)
			if c.says == "" {
				require.NoError(t, err)
			} else {
				require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err), err)
				require.ErrorContains(t, err, "after its reset, "+gpu+" is not well: "+c.says)
			}
			require.Equal(t, "nvidia", b.has(t))
		})
	}
}

// TestCleanWithoutExpress: a function that does not tell what is pending has no evidence of
// that.
func TestCleanWithoutExpress(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, withReset("flr", sysfstest.GPU(t, gpu))), gpu)
	strip := func(string) {
		name := filepath.Join(b.Root(), "sys/bus/pci/devices", gpu, "config")
		space, err := os.ReadFile(name)
		require.NoError(t, err)
		space[6] = 0
		require.NoError(t, os.WriteFile(name, space, 0o600))
	}
	strip("")
	b.restart(t, &watchedKernel{Kernel: b.Simulator, after: strip}, "30s")
	evidence, err := b.clean(t.Context(), t)
	require.NoError(t, err)
	require.Equal(t, gpu+" answers as 10de:20b0 again; command and BARs as before", evidence.ReadBack)
}

// TestAgentDiesDuringClean lets the agent die at each write of a clean. The next agent can
// complete it, and then each function has the driver that it had.
func TestAgentDiesDuringClean(t *testing.T) {
	t.Parallel()
	const writes = 2*3 + 4 // three of the functions have drivers
	for at := 1; at <= writes; at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d/after %v", at, after), func(t *testing.T) {
				t.Parallel()
				card := graphicsCard(t)
				for i := range card {
					card[i].Reset = "flr"
				}
				b := newCardOf(t, cyborg.HolderInstance, card)
				before := passthroughtest.Snapshot(t, b.Root())
				b.leave(t)

				b.restart(t, &sysfstest.DyingKernel{Kernel: b.Simulator, At: at, After: after, Dead: true}, "30s")
				_, err := b.clean(t.Context(), t)
				require.ErrorIs(t, err, sysfstest.ErrDied)

				b.restart(t, b.Simulator, "30s")
				_, err = b.clean(t.Context(), t)
				require.NoError(t, err)
				require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
			})
		}
	}
}

// TestCleanAfterABoot: a note of before the boot says nothing of the drivers that the kernel
// has chosen since.
func TestCleanAfterABoot(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, withReset("flr", sysfstest.GPU(t, gpu))), gpu)
	b.restart(t, &sysfstest.DyingKernel{Kernel: b.Simulator, At: 2, Dead: true}, "30s")
	_, err := b.clean(t.Context(), t)
	require.ErrorIs(t, err, sysfstest.ErrDied)
	require.Empty(t, b.has(t))
	require.Contains(t, string(b.prior()), `"nvidia"`)

	b.Reboot()
	require.NoError(t, b.Simulator.Write("sys/bus/pci/drivers/nvidia/unbind", gpu)) // as if no rule had loaded it
	b.restart(t, b.Simulator, "30s")
	_, err = b.clean(t.Context(), t)
	require.NoError(t, err)
	require.Empty(t, b.has(t))

	b.notes = []json.RawMessage{json.RawMessage(`nonsense`)}
	_, err = b.clean(t.Context(), t)
	require.Equal(t, cyborg.ErrInternal, cyborg.ErrorKindOf(err), err)
}

// TestCleanLeavesWhoBindsMeanwhile: after an interrupted clean, somebody has given the
// function to another driver. That stays.
func TestCleanLeavesWhoBindsMeanwhile(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"vfio-pci", "nouveau"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, passthroughtest.NewHost(t, withReset("flr", sysfstest.GPU(t, gpu))), gpu)
			require.NoError(t, b.Simulator.AddDriver("nouveau"))
			b.restart(t, &sysfstest.DyingKernel{Kernel: b.Simulator, At: 2, Dead: true}, "30s")
			_, err := b.clean(t.Context(), t)
			require.ErrorIs(t, err, sysfstest.ErrDied)

			require.NoError(t, b.Simulator.Write("sys/bus/pci/devices/"+gpu+"/driver_override", driver))
			require.NoError(t, b.Simulator.Write("sys/bus/pci/drivers_probe", gpu))
			require.Equal(t, driver, b.has(t))
			before := passthroughtest.Snapshot(t, b.Root())
			b.restart(t, b.Simulator, "30s")
			_, err = b.clean(t.Context(), t)
			require.NoError(t, err)
			require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
		})
	}
}

// TestCleanIsInterrupted ends the context in the middle of a reset. The next agent can complete
// the clean.
func TestCleanIsInterrupted(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, withReset("flr", sysfstest.GPU(t, gpu))), gpu)
	before := passthroughtest.Snapshot(t, b.Root())
	b.leave(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.restart(t, &watchedKernel{Kernel: b.Simulator, before: func(string) { cancel() }}, "30s")
	b.Fault(simulator.Fault{On: "reset", Subject: gpu, Hang: true})
	_, err := b.clean(ctx, t)
	require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(err), err)
	require.Empty(t, b.has(t))

	b.ClearFaults()
	b.restart(t, b.Simulator, "30s")
	_, err = b.clean(t.Context(), t)
	require.NoError(t, err)
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// TestHangingReset resets a function that does not come back. Until it does, the function is
// left alone; then the clean can be completed.
func TestHangingReset(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, withReset("flr", sysfstest.GPU(t, gpu))), gpu)
	before := passthroughtest.Snapshot(t, b.Root())
	b.leave(t)
	b.restart(t, b.Simulator, "10s") // also for the accesses before the one that hangs
	b.Fault(simulator.Fault{On: "reset", Subject: gpu, Hang: true})

	_, err := b.clean(t.Context(), t)
	require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, gpu+"/reset")
	_, again := b.clean(t.Context(), t)
	require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(again), again)
	require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(b.attach(t)), "nobody gets it")
	require.Equal(t, []string{gpu}, unwell(t, b.driver, gpu+"/reset for "+gpu+" hangs in the kernel since"))
	b.requireLeft(t, true)

	b.ClearFaults()
	require.Eventually(t, func() bool { _, err := b.clean(t.Context(), t); return err == nil }, 5*time.Minute, 20*time.Millisecond)
	b.requireLeft(t, false)
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// TestCleanOnKernel resets functions of fakebus on the kernel of this machine. What somebody has
// left in their registers is gone, the rest is as the kernel has restored it, and their drivers
// have them.
func TestCleanOnKernel(t *testing.T) {
	t.Parallel()
	fakebus.Need(t)
	for name, c := range map[string]struct {
		card             fakebus.Spec
		function, driver string
		readBack         string
	}{
		"gpu":              {fakebus.GPU(), "00.0", "nvidia", "%s answers as 10de:20b5 again; no transactions pending, command and BARs as before"},
		"virtual function": {fakebus.QAT(), "01.1", "4xxxvf", "%s answers again; no transactions pending, command and BARs as before"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			card := fakebus.Plug(t, c.card)
			if c.function != "00.0" {
				card.SetVFs(2)
			}
			address, driver := card.At(c.function), live(t, card)
			devices, err := driver.Discover(t.Context())
			require.NoError(t, err)
			target, handle := passthroughtest.Choose(address)(t, devices)
			require.Equal(t, &cyborg.Cleaning{Methods: []cyborg.CleanMethod{cyborg.CleanReset}}, target.Deployable.Cleaning)

			var notes []json.RawMessage
			request := drivers.CleanRequest{
				Target: target, Handle: handle, Method: cyborg.CleanReset, Progress: func(int, string) {},
				Note: func(note json.RawMessage) error { notes = append(notes, note); return nil },
			}
			passthroughtest.Leave(t, "/", handle)
			require.NotEmpty(t, passthroughtest.Left(t, "/", handle))
			before := card.Snapshot()
			evidence, err := driver.Clean(t.Context(), request)
			require.NoError(t, err)
			require.Equal(t, cyborg.Evidence{Method: cyborg.CleanReset, Tool: evidence.Tool, ReadBack: fmt.Sprintf(c.readBack, address)}, evidence)
			require.Regexp(t, `^sysfs reset \(flr(, else bus)?\)$`, evidence.Tool)
			require.Empty(t, passthroughtest.Left(t, "/", handle))
			require.Equal(t, before, card.Snapshot())
			require.Equal(t, c.driver, fakebus.DriverOf(t, address))

			attach := drivers.AttachRequest{Target: target, Handle: handle, Holder: cyborg.Holder{Kind: cyborg.HolderHost}, Note: request.Note}
			require.NoError(t, driver.Attach(t.Context(), attach))
			fakebus.Hold(t, address, fakebus.Device)
			passthroughtest.Leave(t, "/", handle)
			_, err = driver.Clean(t.Context(), request)
			require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "%v", err)
			require.NotEmpty(t, passthroughtest.Left(t, "/", handle))
			require.Len(t, notes, 2, "of the clean and of the attach")
		})
	}
}
