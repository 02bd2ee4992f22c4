package db_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// These tests are about handles that are cleaned after their last holders.

// cleaning has all cards of the host report both ways to clean, and what their backend
// demands after every holder; empty for nothing.
func (h *host) cleaning(t testing.TB, after cyborg.CleanMethod) {
	t.Helper()
	for i := range h.devices() {
		h.content.Backends[0].Devices[i].Deployables[0].Cleaning = &cyborg.Cleaning{Methods: cyborg.CleanMethods(), After: after}
	}
	h.report(t)
}

// cleaned adds a host whose cards are cleaned after every holder, with card0 in service.
func (r *records) cleaned(t testing.TB, after cyborg.CleanMethod) (*host, *cyborg.Accelerator) {
	t.Helper()
	h := r.addHost(t, "h1", 1)
	h.cleaning(t, after)
	return h, h.ready(t, "card0")
}

// toClean is the admission of a clean of what needs it.
func toClean(accelerator uuid.UUID) db.Admission {
	a := admission()
	a.Request = cyborg.CleanRequest{Accelerator: accelerator}
	return a
}

// cleanedBy is the evidence of the host that it has cleaned a handle.
func cleanedBy(h cyborg.HandleToClean) cyborg.CleanedHandle {
	return cyborg.CleanedHandle{UUID: h.UUID, Evidence: cyborg.Evidence{
		Method: h.Method, Tool: "a broom", ReadBack: "all zeroes", At: time.Unix(1e9, 0).UTC(), TookMS: 1200,
	}}
}

// endClean ends a clean of which the host has cleaned these handles.
func (r *records) endClean(t testing.TB, work cyborg.Work, state cyborg.OperationState, cleaned ...cyborg.CleanedHandle) {
	t.Helper()
	outcome := cyborg.Outcome{Operation: work.Operation, State: state, Cleaned: cleaned}
	if state != cyborg.OperationSucceeded {
		outcome.Error = cyborg.Errorf(cyborg.ErrHardware, "the broom broke")
	}
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), outcome))
}

// clean has the accelerator cleaned, all of it.
func (r *records) clean(t testing.TB, id uuid.UUID) {
	t.Helper()
	work := r.begin(t, toClean(id))
	var cleaned []cyborg.CleanedHandle
	for _, h := range work.Clean {
		cleaned = append(cleaned, cleanedBy(h))
	}
	r.endClean(t, work, cyborg.OperationSucceeded, cleaned...)
}

// used gives a handle of the accelerator to an instance, and takes it back.
func (r *records) used(t testing.TB, id uuid.UUID) {
	t.Helper()
	r.do(t, toAttach(id, instance("vm1")), cyborg.OperationSucceeded)
	r.do(t, toDetach(id, nil), cyborg.OperationSucceeded)
}

// unclean lists how the handles of the accelerator have still to be cleaned.
func (r *records) unclean(t testing.TB, id uuid.UUID) []cyborg.CleanMethod {
	t.Helper()
	out := []cyborg.CleanMethod{}
	for _, h := range r.accelerator(t, id).Handles {
		if h.Unclean != nil {
			require.Nil(t, h.Holder)
			require.False(t, h.Unclean.Since.IsZero())
			out = append(out, h.Unclean.Method)
		}
	}
	return out
}

// dueCleanings lists what is to be cleaned now.
func (r *records) dueCleanings(t testing.TB) []uuid.UUID {
	t.Helper()
	found, err := r.DueCleanings(t.Context(), 10)
	require.NoError(t, err)
	return found
}

// cleanEvents lists the events about whether the accelerator's handles are clean.
func (r *records) cleanEvents(t testing.TB, id uuid.UUID) []string {
	t.Helper()
	rows, err := r.sql.Query(t.Context(), `
		SELECT from_value || '→' || to_value || coalesce(' by ' || (data #>> '{cleaned,tool}'), '') || coalesce(' as ' || (data #>> '{cleaned,declared}'), '')
		FROM events WHERE subject_id = $1 AND axis = 'unclean' ORDER BY id`, id.String())
	require.NoError(t, err)
	var out []string
	for rows.Next() {
		var one string
		require.NoError(t, rows.Scan(&one))
		out = append(out, one)
	}
	require.NoError(t, rows.Err())
	return out
}

// TestCleaningIsRecorded: what a host says about cleaning is recorded, replaced and removed.
// Ways to clean that nobody knows are left out, and the backend says so.
func TestCleaningIsRecorded(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	require.Nil(t, h.accelerator(t, "card0").Cleaning)
	shown := &h.content.Backends[0].Devices[0].Deployables[0]

	for _, test := range []struct {
		said, recorded *cyborg.Cleaning
		complaint      string
	}{
		{said: &cyborg.Cleaning{Methods: cyborg.CleanMethods()}, recorded: &cyborg.Cleaning{Methods: cyborg.CleanMethods()}},
		{
			said:     &cyborg.Cleaning{Methods: []cyborg.CleanMethod{cyborg.CleanScrub, cyborg.CleanReset}, After: cyborg.CleanReset},
			recorded: &cyborg.Cleaning{Methods: cyborg.CleanMethods(), After: cyborg.CleanReset},
		},
		{
			said:      &cyborg.Cleaning{Methods: []cyborg.CleanMethod{"burn", cyborg.CleanReset}, After: "burn"},
			recorded:  &cyborg.Cleaning{Methods: []cyborg.CleanMethod{cyborg.CleanReset}, After: cyborg.CleanScrub},
			complaint: `"burn"`,
		},
		{},
	} {
		shown.Cleaning = test.said
		h.report(t)
		require.Equal(t, test.recorded, h.accelerator(t, "card0").Cleaning)
		said := scalar[string](t, r, "SELECT error FROM backends WHERE host = 'h1'")
		require.Contains(t, said, test.complaint)
		require.Equal(t, test.complaint == "", said == "", said)
	}
}

