package temporalauth

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// mostElements is how many fields a request may have in all, those of the messages
	// in it included. A field of two bytes can become a message of a hundred, so that
	// 4 MiB could take a quarter of a gigabyte.
	mostElements = 20_000
	// smallRequest is how long a request may be in bytes without being counted.
	smallRequest = 16 << 10
)

// countedElements decodes requests as gRPC does, but not one with too many elements.
// gRPC decodes a request before any interceptor learns of it.
type countedElements struct{ encoding.CodecV2 }

// Unmarshal decodes a request.
func (c countedElements) Unmarshal(data mem.BufferSlice, into any) error {
	message, ok := into.(proto.Message)
	if ok && data.Len() > smallRequest {
		buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buffer.Free()

		left := mostElements
		countElements(buffer.ReadOnlyData(), message.ProtoReflect().Descriptor(), &left)
		if left < 0 {
			return status.Errorf(codes.ResourceExhausted, "the request has more than %d elements", mostElements)
		}
	}
	return c.CodecV2.Unmarshal(data, into)
}

// countElements takes what a message has off left, until that is below zero. It stops
// where the message cannot be decoded, too.
func countElements(data []byte, of protoreflect.MessageDescriptor, left *int) {
	for len(data) > 0 && *left >= 0 {
		*left--
		number, kind, length := protowire.ConsumeTag(data)
		if length < 0 {
			return
		}
		data = data[length:]

		if length = protowire.ConsumeFieldValue(number, kind, data); length < 0 {
			return
		}
		value := data[:length]
		data = data[length:]

		field := of.Fields().ByNumber(number)
		if kind != protowire.BytesType || field == nil {
			continue // an unknown field stays as long as it was
		}

		content, _ := protowire.ConsumeBytes(value)
		switch {
		case field.Message() != nil:
			countElements(content, field.Message(), left)
		case field.IsList() && field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.BytesKind:
			*left -= len(content) // packed numbers, each of a byte or more
		}
	}
}
