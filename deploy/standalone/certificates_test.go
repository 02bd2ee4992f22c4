package main

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// TestWarningOfATemporalThatRefusesEnrolledHosts: hosts that enroll by an authority
// whose certificates the embedded Temporal refuses are heard and take no step. The
// start and config check say so, and name the option.
func TestWarningOfATemporalThatRefusesEnrolledHosts(t *testing.T) {
	t.Parallel()
	own, err := pki.Make(t.TempDir())
	require.NoError(t, err)
	ours := t.TempDir()
	_, err = pki.Make(ours)
	require.NoError(t, err)

	for name, test := range map[string]struct {
		authority, listen, clientCA string
		warns                       bool
	}{
		"another authority":     {ours, "127.0.0.1:6667", own.CertificateFile(), true},
		"none made yet":         {ours, "127.0.0.1:6667", t.TempDir() + "/ca.crt", true},
		"the same authority":    {ours, "127.0.0.1:6667", ours + "/ca.crt", false},
		"no agents from abroad": {ours, "", own.CertificateFile(), false},
		"nobody enrolls":        {"", "127.0.0.1:6667", own.CertificateFile(), false},
	} {
		c := config.Default()
		c.Identity.Authority, c.AgentEndpoint.Listen = test.authority, test.listen
		var said bytes.Buffer
		warnOfEnrolledHosts(t.Context(), c, test.clientCA, slog.New(slog.NewTextHandler(&said, nil)))
		if !test.warns {
			require.Empty(t, said.String(), name)
			continue
		}
		require.Contains(t, said.String(), "level=WARN", name)
		require.Contains(t, said.String(), "standalone.temporal_tls", name)
		require.Contains(t, said.String(), ours, name)
	}
}
