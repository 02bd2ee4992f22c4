package agent

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

// keyName is the file in the state directory with the agent's key.
const keyName = "agent-key"

// identity is what the conductors know the agent by.
type identity struct {
	instance string
	// proof is what only the agent with this instance has; empty for an agent in
	// the server's process, which needs none.
	proof string
}

// identify returns the identity of the agent with this boot id and state
// directory.
func (a *Agent) identify(bootID string, dir *statedir.Dir) (identity, error) {
	if a.deps.Dial != nil {
		return identity{instance: agentapi.InProcessInstance(agentOf(bootID, dir.ID()))}, nil
	}

	// An agent with a certificate has a key, too: a conductor without client_ca does
	// not ask for the certificate.
	key, err := readKey(dir.Path())
	if errors.Is(err, fs.ErrNotExist) || err == nil && key == "" {
		key = rand.Text()
		err = atomicfile.Write(dir.Join(keyName), []byte(key), 0o600)
	}
	if err != nil {
		return identity{}, cyborg.Errorf(cyborg.ErrUnavailable, "the agent's key in the state directory cannot be read or made: %w", err)
	}

	proof := proofOf(key, bootID, dir.ID())
	return identity{instance: agentapi.ProvenInstance(proof), proof: proof}, nil
}

// Instances returns the instances that the agent with these directories may
// have in the machine's present boot: in the server's process, of release 0.1,
// or in a process of its own; none if no agent has ever used the state
// directory. See Config for root and stateDir.
func Instances(root, stateDir string) ([]string, error) {
	id := statedir.ID(stateDir)
	if id == "" {
		return nil, nil
	}
	bootID, err := readBootID(root)
	if err != nil {
		return nil, err
	}

	agent := agentOf(bootID, id)
	instances := []string{agentapi.InProcessInstance(agent), agentapi.FirstInstance(agent)}
	key, err := readKey(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return instances, nil
	}
	return append(instances, agentapi.ProvenInstance(proofOf(key, bootID, id))), err
}

// readKey reads the agent's key, with which it proves its instance.
func readKey(stateDir string) (string, error) {
	key, err := os.ReadFile(filepath.Join(stateDir, keyName))
	return string(key), err
}

// agentOf identifies an agent among all that run at the same time. A copy of a
// machine has a boot id of its own, and on one machine no two processes share a
// state directory; a restarted process keeps both.
func agentOf(bootID, stateDir string) string { return bootID + " " + stateDir }

// proofOf returns the proof of an agent. It identifies the agent as agentOf
// does, and only who has the key can make it.
func proofOf(key, bootID, stateDir string) string {
	sum := sha256.Sum256([]byte(key + " " + agentOf(bootID, stateDir)))
	return hex.EncodeToString(sum[:])
}
