package agent_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// parts is in how many parts the driver of these tests cleans a handle.
const parts = 3

// remains is what the last holders have left on the handles of a host, and how its driver
// removes that: part by part, each after a note.
type remains struct {
	mu sync.Mutex
	// methods are those of the driver; nil where it cleans nothing.
	methods []cyborg.CleanMethod
	// left has the parts that are not clean, by handle.
	left map[string]map[int]bool
	// wiped is how many parts the driver has wiped in all, clean ones included.
	wiped int
	// asked are the calls of the driver, in order.
	asked []drivers.CleanRequest
	// meanwhile, where set, is called instead of what the driver does; it returns true
	// where the driver then goes on.
	meanwhile func(ctx context.Context, request drivers.CleanRequest) (bool, error)
	// says, where set, is what the driver says that it has done.
	says cyborg.Evidence
}

// describe adds to the reports how the driver cleans.
func (r *remains) describe(devices []cyborg.DeviceReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, device := range devices {
		for i := range device.Deployables {
			device.Deployables[i].Cleaning = nil
			if r.methods != nil {
				device.Deployables[i].Cleaning = &cyborg.Cleaning{Methods: r.methods}
			}
		}
	}
}

// dirty returns how many parts of a handle are not clean.
func (r *remains) dirty(identity string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.left[identity])
}

// wipe removes what is in one part.
func (r *remains) wipe(identity string, part int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wiped++
	delete(r.left[identity], part)
}

// mark is the note of the driver.
type mark struct {
	Part int `json:"part"`
}

func (s shim) Clean(ctx context.Context, request drivers.CleanRequest) (evidence cyborg.Evidence, err error) {
	r := &s.host.remains
	r.mu.Lock()
	r.asked = append(r.asked, request)
	meanwhile, says := r.meanwhile, r.says
	r.mu.Unlock()

	return says, s.change("clean", func() error {
		if meanwhile != nil {
			if goesOn, err := meanwhile(ctx, request); err != nil || !goesOn {
				return err
			}
		}

		var at mark
		if request.Prior != nil {
			if err := json.Unmarshal(request.Prior, &at); err != nil {
				return err
			}
		}
		for ; at.Part < parts; at.Part++ {
			note, err := json.Marshal(at)
			if err != nil {
				return err
			}
			if err := request.Note(note); err != nil {
				return err
			}
			if err := s.fate.point(); err != nil {
				return err
			}
			r.wipe(request.Handle.Identity, at.Part)
			request.Progress(100*(at.Part+1)/parts, "part by part")
		}

		if n := r.dirty(request.Handle.Identity); n > 0 {
			return cyborg.Errorf(cyborg.ErrHardware, "%d parts are not clean", n)
		}
		return nil
	})
}

// leave has the last holder leave something on each part of a handle.
func (h *host) leave(identity string) {
	h.remains.mu.Lock()
	defer h.remains.mu.Unlock()
	left := map[int]bool{}
	for part := range parts {
		left[part] = true
	}
	h.remains.left = map[string]map[int]bool{identity: left}
}

// newCleaningHost is newHost with a driver that cleans. The first region is in service,
// and its first handle is not clean.
func newCleaningHost(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	h.remains.methods = []cyborg.CleanMethod{cyborg.CleanScrub}
	h.remains.says = cyborg.Evidence{Method: cyborg.CleanScrub, Tool: "rags", ReadBack: "nothing"}
	h.ready()
	h.leave(handle)
	return h
}

// toClean is a handle that needs this.
func toClean(identity string, method cyborg.CleanMethod) cyborg.HandleToClean {
	return cyborg.HandleToClean{UUID: workHandle(identity).UUID, Identity: identity, Method: method}
}

// clean is the input that cleans a handle of the first region.
func clean(operation uuid.UUID, identity string) workflows.CleanInput {
	return workflows.CleanInput{Operation: operation, Target: target(), Handle: toClean(identity, cyborg.CleanScrub)}
}

// unfinished returns what the journal has of a clean of a handle.
func (h *host) unfinished(identity string) (journal.Cleaning, bool) {
	return h.journal.Cleaning(journal.AttachmentKey{Backend: backend, Handle: identity})
}

