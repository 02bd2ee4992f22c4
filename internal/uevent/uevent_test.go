package uevent_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/needtest"
	"github.com/cyborg-project/cyborg/internal/uevent"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		message string
		want    uevent.Event
		ok      bool
	}{
		"a function that comes": {
			message: "add@/devices/pci0000:00/0000:00:04.0\x00ACTION=add\x00DEVPATH=/devices/pci0000:00/0000:00:04.0\x00SUBSYSTEM=pci\x00SEQNUM=1\x00",
			want:    uevent.Event{Action: "add", Path: "/devices/pci0000:00/0000:00:04.0", Subsystem: "pci"}, ok: true,
		},
		"no subsystem": {
			message: "bind@/devices/x\x00ACTION=bind\x00", want: uevent.Event{Action: "bind", Path: "/devices/x"}, ok: true,
		},
		"udev's own":   {message: "libudev\x00\xfe\xed\xca\xfe"},
		"not ended":    {message: "add@/devices/x"},
		"nothing":      {message: ""},
		"no path":      {message: "add@\x00"},
		"no action":    {message: "@/devices/x\x00"},
		"only a zero":  {message: "\x00"},
		"no separator": {message: "add\x00ACTION=add\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := uevent.Parse([]byte(test.message))

			require.Equal(t, test.ok, ok)
			require.Equal(t, test.want, got)
		})
	}
}

// TestListen lets the kernel report a change of /dev/null, where this machine
// allows that.
func TestListen(t *testing.T) {
	t.Parallel()
	listener, err := uevent.Listen()
	needtest.That(t, err == nil, fmt.Sprintf("this machine has no uevents for us: %v", err))

	heard := make(chan uevent.Event)
	ended := make(chan error, 1)
	go func() {
		for {
			event, err := listener.Next()
			if err != nil {
				ended <- err
				return
			}
			select {
			case heard <- event:
			case <-t.Context().Done():
			}
		}
	}()

	if err := os.WriteFile("/sys/devices/virtual/mem/null/uevent", []byte("change"), 0); err != nil {
		t.Logf("nothing to hear: %v", err)
	} else {
		awaitNull(t, heard)
	}

	require.NoError(t, listener.Close())
	for {
		select {
		case err := <-ended:
			require.ErrorIs(t, err, os.ErrClosed)
			return
		case <-heard:
		}
	}
}

// awaitNull waits for the event of /dev/null, which the kernel does not send to
// every network namespace.
func awaitNull(t *testing.T, heard <-chan uevent.Event) {
	t.Helper()
	limit := time.After(2 * time.Second)

	for {
		select {
		case event := <-heard:
			if event.Path == "/devices/virtual/mem/null" {
				require.Equal(t, "change", event.Action)
				require.Equal(t, "mem", event.Subsystem)
				return
			}
		case <-limit:
			t.Log("the kernel tells this network namespace nothing")
			return
		}
	}
}
