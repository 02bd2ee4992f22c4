package conformance

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// prepareChecks lists the checks of what is special about a target with a
// preparation: whoever gets its handle, the host attaches it, with parameters.
func prepareChecks() []check {
	return []check{
		{name: "for a service", needs: isPrepared, run: attachForService},
		{name: "for another holder", needs: isPrepared, run: attachForAnotherHolder},
		{name: "with parameters for its host", needs: takesParameters, run: attachWithParametersForHost},
		{name: "with other parameters", needs: takesParameters, run: attachWithOtherParameters},
		{name: "with other parameters is undone", needs: takesParameters, run: attachWithOtherParametersIsUndone},
		{name: "leaves no parameters without a note", needs: takesParameters, run: attachLeavesNoParameters},
		{name: "refuses parameters that are wrong", needs: isPrepared, run: attachRefusesParameters},
	}
}

// isPrepared says whether the target has a preparation.
func isPrepared(b *bench) bool { return b.target.Deployable.Preparation != nil }

// takesParameters says whether something can be chosen for the target's handles.
func takesParameters(b *bench) bool {
	return isPrepared(b) && len(b.target.Deployable.Preparation.Parameters) > 0
}

// forInstance returns the check for an instance that gets the handle, with
// parameters.
func (c check) forInstance() check {
	return check{
		name:  "for an instance " + c.name,
		needs: func(b *bench) bool { return isPrepared(b) && (c.needs == nil || c.needs(b)) },
		run:   func(t *testing.T, b *bench) { c.run(t, b.forInstance()) },
	}
}

// forInstance has an instance get the handle, with parameters.
func (b *bench) forInstance() *bench {
	b.holder = cyborg.Holder{Kind: cyborg.HolderInstance, ID: "7a9c1d4e-3f60-4b52-9a31-5d0e8c2b6f17"}
	b.parameters = b.choice(0)
	return b
}

// choice returns a value for each parameter of the target. The values of choices 0
// and 1 differ wherever a parameter takes more than one.
func (b *bench) choice(number int) map[string]string {
	chosen := map[string]string{}
	for _, p := range b.target.Deployable.Preparation.Parameters {
		values := valuesOf(p)
		chosen[p.Name] = values[number*(len(values)-1)]
	}
	return chosen
}

// valuesOf returns some values that the parameter takes, the first and the last of
// which differ where it takes more than one.
func valuesOf(p cyborg.Parameter) []string {
	switch p.Type {
	case cyborg.ParameterBoolean:
		return []string{"true", "false"}
	case cyborg.ParameterInteger:
		return []string{strconv.FormatInt(p.Max, 10), strconv.FormatInt(p.Min, 10)}
	case cyborg.ParameterChoice:
		return p.Values
	case cyborg.ParameterMAC:
		return []string{"52:54:00:12:34:56", "52:54:00:12:34:57"}
	}
	return []string{""}
}

// requirePreparation requires a preparation that is recorded as it is, and that
// somebody can read.
func (b *bench) requirePreparation(t *testing.T, deployable cyborg.DeployableReport) {
	t.Helper()
	if deployable.Preparation == nil {
		return
	}

	require.Truef(t, offers[drivers.Attacher](b.Driver), "%s has a preparation, and its driver attaches nothing", deployable.Name)
	parameters := deployable.Preparation.Parameters
	require.LessOrEqualf(t, len(parameters), cyborg.MaxParameters, "parameters of %s", deployable.Name)

	names := unique{}
	for _, p := range parameters {
		names.add(t, "parameter of "+deployable.Name, p.Name)
		require.Truef(t, cyborg.IsParameterName(p.Name), "%q of %s is no name of a parameter", p.Name, deployable.Name)
		require.Containsf(t, cyborg.ParameterTypes(), p.Type, "type of parameter %s of %s", p.Name, deployable.Name)
		require.NotEmptyf(t, p.Help, "parameter %s of %s says nothing to people", p.Name, deployable.Name)
		require.NotContainsf(t, p.Help, "\n", "help of parameter %s of %s", p.Name, deployable.Name)

		require.Truef(t, p.Type == cyborg.ParameterInteger || p.Min == 0 && p.Max == 0, "parameter %s of %s is no number, and has a range", p.Name, deployable.Name)
		require.LessOrEqualf(t, p.Min, p.Max, "range of parameter %s of %s", p.Name, deployable.Name)
		require.Equalf(t, p.Type == cyborg.ParameterChoice, len(p.Values) > 0, "values of parameter %s of %s", p.Name, deployable.Name)

		values := unique{}
		for _, value := range p.Values {
			values.add(t, "value of parameter "+p.Name, value)
		}
		for _, value := range valuesOf(p) {
			require.LessOrEqualf(t, len(value), cyborg.LongestParameter, "value %q of parameter %s of %s", value, p.Name, deployable.Name)
			require.NoErrorf(t, p.Check(value), "parameter %s of %s", p.Name, deployable.Name)
		}
	}
}

// attachForService checks that a service gets the handle like an instance.
func attachForService(t *testing.T, b *bench) {
	b.holder, b.parameters = cyborg.Holder{Kind: cyborg.HolderService, ID: "conformance"}, b.choice(0)
	attachAndDetach(t, b)
}

// requireNotTaken requires that the bench's holder does not get the handle, which is attached
// for another one, while somebody uses it.
func (b *bench) requireNotTaken(t *testing.T, book *notebook) {
	t.Helper()
	if b.Use == nil {
		return
	}

	release := b.Use(t, b.target, b.handle)
	before := b.state(t)
	err := b.attacher().Attach(t.Context(), b.attachRequest(book))
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "attach for another holder while it is used: %v", err)
	require.Equal(t, before, b.state(t))
	release()
}