// unfinish leaves the first handle in the middle of a clean, with a note.
func (h *host) unfinish(operation uuid.UUID) {
	h.t.Helper()
	h.startAs(&fate{dieAt: 8}) // before it wipes the second part
	require.True(h.t, h.try(workflows.CleanActivity, clean(operation, handle)))
	h.start()
	require.Equal(h.t, 2, h.remains.dirty(handle))
	entry, known := h.unfinished(handle)
	require.True(h.t, known)
	require.JSONEq(h.t, `{"part": 1}`, string(entry.Note))
}

// lastPrior returns the note that the driver was given last.
func (h *host) lastPrior() string {
	h.remains.mu.Lock()
	defer h.remains.mu.Unlock()
	return string(h.remains.asked[len(h.remains.asked)-1].Prior)
}

// requireGivenToNobody requires that neither the host nor anybody else gets the handle, with
// the operation that has begun to clean it.
func (h *host) requireGivenToNobody(operation uuid.UUID) {
	h.t.Helper()
	attaches := h.fate.count("attach")
	for name, in := range map[string]any{workflows.AttachActivity: attach(uuid.New(), handle), workflows.CheckUseActivity: checkUse(second, handle)} {
		err := h.refused(cyborg.ErrChanged, name, in)
		require.Equal(h.t, "handle "+handle+" was not cleaned to its end since operation "+operation.String(), err.Message)
		require.Equal(h.t, "Clean the accelerator again, with --method scrub; or clean it by hand, and declare that.", err.Hint)
	}
	require.Equal(h.t, attaches, h.fate.count("attach"))
	require.Empty(h.t, h.attachments())
}

// TestClean: the weakest method of the driver that covers what is needed is used, its
// evidence is the result, and a repeat returns that. Then the handle is given away.
func TestClean(t *testing.T) {
	t.Parallel()
	h := newCleaningHost(t)
	h.remains.says.Tool, h.remains.says.ReadBack = "rags\nand \x1b[31msoap", strings.Repeat("é", 2*cyborg.LongestEvidence)
	h.remains.says.Declared, h.remains.says.At, h.remains.says.TookMS = "nobody has", time.Unix(1, 0), 1<<40

	in := clean(uuid.New(), handle)
	in.Handle.Method = cyborg.CleanReset
	began := time.Now()
	var first, again workflows.CleanResult
	h.must(workflows.CleanActivity, in, &first)

	require.Zero(t, h.remains.dirty(handle))
	require.Equal(t, cyborg.CleanScrub, h.remains.asked[0].Method)
	require.Empty(t, h.lastPrior())
	require.Equal(t, cyborg.CleanScrub, first.Evidence.Method)
	require.Equal(t, "rags and  [31msoap", first.Evidence.Tool)
	require.Equal(t, strings.Repeat("é", cyborg.LongestEvidence-1)+"…", first.Evidence.ReadBack)
	require.Empty(t, first.Evidence.Declared)
	require.WithinRange(t, first.Evidence.At, began, time.Now())
	require.Equal(t, time.UTC, first.Evidence.At.Location())
	require.LessOrEqual(t, first.Evidence.TookMS, time.Since(began).Milliseconds())
	require.Equal(t, card, first.Observation.Device.Identity)
	require.NotZero(t, first.Observation.Sequence)
	require.Empty(t, h.journal.Cleanings())

	h.start()
	h.must(workflows.CleanActivity, in, &again)
	require.Equal(t, first, again)
	require.Zero(t, h.fate.count("clean"))

	h.must(workflows.CheckUseActivity, checkUse(handle), nil)
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
}

