package agentapi

import (
	"crypto/sha256"
	"encoding/hex"
)

// ProofHeader is the header with which an agent without a certificate proves
// that it has its instance. Only agents and agent endpoints see the proof;
// everybody who reads the records, Temporal or a log sees the instance.
const ProofHeader = "Cyborg-Agent-Proof"

// provenLength is the length of an instance that needs a proof. Others are
// shorter: those of agents with a certificate, or in the server's own process,
// and those of release 0.1.
const provenLength = 32

// ProvenInstance returns the instance that the agent with this proof has.
func ProvenInstance(proof string) string {
	sum := sha256.Sum256([]byte(proof))
	return hex.EncodeToString(sum[:])[:provenLength]
}

// NeedsProof says whether the agent with this instance has a proof.
func NeedsProof(instance string) bool { return len(instance) == provenLength }
