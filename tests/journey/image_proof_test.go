package journey_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/openstack/glance/glancetest"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestImagesGoToTheHostsAgentOnly: an agent without a certificate gets its
// images, from the network and from Glance. Somebody else on the machine who
// knows all that Temporal and the API say of the operation does not.
func TestImagesGoToTheHostsAgentOnly(t *testing.T) {
	t.Parallel()
	bitstream := fake.MakeImage("FPGA", "aes", []byte("payload"))
	sum := sha256.Sum256(bitstream)
	origin := startOrigin(t, bitstream, func(*http.Request) bool { return true })

	keystone, g := openstacktest.NewKeystone(t), glancetest.Start(t)
	keystone.Serve("image", g.URL)
	g.Trust(keystone.IsOwn)
	s, _, cards := startRack(t, "CYBORG_IMAGES_ALLOW="+origin.URL,
		"CYBORG_OPENSTACK_AUTH_URL="+keystone.URL, "CYBORG_OPENSTACK_PASSWORD="+openstacktest.OwnPassword)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for _, card := range cards[:2] {
		_, err := s.API.MakeReady(ctx, card.UUID)
		require.NoError(t, err)
	}

	programmed := make(chan error, 1)
	go func() {
		_, err := s.API.Program(ctx, cards[0].UUID, cyborg.Image{Source: origin.URL + "/aes", SHA256: hex.EncodeToString(sum[:])})
		programmed <- err
	}()
	origin.awaitFetch(t, programmed)

	operations, err := apiclient.Collect(s.API.Operations(ctx, apiclient.OperationFilter{}, apiclient.Page{}))
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationRunning, operations[0].State)
	for _, path := range []string{
		workflows.ImagesPath + operations[0].ID.String(),
		workflows.ImageFetch(operations[0].ID, workflows.ImageName(operations[0].ID, cards[0].UUID)),
	} {
		for _, proof := range []string{"", hostOf(ctx, t, s).Instance} {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.AgentEndpoint()+path, nil)
			require.NoError(t, err)
			request.Header.Set(agentapi.ProofHeader, proof)
			response, err := http.DefaultClient.Do(request)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, http.StatusForbidden, response.StatusCode, "%s with %q", path, proof)
		}
	}
	close(origin.goOn)
	require.NoError(t, <-programmed)

	id := g.Add(fake.MakeImage("FPGA", "sha", []byte("payload")), nil)
	_, err = s.API.Program(ctx, cards[1].UUID, cyborg.GlanceImage(id))
	require.NoError(t, err)
	card, _, err := s.API.Accelerator(ctx, cards[1].UUID)
	require.NoError(t, err)
	require.Equal(t, id.String(), card.BitstreamID)
}
