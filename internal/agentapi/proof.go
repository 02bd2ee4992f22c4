package agentapi

import (
	"crypto/sha256"
	"encoding/hex"
)

// ProofHeader is the header with which an agent proves that it has its
// instance. Only agents and agent endpoints see the proof; everybody who reads
// the records, Temporal or a log sees the instance.
const ProofHeader = "Cyborg-Agent-Proof"

// The length of an instance says what proves that an agent has it: a proof, that
// the agent is in the server's own process, or nothing, in release 0.1.
const (
	provenLength    = 32
	InProcessLength = 20 // see IsInProcess; SQL needs it, too
	firstLength     = 16
)

// ProvenInstance returns the instance that the agent with this proof has.
func ProvenInstance(proof string) string { return instance(proof, provenLength) }

// InProcessInstance returns the instance of an agent in the server's own process
// that is identified by this text.
func InProcessInstance(text string) string { return instance(text, InProcessLength) }

// IsInProcess says that the agent with this instance is in the process of a server,
// where no certificate says for which host it speaks.
func IsInProcess(instance string) bool { return len(instance) == InProcessLength }

// FirstInstance returns the instance that an agent of release 0.1 has which is
// identified by this text.
func FirstInstance(text string) string { return instance(text, firstLength) }

// HasNoProof says that the agent with this instance is of release 0.1, so that
// it can prove nothing.
func HasNoProof(instance string) bool { return len(instance) == firstLength }

// instance returns an instance of this length.
func instance(text string, length int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:length]
}
