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

// A host makes only the drivers that it allows, and says which these are.
func TestRegistryMakesOnlyAllowedDrivers(t *testing.T) {
	t.Parallel()
	all := drivers.NewRegistry()
	require.NoError(t, all.Register("generic", newPlain))
	require.NoError(t, all.Register("fake", newPlain))
	require.NoError(t, all.Register("xpu", newPlain))

	some, err := all.Only("xpu", "generic")
	require.NoError(t, err)
	require.Equal(t, []string{"generic", "xpu"}, some.Names())
	_, err = some.New("xpu", drivers.Environment{}, nil)
	require.NoError(t, err)

	_, err = some.New("fake", drivers.Environment{Host: "compute-1"}, nil)
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err))
	require.EqualError(t, err, `host compute-1 does not allow driver "fake"; in agent.drivers it has: generic, xpu`)

	require.Equal(t, []string{"fake", "generic", "xpu"}, all.Names(), "the other registry is as it was")

	none, err := all.Only()
	require.NoError(t, err)
	require.Empty(t, none.Names())
	_, err = none.New("generic", drivers.Environment{Host: "compute-1"}, nil)
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err))

	_, err = all.Only("generic", "faek")
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, `"faek" cannot be allowed, because there is none; this agent has: fake, generic, xpu`)
}

// The options that only the host may set are found however they are
// capitalized, and wherever they are.
func TestOwnOptions(t *testing.T) {
	t.Parallel()
	registry := drivers.NewRegistry()
	own := append(drivers.Own("firmware_dir", "bmc_password"), drivers.OwnOption{
		Name: "module", Open: func(value any) bool { return value == "harmless" },
	})
	require.NoError(t, registry.Register("xpu", newPlain, own...))
	require.NoError(t, registry.Register("plain", newPlain))

	given := map[string]any{
		"speed": 3, "firmware_dir": "/f", "BMC_password": "x", "module": "evil",
		"cards": []any{map[string]any{"at": 1, "bmc_password": "x"}}, "others": []any{map[string]any{"at": 2}},
	}
	rest, found := registry.SplitOwn("xpu", given)
	require.Equal(t, map[string]any{"speed": 3, "others": given["others"]}, rest)
	require.Len(t, found, 4)
	require.Len(t, given, 6, "the given options stay as they are")

	harmless := map[string]any{"Module": "harmless"}
	rest, found = registry.SplitOwn("xpu", harmless)
	require.Equal(t, harmless, rest)
	require.Empty(t, found)

	for _, name := range []string{"plain", "nosuch"} {
		rest, found = registry.SplitOwn(name, given)
		require.Equal(t, given, rest)
		require.Empty(t, found)
	}

	rest, found = registry.SplitOwn("xpu", nil)
	require.Empty(t, rest)
	require.Empty(t, found)
}

// capable adds every capability, through embedded interfaces that nobody calls.
type capable struct {
	plain
	drivers.Installer
	drivers.Attacher
	drivers.Programmer
	drivers.Cleaner
	drivers.Partitioner
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
	require.Equal(t, []string{"discover", "install", "attach", "program", "clean", "partition", "in_use", "usage", "watch"}, drivers.Services(capable{}))
}
