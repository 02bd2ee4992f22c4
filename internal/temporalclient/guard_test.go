package temporalclient

import (
	"context"
	"crypto/tls"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// ruled is a Temporal that answers only who asks for the rules of workflows.
type ruled struct {
	workflowservice.UnimplementedWorkflowServiceServer

	err error
}

func (ruled) GetSystemInfo(context.Context, *workflowservice.GetSystemInfoRequest) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{}, nil
}

func (r ruled) ListWorkflowRules(context.Context, *workflowservice.ListWorkflowRulesRequest) (*workflowservice.ListWorkflowRulesResponse, error) {
	if r.err != nil {
		return nil, serviceerror.ToStatus(r.err).Err()
	}
	return &workflowservice.ListWorkflowRulesResponse{}, nil
}

// TestForeignTemporalIsWarnedOf: a Temporal without Cyborg's guard is one that
// answers, refuses in other words, or has no rules at all. One that is away is
// none.
func TestForeignTemporalIsWarnedOf(t *testing.T) {
	t.Parallel()
	ours := authority(t)
	own, held := issue(t, ours, identity.Server, "temporal"), issue(t, ours, identity.Server, "s1")
	serving, err := pki.Server(pki.ServerOptions{
		Files: pki.Files{Cert: own, Key: own, CA: ours.CertificateFile()}, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	require.NoError(t, err)

	for name, test := range map[string]struct {
		err  error
		warn bool
	}{
		"a plain one":         {nil, true},
		"one without rules":   {serviceerror.NewUnimplemented("method ListWorkflowRules not supported"), true},
		"with another's":      {serviceerror.NewPermissionDenied("Request unauthorized.", "not in this namespace"), true},
		"with Cyborg's guard": {serviceerror.NewPermissionDenied("Request unauthorized.", "spiffe://lab/server/s1 may not call ListWorkflowRules: nobody may"), false},
		"one that is away":    {serviceerror.NewUnavailable("soon"), false},
		"without a namespace": {serviceerror.NewNamespaceNotFound("cyborg"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options, err := Options(config.Temporal{
				Address: serve(t, serving, ruled{err: test.err}), TLS: config.TemporalTLS{CA: ours.CertificateFile(), Cert: held, Key: held},
			}, slog.New(slog.DiscardHandler), "test")
			require.NoError(t, err)
			c, err := client.NewLazyClient(options)
			require.NoError(t, err)
			t.Cleanup(c.Close)

			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // a busy machine may make it say nothing
			defer cancel()
			var f doctor.Findings
			if test.warn {
				require.Eventually(t, func() bool { ExamineGuard(t.Context(), &f, c, "cyborg"); return len(f.All()) > 0 }, time.Minute, time.Millisecond)
				require.Equal(t, doctor.Warning, f.All()[0].State)
				require.Equal(t, "authorization of Temporal", f.All()[0].Check)
				require.Contains(t, f.All()[0].Do, "temporalauth")
				return
			}
			ExamineGuard(ctx, &f, c, "cyborg")
			require.Empty(t, f.All())
		})
	}
}