// TestNobodyGetsAnUncleanHandle: after a holder, the handle is unclean until its host has
// cleaned it. Nobody gets it meanwhile, and the history tells both.
func TestNobodyGetsAnUncleanHandle(t *testing.T) {
	t.Parallel()
	for _, holder := range []cyborg.Holder{onHost("h1"), instance("vm1"), {Kind: cyborg.HolderService, ID: "s"}} {
		t.Run(string(holder.Kind), func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h, a := r.cleaned(t, cyborg.CleanReset)
			h.content.Backends[0].Devices[0].Deployables[0].Handles = h.content.Backends[0].Devices[0].Deployables[0].Handles[:1]
			h.report(t)
			require.Empty(t, r.dueCleanings(t))

			r.do(t, toAttach(a.UUID, holder), cyborg.OperationSucceeded)
			require.Equal(t, cyborg.CleanReset, r.accelerator(t, a.UUID).Handles[0].Clean, "whoever holds it sees what follows")
			require.Empty(t, r.dueCleanings(t))
			r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)

			require.Equal(t, []cyborg.CleanMethod{cyborg.CleanReset}, r.unclean(t, a.UUID))
			now := r.accelerator(t, a.UUID)
			require.Equal(t, cyborg.StatusUnclean, now.Status())
			require.Empty(t, now.Handles[0].Clean)
			listed, err := r.Accelerators(t.Context(), db.AcceleratorFilter{Statuses: []cyborg.Status{cyborg.StatusUnclean}}, db.Page{})
			require.NoError(t, err)
			require.Len(t, listed, 1)
			_, err = r.Admit(t.Context(), toAttach(a.UUID, instance("vm2")))
			requireKind(t, cyborg.ErrChanged, err, `accelerator "h1_card0" has still to be cleaned (reset): handle card0.0 is unclean since`)

			require.Equal(t, []uuid.UUID{a.UUID}, r.dueCleanings(t))
			work := r.begin(t, toClean(a.UUID))
			require.Equal(t, cyborg.StatusCleaning, r.accelerator(t, a.UUID).Status())
			require.Equal(t, []cyborg.HandleToClean{{UUID: now.Handles[0].UUID, Identity: "card0.0", Method: cyborg.CleanReset}}, work.Clean)
			require.Empty(t, r.dueCleanings(t))
			r.endClean(t, work, cyborg.OperationSucceeded, cleanedBy(work.Clean[0]))

			now = r.accelerator(t, a.UUID)
			require.Equal(t, cyborg.StatusReady, now.Status())
			require.Equal(t, new(cleanedBy(work.Clean[0]).Evidence), now.Handles[0].Cleaned)
			r.do(t, toAttach(a.UUID, instance("vm2")), cyborg.OperationSucceeded)
			require.Equal(t, []string{"→reset", "reset→ by a broom"}, r.cleanEvents(t, a.UUID))

			out, err := r.Admit(t.Context(), toClean(a.UUID))
			require.NoError(t, err)
			require.True(t, out.NothingToDo)
		})
	}
}

// TestStrongestCleaningCounts: what the backend demands when the holder gets the handle, what
// it demands when he leaves it, and what his device profile demands.
func TestStrongestCleaningCounts(t *testing.T) {
	t.Parallel()
	none, reset, scrub := cyborg.CleanMethod(""), cyborg.CleanReset, cyborg.CleanScrub
	for name, test := range map[string]struct{ given, profile, left, want cyborg.CleanMethod }{
		"nothing":                  {},
		"the backend":              {given: reset, left: reset, want: reset},
		"the profile":              {profile: reset, want: reset},
		"the profile, stronger":    {given: reset, profile: scrub, left: reset, want: scrub},
		"the backend, stronger":    {given: scrub, profile: reset, left: scrub, want: scrub},
		"the backend of before":    {given: scrub, left: none, want: scrub},
		"the backend of afterward": {given: none, profile: reset, left: scrub, want: scrub},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h, a := r.cleaned(t, test.given)
			group := one()
			if test.profile != "" {
				group["accel:clean"] = string(test.profile)
			}

			arq := h.bound(t, a, vm(), group)
			require.Equal(t, test.given.Stronger(test.profile), r.accelerator(t, a.UUID).Handles[0].Clean)
			h.content.Attachments = h.content.Attachments[:0]
			h.cleaning(t, test.left)
			r.deleted(t, arq.UUID)

			want := []cyborg.CleanMethod{}
			if test.want != "" {
				want = append(want, test.want)
			}
			require.Equal(t, want, r.unclean(t, a.UUID))
		})
	}
}

// TestBindNeedsWhatItsProfileDemands: a bind fails where the accelerator cannot be cleaned
// as its profile demands.
func TestBindNeedsWhatItsProfileDemands(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	group := one()
	group["accel:clean"] = "scrub"
	r.profile(t, "gpu", group)

	arq := r.request(t, "gpu")[0]
	_, err := r.Admit(t.Context(), toBind("h1", vm(), a.ProviderUUID, arq))
	requireKind(t, cyborg.ErrUnsupported, err, `accelerator "h1_card0" cannot be cleaned as its device profile demands with accel:clean`, "its driver has none")
	require.Equal(t, cyborg.ARQBindFailed, r.arq(t, arq.UUID).State)

	h.cleaning(t, "")
	r.do(t, toBind("h1", vm(), a.ProviderUUID, r.request(t, "gpu")[0]), cyborg.OperationSucceeded)
}

