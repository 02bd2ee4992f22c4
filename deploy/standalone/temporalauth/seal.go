package temporalauth

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// The token of an activity's task is a protobuf message with the names of the
// workflow and of the activity. It names no task queue and has no signature
// (Temporal 1.32, api/token/v1), so whoever knows or guesses one could answer
// another one's step. A token that is given out therefore gets a seal: one more
// field, which Temporal does not know and ignores, with a MAC over the token and
// the identity of who got it.

// sealField is the number of the field with the seal. The messages of tokens
// have far lower ones.
const sealField = 536_870_000

// sealPolled seals the tokens in the answer to a poll, and those of the steps
// that a server gets with the answer to a workflow's task. It is an interceptor of
// Temporal's frontend, within the authorization.
func (g *Guard) sealPolled(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	response, err := handler(ctx, request)
	if err != nil {
		return response, err
	}

	var tasks []*workflowservice.PollActivityTaskQueueResponse
	switch answer := response.(type) {
	case *workflowservice.PollActivityTaskQueueResponse:
		tasks = append(tasks, answer)
	case *workflowservice.RespondWorkflowTaskCompletedResponse:
		tasks = answer.GetActivityTasks()
	}

	for _, task := range tasks {
		if len(task.GetTaskToken()) == 0 {
			continue // a poll that found nothing
		}

		who, known := callerIn(ctx)
		if !known {
			return nil, cyborg.Errorf(cyborg.ErrInternal, "a task was polled by nobody")
		}
		if who.self {
			continue
		}

		// The poll may have begun minutes ago. Temporal gives the step out again when the
		// time is over in which its host must say something.
		if err := g.refuse(who.certificate); err != nil {
			return nil, serviceerror.NewPermissionDenied(err.Error(), "")
		}
		task.TaskToken = g.seal(task.GetTaskToken(), who.Identity)
	}
	return response, nil
}

// seal returns the token with the seal for its owner.
func (g *Guard) seal(token []byte, who identity.Identity) []byte {
	out := protowire.AppendTag(bytes.Clone(token), sealField, protowire.BytesType)
	return protowire.AppendBytes(out, g.mac(token, who))
}

// mac computes the seal. Lengths precede the parts, so that none can pass for
// the end of another one.
func (g *Guard) mac(token []byte, who identity.Identity) []byte {
	hash := hmac.New(sha256.New, g.config.SealKey)
	for _, part := range [][]byte{[]byte("cyborg task token 1"), []byte(g.config.Namespace), []byte(who.String()), token} {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		hash.Write(part)
	}
	return hash.Sum(nil)
}

// sealLength returns how many bytes a seal adds to a token.
func sealLength() int { return protowire.SizeTag(sealField) + protowire.SizeBytes(sha256.Size) }

// unseal splits a sealed token into the token and its seal. sealed is false
// where the token ends otherwise than with a seal.
func unseal(token []byte) (inner, seal []byte, sealed bool) {
	length := sealLength()
	if len(token) < length {
		return token, nil, false
	}

	inner, end := token[:len(token)-length], token[len(token)-length:]
	number, kind, n := protowire.ConsumeTag(end)
	if n < 0 || number != sealField || kind != protowire.BytesType {
		return token, nil, false
	}

	seal, m := protowire.ConsumeBytes(end[n:])
	if m < 0 || n+m != len(end) {
		return token, nil, false
	}
	return inner, seal, true
}

// ownTask refuses the answer to, and the heartbeat of, a task that the caller
// has not got, and of a host, one as somebody else.
func ownTask(g *Guard, who caller, request any) error {
	with, ok := request.(interface{ GetTaskToken() []byte })
	if !ok {
		return cyborg.Errorf(cyborg.ErrInternal, "a request of type %T has no token", request)
	}

	inner, seal, sealed := unseal(with.GetTaskToken())
	if !sealed || !hmac.Equal(seal, g.mac(inner, who.Identity)) {
		return cyborg.Errorf(cyborg.ErrForbidden, "%s may answer only what it has polled", who)
	}
	if who.Role == identity.Host {
		return asAgent(g, who, request)
	}
	return nil
}
