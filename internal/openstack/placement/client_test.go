package placement_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/openstack/placement"
	"github.com/cyborg-project/cyborg/internal/openstack/placement/placementtest"
)

// ctx returns the context of the test, where it has one.
func ctx(t require.TestingT) context.Context {
	if t, ok := t.(interface{ Context() context.Context }); ok {
		return t.Context()
	}
	return context.Background()
}

// wanted returns one provider.
func wanted() []placement.Provider {
	return []placement.Provider{{
		UUID: uuid.NewMD5(uuid.NameSpaceDNS, []byte("h_d0")), Name: "h_d0", Class: "CUSTOM_NIC", Total: 2,
		Traits: []string{"CUSTOM_A", placement.Owner},
	}}
}

// TestEveryRequestMayFail: each request of a sync fails once, in every way,
// before and after it had its effect. The error says whether it may pass, and
// the next try ends as if nothing had happened.
func TestEveryRequestMayFail(t *testing.T) {
	t.Parallel()
	faults := map[string]placementtest.Fault{
		"409":        {Status: 409, Code: "placement.concurrent_update"},
		"409 after":  {Status: 409, Code: "placement.concurrent_update", After: true},
		"500":        {Status: 500},
		"500 after":  {Status: 500, After: true},
		"503":        {Status: 503},
		"404 on way": {Status: 404},
		"cut":        {Cut: true},
		"cut after":  {Cut: true, After: true},
	}

	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := 0; ; at++ {
				model := placementtest.New()
				root := model.AddHost("h")
				requests, hit := 0, false
				model.Fail = func(*http.Request) *placementtest.Fault {
					requests++
					if requests == at+1 {
						hit = true
						return &fault
					}
					return nil
				}

				client := placement.New(model)
				_, err := step(t, client, placement.Request{Host: "h", Wanted: wanted()})

				if !hit {
					require.NoError(t, err)
					require.Greater(t, at, 8, "there were that many requests to fail")
					return
				}

				if err != nil {
					require.Contains(t, []cyborg.ErrorKind{cyborg.ErrUnavailable, cyborg.ErrChanged, cyborg.ErrNotFound}, cyborg.ErrorKindOf(err), "request %d: %v", at, err)
				}

				_, err = step(t, client, placement.Request{Host: "h", Wanted: wanted(), Marks: placement.Marks{}.With(wanted())})
				require.NoError(t, err, "request %d", at)
				requireAs(t, model, root, wanted()[0], nil, nil)
			}
		})
	}
}

// TestNegotiate: the newest version of the API that both sides know is used,
// and a Placement that is too old is refused.
func TestNegotiate(t *testing.T) {
	t.Parallel()
	model := placementtest.New()
	model.Max = 20
	_, err := placement.New(model).Negotiate(t.Context())
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err))
	require.Contains(t, err.Error(), "1.20")

	for most, want := range map[int]string{26: "1.26", 36: "1.36", 39: "1.39", 45: "1.39"} {
		model := placementtest.New()
		model.Max = most
		asked := ""
		model.Fail = func(r *http.Request) *placementtest.Fault {
			asked = r.Header.Get("Openstack-Api-Version")
			return nil
		}

		client := placement.New(model)
		version, err := client.Negotiate(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, version)

		_, err = client.Read(t.Context(), placement.Request{Host: "h"})
		require.NoError(t, err)
		require.Equal(t, "placement "+want, asked)
	}
}

// TestWriteWithAnOldGenerationIsRefused: a change made between another's read
// and write is never lost, because a write with an old generation is refused.
func TestWriteWithAnOldGenerationIsRefused(t *testing.T) {
	t.Parallel()
	model := placementtest.New()
	model.AddHost("h")
	client := placement.New(model)
	_, err := step(t, client, placement.Request{Host: "h", Wanted: wanted()})
	require.NoError(t, err)

	closed := wanted()
	closed[0].Reserved = 2

	tree, err := client.Read(t.Context(), placement.Request{Host: "h", Wanted: wanted()})
	require.NoError(t, err)

	_, err = step(t, client, placement.Request{Host: "h", Wanted: closed})
	require.NoError(t, err)

	open := wanted()
	open[0].Total = 3
	err = client.Apply(t.Context(), placement.NewPlan(open, tree, nil))
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err))
	require.Equal(t, 2, model.Provider("h_d0").Inventories["CUSTOM_NIC"].Reserved)
}

// L26: any text, such as a function id, becomes a trait that Placement takes.
func TestL26NamesAreWellFormed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"CUSTOM_FPGA_FUNCTION_ID_INTEL_d8424dc4-a4a3-c413": "CUSTOM_FPGA_FUNCTION_ID_INTEL_D8424DC4_A4A3_C413",
		"owner_cyborg":           "OWNER_CYBORG",
		"my trait":               "CUSTOM_MY_TRAIT",
		"HW_GPU_API_VULKAN":      "HW_GPU_API_VULKAN",
		"Größe":                  "CUSTOM_GR__E",
		"":                       "",
		strings.Repeat("x", 300): "CUSTOM_" + strings.Repeat("X", 248),
	} {
		require.Equal(t, want, placement.Trait(text))
	}

	require.Equal(t, "FPGA", placement.Class("fpga"))
	require.Equal(t, "CUSTOM_QAT", placement.Class("QAT"))
	require.Equal(t, "CUSTOM_NIC", placement.Class("CUSTOM_NIC"))
}