// attachForAnotherHolder checks that a handle can be attached for another kind of
// holder than the one that it is attached for, and is then as if it had been attached
// for that one at once. It is not taken from who uses it.
func attachForAnotherHolder(t *testing.T, b *bench) {
	b.install(t)
	host := b.holder
	b.forInstance()
	before, book := b.state(t), &notebook{}
	b.attach(t, book)
	want := b.state(t)
	b.detach(t, book)

	b.holder, b.parameters = host, nil
	book = &notebook{}
	b.attach(t, book)
	b.forInstance()
	b.requireNotTaken(t, book)
	b.attach(t, book)
	require.Equal(t, want, b.state(t))

	b.holder, b.parameters = host, nil
	b.requireNotTaken(t, book)
	b.forInstance()
	b.detach(t, book)
	require.Equal(t, before, b.state(t), "a later note keeps what was there before the first attach")
}

// attachWithParametersForHost checks that a choice for the host is taken, too, and
// goes with the detach.
func attachWithParametersForHost(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.state(t), &notebook{}
	b.attach(t, book)
	plain := b.state(t)
	b.detach(t, book)

	b.parameters = b.choice(0)
	book = &notebook{}
	b.attach(t, book)
	b.requireChanged(t, plain)
	b.detach(t, book)
	require.Equal(t, before, b.state(t), "a detach leaves nothing of what was chosen")
}

// requireChanged requires that what was chosen can be seen on the hardware, where the
// rig shows all of it.
func (b *bench) requireChanged(t *testing.T, was state) {
	t.Helper()
	if b.Snapshot != nil {
		require.NotEqual(t, was.Snapshot, b.state(t).Snapshot, "other parameters make no difference")
	}
}

// attachWithOtherParameters checks that what is attached takes other parameters, and
// is then as if it had been attached with these at once. What is left out is again
// what the driver chooses.
func attachWithOtherParameters(t *testing.T, b *bench) {
	b.install(t)
	b.forInstance()
	before := b.state(t)

	choices, want := []map[string]string{b.choice(0), b.choice(1), nil}, []state{}
	for _, b.parameters = range choices {
		book := &notebook{}
		b.attach(t, book)
		want = append(want, b.state(t))
		b.detach(t, book)
	}

	book := &notebook{}
	for i, choice := range choices {
		if i > 0 {
			b.requireChanged(t, want[i])
		}
		b.parameters = choice
		b.attach(t, book)
		require.Equal(t, want[i], b.state(t))
	}

	b.Driver = b.Restart(t)
	b.detach(t, book)
	require.Equal(t, before, b.state(t), "a detach leaves nothing of what was chosen, also before")
}

// attachWithOtherParametersIsUndone checks that an interrupted change of parameters
// can be undone and repeated.
func attachWithOtherParametersIsUndone(t *testing.T, b *bench) {
	b.install(t)
	b.forInstance()
	before, book := b.state(t), &notebook{}
	b.attach(t, book)
	b.parameters = b.choice(1)

	b.stopAttach(t, book)
	b.attach(t, book)
	b.parameters = b.choice(0)
	b.stopAttach(t, book)

	request := b.detachRequest(book)
	request.Undo = true
	require.NoError(t, b.attacher().Detach(t.Context(), request))
	require.Equal(t, before, b.state(t))
}

// stopAttach begins an attach and ends its context in the middle, where the rig can
// make it slow, and otherwise before. A new driver takes over afterwards.
func (b *bench) stopAttach(t *testing.T, book *notebook) {
	t.Helper()
	ctx := ended(t)
	if b.Slow != nil {
		defer b.Slow(t)()
		limited, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		ctx = limited
	}

	requireStopped(t, promptly(t, "an interrupted Attach", func() error { return b.attacher().Attach(ctx, b.attachRequest(book)) }))
	b.Driver = b.Restart(t)
}

// attachLeavesNoParameters checks that a detach whose note was lost leaves nothing of
// what was chosen: the handle answers for the next holder like a new one.
func attachLeavesNoParameters(t *testing.T, b *bench) {
	b.install(t)
	b.forInstance()
	b.parameters = nil
	book := &notebook{}
	b.attach(t, book)
	plain := b.state(t)
	b.detach(t, book)

	b.parameters = b.choice(0)
	b.attach(t, &notebook{})
	b.detach(t, &notebook{})

	b.parameters = nil
	b.attach(t, &notebook{})
	require.Equal(t, plain, b.state(t), "something is left of what was chosen for the holder before")
}

// attachRefusesParameters checks that nothing is noted and nothing changes where
// something wrong was chosen, before an attach and while the handle is attached.
func attachRefusesParameters(t *testing.T, b *bench) {
	b.install(t)
	b.forInstance()
	good := b.parameters

	wrong := []map[string]string{{"no_such_parameter": "1"}}
	for name := range good {
		one := b.choice(1)
		one[name] = strings.Repeat("no such value ", 2)
		wrong = append(wrong, one)
	}

	book := &notebook{}
	for range 2 {
		before := b.state(t)
		for _, parameters := range wrong {
			request := b.attachRequest(book)
			request.Parameters = parameters
			request.Note = func(json.RawMessage) error {
				require.Fail(t, "a note is kept for a choice that is refused")
				return nil
			}

			err := b.attacher().Attach(t.Context(), request)
			require.Equalf(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "an attach with %v answers %v", parameters, err)
			require.Equal(t, before, b.state(t), "a refused choice changes nothing")
		}
		b.attach(t, book)
	}
}
