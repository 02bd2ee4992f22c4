package cyborg

// GrantKey verifies what one process of the system signs: which steps a host may
// take. See package internal/grant.
type GrantKey struct {
	ID     string `json:"id"`
	Public []byte `json:"public"` // Ed25519, 32 bytes
}
