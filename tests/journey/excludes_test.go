package journey_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestExcludesOnACarvedCard: while somebody has a part of a card that is offered whole as
// well, nobody gets the whole, not even who has the part; and the other way round, also
// where both are asked for at once. The command line says who has the other one.
func TestExcludesOnACarvedCard(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"rack=fake:1xgpu"}, Env: shortWaits()})
	_, err := s.API.UpdateDriver(t.Context(), "rack", "fake", cyborg.JSONObject{"park": "1xgpu", "deployables": 2, "whole": true})
	require.NoError(t, err)

	named := func(suffix string) apiclient.Accelerator {
		t.Helper()
		var found apiclient.Accelerator
		harness.Until(t, t.Context(), suffix, func() error { // on a busy machine the report comes after the answer
			all := s.Accelerators(t)
			i := slices.IndexFunc(all, func(a apiclient.Accelerator) bool { return strings.HasSuffix(a.Name, suffix) })
			if i < 0 {
				return fmt.Errorf("there are only %d others", len(all))
			}
			found = all[i]
			return nil
		})
		return found
	}
	whole, first, second := named("_whole"), named("_r0"), named("_r1")
	require.Equal(t, []string{first.Name, second.Name}, whole.Excludes)
	require.Equal(t, []string{whole.Name}, first.Excludes)
	for _, a := range []apiclient.Accelerator{whole, first, second} {
		_, err := s.API.MakeReady(t.Context(), a.UUID)
		require.NoError(t, err)
	}
	rack, service := cyborg.Holder{Kind: cyborg.HolderHost, ID: "rack"}, cyborg.Holder{Kind: cyborg.HolderService, ID: "build-farm"}

	attach := func(a apiclient.Accelerator, holder cyborg.Holder) error {
		_, err := s.API.Attach(t.Context(), a.UUID, holder)
		return err
	}
	detach := func(a apiclient.Accelerator) {
		t.Helper()
		_, err := s.API.Detach(t.Context(), a.UUID, cyborg.Holder{})
		require.NoError(t, err)
	}

	require.NoError(t, attach(first, rack))
	for _, holder := range []cyborg.Holder{service, rack} {
		refused := cyborg.AsError(attach(whole, holder))
		require.Equal(t, cyborg.ErrInUse, refused.Kind)
		require.Contains(t, refused.Message, `accelerators "`+whole.Name+`" and "`+first.Name+`" exclude each other, and the latter host rack has`)
		require.Equal(t, named("_r0").Handles[0].Operation, refused.Operation)
	}

	p := terminal{s, t}
	stdout, _ := p.run(exitOK, "accelerator", "show", whole.UUID.String())
	require.Contains(t, stdout, "excluded_by")
	require.Contains(t, stdout, first.Name+", which host rack has")
	_, stderr := p.run(exitConflict, "accelerator", "attach", whole.UUID.String(), "--service", "build-farm")
	require.Contains(t, stderr, "Detach that one first.")

	require.NoError(t, attach(second, service), "parts do not exclude one another")
	detach(first)
	require.ErrorContains(t, attach(whole, service), second.Name)
	detach(second)
	require.NoError(t, attach(whole, service))
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(attach(first, service)))
	detach(whole)

	for range 5 { // at once
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for i, a := range []apiclient.Accelerator{whole, first} {
			wg.Go(func() { errs[i] = attach(a, rack) })
		}
		wg.Wait()

		got := slices.Index(errs, nil)
		require.GreaterOrEqual(t, got, 0, "one gets it: %v", errs)
		require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(errs[1-got]), "%v", errs)
		detach([]apiclient.Accelerator{whole, first}[got])
	}
	harness.RequireSound(t, s)
}
