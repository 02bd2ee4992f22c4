package temporalauth

import (
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// decode decodes a request as the frontend does.
func decode(data []byte, into proto.Message) error {
	return countedElements{encoding.GetCodecV2("proto")}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, into)
}

// TestElementsAreCounted: a request of millions of empty messages is refused before it
// takes any memory, and one that is only long is not.
func TestElementsAreCounted(t *testing.T) {
	t.Parallel()
	field := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	var empty []byte
	for range mostElements + 1 {
		empty = append(empty, field(1, nil)...)
	}

	for name, bomb := range map[string]struct {
		data []byte
		into proto.Message
	}{
		"empty payloads": {field(2, empty), &workflowservice.RecordActivityTaskHeartbeatRequest{}}, // its details
		"empty fields":   {empty, &workflowservice.RecordActivityTaskHeartbeatRequest{}},
		"packed numbers": {field(7, make([]byte, mostElements+1)), &workflowservice.ResetWorkflowExecutionRequest{}}, // kinds of events
	} {
		require.Equal(t, codes.ResourceExhausted, status.Code(decode(bomb.data, bomb.into)), name)
		require.True(t, proto.Equal(bomb.into, bomb.into.ProtoReflect().New().Interface()), "%s: nothing of it was decoded", name)
	}

	long := &workflowservice.RecordActivityTaskHeartbeatRequest{
		Details: &commonpb.Payloads{Payloads: []*commonpb.Payload{{Data: make([]byte, 1<<20)}, {Data: []byte("x")}}},
	}
	data, err := proto.Marshal(long)
	require.NoError(t, err)
	var got workflowservice.RecordActivityTaskHeartbeatRequest
	require.NoError(t, decode(data, &got))
	require.True(t, proto.Equal(long, &got))

	require.Error(t, decode(append(data, 0xff), &got), "what cannot be decoded is refused as ever")
}
