package conductor_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/mocks"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/openstack/glance"
	"github.com/cyborg-project/cyborg/internal/openstack/glance/glancetest"
	"github.com/cyborg-project/cyborg/workflows"
)

// card is a store with one accelerator. It remembers the URL that it granted
// last, and its key.
type card struct {
	conductor.Store
	accelerator cyborg.Accelerator
	url         db.ImageURL
	key         string
	earlier     *db.ImageURL // what an earlier search has found
}

func (c *card) Accelerator(context.Context, uuid.UUID) (cyborg.Accelerator, error) {
	return c.accelerator, nil
}

func (*card) CheckRun(context.Context, db.Run) (db.Addressee, error) { return db.Addressee{}, nil }

func (c *card) GrantImage(_ context.Context, _ db.Run, url db.ImageURL, key string) (db.ImageURL, error) {
	c.url, c.key = url, key
	if c.earlier != nil {
		return *c.earlier, nil
	}
	return url, nil
}

// newCard returns an accelerator that shows its region and its traits as
// attributes.
func newCard() *card {
	return &card{accelerator: cyborg.Accelerator{
		UUID: uuid.New(), Host: "h1", ProviderName: "h1_0000:3b:00.0", Specs: cyborg.Specs{VendorID: "8086", ProductID: "09c4"},
		Attributes: []cyborg.Attribute{
			{Key: "rc", Value: "FPGA"},
			{Key: "trait0", Value: "CUSTOM_FPGA_INTEL"},
			{Key: "trait1", Value: "CUSTOM_FPGA_REGION_INTEL_9926AB6D6C925A68AABCA7D84C545738"},
			{Key: "note", Value: "CUSTOM_FPGA_REGION_INTEL_AAAA"},
		},
	}}
}

// find calls the activity as the operation's workflow does.
func (c *card) find(t *testing.T, cloud conductor.Cloud, image cyborg.Image) (workflows.FindImageInput, workflows.FindImageResult, error) {
	t.Helper()
	acts := conductor.New(c, &mocks.Client{}, conductor.Policy{}, cloud, conductor.Grants{}, slog.New(slog.DiscardHandler))
	in := workflows.FindImageInput{
		Operation: uuid.New(), Target: cyborg.Target{Accelerator: c.accelerator.UUID}, Image: image, Valid: time.Minute,
	}

	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivityWithOptions(acts.FindImage, registered(workflows.FindImageActivity))
	var out workflows.FindImageResult
	value, err := env.ExecuteActivity(workflows.FindImageActivity, in)
	if err != nil {
		return in, out, workflows.FromFailure(err)
	}
	return in, out, value.Get(&out)
}

// An image is found by its ID, its function or its bitstream ID. The search
// permits only the accelerator's host to fetch it, at a URL that everybody who
// knows the operation can make: Temporal has it.
func TestFindImage(t *testing.T) {
	t.Parallel()
	g := glancetest.Start(t)
	cloud := conductor.Cloud{Images: glance.New(g, glance.Options{Max: 1 << 20})}
	bitstream := uuid.New()
	id := g.Add([]byte("content"), map[string]any{"accel:function_id": "aes", "accel:bitstream_id": bitstream.String()})

	for _, test := range []struct {
		image cyborg.Image
		id    uuid.UUID // the image ID to record
	}{
		{cyborg.GlanceImage(id), id}, {cyborg.GlanceFunction("aes"), id}, {cyborg.GlanceImage(bitstream), bitstream},
	} {
		store := newCard()
		in, out, err := store.find(t, cloud, test.image)
		require.NoError(t, err)
		require.Equal(t, test.id.String(), out.Image.ID, test.image.Source)
		require.Equal(t, cyborg.GlanceImage(id).Source, out.Image.Source)
		require.Equal(t, "sha512", out.Image.Checksum.Algorithm())
		require.Equal(t, "aes", out.Function)
		require.Equal(t, int64(7), out.Size)

		require.Equal(t, workflows.ImageName(in.Operation, store.accelerator.UUID), store.key)
		require.Equal(t, workflows.ImageFetch(in.Operation, store.key), out.Fetch)
		require.Equal(t, db.ImageURL{
			Operation: in.Operation, Accelerator: store.accelerator.UUID, Host: "h1", Asked: test.image, Image: out.Image, Size: 7, Valid: time.Minute,
		}, store.url)
	}
}