// TestCleanKilledAtEachPoint kills the agent before and after each write of its journal and
// each change of the hardware. Whenever something is wiped, the journal knows that the clean
// has begun: nobody gets the handle, and whoever cleans it next has the driver go on.
func TestCleanKilledAtEachPoint(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(h *host, in *workflows.CleanInput){
		"the same operation":           func(*host, *workflows.CleanInput) {},
		"another operation":            func(_ *host, in *workflows.CleanInput) { in.Operation = uuid.New() },
		"another one after a boot":     func(h *host, in *workflows.CleanInput) { in.Operation = uuid.New(); h.boot = "boot-2"; h.start() },
		"without a journal":            func(h *host, _ *workflows.CleanInput) { h.lose() },
		"another one, and no journal":  func(h *host, in *workflows.CleanInput) { in.Operation = uuid.New(); h.lose() },
		"another one, killed as well":  func(h *host, in *workflows.CleanInput) { in.Operation = uuid.New(); h.killAgain(*in) },
		"the same one, killed as well": func(h *host, in *workflows.CleanInput) { h.killAgain(*in) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for point := 0; ; point++ {
				require.Less(t, point, 40, "the activity never gets through")
				if !cleanKilledAt(t, point, next) {
					require.Greater(t, point, 10, "the activity has more points than this")
					return
				}
			}
		})
	}
}

// killAgain begins a clean that is killed as well, and starts the next process.
func (h *host) killAgain(in workflows.CleanInput) {
	h.startAs(&fate{dieAt: 7})
	h.try(workflows.CleanActivity, in)
	h.start()
}

// cleanKilledAt kills the agent at one point of a clean. It returns false once the point lies
// behind the last one.
func cleanKilledAt(t *testing.T, point int, next func(h *host, in *workflows.CleanInput)) bool {
	t.Helper()
	h := newCleaningHost(t)
	in := clean(uuid.New(), handle)

	h.startAs(&fate{dieAt: point})
	died := h.try(workflows.CleanActivity, in)
	called := h.fate.count("clean") > 0
	h.start()

	entry, known := h.unfinished(handle)
	step, _ := h.journal.Step(journal.StepKey{Operation: in.Operation, Name: workflows.CleanActivity + "/" + handle})
	switch {
	case known:
		require.Equal(t, in.Operation, entry.Operation)
		require.Equal(t, journal.Started, step.State)
		h.requireGivenToNobody(in.Operation)
	case step.State == journal.Done:
		require.Zero(t, h.remains.dirty(handle))
		h.remains.wiped = 0 // another clean begins anew
	default:
		require.False(t, called, "killed at point %d: the journal does not know what was begun", point)
		require.Zero(t, h.remains.wiped)
	}

	next(h, &in)
	lost := len(h.journal.Cleanings()) == 0
	before, _ := h.unfinished(handle)
	var result workflows.CleanResult
	h.must(workflows.CleanActivity, in, &result)
	require.Zero(t, h.remains.dirty(handle))
	require.Equal(t, "rags", result.Evidence.Tool)
	require.Empty(t, h.journal.Cleanings())
	if !lost {
		require.Equal(t, string(before.Note), h.lastPrior())
		require.LessOrEqual(t, h.remains.wiped, parts+2, "it goes on where it was")
	}

	h.must(workflows.CheckUseActivity, checkUse(handle), nil)
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
	return died
}