// TestWhatNobodyGotIsClean: an attach or a bind that has failed leaves the handle as clean as
// it was, unless nobody knows whether its holder had it.
func TestWhatNobodyGotIsClean(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.cleaned(t, cyborg.CleanReset)
	r.profile(t, "gpu", one())

	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationFailed)
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationCancelled)
	arq := r.request(t, "gpu")[0]
	r.do(t, toBind("h1", vm(), a.ProviderUUID, arq), cyborg.OperationFailed)
	require.Equal(t, map[string]int{"free": 2}, r.handles(t))
	require.Empty(t, r.unclean(t, a.UUID))
	require.Empty(t, r.cleanEvents(t, a.UUID))

	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationNeedsOperator)
	force := toDetach(a.UUID, nil)
	edit(&force, func(r *cyborg.DetachRequest) { r.Force = true })
	r.do(t, force, cyborg.OperationSucceeded)
	require.Equal(t, []cyborg.CleanMethod{cyborg.CleanReset}, r.unclean(t, a.UUID))

	// Its host has still to say that nobody has it.
	require.Empty(t, r.dueCleanings(t))
	_, err := r.Admit(t.Context(), toClean(a.UUID))
	requireKind(t, cyborg.ErrChanged, err)
	h.report(t)
	h.settle(t)
	require.Equal(t, []uuid.UUID{a.UUID}, r.dueCleanings(t))
	r.clean(t, a.UUID)
	require.Empty(t, r.unclean(t, a.UUID))
}

// TestFailedClean: what was cleaned before another handle failed stays clean. The rest is
// tried again after a while, unless another handle becomes unclean. Evidence of something
// else changes nothing.
func TestFailedClean(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, a := r.cleaned(t, cyborg.CleanScrub)
	r.do(t, toAttach(a.UUID, instance("vm1")), cyborg.OperationSucceeded)
	r.do(t, toAttach(a.UUID, instance("vm2")), cyborg.OperationSucceeded)
	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
	require.Len(t, r.unclean(t, a.UUID), 2)

	work := r.begin(t, toClean(a.UUID))
	first, weak, strange := cleanedBy(work.Clean[0]), cleanedBy(work.Clean[1]), cleanedBy(work.Clean[1])
	weak.Evidence.Method, strange.UUID = cyborg.CleanReset, uuid.New()
	r.endClean(t, work, cyborg.OperationFailed, first, weak, strange)
	require.Equal(t, []cyborg.CleanMethod{cyborg.CleanScrub}, r.unclean(t, a.UUID))
	require.Equal(t, new(first.Evidence), r.accelerator(t, a.UUID).Handles[0].Cleaned)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status(), "one handle is free")

	require.Empty(t, r.dueCleanings(t))
	r.used(t, a.UUID)
	require.Equal(t, []uuid.UUID{a.UUID}, r.dueCleanings(t), "of this handle nothing was tried")
	r.endClean(t, r.begin(t, toClean(a.UUID)), cyborg.OperationCancelled)
	require.Len(t, r.unclean(t, a.UUID), 2)
	require.Empty(t, r.dueCleanings(t))
}

// TestDueCleaningsPause: the pauses between tries grow with the time that a handle has been
// unclean, from a minute to an hour.
func TestDueCleaningsPause(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, a := r.cleaned(t, cyborg.CleanReset)
	r.used(t, a.UUID)
	r.endClean(t, r.begin(t, toClean(a.UUID)), cyborg.OperationFailed)

	for _, test := range []struct {
		unclean, tried string
		due            bool
	}{
		{"2 minutes", "55 seconds", false},
		{"2 minutes", "65 seconds", true},
		{"40 minutes", "9 minutes", false},
		{"40 minutes", "11 minutes", true},
		{"2 days", "59 minutes", false},
		{"2 days", "61 minutes", true},
	} {
		r.exec(t, "UPDATE attach_handles SET unclean_since = now() - $1::interval WHERE unclean <> ''", test.unclean)
		r.exec(t, "UPDATE operations SET admitted_at = now() - $1::interval, started_at = now() - $1::interval, ended_at = now() - $1::interval WHERE kind = 'clean'", test.tried)
		require.Equal(t, test.due, len(r.dueCleanings(t)) == 1, "%+v", test)
	}
}

// TestDueCleaningsOnlyWhereItCanBe: nothing is asked of a host that cannot answer, or that
// must leave the card alone.
func TestDueCleaningsOnlyWhereItCanBe(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, h *host, a *cyborg.Accelerator) error{
		"silent": func(t *testing.T, h *host, _ *cyborg.Accelerator) error { t.Helper(); h.fall(t); return nil },
		"missing": func(t *testing.T, h *host, _ *cyborg.Accelerator) error {
			t.Helper()
			h.content.Backends[0].Devices = nil
			h.report(t)
			return nil
		},
		"protected": func(t *testing.T, h *host, _ *cyborg.Accelerator) error {
			t.Helper()
			h.content.Backends[0].Devices[0].Deployables[0].Protected = "the host lives on it"
			h.report(t)
			return nil
		},
		"in maintenance": func(t *testing.T, h *host, a *cyborg.Accelerator) error {
			t.Helper()
			_, err := h.records.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "fan", By: "bob"}, alice())
			return err
		},
		"claimed": func(t *testing.T, h *host, a *cyborg.Accelerator) error {
			t.Helper()
			h.records.do(t, toAttach(a.UUID, instance("vm9")), cyborg.OperationSucceeded)
			h.records.admit(t, toDetach(a.UUID, nil))
			return nil
		},
		"in error": func(t *testing.T, h *host, a *cyborg.Accelerator) error {
			t.Helper()
			h.records.do(t, toProgram(a.UUID), cyborg.OperationNeedsOperator)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h, a := r.cleaned(t, cyborg.CleanReset)
			r.used(t, a.UUID)
			require.NotEmpty(t, r.dueCleanings(t))
			require.NoError(t, change(t, h, a))
			require.Empty(t, r.dueCleanings(t))
			require.NotEmpty(t, r.unclean(t, a.UUID))
		})
	}
}

