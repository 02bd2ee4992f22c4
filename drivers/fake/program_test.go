package fake_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

func TestIncompatibleImages(t *testing.T) {
	t.Parallel()

	driver, target, _ := newPark(t, nil).target(t)
	good := string(fake.MakeImage(cyborg.DeviceTypeFPGA, "aes-v1.2_b", []byte("payload")))
	for name, content := range map[string]string{
		"empty":          "",
		"no header":      "payload",
		"other format":   strings.Replace(good, "CYBORGFAKE/1", "CYBORGFAKE/2", 1),
		"other card":     strings.Replace(good, "FPGA", "GPU", 1),
		"no target":      strings.Replace(good, " target=FPGA", "", 1),
		"no id":          strings.Replace(good, " id=aes-v1.2_b", "", 1),
		"empty id":       strings.Replace(good, "aes-v1.2_b", "", 1),
		"strange id":     strings.Replace(good, "aes-v1.2_b", "a/b", 1),
		"long id":        strings.Replace(good, "aes-v1.2_b", strings.Repeat("a", 65), 1),
		"more words":     strings.Replace(good, "aes-v1.2_b", "aes signed=yes", 1),
		"no payload":     strings.TrimSuffix(good, "payload"),
		"no line end":    strings.TrimSuffix(good, "\npayload"),
		"endless header": good[:20] + strings.Repeat("a", 1<<20),
		"a DOS line":     strings.Replace(good, "\n", "\r\n", 1),
	} {
		path, image := stage(t, []byte(content))
		err := driver.CheckImage(t.Context(), target, path, image)
		require.Equalf(t, cyborg.ErrImageRejected, cyborg.ErrorKindOf(err), "%s: %v", name, err)
		require.NotContains(t, err.Error(), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", name)
	}

	for name, content := range map[string]string{
		"good": good, "small letters": strings.Replace(good, "FPGA", "fpga", 1), "large": good + strings.Repeat("x", 1<<20),
	} {
		path, image := stage(t, []byte(content))
		require.NoErrorf(t, driver.CheckImage(t.Context(), target, path, image), name)
	}
}

// program loads an image into one part of the park's first card.
func (p *park) program(t *testing.T, part int, function string, image cyborg.Image) {
	t.Helper()
	device := p.discover(t)[0]
	path, staged := stage(t, fake.MakeImage(device.Type, function, []byte("payload")))
	image.SHA256 = staged.SHA256
	require.NoError(t, p.driver.(full).Program(t.Context(), drivers.ProgramRequest{
		Target: drivers.Target{Device: device, Deployable: device.Deployables[part]}, Path: path, Image: image, Progress: quiet,
	}))
}

// bitstreams returns the images in the parts of the park's first card.
func (p *park) bitstreams(t *testing.T) (ids []string) {
	t.Helper()
	for _, deployable := range p.discover(t)[0].Deployables {
		ids = append(ids, deployable.BitstreamID)
	}
	return ids
}

func TestProgramDisturbsRegionOrCard(t *testing.T) {
	t.Parallel()

	fpga := newPark(t, map[string]any{"deployables": 3})
	fpga.program(t, 1, "aes", cyborg.Image{ID: "one"})
	require.Equal(t, []string{"", "one", ""}, fpga.bitstreams(t))
	fpga.program(t, 2, "rsa", cyborg.Image{ID: "all", WholeDevice: true})
	require.Equal(t, []string{"all", "all", "all"}, fpga.bitstreams(t))

	gpu := newPark(t, map[string]any{"park": "1xgpu", "deployables": 2})
	gpu.program(t, 0, "vbios-96", cyborg.Image{ID: "firmware"})
	require.Equal(t, []string{"firmware", "firmware"}, gpu.bitstreams(t), "a card has one firmware")
}

// The function of a loaded image is a trait of its region.
func TestProgramMakesTrait(t *testing.T) {
	t.Parallel()

	p := newPark(t, nil)
	p.program(t, 0, "aes-v1.2", cyborg.Image{ID: "some-id"})
	require.Contains(t, p.discover(t)[0].Deployables[0].Attributes,
		cyborg.Attribute{Key: "trait1", Value: "CUSTOM_FPGA_FUNCTION_ID_FAKE_AES_V1_2"})

	p.program(t, 0, "rsa", cyborg.Image{ID: "other-id"})
	require.Equal(t, []cyborg.Attribute{
		{Key: "rc", Value: "FPGA"},
		{Key: "trait0", Value: "CUSTOM_FAKE_DEVICE"},
		{Key: "trait1", Value: "CUSTOM_FPGA_FUNCTION_ID_FAKE_RSA"},
	}, p.discover(t)[0].Deployables[0].Attributes)
}

func TestProgramLeavesUsersAlone(t *testing.T) {
	t.Parallel()

	p := newPark(t, map[string]any{"deployables": 2, "in_use": "00fa:01:00.1"})
	driver, target, _ := p.target(t)
	path, image := stage(t, fake.MakeImage(cyborg.DeviceTypeFPGA, "aes", []byte("payload")))
	request := drivers.ProgramRequest{Target: target, Path: path, Image: image, Progress: quiet}
	require.NoError(t, driver.Program(t.Context(), request), "the user has the other region")

	request.Image.WholeDevice = true
	err := driver.Program(t.Context(), request)
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "00fa:01:00.1")
	require.Equal(t, []string{image.SHA256, ""}, p.bitstreams(t))
}
