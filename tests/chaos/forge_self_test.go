package chaos_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/grant"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestForgeriesMustBeRefused checks the checker: only a refusal for want of a
// grant is one, and only a step that is done may be answered.
func TestForgeriesMustBeRefused(t *testing.T) {
	t.Parallel()
	for _, by := range tricks() {
		for kind, refused := range map[cyborg.ErrorKind]bool{
			"": false, cyborg.ErrNotGranted: true, cyborg.ErrOtherAgent: true, cyborg.ErrSuperseded: true,
			cyborg.ErrLate: false, cyborg.ErrInUse: false, cyborg.ErrChanged: false, cyborg.ErrHardware: false,
		} {
			var failure *cyborg.Error
			if kind != "" {
				failure = cyborg.Errorf(kind, "x")
			}
			got, err := forgery{trick: by}.judge(failure)
			switch {
			case by == replayed:
				require.NoError(t, err)
				require.Equal(t, failure != nil, got, "%s", kind)
			case refused:
				require.NoError(t, err)
				require.True(t, got)
			default:
				require.Error(t, err, "%s: %s", by, kind)
			}
		}
	}
}

// TestForgeriesAreWellMade checks that nothing but the grant is wrong with what an
// attacker sends: it names the agent, and its claims permit it wherever they were
// not signed by a conductor.
func TestForgeriesAreWellMade(t *testing.T) {
	t.Parallel()
	conductor := grant.NewSigner()
	g := &forger{
		c: &harness.Cluster{Hosts: []string{"rack1", "rack2"}}, signer: grant.NewSigner(), known: map[string][]sent{}, turn: map[string]int{},
		victims: map[string][]victim{}, open: map[string]forgery{},
	}
	for _, host := range g.c.Hosts {
		in := workflows.DetachInput{Operation: uuid.New(), Target: cyborg.Target{Backend: "fake"}}
		step, err := grant.StepOf(workflows.DetachActivity, in)
		require.NoError(t, err)
		claims := grant.Claims{Run: "run-" + host, Host: host, Instance: "agent-" + host, Assignment: 7, Steps: []grant.Step{step}}
		text, err := conductor.Sign(claims)
		require.NoError(t, err)
		in.Addressee = workflows.Addressee{Instance: claims.Instance, Run: claims.Run, Assignment: 7, Grant: text}

		content, err := json.Marshal(in)
		require.NoError(t, err)
		s := sent{host: host, activity: workflows.DetachActivity, run: claims.Run, at: time.Now(), done: true}
		s.input, err = readInput(content)
		require.NoError(t, err)
		late := s
		late.input, late.at = maps.Clone(s.input), time.Now().Add(-2*expiry)
		g.known[host] = []sent{late, s}
	}

	for _, by := range tricks() {
		f, ok, err := g.make(by, "rack1")
		require.NoError(t, err)
		require.True(t, ok, by)
		require.Equal(t, "rack1", f.host, by)
		if by == ungranted {
			require.NotContains(t, f.input, "grant")
			continue
		}

		text := f.input["grant"].(string) // make has put it there
		_, err = grant.Open(text, conductor.Key())
		badlySigned := []trick{rewritten, foreignKey, borrowedID}
		require.Equal(t, slices.Contains(badlySigned, by), err != nil, "%s: %v", by, err)
		require.Equal(t, by == foreign || by == readressed, f.input["run"] == "run-rack2", by)
		require.Equal(t, by == foreign, f.input["instance"] == "agent-rack2", by)
		require.Equal(t, by == raised, f.input["assignment"] != json.Number("7"), by)
		require.Equal(t, by == expired, time.Since(f.at) > expiry, by)

		if by == foreignKey {
			claims, err := grant.Open(text, g.signer.Key())
			require.NoError(t, err)
			step, err := grant.StepOf(f.activity, f.input)
			require.NoError(t, err)
			require.True(t, claims.Permits(step.Activity, step.Input), "whoever believed the key would do it")
		}
	}
	require.False(t, sent{done: true, activity: workflows.DetachActivity, input: map[string]any{"undo": true}}.repeatable())
	require.False(t, sent{activity: workflows.DetachActivity}.repeatable())
}
