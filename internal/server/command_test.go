package server

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/config"
)

// TestStopDuringStartIsNotAFailure: a server can be stopped while it waits for
// a database that does not answer.
func TestStopDuringStartIsNotAFailure(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, silent.Close()) })

	c := config.Default()
	c.API.Listen, c.AgentEndpoint.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Database.URL = config.DatabaseURL("postgres://cyborg@" + silent.Addr().String() + "/cyborg?sslmode=disable")

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, c, slog.New(slog.DiscardHandler)) }()

	asked, err := silent.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, asked.Close()) })

	cancel()
	require.NoError(t, <-ended)
}