// TestDeclaredClean: somebody may say that a handle is clean, also where its host is gone;
// the records keep why.
func TestDeclaredClean(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.cleaned(t, cyborg.CleanScrub)
	r.used(t, a.UUID)
	h.content.Backends[0].Devices = nil
	h.report(t)
	h.fall(t)

	declare := toClean(a.UUID)
	edit(&declare, func(r *cyborg.CleanRequest) { r.Declared = "wiped by hand" })
	failed := r.begin(t, declare)
	require.Empty(t, failed.Clean, "its host does nothing")
	r.endClean(t, failed, cyborg.OperationCancelled)
	require.Len(t, r.unclean(t, a.UUID), 1)

	declare.ID = uuid.New()
	r.endClean(t, r.begin(t, declare), cyborg.OperationSucceeded, cleanedBy(cyborg.HandleToClean{UUID: a.Handles[0].UUID, Method: cyborg.CleanScrub}))
	require.Empty(t, r.unclean(t, a.UUID))
	said := r.accelerator(t, a.UUID).Handles[0].Cleaned
	require.Equal(t, "wiped by hand", said.Declared)
	require.Empty(t, said.Tool, "what a run says about it does not count")
	require.WithinDuration(t, time.Now(), said.At, time.Minute)
	require.Equal(t, []string{"→scrub", "scrub→ as wiped by hand"}, r.cleanEvents(t, a.UUID))

	edit(&declare, func(r *cyborg.CleanRequest) { r.Method = cyborg.CleanReset })
	declare.ID = uuid.New()
	_, err := r.Admit(t.Context(), declare)
	requireKind(t, cyborg.ErrInvalid, err, "not both")
}

// TestCleanWithMethod: a method that is asked for cleans what is free as well, by at least
// that; what somebody holds is left alone.
func TestCleanWithMethod(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, a := r.cleaned(t, "")
	r.do(t, toAttach(a.UUID, instance("vm1")), cyborg.OperationSucceeded)

	scrub := toClean(a.UUID)
	edit(&scrub, func(r *cyborg.CleanRequest) { r.Method = cyborg.CleanScrub })
	work := r.begin(t, scrub)
	require.Len(t, work.Clean, 1)
	require.Equal(t, cyborg.CleanScrub, work.Clean[0].Method)
	require.Equal(t, []cyborg.CleanMethod{cyborg.CleanScrub}, r.unclean(t, a.UUID), "nobody gets it meanwhile, or where that fails")
	r.endClean(t, work, cyborg.OperationFailed)
	require.Equal(t, []cyborg.CleanMethod{cyborg.CleanScrub}, r.unclean(t, a.UUID))
	require.Empty(t, r.dueCleanings(t), "it has just been tried")
	r.clean(t, a.UUID)
	require.Empty(t, r.unclean(t, a.UUID))

	for method, says := range map[cyborg.CleanMethod]string{"burn": `"burn" is no way to clean; it is one of none, reset, scrub`} {
		edit(&scrub, func(r *cyborg.CleanRequest) { r.Method = method })
		scrub.ID = uuid.New()
		_, err := r.Admit(t.Context(), scrub)
		requireKind(t, cyborg.ErrInvalid, err, says)
	}
}

// TestUncleanPartsAreExcluded: what was left on a part is on the whole as well. So nobody gets
// the whole while a part is unclean, and the other way round; and nothing is cleaned while
// somebody has what excludes it.
func TestUncleanPartsAreExcluded(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 2)
	c.cleaning(t, cyborg.CleanReset)
	part, whole := c.parts[0], c.whole

	r.used(t, part.UUID)
	require.Equal(t, []cyborg.OtherHeld{{Accelerator: part.UUID, Name: part.Name, Unclean: true}}, r.accelerator(t, whole.UUID).ExcludedBy)
	_, err := r.Admit(t.Context(), toAttach(whole.UUID, instance("vm2")))
	requireKind(t, cyborg.ErrInUse, err, `accelerators "h1_card0" and "h1_card1" exclude each other, and the latter has still to be cleaned`)
	require.Contains(t, cyborg.AsError(err).Hint, "A conductor has it cleaned")
	r.do(t, toAttach(c.parts[1].UUID, instance("vm2")), cyborg.OperationSucceeded)
	r.clean(t, part.UUID)
	r.do(t, toDetach(c.parts[1].UUID, nil), cyborg.OperationSucceeded)
	r.clean(t, c.parts[1].UUID)

	r.do(t, toAttach(whole.UUID, instance("vm2")), cyborg.OperationSucceeded)
	scrub := toClean(part.UUID)
	edit(&scrub, func(r *cyborg.CleanRequest) { r.Method = cyborg.CleanScrub })
	_, err = r.Admit(t.Context(), scrub)
	requireKind(t, cyborg.ErrInUse, err, "instance vm2 has")
	r.do(t, toDetach(whole.UUID, nil), cyborg.OperationSucceeded)
	_, err = r.Admit(t.Context(), toAttach(part.UUID, instance("vm2")))
	requireKind(t, cyborg.ErrInUse, err, "has still to be cleaned")

	// Whoever has looked before finds out at the end, by the schema.
	_, err = r.sql.Exec(t.Context(), "UPDATE attach_handles SET holder_kind = 'instance', holder_id = 'vm3', operation_id = gen_random_uuid() WHERE deployable_uuid = $1", part.UUID)
	require.ErrorContains(t, err, "has still to be cleaned")

	// That both are unclean keeps neither from being cleaned.
	scrub.ID = uuid.New()
	r.endClean(t, r.begin(t, scrub), cyborg.OperationFailed)
	r.clean(t, whole.UUID)
	r.clean(t, part.UUID)
	r.do(t, toAttach(part.UUID, instance("vm2")), cyborg.OperationSucceeded)
}