// TestCleanIsRefused: nothing is touched of what somebody has or that cannot be cleaned as
// it must be, and the journal does not keep the handle from anybody.
func TestCleanIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(h *host, in *workflows.CleanInput)
		kind    cyborg.ErrorKind
		says    string
	}{
		"in use": {
			func(h *host, _ *workflows.CleanInput) { h.use(handle, "qemu (pid 42)") },
			cyborg.ErrInUse, "in use by qemu (pid 42)",
		},
		"attached": {
			func(h *host, _ *workflows.CleanInput) {
				h.must(workflows.AttachActivity, attach(uuid.Max, handle), nil)
			},
			cyborg.ErrInUse, "is attached since operation " + uuid.Max.String(),
		},
		"in doubt": {
			func(h *host, _ *workflows.CleanInput) {
				h.startAs(&fate{dieAt: 4})
				require.True(h.t, h.try(workflows.AttachActivity, attach(uuid.Max, handle)))
				h.start()
				require.Equal(h.t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentInDoubt}, h.attachments())
			},
			cyborg.ErrInUse, "is attached since operation " + uuid.Max.String(),
		},
		"its driver does not know who uses it": {
			func(h *host, _ *workflows.CleanInput) {
				h.edit(func(c *fake.Card) {
					c.Fail[fake.StepInUse] = fake.Failure{Times: 1, Kind: cyborg.ErrUnavailable, When: fake.Before}
				})
			},
			cyborg.ErrUnavailable, "",
		},
		"too weak a driver": {
			func(h *host, _ *workflows.CleanInput) { h.remains.methods = []cyborg.CleanMethod{cyborg.CleanReset} },
			cyborg.ErrUnsupported, "scrub is needed to clean it, and its driver has reset",
		},
		"a method of another release": {
			func(_ *host, in *workflows.CleanInput) { in.Handle.Method = "melt" },
			cyborg.ErrUnsupported, "melt is needed to clean it, and its driver has scrub",
		},
		"a backend that cleans nothing": {
			func(h *host, _ *workflows.CleanInput) { h.remains.methods = nil },
			cyborg.ErrUnsupported, "its driver has none",
		},
		"a driver that cannot clean": {
			func(h *host, in *workflows.CleanInput) {
				h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureInstall, "plain", "plain", nil), nil)
				in.Target, in.Handle.Identity = plainTarget("plain_0"), "/dev/plain"
			},
			cyborg.ErrUnsupported, "the driver of backend plain cannot clean",
		},
		"protected": {
			func(h *host, in *workflows.CleanInput) {
				h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureInstall, "plain", "plain", nil), nil)
				in.Target = plainTarget("plain_1")
			},
			cyborg.ErrProtected, "it has the root file system",
		},
		"no such handle": {
			func(_ *host, in *workflows.CleanInput) { in.Handle.Identity = "00fa:01:00.9" },
			cyborg.ErrNotFound, "has no handle",
		},
		"gone": {
			func(h *host, _ *workflows.CleanInput) { require.NoError(h.t, h.bench.Vanish(h.t.Context(), card)) },
			cyborg.ErrNotFound, "has no deployable",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newCleaningHost(t)
			in := clean(uuid.New(), handle)
			test.prepare(h, &in)
			h.inventory.Scan(t.Context())

			require.Contains(t, h.refused(test.kind, workflows.CleanActivity, in).Message, test.says)
			require.Zero(t, h.fate.count("clean"))
			require.Equal(t, parts, h.remains.dirty(handle))
			require.Empty(t, h.journal.Cleanings())
			_, known := h.journal.Step(journal.StepKey{Operation: in.Operation, Name: workflows.CleanActivity + "/" + in.Handle.Identity})
			require.False(t, known)
		})
	}
}

// TestCleanBesideOthers: what others have of the same deployable is no reason to wait, and
// neither is what a boot has undone.
func TestCleanBesideOthers(t *testing.T) {
	t.Parallel()
	h := newCleaningHost(t)
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
	h.boot = "boot-2"
	h.start()
	h.must(workflows.AttachActivity, attach(uuid.New(), second), nil)
	h.use(second, "qemu")
	h.must(workflows.CleanActivity, clean(uuid.New(), handle), nil)
	require.True(t, h.attachedNow(second))
	h.untouched()
}

// TestARetriedCleanIsRefused: an earlier try has begun, so it is no refusal any more.
func TestARetriedCleanIsRefused(t *testing.T) {
	t.Parallel()
	h := newCleaningHost(t)
	op := uuid.New()
	h.unfinish(op)
	h.use(handle, "qemu")
	require.Contains(t, h.refused(cyborg.ErrHardware, workflows.CleanActivity, clean(op, handle)).Message, "in use by qemu")
	h.refused(cyborg.ErrInUse, workflows.CleanActivity, clean(uuid.New(), handle)) // for which nothing was done yet
	entry, _ := h.unfinished(handle)
	require.Equal(t, op, entry.Operation)
}

