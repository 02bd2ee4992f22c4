package conformance

import (
	"math"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// inUseChecks lists the checks of drivers with Users.
func inUseChecks() []check {
	return []check{
		{name: "tells the user", run: inUseReportsUser},
		{name: "changes nothing", run: inUseChangesNothing},
		{name: "of another card in its place fails", needs: canBeExchanged, run: inUseOfAnotherCard},
	}
}

// users returns the driver under test as Users.
func (b *bench) users() drivers.Users { return b.Driver.(drivers.Users) } //nolint:forcetypeassert // its group runs only where it is one

// user asks the driver who uses the target's handle.
func (b *bench) user(t *testing.T) string {
	t.Helper()
	by, err := b.users().InUse(t.Context(), b.target, b.handle)
	require.NoError(t, err)
	return by
}

// inUseReportsUser checks that InUse names a user as long as there is one, also
// after a restart. A handle that is only attached has no user.
func inUseReportsUser(t *testing.T, b *bench) {
	b.install(t)
	book := &notebook{}
	require.Empty(t, b.user(t), "nobody uses a handle at first")

	if offers[drivers.Attacher](b.Driver) {
		b.attach(t, book)
		require.Empty(t, b.user(t), "attached is not yet used")
	}

	release := b.Use(t, b.target, b.handle)
	require.NotEmpty(t, b.user(t))

	b.Driver = b.Restart(t)
	require.NotEmpty(t, b.user(t))

	release()
	require.Empty(t, b.user(t), "the user let go")
}

// inUseChangesNothing checks that asking for the user changes nothing.
func inUseChangesNothing(t *testing.T, b *bench) {
	before := b.state(t)
	b.user(t)
	require.Equal(t, before, b.state(t))
}

// inUseOfAnotherCard checks that another card is not taken for an unused target.
func inUseOfAnotherCard(t *testing.T, b *bench) {
	b.exchange(t)
	_, err := b.users().InUse(t.Context(), b.target, b.handle)
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "InUse of another card answers %v", err)
}

// usageChecks lists the checks of drivers with Meter.
func usageChecks() []check {
	return []check{{name: "measures and changes nothing", run: usageMeasures}}
}

// metricName matches words in small letters, the last of which is a unit.
var metricName = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)+$`)

// usageMeasures checks the names and the values of the metrics, and that
// measuring changes nothing.
func usageMeasures(t *testing.T, b *bench) {
	b.install(t)
	before := b.state(t)

	samples, err := b.Driver.(drivers.Meter).Metrics(t.Context(), b.target.Device) //nolint:forcetypeassert // its group runs only where it is one
	require.NoError(t, err)
	require.NotEmpty(t, samples)

	each := unique{}
	for _, s := range samples {
		require.Truef(t, slices.ContainsFunc(b.target.Device.Deployables, func(d cyborg.DeployableReport) bool { return d.Name == s.Deployable }),
			"%q is no deployable of the device that was measured", s.Deployable)
		require.Regexp(t, metricName, s.Name, "a metric's name ends in its unit")
		require.Falsef(t, math.IsNaN(s.Value) || math.IsInf(s.Value, 0), "metric %s is %v", s.Name, s.Value)
		each.add(t, "sample", s.Deployable+" "+s.Name+" "+s.Sensor)
	}

	require.Equal(t, before, b.state(t))
}