// TestNovaGetsNothingUnclean: Nova asks nobody before it gives out what is in its whitelist.
func TestNovaGetsNothingUnclean(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 1)
	h.cleaning(t, cyborg.CleanReset)
	a := h.ready(t, "card0")
	r.used(t, a.UUID)
	r.do(t, toRetire(a), cyborg.OperationSucceeded)

	_, err := r.Admit(t.Context(), toWhitelist("h1", a))
	requireKind(t, cyborg.ErrChanged, err, "has still to be cleaned (reset)")
	_, err = r.sql.Exec(t.Context(), "UPDATE deployables SET nova_spec = '{}'")
	require.ErrorContains(t, err, "has still to be cleaned")

	require.Equal(t, []uuid.UUID{a.UUID}, r.dueCleanings(t), "also out of service")
	r.clean(t, a.UUID)
	r.do(t, toWhitelist("h1", a), cyborg.OperationSucceeded)
}

// TestBindWaitsForTheCleaning: a bind that needs an unclean handle waits, for a minute and
// while the host is heard; with another handle it does not wait for a clean.
func TestBindWaitsForTheCleaning(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.cleaned(t, cyborg.CleanReset)
	r.profile(t, "gpu", one())
	first, second := h.bound(t, a, vm(), one()), h.bound(t, a, vm(), one())
	h.content.Attachments = h.content.Attachments[:0]
	h.report(t)

	r.deleted(t, first.UUID)
	bind := toBind("h1", vm(), a.ProviderUUID, r.request(t, "gpu")[0])
	_, err := r.Admit(t.Context(), bind)
	requireKind(t, cyborg.ErrClaimed, err, "has still to be cleaned (reset)")

	work := r.begin(t, toClean(a.UUID))
	_, err = r.Admit(t.Context(), bind)
	requireKind(t, cyborg.ErrClaimed, err, "has still to be cleaned (reset)")
	r.endClean(t, work, cyborg.OperationSucceeded, cleanedBy(work.Clean[0]))

	r.deleted(t, second.UUID)
	work = r.begin(t, toClean(a.UUID))
	r.do(t, bind, cyborg.OperationSucceeded)
	r.endClean(t, work, cyborg.OperationFailed)

	last := toBind("h1", vm(), a.ProviderUUID, r.request(t, "gpu")[0])
	r.exec(t, "UPDATE attach_handles SET unclean_since = unclean_since - interval '61 seconds' WHERE unclean <> ''")
	_, err = r.Admit(t.Context(), last)
	requireKind(t, cyborg.ErrChanged, err, "has still to be cleaned (reset)")
}

// TestEarlierServersLeaveHandlesUnclean: a server that does not know the columns leaves a
// handle unclean all the same, and cannot give an unclean one out.
func TestEarlierServersLeaveHandlesUnclean(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, a := r.cleaned(t, cyborg.CleanReset)
	r.exec(t, `UPDATE attach_handles SET holder_kind = 'instance', holder_id = 'vm1', operation_id = gen_random_uuid(), attached_at = now()
		WHERE identity = 'card0.0'`)
	require.Equal(t, cyborg.CleanReset, r.accelerator(t, a.UUID).Handles[0].Clean)
	r.exec(t, "UPDATE attach_handles SET holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL WHERE identity = 'card0.0'")
	require.Equal(t, []cyborg.CleanMethod{cyborg.CleanReset}, r.unclean(t, a.UUID))

	_, err := r.sql.Exec(t.Context(), "UPDATE attach_handles SET holder_kind = 'instance', holder_id = 'vm2', operation_id = gen_random_uuid() WHERE identity = 'card0.0'")
	require.ErrorContains(t, err, "attach_handles_unclean_is_free")
}

// TestForgottenHandlesStayUnclean: a card that leaves the records with an unclean handle is
// unclean when it comes back. Another one in its place is not.
func TestForgottenHandlesStayUnclean(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(t *testing.T, r *records, h *host){
		"host forgotten": func(t *testing.T, r *records, h *host) {
			t.Helper()
			h.fall(t)
			require.NoError(t, r.ForgetHost(t.Context(), "h1", alice()))
		},
		"replaced by another card": func(t *testing.T, r *records, h *host) {
			t.Helper()
			h.put(0, secondGPU())
			h.report(t)
			h.report(t)
			other := h.accelerator(t, "card0")
			require.Empty(t, r.unclean(t, other.UUID), "it has nothing of the former one")
			h.put(0, gpu())
			h.report(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addGPU(t)
			h.cleaning(t, cyborg.CleanScrub)
			a := h.ready(t, "card0")
			r.used(t, a.UUID)
			since := r.accelerator(t, a.UUID).Handles[0].Unclean.Since
			leave(t, r, h)
			require.True(t, r.hasForgotten(t, a.UUID))

			h.report(t)
			back := h.accelerator(t, "card0")
			require.NotEqual(t, a.UUID, back.UUID)
			require.Equal(t, []cyborg.CleanMethod{cyborg.CleanScrub}, r.unclean(t, back.UUID))
			at := slices.IndexFunc(back.Handles, func(h cyborg.AttachHandle) bool { return h.Unclean != nil })
			require.Equal(t, since, back.Handles[at].Unclean.Since)
			require.Equal(t, []string{"→scrub"}, r.cleanEvents(t, back.UUID))
			require.Equal(t, []uuid.UUID{back.UUID}, r.dueCleanings(t))
			require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM forgotten_cleanings"))
		})
	}
}

