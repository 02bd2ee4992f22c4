package uevent_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/fuzztest"
	"github.com/cyborg-project/cyborg/internal/uevent"
)

// FuzzParse reads any message. What it takes for an event has an action and a
// path, as the message has them.
func FuzzParse(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "add@/devices/pci0000:00/0000:00:02.0\x00ACTION=add\x00SUBSYSTEM=pci\x00", "add@/a\x00SUBSYSTEM=", "@\x00", "libudev\x00\xfe\xed") {
		f.Add([]byte(text))
	}

	f.Fuzz(func(t *testing.T, message []byte) {
		event, ok := uevent.Parse(message)
		if !ok {
			require.Zero(t, event)
			return
		}

		require.False(t, event.Lost())
		require.True(t, bytes.HasPrefix(message, []byte(event.Action+"@"+event.Path+"\x00")))
	})
}