// TestDriverRefusesToClean: a refusal alone leaves the journal as it was, and so does not
// keep the handle from anybody. After a note, the driver may have changed something.
func TestDriverRefusesToClean(t *testing.T) {
	t.Parallel()
	refuses := func(note string) func(context.Context, drivers.CleanRequest) (bool, error) {
		return func(_ context.Context, request drivers.CleanRequest) (bool, error) {
			if note != "" {
				if err := request.Note(json.RawMessage(note)); err != nil {
					return false, err
				}
			}
			return false, cyborg.Errorf(cyborg.ErrInUse, "somebody was faster")
		}
	}

	h := newCleaningHost(t)
	op := uuid.New()
	h.remains.meanwhile = refuses("")
	for range 2 { // a repeat is no different
		require.Equal(t, "somebody was faster", h.refused(cyborg.ErrInUse, workflows.CleanActivity, clean(op, handle)).Message)
	}
	require.Empty(t, h.journal.Cleanings())
	h.must(workflows.CheckUseActivity, checkUse(handle), nil)

	h.remains.meanwhile = nil
	h.unfinish(op)
	before, _ := h.unfinished(handle)
	h.remains.meanwhile = refuses("")
	h.refused(cyborg.ErrHardware, workflows.CleanActivity, clean(op, handle))
	h.refused(cyborg.ErrInUse, workflows.CleanActivity, clean(uuid.New(), handle))
	after, _ := h.unfinished(handle)
	require.Equal(t, before.Operation, after.Operation, "as another operation has left it")
	require.Equal(t, before.Note, after.Note)
	h.requireGivenToNobody(op)

	last := uuid.New()
	h.remains.meanwhile = refuses(`{"part": 2}`)
	require.Contains(t, h.refused(cyborg.ErrHardware, workflows.CleanActivity, clean(last, handle)).Message, "something may have been changed before")
	h.requireGivenToNobody(last)

	h.startAs(&fate{dieAt: 4}) // a refusal whose journal cannot be written
	h.remains.meanwhile = refuses("")
	require.True(t, h.try(workflows.CleanActivity, clean(uuid.New(), handle)))
	h.start()
	_, known := h.unfinished(handle)
	require.True(t, known)
}