// TestMissingAndUncleanIsKept: an unclean part of a card that is no longer shown is not
// forgotten, because nobody may get the rest of the card. Once it is declared clean, it goes.
func TestMissingAndUncleanIsKept(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 1)
	c.cleaning(t, cyborg.CleanReset)
	r.used(t, c.whole.UUID)
	c.content.Backends[0].Devices = c.content.Backends[0].Devices[1:]
	c.report(t)
	forget := func() {
		for _, table := range []string{"devices", "deployables", "attach_handles"} {
			r.exec(t, "UPDATE "+table+" SET missing_since = now() - interval '100 days' WHERE presence = 'missing'")
		}
		_, err := r.Forget(t.Context(), 24*time.Hour)
		require.NoError(t, err)
	}

	forget()
	require.Equal(t, cyborg.StatusMissing, r.accelerator(t, c.whole.UUID).Status())
	_, err := r.Admit(t.Context(), toAttach(c.parts[0].UUID, instance("vm2")))
	requireKind(t, cyborg.ErrInUse, err, "has still to be cleaned")

	declare := toClean(c.whole.UUID)
	edit(&declare, func(r *cyborg.CleanRequest) { r.Declared = "shredded" })
	r.do(t, declare, cyborg.OperationSucceeded)
	forget()
	require.True(t, r.hasForgotten(t, c.whole.UUID))
	r.do(t, toAttach(c.parts[0].UUID, instance("vm2")), cyborg.OperationSucceeded)
}

// TestDeclaredBeforeSomebodyHadIt: what a holder has left who came and went while a declaration
// was under way is not declared clean.
func TestDeclaredBeforeSomebodyHadIt(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.cleaned(t, cyborg.CleanReset)
	declare := toClean(a.UUID)
	edit(&declare, func(r *cyborg.CleanRequest) { r.Declared = "wiped by hand" })
	work := r.begin(t, declare)
	arq := h.bound(t, a, vm(), one())
	h.content.Attachments = h.content.Attachments[:0]
	h.report(t)
	r.deleted(t, arq.UUID)
	require.Len(t, r.unclean(t, a.UUID), 1)
	r.endClean(t, work, cyborg.OperationSucceeded)
	require.Len(t, r.unclean(t, a.UUID), 1)
}

// TestConductorLeavesAloneWhatIsInMaintenance: it may have looked before.
func TestConductorLeavesAloneWhatIsInMaintenance(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, a := r.cleaned(t, cyborg.CleanReset)
	r.used(t, a.UUID)
	_, err := r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "fan", By: "bob"}, alice())
	require.NoError(t, err)
	due := toClean(a.UUID)
	edit(&due, func(r *cyborg.CleanRequest) { r.Due = true })
	_, err = r.Admit(t.Context(), due)
	requireKind(t, cyborg.ErrChanged, err, "in maintenance")
	r.clean(t, a.UUID)
}

// TestMissingUncleanHandleIsInTheWay: it is not as if there were nothing to do.
func TestMissingUncleanHandleIsInTheWay(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.cleaned(t, cyborg.CleanReset)
	r.used(t, a.UUID)
	handles := h.content.Backends[0].Devices[0].Deployables[0].Handles
	h.content.Backends[0].Devices[0].Deployables[0].Handles = handles[1:]
	h.report(t)
	_, err := r.Admit(t.Context(), toClean(a.UUID))
	requireKind(t, cyborg.ErrChanged, err, "has still to be cleaned (reset)")
}

// TestForgottenHostStaysUncleanAfterNova: nobody knows to whom Nova has given what it had.
func TestForgottenHostStaysUncleanAfterNova(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 1)
	h.cleaning(t, cyborg.CleanScrub)
	r.do(t, toWhitelist("h1", h.accelerator(t, "card0")), cyborg.OperationSucceeded)
	h.fall(t)
	require.NoError(t, r.ForgetHost(t.Context(), "h1", alice()))
	h.report(t)
	require.Len(t, r.unclean(t, h.accelerator(t, "card0").UUID), 2)
}

// TestFreeHandleDeclaredClean: what is free can be declared clean, too, so that its host gives
// it away that knows of a clean which the records do not.
func TestFreeHandleDeclaredClean(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.cleaned(t, cyborg.CleanReset)
	declare := toClean(a.UUID)
	edit(&declare, func(r *cyborg.CleanRequest) { r.Declared = "wiped by hand" })
	r.do(t, declare, cyborg.OperationSucceeded)
	require.Empty(t, r.unclean(t, a.UUID))

	work := r.begin(t, toAttach(a.UUID, onHost("h1")))
	require.True(t, work.Handles[0].DeclaredClean)
	r.end(t, work, cyborg.OperationSucceeded)

	// So does a host that has to attach it again.
	h.report(t) // the journal does not know of the attachment
	require.True(t, r.disagreements(t)["card0"].Handle.DeclaredClean)
	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
	r.clean(t, a.UUID)
	work = r.begin(t, toAttach(a.UUID, instance("vm1")))
	require.False(t, work.Given[0].Handles[0].DeclaredClean, "the last evidence counts")
}

