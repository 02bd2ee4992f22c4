package api_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// TestHardRebootIsRecorded: nova-compute asks for the accelerators of an
// instance at the start of a reboot. If they may be lost and Nova says that the
// reboot is a hard one, that is recorded. The question is answered whatever
// Nova says.
func TestHardRebootIsRecorded(t *testing.T) {
	t.Parallel()
	hard, soft, unknown := uuid.New(), uuid.New(), uuid.New()
	h := setupWith(t, func(deps *api.Deps) {
		deps.Instances = instances{hard: {project: "tenant", rebooting: "req-1"}, soft: {project: "tenant"}}
	})

	accelerator := h.ready("first")
	other := h.host("h1", 2)["fpga-1"]
	h.do("POST", path(other, "/ready"), nil).expect(http.StatusOK)
	for instance, provider := range map[uuid.UUID]uuid.UUID{hard: accelerator.ProviderUUID, soft: accelerator.ProviderUUID, unknown: other.ProviderUUID} {
		h.do("PATCH", requestsPath, toBind("h1", provider, instance, h.requests("one", 1)...)).expect(http.StatusAccepted)
	}

	noted := func(instance uuid.UUID) string {
		require.Len(t, h.do("GET", ofInstance(instance), nil).arqs(http.StatusOK), 1)
		request, err := h.store.HardReboot(t.Context(), cyborg.Rescue{Instance: instance, BootID: "b"})
		require.NoError(t, err)
		return request
	}

	require.Empty(t, noted(hard), "nothing is lost")

	conn, err := pgx.Connect(t.Context(), h.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "UPDATE arqs SET lost_boot = 'b', lost_at = now()")
	require.NoError(t, err)

	require.Equal(t, "req-1", noted(hard))
	require.Empty(t, noted(soft))
	require.Empty(t, noted(unknown))
}

// bootingInstances is a Nova during whose answer the host boots again.
type bootingInstances struct {
	instances

	boot func()
}

func (b bootingInstances) HardReboot(ctx context.Context, instance uuid.UUID) (string, error) {
	b.boot()
	return b.instances.HardReboot(ctx, instance)
}

// TestHardRebootBeforeAnotherBoot: a hard reboot that Nova reports before it is
// known that the host booted again does not count for what that boot has cost.
func TestHardRebootBeforeAnotherBoot(t *testing.T) {
	t.Parallel()
	instance, boots := uuid.New(), func() {}
	h := setupWith(t, func(deps *api.Deps) {
		deps.Instances = bootingInstances{instances{instance: {project: "tenant", rebooting: "req-1"}}, func() { boots() }}
	})

	accelerator := h.ready("first")
	h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, instance, h.requests("one", 1)...)).expect(http.StatusAccepted)

	conn, err := pgx.Connect(t.Context(), h.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())

	boot := func(id string) {
		_, err := conn.Exec(t.Context(), "UPDATE arqs SET lost_boot = $1, lost_at = clock_timestamp(), hard_reboot = NULL", id)
		require.NoError(t, err)
	}

	noted := func() string {
		require.Len(t, h.do("GET", ofInstance(instance), nil).arqs(http.StatusOK), 1)
		request, err := h.store.HardReboot(t.Context(), cyborg.Rescue{Instance: instance, BootID: "second"})
		require.NoError(t, err)
		return request
	}

	boot("first")
	boots = func() { boot("second") }
	require.Empty(t, noted())
	boots = func() {}
	require.Equal(t, "req-1", noted(), "Nova is still, or again, at it, and this boot is known")
}

// TestRescue: if there is a Nova, administrators may have it reboot the
// instances whose accelerators a host's boot may have cost. The loss is shown
// at the request, at its handle and as drift.
func TestRescue(t *testing.T) {
	t.Parallel()
	const rescue = "/v1/hosts/h1/rescue"

	without := setup(t, withTokens)
	without.as(adminToken).ready("first")
	require.Contains(t, without.as(adminToken).do("POST", rescue, nil).problem(cyborg.ErrUnsupported).Detail, "no Nova")
	without.as(memberToken).do("POST", rescue, nil).problem(cyborg.ErrForbidden)

	h := setup(t, func(c *api.Config) { c.V1.RescueWithin = time.Minute })
	accelerator, instance := h.ready("first"), uuid.New()
	made := h.requests("one", 1)

	h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, instance, made...)).expect(http.StatusAccepted)
	h.do("POST", rescue, nil).expect(http.StatusNoContent)
	h.do("POST", "/v1/hosts/h9/rescue", nil).problem(cyborg.ErrNotFound)
	h.do("POST", rescue+"?force=1", nil).problem(cyborg.ErrInvalid)
	h.do("POST", rescue, map[string]any{"force": true}).problem(cyborg.ErrInvalid)

	conn, err := pgx.Connect(t.Context(), h.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "UPDATE arqs SET lost_boot = 'b', lost_at = now()")
	require.NoError(t, err)

	shown := as[map[string]any](h.do("GET", requestsPath+"/"+made[0].UUID.String(), nil).expect(http.StatusOK))
	require.Equal(t, "lost_at_boot", shown["health"])

	for _, handle := range as[acceleratorBody](h.do("GET", path(accelerator), nil).expect(http.StatusOK)).Handles {
		if handle.Holder != nil {
			require.Equal(t, cyborg.HealthLostAtBoot, handle.Health)
		} else {
			require.Empty(t, handle.Health)
		}
	}

	drift := as[map[string][]apiclient.Drift](h.do("GET", "/v1/drift?class=lost_at_boot", nil).expect(http.StatusOK))["drift"]
	require.Len(t, drift, 1)
	require.Equal(t, instance, drift[0].Instance)
	require.Empty(t, as[map[string]any](h.do("GET", "/v1/drift?marker="+drift[0].Key(), nil).expect(http.StatusOK))["drift"])

	op := as[apiclient.Operation](h.do("POST", rescue, nil).expect(http.StatusOK))
	require.Equal(t, cyborg.OperationRescue, op.Kind)
	require.Equal(t, "h1", op.Host)
	require.Contains(t, op.Subjects, cyborg.Subject{Kind: cyborg.SubjectARQ, ID: made[0].UUID.String()})
}
