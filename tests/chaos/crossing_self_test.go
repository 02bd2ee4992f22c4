package chaos_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// TestCrossingFindsWhatClientsDoNotHave checks the checker: it finds where an
// accelerator differs from what the clients of one card know.
func TestCrossingFindsWhatClientsDoNotHave(t *testing.T) {
	t.Parallel()
	mine, other := cyborg.Holder{Kind: cyborg.HolderHost, ID: "rack1"}, cyborg.Holder{Kind: cyborg.HolderService, ID: "other"}
	held := func(image string, holders ...cyborg.Holder) *apiclient.Accelerator {
		a := &apiclient.Accelerator{Accelerator: cyborg.Accelerator{Name: "a", BitstreamID: image}}
		for _, holder := range holders {
			a.Handles = append(a.Handles, cyborg.AttachHandle{UUID: uuid.New(), Holder: &holder})
		}
		return a
	}

	for _, test := range []struct {
		what  string
		knows possession
		stays bool
		boots int
		card  *apiclient.Accelerator
		wrong string
	}{
		{"it has what it knows of", has, false, 0, held("x", mine), ""},
		{"it was detached behind its back", has, false, 0, held("x"), "the records give it 0"},
		{"it was attached twice", has, false, 0, held("x", mine, mine), "the records give it 2"},
		{"its detach was not done", hasNot, false, 0, held("x", mine), "the records give it 1"},
		{"an operator has to look", perhaps, false, 0, held("x", mine), ""},
		{"the stayer stays", has, true, 0, held("x", mine, stayer()), ""},
		{"the stayer has lost its handle", has, true, 0, held("x", mine), "held a handle of a all the time"},
		{"somebody else has a handle", hasNot, false, 0, held("x", other), "never asked"},
		{"another image is loaded", hasNot, false, 0, held("y"), "was loaded last"},
		{"a boot has lost the image", hasNot, false, 1, held(""), ""},
	} {
		x := crossing{clients: []*crosser{{holder: mine, knows: test.knows}}, image: "x"}
		err := x.compare(test.card, test.stays, test.boots)
		if test.wrong == "" {
			require.NoError(t, err, test.what)
			continue
		}
		require.ErrorContains(t, err, test.wrong, test.what)
	}
}

// TestClientsLearnFromTheirOperations checks what a client knows after each end
// of an operation of its own.
func TestClientsLearnFromTheirOperations(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		before possession
		move   move
		state  cyborg.OperationState // empty where nothing was recorded
		after  possession
	}{
		{hasNot, moveAttach, cyborg.OperationSucceeded, has},
		{hasNot, moveAttach, cyborg.OperationFailed, hasNot},
		{hasNot, moveAttach, cyborg.OperationNeedsOperator, perhaps},
		{has, moveAttach, "", has},
		{has, moveDetach, cyborg.OperationCancelled, has},
		{has, moveDetach, cyborg.OperationSucceeded, hasNot},
		{has, moveForce, cyborg.OperationSucceeded, hasNot},
	} {
		c := crosser{knows: test.before}
		require.NoError(t, c.learn(test.move, operation{state: test.state}, test.state != ""))
		require.Equal(t, test.after, c.knows, "%+v", test)
	}

	// After a try that may still come, nobody knows any more.
	late := crosser{knows: has, unsure: true}
	require.NoError(t, late.learn(moveAttach, operation{state: cyborg.OperationSucceeded}, true))
	require.Equal(t, perhaps, late.knows)
	a := &apiclient.Accelerator{Accelerator: cyborg.Accelerator{Name: "a", BitstreamID: "y"}}
	for range 2 {
		a.Handles = append(a.Handles, cyborg.AttachHandle{Holder: &cyborg.Holder{}})
	}
	x := crossing{clients: []*crosser{&late}, image: "x", unsure: true}
	require.NoError(t, x.compare(a, false, 0))
	late.unsure = false
	require.Error(t, x.compare(a, false, 0))

	c := crosser{knows: has}
	require.ErrorContains(t, c.learn(moveAttach, operation{state: cyborg.OperationSucceeded}, true), "has attached another one")
}