// TestUncleanIsReservedInPlacement: Placement gives no unclean handle away, and hears of it at
// once, both when it becomes so and when it is clean.
func TestUncleanIsReservedInPlacement(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.cleaned(t, cyborg.CleanReset)
	stuck := func() int {
		now, err := r.Placement(t.Context(), "h1")
		require.NoError(t, err)
		return now.Deployables[0].Stuck
	}
	require.Zero(t, stuck())
	arq := h.bound(t, a, vm(), one())
	r.inStep(t, "h1")
	require.Empty(t, r.due(t))

	r.deleted(t, arq.UUID)
	require.Equal(t, []string{"h1"}, r.due(t))
	require.Equal(t, 1, stuck())
	r.inStep(t, "h1")

	r.clean(t, a.UUID)
	require.Equal(t, []string{"h1"}, r.due(t))
	require.Zero(t, stuck())
}

// TestWhatTheRecordsHaveLostIsUnclean: a handle that its host has attached for somebody whom
// the records do not know is unclean once the host has taken it back.
func TestWhatTheRecordsHaveLostIsUnclean(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.cleaned(t, cyborg.CleanReset)
	h.journal("card0", cyborg.AttachmentDone)
	h.report(t)
	r.requireUnsettled(t, a.UUID, uuid.Nil)
	require.Equal(t, []cyborg.CleanMethod{cyborg.CleanReset}, r.unclean(t, a.UUID))
	require.Empty(t, r.dueCleanings(t), "its host has still to take it back")

	h.settle(t)
	require.Equal(t, []uuid.UUID{a.UUID}, r.dueCleanings(t))
	require.Equal(t, []string{"→reset"}, r.cleanEvents(t, a.UUID))
}

// TestLateAttachIsUnclean: so is one that its host has attached after the operation had
// ended, although its holder never got it.
func TestLateAttachIsUnclean(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.cleaned(t, cyborg.CleanReset)
	failed := r.begin(t, toAttach(a.UUID, onHost("h1")))
	require.NoError(t, r.End(t.Context(), runOf(failed.Operation), cyborg.Outcome{
		Operation: failed.Operation, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrHardware, "it burns"),
	}))
	require.Empty(t, r.unclean(t, a.UUID))
	h.attached("card0", failed.Operation)
	h.report(t)
	h.settle(t)
	require.Equal(t, []cyborg.CleanMethod{cyborg.CleanReset}, r.unclean(t, a.UUID))
}

// TestWhatNovaHadIsUnclean: nobody here knows to whom Nova has given what was in its
// whitelist. What it never got, because the operation has failed, stays clean.
func TestWhatNovaHadIsUnclean(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 2)
	h.cleaning(t, cyborg.CleanScrub)
	a, b := h.accelerator(t, "card0"), h.accelerator(t, "card1")

	r.do(t, toWhitelist("h1", a), cyborg.OperationFailed)
	require.Empty(t, r.unclean(t, a.UUID))
	r.do(t, toWhitelist("h1", a, b), cyborg.OperationSucceeded)
	require.Empty(t, r.unclean(t, a.UUID))
	r.do(t, toWhitelist("h1", b), cyborg.OperationSucceeded)
	require.Equal(t, []cyborg.CleanMethod{cyborg.CleanScrub, cyborg.CleanScrub}, r.unclean(t, a.UUID))
	require.Empty(t, r.unclean(t, b.UUID))
	r.clean(t, a.UUID)
	h.ready(t, "card0")
}

// TestHostMayHaveUsedWhatWasUndone: an attach that may have reached the host, and was undone,
// leaves the handle unclean; also where its answer was lost, or its run was terminated.
func TestHostMayHaveUsedWhatWasUndone(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][]cyborg.Step{
		"attached":       {{Name: "attach card0.0", State: cyborg.StepDone}, {Name: "undo attach card0.0", State: cyborg.StepDone}},
		"no answer":      {{Name: "attach card0.0", State: cyborg.StepFailed}, {Name: "undo attach card0.0", State: cyborg.StepDone}},
		"run terminated": {{Name: "undo attach card0.0", State: cyborg.StepDone}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			_, a := r.cleaned(t, cyborg.CleanReset)
			work := r.begin(t, toAttach(a.UUID, onHost("h1")))
			require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
				Operation: work.Operation, State: cyborg.OperationCancelled, Error: cyborg.Errorf(cyborg.ErrCancelled, "no"), Steps: steps,
			}))
			require.Equal(t, []cyborg.CleanMethod{cyborg.CleanReset}, r.unclean(t, a.UUID))
		})
	}
}

// TestEvidenceMustFit: what comes by way of Temporal can neither declare a handle clean nor
// make up a way to clean.
func TestEvidenceMustFit(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, a := r.cleaned(t, cyborg.CleanReset)
	r.used(t, a.UUID)
	for _, evidence := range []cyborg.Evidence{{Declared: "nobody"}, {Method: "bogus"}, {}, {Method: cyborg.CleanScrub, Declared: "both"}} {
		work := r.begin(t, toClean(a.UUID))
		r.endClean(t, work, cyborg.OperationSucceeded, cyborg.CleanedHandle{UUID: work.Clean[0].UUID, Evidence: evidence})
		require.Equal(t, []cyborg.CleanMethod{cyborg.CleanReset}, r.unclean(t, a.UUID), evidence)
	}
}

