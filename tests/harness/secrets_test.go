package harness

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/pki"
)

// failing is a test that only says whether it has failed.
type failing struct {
	testing.TB

	failed int
}

func (*failing) Helper()                 {}
func (f *failing) Errorf(string, ...any) { f.failed++ }

// TestSecretsAreFound: a secret is found however it is written, and also a part of
// a key.
func TestSecretsAreFound(t *testing.T) {
	t.Parallel()
	const word = "a-secret-word"
	_, key, err := pki.GenerateKey()
	require.NoError(t, err)
	secrets := Secrets{}
	secrets.Add("the word", word)
	secrets.AddKey(t, "the key", string(key))
	line := string(key)[len("-----BEGIN PRIVATE KEY-----\n"):][:64]

	for text, times := range map[string]int{
		"nothing of it": 0, word: 1, "x" + word + "y": 1, hex.EncodeToString([]byte(word)): 1,
		base64.StdEncoding.EncodeToString([]byte(word)): 1, fmt.Sprintf("%d", []byte(word)): 1, line: 1, word + " " + line: 2,
	} {
		f := &failing{TB: t}
		secrets.RequireAbsent(f, map[string]string{"here": text, "there": ""})
		require.Equal(t, times, f.failed, text)
	}
}
