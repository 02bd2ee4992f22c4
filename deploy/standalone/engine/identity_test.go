package engine

import (
	"crypto/tls"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheNameInsideIsForThisProcess: who asks the frontend by the name of this
// process needs a certificate of this process, and everybody else one of those
// outside.
func TestTheNameInsideIsForThisProcess(t *testing.T) {
	t.Parallel()
	inside, forOthers := &tls.Config{ServerName: "inside"}, &tls.Config{ServerName: "outside"}
	choose := chooseByName(inside, &tls.Config{
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return forOthers, nil },
	})

	for name, want := range map[string]*tls.Config{insideName: inside, "temporal.test": forOthers, "": forOthers} {
		chosen, err := choose(&tls.ClientHelloInfo{ServerName: name})
		require.NoError(t, err)
		require.Equal(t, want.ServerName, chosen.ServerName, "asked by the name %q", name)
	}
}