// TestUncleanInAGroup: functions of one IOMMU group reach each other. So nobody gets one while
// another is unclean, and none is cleaned while somebody has another.
func TestUncleanInAGroup(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, cards := r.addTogether(t, "h1", 3)
	h.cleaning(t, cyborg.CleanReset)
	a, b := cards[0], cards[1]

	r.do(t, toAttach(a.UUID, instance("vm1")), cyborg.OperationSucceeded)
	r.do(t, toAttach(b.UUID, instance("vm1")), cyborg.OperationSucceeded)
	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
	require.Empty(t, r.dueCleanings(t))
	_, err := r.Admit(t.Context(), toClean(a.UUID))
	requireKind(t, cyborg.ErrInUse, err, "instance vm1 has")

	r.do(t, toDetach(b.UUID, nil), cyborg.OperationSucceeded)
	require.Equal(t, []uuid.UUID{a.UUID, b.UUID}, r.dueCleanings(t))
	r.clean(t, a.UUID)
	for _, holder := range []string{"vm1", "vm2"} {
		_, err = r.Admit(t.Context(), toAttach(a.UUID, instance(holder)))
		requireKind(t, cyborg.ErrInUse, err, `with "h1_card1", which has still to be cleaned`)
	}
	_, err = r.sql.Exec(t.Context(), `
		UPDATE attach_handles SET holder_kind = 'instance', holder_id = 'vm3', operation_id = gen_random_uuid()
		WHERE uuid = (SELECT uuid FROM attach_handles WHERE deployable_uuid = $1 LIMIT 1)`, a.UUID)
	require.ErrorContains(t, err, "has still to be cleaned")
	r.clean(t, b.UUID)
	r.do(t, toAttach(a.UUID, instance("vm2")), cyborg.OperationSucceeded)
}

// TestWholeIsNotCleanedUnderNova: a part that Nova may have given out is seen among many
// unclean ones, by the request and by the conductor.
func TestWholeIsNotCleanedUnderNova(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 9)
	c.cleaning(t, cyborg.CleanReset)
	r.used(t, c.whole.UUID)
	last := c.parts[8]
	r.do(t, toRetire(last), cyborg.OperationSucceeded)
	r.exec(t, "ALTER TABLE deployables DISABLE TRIGGER nova_spec_given")
	r.exec(t, "UPDATE deployables SET nova_spec = '{}' WHERE uuid = $1", last.UUID)
	r.exec(t, "UPDATE attach_handles SET unclean = 'reset', unclean_since = now() WHERE deployable_uuid <> $1 AND unclean = ''", last.UUID)

	_, err := r.Admit(t.Context(), toClean(c.whole.UUID))
	requireKind(t, cyborg.ErrInUse, err, "Nova may give out")
	require.NotContains(t, r.dueCleanings(t), c.whole.UUID)
}

// TestDueCleaningsOfAHost: of a device one at a time, and of a host some.
func TestDueCleaningsOfAHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 12)
	d := &h.content.Backends[0].Devices[0]
	d.Deployables = append(d.Deployables, deployable("card0b", 1))
	h.report(t)
	for i := range h.devices() {
		for n := range h.content.Backends[0].Devices[i].Deployables {
			h.content.Backends[0].Devices[i].Deployables[n].Cleaning = &cyborg.Cleaning{Methods: cyborg.CleanMethods(), After: cyborg.CleanReset}
		}
	}
	h.report(t)
	r.exec(t, "UPDATE attach_handles SET unclean = 'reset', unclean_since = now()")
	found := h.accelerators(t)

	due := r.dueCleanings(t)
	require.Len(t, due, 8)
	require.NotContains(t, due, found["card0b"].UUID)
	work := r.begin(t, toClean(found["card0"].UUID))
	due = r.dueCleanings(t)
	require.Len(t, due, 7)
	require.NotContains(t, due, found["card0b"].UUID)
	r.endClean(t, work, cyborg.OperationFailed)
	r.exec(t, "UPDATE attach_handles SET unclean = '', unclean_since = NULL WHERE identity NOT LIKE 'card0%'")
	require.Equal(t, []uuid.UUID{found["card0b"].UUID}, r.dueCleanings(t), "in the pause of the other one")
}

// TestBindOfTheWholeWaitsForItsParts: Nova deletes an instance with a part and makes one with
// the whole a moment later.
func TestBindOfTheWholeWaitsForItsParts(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 1)
	c.cleaning(t, cyborg.CleanReset)
	r.profile(t, "gpu", one())
	r.used(t, c.parts[0].UUID)

	bind := toBind("h1", vm(), c.whole.ProviderUUID, r.request(t, "gpu")[0])
	_, err := r.Admit(t.Context(), bind)
	requireKind(t, cyborg.ErrClaimed, err, "has still to be cleaned")
	r.clean(t, c.parts[0].UUID)
	r.do(t, bind, cyborg.OperationSucceeded)

	other := toBind("h1", vm(), c.other.ProviderUUID, r.request(t, "gpu")[0])
	r.used(t, c.other.UUID)
	_, err = r.Admit(t.Context(), other)
	requireKind(t, cyborg.ErrClaimed, err, "has still to be cleaned")
	r.endClean(t, r.begin(t, toClean(c.other.UUID)), cyborg.OperationFailed)
	_, err = r.Admit(t.Context(), other)
	requireKind(t, cyborg.ErrChanged, err, "has still to be cleaned")
}

// TestForgottenCardWithoutItsSerial: another card that does not show its serial number at first
// is cleaned for safety, and the former one is unclean all the same when it comes.
func TestForgottenCardWithoutItsSerial(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addGPU(t)
	h.cleaning(t, cyborg.CleanScrub)
	r.used(t, h.ready(t, "card0").UUID)
	forget := func() {
		h.fall(t)
		require.NoError(t, r.ForgetHost(t.Context(), "h1", alice()))
	}
	forget()

	h.put(0, cyborg.Fingerprint{Model: gpu().Model})
	h.report(t)
	other := h.accelerator(t, "card0")
	require.Len(t, r.unclean(t, other.UUID), 1)
	r.clean(t, other.UUID)
	forget()

	h.put(0, gpu())
	h.report(t)
	require.Len(t, r.unclean(t, h.accelerator(t, "card0").UUID), 1)
}
