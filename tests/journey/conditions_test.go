package journey_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestConditionsAreShown: what a driver says about an accelerator is shown with its
// reason. Nobody gets one that is unready, and it is given out again when that is over.
// What a health check says comes as well, without any change of the hardware.
func TestConditionsAreShown(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"rack=fake:1xfpga"}, Env: append(shortWaits(), "CYBORG_AGENT_HEALTH=200ms")})
	a := s.Accelerators(t)[0]
	_, err := s.API.MakeReady(t.Context(), a.UUID)
	require.NoError(t, err)
	device, err := s.API.Device(t.Context(), a.DeviceUUID)
	require.NoError(t, err)

	say := func(edit func(region *fake.Region)) {
		require.NoError(t, s.Bench("rack").Edit(t.Context(), device.Identity, func(card *fake.Card) {
			for _, region := range card.Deployables {
				edit(region)
			}
		}))
	}
	until := func(status cyborg.Status, codes ...string) apiclient.Accelerator {
		var now apiclient.Accelerator
		harness.Until(t, t.Context(), fmt.Sprintf("%s with %v", status, codes), func() (err error) {
			now, _, err = s.API.Accelerator(t.Context(), a.UUID)
			if err != nil {
				return err
			}
			var said []string
			for _, c := range now.Conditions {
				said = append(said, c.Code)
			}
			if now.Status != status || fmt.Sprint(said) != fmt.Sprint(codes) {
				return errors.New(fmt.Sprint(now.Status, said))
			}
			return nil
		})
		return now
	}

	say(func(r *fake.Region) {
		r.Conditions = []cyborg.Condition{{Code: "no_link", Level: cyborg.ConditionUnready, Message: "plug the cable in"}}
		r.Health = []cyborg.Condition{{Code: "too_hot", Level: cyborg.ConditionDegraded, Message: "open a window"}}
	})
	unready := until(cyborg.StatusUnready, "no_link", "too_hot")
	require.NotZero(t, unready.Conditions[0].Since)

	_, err = s.API.Attach(t.Context(), a.UUID, cyborg.Holder{Kind: cyborg.HolderService, ID: "build-farm"})
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, "is unready since ")

	p := terminal{s, t}
	stdout, _ := p.run(exitOK, "accelerator", "show", a.UUID.String())
	require.Contains(t, stdout, "no_link (unready) since ")
	require.Contains(t, stdout, "too_hot (degraded) since ")
	stdout, _ = p.run(exitOK, "accelerator", "list", "--long")
	require.Contains(t, stdout, "no_link: plug the cable in")
	p.tells([]string{"unready no_link, degraded too_hot"}, "accelerator", "history", a.UUID.String())
	stdout, _ = p.run(exitOK, "doctor")
	require.Contains(t, stdout, "(unready, no_link: plug the cable in)")

	say(func(r *fake.Region) { r.Conditions = nil })
	until(cyborg.StatusReady, "too_hot")
	_, err = s.API.Attach(t.Context(), a.UUID, cyborg.Holder{Kind: cyborg.HolderHost, ID: "rack"})
	require.NoError(t, err, "it is only degraded")

	say(func(r *fake.Region) { r.Health[0].Level = cyborg.ConditionUnready })
	until(cyborg.StatusUnready, "too_hot")
	_, err = s.API.Detach(t.Context(), a.UUID, cyborg.Holder{})
	require.NoError(t, err)
	say(func(r *fake.Region) { r.Health = nil })
	until(cyborg.StatusReady)
	harness.RequireSound(t, s)
}