// Where an earlier try of the search has found another image, that one counts: the
// records have it.
func TestFindImageKeepsWhatWasFound(t *testing.T) {
	t.Parallel()
	g := glancetest.Start(t)
	store := newCard()
	store.earlier = &db.ImageURL{Image: cyborg.GlanceImage(uuid.New()), Size: 99}
	g.Add([]byte("content"), map[string]any{"accel:function_id": "aes"})
	_, out, err := store.find(t, conductor.Cloud{Images: glance.New(g, glance.Options{Max: 1 << 20})}, cyborg.GlanceFunction("aes"))
	require.NoError(t, err)
	require.Equal(t, store.earlier.Image, out.Image)
	require.EqualValues(t, 99, out.Size)
	require.Equal(t, cyborg.GlanceFunction("aes"), store.url.Asked)
}

// An image that names another kind of card or another region is refused before
// anything is touched.
func TestIncompatibleImages(t *testing.T) {
	t.Parallel()
	g := glancetest.Start(t)
	cloud := conductor.Cloud{Images: glance.New(g, glance.Options{Max: 1 << 20})}
	for name, test := range map[string]struct {
		properties map[string]any
		refusal    string
	}{
		"its region":             {map[string]any{"accel:region_id": "9926ab6d-6c92-5a68-aabc-a7d84c545738"}, ""},
		"its region, as a UUID":  {map[string]any{"region_uuid": "9926AB6D6C925A68AABCA7D84C545738"}, ""},
		"with the vendor":        {map[string]any{"accel:region_id": "INTEL_9926AB6D6C925A68AABCA7D84C545738"}, ""},
		"another region":         {map[string]any{"accel:region_id": "3afb"}, "is for region"},
		"the end of its region":  {map[string]any{"accel:region_id": "4c545738"}, "is for region"},
		"what is no trait":       {map[string]any{"accel:region_id": "AAAA"}, "is for region"},
		"its vendor and product": {map[string]any{"accel:vendor_id": "0x8086", "accel:product_id": "09C4"}, ""},
		"another vendor":         {map[string]any{"accel:vendor_id": "10ee"}, "cards of vendor"},
		"another product":        {map[string]any{"accel:product_id": "0b30"}, "cards of product"},
	} {
		store := newCard()
		_, _, err := store.find(t, cloud, cyborg.GlanceImage(g.Add([]byte("x"), test.properties)))
		if test.refusal == "" {
			require.NoError(t, err, name)
			continue
		}

		require.Equal(t, cyborg.ErrImageRejected, cyborg.ErrorKindOf(err), name)
		require.ErrorContains(t, err, test.refusal, name)
		require.Empty(t, store.key, "no URL is made")
	}

	store := newCard()
	store.accelerator.Attributes = nil
	_, _, err := store.find(t, cloud, cyborg.GlanceImage(g.Add([]byte("x"), map[string]any{"accel:region_id": "3afb"})))
	require.ErrorContains(t, err, "shows none")
}

// L27: an image that names no function can be programmed. OpenStack Cyborg
// failed on such an image after it had programmed the card.
func TestL27ImageWithoutAFunction(t *testing.T) {
	t.Parallel()
	g := glancetest.Start(t)
	store := newCard()
	_, out, err := store.find(t, conductor.Cloud{Images: glance.New(g, glance.Options{Max: 1 << 20})}, cyborg.GlanceImage(g.Add([]byte("x"), nil)))
	require.NoError(t, err)
	require.Empty(t, out.Function)
	require.NotEmpty(t, store.key)
}

func TestFindImageWithoutGlance(t *testing.T) {
	t.Parallel()
	store := newCard()
	_, _, err := store.find(t, conductor.Cloud{}, cyborg.GlanceImage(uuid.New()))
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err))
	require.Contains(t, cyborg.AsError(err).Hint, "openstack.auth_url")
	_, _, err = store.find(t, conductor.Cloud{}, cyborg.Image{Source: "glance:nonsense"})
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
}
