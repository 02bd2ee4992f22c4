package drivers_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// plain is a driver without any capability. It keeps what it was made with.
type plain struct {
	env     drivers.Environment
	options map[string]any
}

func (plain) Discover(context.Context) ([]cyborg.DeviceReport, error) { return nil, nil }

// newPlain makes a plain driver, and refuses the option wrong.
func newPlain(env drivers.Environment, options map[string]any) (drivers.Driver, error) {
	if _, ok := options["wrong"]; ok {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "there is no option wrong")
	}
	return plain{env, options}, nil
}

func TestRegistryMakesDrivers(t *testing.T) {
	t.Parallel()

	registry := drivers.NewRegistry()
	require.Empty(t, registry.Names())
	require.NoError(t, registry.Register("xpu", newPlain))
	require.NoError(t, registry.Register("fake", newPlain))
	require.Equal(t, []string{"fake", "xpu"}, registry.Names())

	env := drivers.Environment{Host: "compute-1", Backend: "lab"}
	driver, err := registry.New("xpu", env, map[string]any{"speed": 3})
	require.NoError(t, err)
	require.Equal(t, plain{env, map[string]any{"speed": 3}}, driver)

	_, err = registry.New("xpu", env, map[string]any{"wrong": true})
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
}

func TestRegistryRefusesDuplicateNames(t *testing.T) {
	t.Parallel()

	registry := drivers.NewRegistry()
	require.NoError(t, registry.Register("fake", newPlain))
	err := registry.Register("fake", newPlain)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, `"fake"`)
	require.Equal(t, []string{"fake"}, registry.Names())
}

func TestRegistryErrorListsKnownDrivers(t *testing.T) {
	t.Parallel()

	registry := drivers.NewRegistry()
	require.NoError(t, registry.Register("generic", newPlain))
	require.NoError(t, registry.Register("fake", newPlain))
	_, err := registry.New("faek", drivers.Environment{}, nil)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
	require.EqualError(t, err, `there is no driver "faek"; this agent has: fake, generic`)
}

// capable adds every capability, through embedded interfaces that nobody calls.
type capable struct {
	plain
	drivers.Installer
	drivers.Attacher
	drivers.Programmer
	drivers.Users
	drivers.Meter
	drivers.Watcher
}

func TestServicesFollowTheInterfaces(t *testing.T) {
	t.Parallel()

	type installs struct {
		plain
		drivers.Installer
	}
	type uses struct {
		plain
		drivers.Users
		drivers.Watcher
	}
	require.Equal(t, []string{"discover"}, drivers.Services(plain{}))
	require.Equal(t, []string{"discover", "install"}, drivers.Services(installs{}))
	require.Equal(t, []string{"discover", "in_use", "watch"}, drivers.Services(uses{}))
	require.Equal(t, []string{"discover", "install", "attach", "program", "in_use", "usage", "watch"}, drivers.Services(capable{}))
}