// TestCleanFails: where the driver fails, panics or has not done what was asked for, the
// handle is not clean.
func TestCleanFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(r *remains)
		kind  cyborg.ErrorKind
		says  string
	}{
		"it fails": {func(r *remains) {
			r.meanwhile = func(context.Context, drivers.CleanRequest) (bool, error) {
				return false, cyborg.Errorf(cyborg.ErrHardware, "it smoked")
			}
		}, cyborg.ErrHardware, "it smoked"},
		"it panics": {func(r *remains) {
			r.meanwhile = func(context.Context, drivers.CleanRequest) (bool, error) { panic("what a day") }
		}, cyborg.ErrInternal, "what a day"},
		"weaker":       {func(r *remains) { r.says.Method = cyborg.CleanReset }, cyborg.ErrInternal, `has done "reset" to handle ` + handle + ", and was asked for scrub"},
		"nothing":      {func(r *remains) { r.says.Method = "" }, cyborg.ErrInternal, `has done ""`},
		"nobody knows": {func(r *remains) { r.says.Method = "melt" }, cyborg.ErrInternal, `has done "melt"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newCleaningHost(t)
			h.remains.methods = []cyborg.CleanMethod{cyborg.CleanReset, cyborg.CleanScrub}
			h.inventory.Scan(t.Context())
			test.spoil(&h.remains)
			op := uuid.New()
			require.Contains(t, h.refused(test.kind, workflows.CleanActivity, clean(op, handle)).Message, test.says)
			h.requireGivenToNobody(op)

			h.remains.meanwhile, h.remains.says = nil, cyborg.Evidence{Method: cyborg.CleanScrub}
			h.must(workflows.CleanActivity, clean(op, handle), nil)
			require.Zero(t, h.remains.dirty(handle))
		})
	}
}

// cleanUnderWay begins a clean whose driver waits until its context ends. The caller reads
// its end from the channel.
func (h *host) cleanUnderWay(ctx context.Context, operation uuid.UUID, stop chan struct{}) <-chan error {
	h.t.Helper()
	at := make(chan struct{})
	h.remains.meanwhile = func(ctx context.Context, _ drivers.CleanRequest) (bool, error) {
		close(at)
		<-ctx.Done()
		return false, cyborg.Errorf(cyborg.ErrInUse, "a driver may say anything then: %w", ctx.Err())
	}

	env := h.environment(ctx)
	env.SetTestTimeout(5 * time.Minute)
	if stop != nil {
		env.SetWorkerStopChannel(stop)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := env.ExecuteActivity(workflows.CleanActivity, clean(operation, handle))
		ended <- err
	}()
	select {
	case <-at:
	case err := <-ended:
		require.NoError(h.t, err)
	}
	return ended
}

// TestCleanIsInterrupted: a clean that is cancelled, or whose agent stops, ends at once. Nobody
// gets the handle, whatever its driver says then, until it is tried again.
func TestCleanIsInterrupted(t *testing.T) {
	t.Parallel()
	for name, stops := range map[string]bool{"cancelled": false, "the agent stops": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newCleaningHost(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			op, stop := uuid.New(), make(chan struct{})
			ended := h.cleanUnderWay(ctx, op, stop)

			if stops {
				close(stop)
				require.Equal(t, cyborg.ErrUnavailable, workflows.FromFailure(<-ended).Kind)
			} else {
				cancel()
				require.True(t, temporal.IsCanceledError(<-ended))
			}

			h.requireGivenToNobody(op)
			h.remains.meanwhile = nil
			h.must(workflows.CleanActivity, clean(op, handle), nil)
			require.Zero(t, h.remains.dirty(handle))
		})
	}
}

// TestDeclaredClean: somebody has cleaned the handle by hand, and no host was asked. It is
// given away, and the driver does not go on later from where it was before the next holder.
func TestDeclaredClean(t *testing.T) {
	t.Parallel()
	attaching := attach(uuid.New(), handle)
	attaching.Handle.DeclaredClean = true
	using := checkUse(handle)
	using.Given[0].Handles[0].DeclaredClean = true
	settling := entry(uuid.New(), handle, workflows.GoalAttached)
	settling.Handle.DeclaredClean = true

	for name, in := range map[string]any{
		workflows.AttachActivity: attaching, workflows.CheckUseActivity: using,
		workflows.SettleActivity: workflows.SettleInput{Host: hostName, Entries: []workflows.SettleEntry{settling}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newCleaningHost(t)
			op := uuid.New()
			h.unfinish(op)
			h.requireGivenToNobody(op)

			h.must(name, in, nil)
			require.Empty(t, h.journal.Cleanings())
			require.Equal(t, name != workflows.CheckUseActivity, h.attachedNow(handle))
			h.start()
			h.must(name, in, nil)

			if h.attachedNow(handle) {
				h.must(workflows.DetachActivity, detach(uuid.New(), handle), nil)
			}
			h.leave(handle)
			h.must(workflows.CleanActivity, clean(uuid.New(), handle), nil)
			require.Empty(t, h.lastPrior())
			require.Zero(t, h.remains.dirty(handle))
		})
	}
}

// TestDeclaredCleanWhileItIsCleaned: its operation has ended without the host, and the driver
// is still at work. Nobody gets the handle meanwhile.
func TestDeclaredCleanWhileItIsCleaned(t *testing.T) {
	t.Parallel()
	h := newCleaningHost(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	op := uuid.New()
	ended := h.cleanUnderWay(ctx, op, nil)

	using := checkUse(handle)
	using.Given[0].Handles[0].DeclaredClean = true
	short, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	require.NotNil(t, h.doWith(short, workflows.CheckUseActivity, using, nil))
	entry, known := h.unfinished(handle)
	require.True(t, known)
	require.Equal(t, op, entry.Operation)

	cancel()
	require.Error(t, <-ended)
	h.must(workflows.CheckUseActivity, using, nil)
}

// TestNobodyGetsAnUncleanHandleBack: the records say that somebody had the handle before it
// was cleaned, because their database was put back. What others have left may be on it.
func TestNobodyGetsAnUncleanHandleBack(t *testing.T) {
	t.Parallel()
	h := newCleaningHost(t)
	op := uuid.New()
	h.unfinish(op)

	wanted := entry(uuid.New(), handle, workflows.GoalAttached)
	require.Contains(t, h.settle(wanted).Errors[handle], "was not cleaned to its end since operation "+op.String())
	require.NotNil(t, h.do(workflows.AttachActivity, again(uuid.New(), handle), nil))
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.attachments())

	wanted.Want = workflows.GoalDetached
	require.Empty(t, h.settle(wanted).Errors, "nobody has it")
	h.must(workflows.AttachActivity, attach(uuid.New(), second), nil)
}

// TestCleanOfAnotherCard: what was not cleaned to its end is one card. Another one in its
// place is given away, and cleaned without the note; the former one still has to be cleaned
// when it comes back.
func TestCleanOfAnotherCard(t *testing.T) {
	t.Parallel()
	for _, cleanOther := range []bool{false, true} {
		h := newCleaningHost(t)
		was := of(target(), h.look())
		former := clean(uuid.New(), handle)
		former.Target = was
		h.startAs(&fate{dieAt: 8})
		require.True(t, h.try(workflows.CleanActivity, former))
		h.start()

		now := of(target(), h.exchange(func(c *fake.Card) { c.Deployables["r0"].Installed = true }))
		calls := h.fate.count("clean")
		require.Contains(t, h.refused(cyborg.ErrHardware, workflows.CleanActivity, former).Message, "there is now another card")
		require.Equal(t, calls, h.fate.count("clean"))

		using := checkUse(handle)
		using.Given[0].Target = now
		h.must(workflows.CheckUseActivity, using, nil)
		attaching := attach(uuid.New(), handle)
		attaching.Target = now
		h.must(workflows.AttachActivity, attaching, nil)
		detaching := detach(uuid.New(), handle)
		detaching.Target = now
		h.must(workflows.DetachActivity, detaching, nil)

		if cleanOther {
			h.leave(handle)
			in := clean(uuid.New(), handle)
			in.Target = now
			h.must(workflows.CleanActivity, in, nil)
			require.Empty(t, h.lastPrior())
			require.Zero(t, h.remains.dirty(handle))
			require.Empty(t, h.journal.Cleanings(), "of the former one, the records know")
			continue
		}

		require.NoError(t, h.bench.Exchange(t.Context(), card, "", ""))
		h.edit(func(c *fake.Card) { c.Deployables["r0"].Installed = true })
		h.look()
		h.requireGivenToNobody(former.Operation)
		h.must(workflows.CleanActivity, former, nil)
		require.JSONEq(t, `{"part": 1}`, h.lastPrior())
	}
}

// TestCleanOfACardThatWakesAsAnother: a look does not see which card is there, and the driver
// compares, or the card shows it afterwards.
func TestCleanOfACardThatWakesAsAnother(t *testing.T) {
	t.Parallel()
	for _, compares := range []bool{true, false} {
		h := newCleaningHost(t)
		in := clean(uuid.New(), handle)
		in.Target = of(target(), h.look())
		h.asleepOther()
		h.blind = true // only the driver's Clean looks
		h.remains.meanwhile = func(context.Context, drivers.CleanRequest) (bool, error) {
			h.asleep = false
			if compares {
				return false, cyborg.Errorf(cyborg.ErrChanged, "this is another one")
			}
			return true, nil
		}

		if compares {
			require.Equal(t, "this is another one", h.refused(cyborg.ErrChanged, workflows.CleanActivity, in).Message)
			require.Empty(t, h.journal.Cleanings())
			require.Equal(t, otherSerial, h.inventory.Content().Backends[0].Devices[0].Fingerprint.Serial, "the next report tells")
			continue
		}
		require.Contains(t, h.refused(cyborg.ErrHardware, workflows.CleanActivity, in).Message, "there is now another card")
		entry, _ := h.unfinished(handle)
		require.True(t, entry.Of(in.Target.Fingerprint), "the card that was to be cleaned is not clean")
	}
}
