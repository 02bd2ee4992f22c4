package grant_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/grant"
)

// input is the input of an activity.
type input struct {
	Instance string         `json:"instance,omitempty"`
	Grant    string         `json:"grant,omitempty"`
	SHA256   string         `json:"sha256,omitempty"`
	Undo     bool           `json:"undo,omitempty"`
	Card     map[string]any `json:"card"`
}

// A grant says what was signed, to whoever has the key.
func TestOpen(t *testing.T) {
	t.Parallel()
	signer := grant.NewSigner()
	step, err := grant.StepOf("Attach", input{Card: map[string]any{"slot": 7}})
	require.NoError(t, err)
	claims := grant.Claims{
		Operation: uuid.New(), Run: "run", Host: "h1", Instance: "agent", Assignment: 1 << 53,
		Journal: cyborg.JournalPosition{Opening: uuid.New(), Writes: 9}, BootID: "boot", Until: time.Hour, Steps: []grant.Step{step},
	}

	text, err := signer.Sign(claims)
	require.NoError(t, err)
	require.Equal(t, signer.Key().ID, grant.KeyOf(text))
	opened, err := grant.Open(text, signer.Key())
	require.NoError(t, err)
	require.Equal(t, claims, opened)
	require.True(t, opened.Permits("Attach", step.Input))
	require.False(t, opened.Permits("Detach", step.Input))
	require.False(t, opened.Permits("Attach", "AA"))
}

// No change of a grant passes, and no key verifies another's.
func TestNoOtherGrantOpens(t *testing.T) {
	t.Parallel()
	signer, other := grant.NewSigner(), grant.NewSigner()
	text, err := signer.Sign(grant.Claims{Run: "run"})
	require.NoError(t, err)
	foreign, err := other.Sign(grant.Claims{Run: "run"})
	require.NoError(t, err)

	refused := func(text string, key cyborg.GrantKey) {
		t.Helper()
		claims, err := grant.Open(text, key)
		require.Equal(t, cyborg.ErrNotGranted, cyborg.ErrorKindOf(err), "%s", text)
		require.Zero(t, claims)
	}

	for i := range len(text) {
		for _, b := range []byte{text[i] ^ 1, text[i] ^ 2, '.', 0, '='} {
			if b != text[i] {
				refused(text[:i]+string(b)+text[i+1:], signer.Key())
			}
		}
		refused(text[:i], signer.Key())
		refused(text+text[i:], signer.Key())
	}

	for _, none := range []string{"", ".", "..", "...", text + ".", text + "="} {
		refused(none, signer.Key())
	}
	refused(text, other.Key())
	refused(text, cyborg.GrantKey{ID: signer.Key().ID, Public: other.Key().Public})
	refused(text, cyborg.GrantKey{ID: signer.Key().ID})
	_, rest, _ := strings.Cut(foreign, ".")
	refused(signer.Key().ID+"."+rest, signer.Key())
	refused(signer.Key().ID+"."+rest, cyborg.GrantKey{ID: signer.Key().ID, Public: other.Key().Public}) // the signature has the key's id
}

// The digest of an input is that of what it says. Only what the claims say
// themselves, and what the agent has said, does not count.
func TestCanonical(t *testing.T) {
	t.Parallel()
	text, digest := canonical(t, `{"card":{"slot":7,"size":12345678901234567890},"undo":true}`)
	require.JSONEq(t, `{"card":{"slot":7,"size":12345678901234567890},"undo":true}`, text)

	for _, same := range []string{
		`{ "undo" : true, "card": {"size":12345678901234567890, "slot":7} }`,
		`{"instance":"a","run":"r","assignment":3,"journal":{},"grant":"g","sha256":"s","undo":true,"card":{"slot":7,"size":12345678901234567890}}`,
		`{"card":{"evil":1},"undo":false,"card":{"slot":7,"size":12345678901234567890},"undo":true}`,
	} {
		_, other := canonical(t, same)
		require.Equal(t, digest, other, same)
	}

	for _, different := range []string{
		`{"card":{"slot":7,"size":12345678901234567891},"undo":true}`,
		`{"card":{"slot":7,"size":12345678901234567890},"undo":true,"later":1}`,
		`{"card":{"slot":7,"size":12345678901234567890},"undo":true,"Instance":"a"}`,
		`{"card":{"slot":7,"size":12345678901234567890,"grant":"g"},"undo":true}`,
		`{"card":{"slot":7,"size":12345678901234567890}}`,
		`{}`,
	} {
		_, other := canonical(t, different)
		require.NotEqual(t, digest, other, different)
	}

	for _, bad := range []string{``, `7`, `[]`, `"x"`, `{`, "\x00"} {
		_, _, err := grant.Canonical([]byte(bad))
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), bad)
	}
}

// What is decoded from the canonical text has nothing of a field that is
// overwritten, and it keeps what is not signed.
func TestCanonicalText(t *testing.T) {
	t.Parallel()
	text, _ := canonical(t, `{"card":{"evil":1},"instance":"agent","sha256":"sum","card":{"slot":7}} {"undo":true}`)
	var in input
	require.NoError(t, json.Unmarshal([]byte(text), &in))
	require.Equal(t, input{Instance: "agent", SHA256: "sum", Card: map[string]any{"slot": 7.}}, in)
}

func canonical(t *testing.T, input string) (text, digest string) {
	t.Helper()
	out, digest, err := grant.Canonical([]byte(input))
	require.NoError(t, err)
	return string(out), digest
}

// FuzzOpen looks for a text that opens and was not signed.
func FuzzOpen(f *testing.F) {
	signer := grant.NewSigner()
	text, err := signer.Sign(grant.Claims{Run: "run"})
	require.NoError(f, err)
	f.Add(text)
	f.Add(signer.Key().ID + ".e30.")
	f.Fuzz(func(t *testing.T, forged string) {
		// The decoder of base64 skips newlines.
		if _, err := grant.Open(forged, signer.Key()); err == nil && strings.NewReplacer("\n", "", "\r", "").Replace(forged) != text {
			t.Fatalf("%q opens", forged)
		}
	})
}

// BenchmarkGrant signs a step and verifies it, which every step of an operation
// costs its server and its host.
func BenchmarkGrant(b *testing.B) {
	signer := grant.NewSigner()
	key := signer.Key()

	for b.Loop() {
		step, err := grant.StepOf("Attach", input{Instance: "agent", Card: map[string]any{"slot": 7}})
		require.NoError(b, err)
		text, err := signer.Sign(grant.Claims{Run: "run", Host: "h1", Instance: "agent", Steps: []grant.Step{step}})
		require.NoError(b, err)
		_, err = grant.Open(text, key)
		require.NoError(b, err)
	}
}
