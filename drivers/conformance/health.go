package conformance

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// healthChecks lists the checks of drivers with HealthChecker.
func healthChecks() []check {
	return []check{
		{name: "says what people can read and changes nothing", run: healthIsValid},
		{name: "tells what is wrong", needs: canFallIll, run: healthTells},
	}
}

// canFallIll says that the rig can make a deployable unwell.
func canFallIll(b *bench) bool { return b.FallIll != nil }

// health asks the driver how its deployables are, each of which a discovery lists.
func (b *bench) health(t *testing.T) map[string][]cyborg.Condition {
	t.Helper()
	said, err := b.Driver.(drivers.HealthChecker).Health(t.Context()) //nolint:forcetypeassert // its group runs only where it is one
	require.NoError(t, err)

	var known []string
	for _, device := range b.discover(t) {
		for _, deployable := range device.Deployables {
			known = append(known, deployable.Name)
		}
	}
	for name, conditions := range said {
		require.Containsf(t, known, name, "the health check names a deployable that no discovery lists")
		requireConditions(t, name, conditions)
	}
	return said
}

// requireConditions requires conditions that are recorded as they are: with codes of
// their own, levels that exist, and words for people.
func requireConditions(t *testing.T, name string, conditions []cyborg.Condition) {
	t.Helper()
	codes := unique{}
	require.LessOrEqualf(t, len(conditions), cyborg.MaxConditions, "conditions of %s", name)
	for _, c := range conditions {
		codes.add(t, "condition of "+name, c.Code)
		require.Truef(t, cyborg.IsConditionCode(c.Code), "%q, a condition of %s, is no code", c.Code, name)
		require.Containsf(t, cyborg.ConditionLevels(), c.Level, "level of condition %s of %s", c.Code, name)
		require.NotEmptyf(t, c.Message, "message of condition %s of %s", c.Code, name)
		require.Zerof(t, c.Since, "the records say since when condition %s of %s is there", c.Code, name)
	}
}

// healthIsValid checks what a health check says of hardware that is as it is, and that
// asking changes nothing.
func healthIsValid(t *testing.T, b *bench) {
	before := b.state(t)
	first, second := b.health(t), b.health(t)
	require.Equal(t, first, second, "nothing has changed between the two")
	require.Equal(t, before, b.state(t))
}

// healthTells checks that a health check says something new of what is unwell, and no
// more when it is well again.
func healthTells(t *testing.T, b *bench) {
	name := b.target.Deployable.Name
	before := b.health(t)[name]

	well := b.FallIll(t, b.target)
	ill := b.health(t)[name]
	require.False(t, slices.Equal(before, ill), "the health check says nothing of what is unwell")

	well()
	require.Equal(t, before, b.health(t)[name])
}
