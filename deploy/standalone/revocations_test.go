package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestReadingRevocations: before the records are made, nothing was revoked, and
// the log says what that leaves open. Afterwards they cannot go away unnoticed.
func TestReadingRevocations(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	var answer error
	revoked := map[string]int64{"h1": 1}
	r := reading{log: slog.New(slog.NewTextHandler(&said, nil)), from: func(context.Context) (map[string]int64, error) {
		if answer != nil {
			return nil, answer
		}
		return revoked, nil
	}}

	absent := cyborg.Errorf(cyborg.ErrNotFound, "the database has no records of Cyborg")
	for range 3 {
		answer = absent
		got, err := r.RevokedHosts(t.Context())
		require.NoError(t, err)
		require.Empty(t, got)
	}
	require.Equal(t, 1, strings.Count(said.String(), "can still poll its queue"), said.String())

	answer = cyborg.Errorf(cyborg.ErrUnavailable, "away")
	_, err := r.RevokedHosts(t.Context())
	require.Equal(t, answer, err)

	answer = nil
	for range 3 {
		got, err := r.RevokedHosts(t.Context())
		require.NoError(t, err)
		require.Equal(t, revoked, got)
	}
	require.Equal(t, 1, strings.Count(said.String(), "revoked hosts are refused from here on"), said.String())

	answer = absent
	_, err = r.RevokedHosts(t.Context())
	require.Equal(t, absent, err, "what is known stays in force")
}
