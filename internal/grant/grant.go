// Package grant signs what an operation may have a host do, and checks it there.
//
// Steps reach a host by way of Temporal, and whoever can write there could have
// any host do anything. So the conductor signs what follows from its records, the
// run of the operation carries that to the agent, and the agent does nothing else.
// What the agent answers is not signed; its reports, which go to the conductor
// itself, show the truth.
//
// It imports the root package, uuid and the standard library only.
package grant

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Claims are what a grant says.
type Claims struct {
	// Operation is whose steps these are; the nil UUID for a round of Reconcile.
	Operation uuid.UUID `json:"operation,omitzero"`
	// Run is the run of the workflow that may send them.
	Run string `json:"run"`
	// Host and Instance are the agent that may take them.
	Host     string `json:"host"`
	Instance string `json:"instance"`
	// Assignment orders them among those of other operations.
	Assignment int64 `json:"assignment"`
	// Journal is how far the agent's journal had got.
	Journal cyborg.JournalPosition `json:"journal,omitzero"`
	// Steps may be taken until the host has been up for Until in the boot BootID, by
	// its own clock. Until is 0 where the agent has not told how long the host is up;
	// then only a boot ends the grant.
	BootID string        `json:"boot_id,omitempty"`
	Until  time.Duration `json:"until,omitempty"`
	Steps  []Step        `json:"steps"`
}

// Step is an activity with one input.
type Step struct {
	Activity string `json:"activity"`
	Input    string `json:"input"` // its digest; see Canonical
}

// Permits reports whether the activity may be given the input with this digest.
func (c *Claims) Permits(activity, input string) bool {
	return slices.Contains(c.Steps, Step{activity, input})
}

// unsignedTable has the fields of a step's input that its digest leaves out. Those of
// an Addressee are in the claims themselves. The checksum of the image to load is
// what the agent itself has said, and it compares that with its journal.
var unsignedTable = []string{"instance", "run", "assignment", "journal", "grant", "sha256"}

// Canonical returns the input of an activity, which is given as JSON, in the form
// that is compared, and the digest that names it in a Step. Spaces, the order of
// fields, and fields that are doubled make no difference. Fields that this
// release does not know do: an agent may be older than the conductor.
func Canonical(input []byte) (text []byte, digest string, err error) {
	decoder := json.NewDecoder(bytes.NewReader(input))
	decoder.UseNumber() // a float64 would make different numbers equal
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		return nil, "", cyborg.Errorf(cyborg.ErrInvalid, "the input of a step is no JSON object: %w", err)
	}

	text, err = json.Marshal(fields)
	for _, name := range unsignedTable {
		delete(fields, name)
	}
	signed, signedErr := json.Marshal(fields)
	if err := cmp.Or(err, signedErr); err != nil {
		return nil, "", cyborg.Errorf(cyborg.ErrInternal, "the input of a step cannot be encoded: %w", err)
	}

	sum := sha256.Sum256(signed)
	return text, base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// StepOf returns the step with an input.
func StepOf(activity string, input any) (Step, error) {
	text, err := json.Marshal(input)
	if err != nil {
		return Step{}, cyborg.Errorf(cyborg.ErrInternal, "the input of %s cannot be encoded: %w", activity, err)
	}
	_, digest, err := Canonical(text)
	return Step{activity, digest}, err
}

// Signer signs grants with a key that this process alone has. It is on no disk,
// and ends with the process: another process has another one.
type Signer struct {
	id      string
	private ed25519.PrivateKey
}

// NewSigner draws a key.
func NewSigner() *Signer {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err) // the package says that it never is
	}
	return &Signer{id: uuid.NewString(), private: private}
}

// Key returns the key that verifies what the signer signs.
func (s *Signer) Key() cyborg.GrantKey {
	return cyborg.GrantKey{ID: s.id, Public: s.private.Public().(ed25519.PublicKey)} //nolint:forcetypeassert // the package says so
}

// purpose is signed with the claims, so that no signature for anything else could
// pass for one of these.
const purpose = "cyborg grant 1\x00"

// Sign returns a grant: the key's id, the claims and the signature.
func (s *Signer) Sign(claims Claims) (string, error) {
	text, err := json.Marshal(claims)
	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrInternal, "a grant cannot be encoded: %w", err)
	}

	signature := ed25519.Sign(s.private, signed(s.id, text))
	encode := base64.RawURLEncoding.EncodeToString
	return s.id + "." + encode(text) + "." + encode(signature), nil
}

// signed is what a signature is made of.
func signed(id string, claims []byte) []byte {
	return fmt.Appendf(nil, "%s%s\x00%s", purpose, id, claims)
}

// KeyOf returns the id of the key of a grant, which is not verified yet; empty
// for what is no grant.
func KeyOf(grant string) string {
	id, _, _ := strings.Cut(grant, ".")
	return id
}

// Open verifies a grant with the key that KeyOf names, and returns what it says.
// The error is of kind ErrNotGranted.
func Open(grant string, key cyborg.GrantKey) (Claims, error) {
	var claims Claims
	parts := strings.Split(grant, ".")
	if len(parts) != 3 || parts[0] != key.ID || len(key.Public) != ed25519.PublicKeySize {
		return claims, cyborg.Errorf(cyborg.ErrNotGranted, "the step has no grant of the key %q", key.ID)
	}

	text, textErr := base64.RawURLEncoding.Strict().DecodeString(parts[1])
	signature, signatureErr := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if textErr != nil || signatureErr != nil || !ed25519.Verify(key.Public, signed(key.ID, text), signature) {
		return claims, cyborg.Errorf(cyborg.ErrNotGranted, "the grant of the step was not signed by the conductor with the key %q", key.ID)
	}

	if err := json.Unmarshal(text, &claims); err != nil {
		return Claims{}, cyborg.Errorf(cyborg.ErrNotGranted, "the grant of the step cannot be read: %w", err)
	}
	return claims, nil
}
