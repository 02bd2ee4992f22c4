package fake

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/cyborg-project/cyborg"
)

// Card is the hardware state of one fake card and its script: what its file holds.
type Card struct {
	// BootID is the boot of the host in which the card was last touched. What a card keeps only while it has power is
	// gone when the host has another one.
	BootID string `json:"boot_id"`
	// Vanished takes the card off the bus.
	Vanished bool `json:"vanished"`
	// Deployables are the card's parts: r0, r1, …
	Deployables map[string]*Region `json:"deployables"`
	// Fail makes steps fail. What has failed as often as it should is removed.
	Fail map[Step]Failure `json:"fail"`
	// Latency makes steps slow; it goes before the latencies of the driver's options. A step that waits notices a change.
	Latency map[Step]Duration `json:"latency"`
	// Script is the fingerprint of the script in the driver's options that was last laid over the card.
	Script string `json:"script,omitempty"`
}

// Region is the state of one deployable of a card.
type Region struct {
	Installed   bool   `json:"installed"`
	BitstreamID string `json:"bitstream_id"`
	// Function is the id in the header of the loaded image, and SHA256 the checksum of the whole image.
	Function string `json:"function"`
	SHA256   string `json:"sha256"`
	// Handles are by their PCI address.
	Handles map[string]*Handle `json:"handles"`
}

// Handle is the state of one attach handle.
type Handle struct {
	Attached bool `json:"attached"`
	// InUseBy says who really uses the handle; nobody where it is empty. Only a script sets it.
	InUseBy string `json:"in_use_by"`
}

// readCard decodes a card's file. The error is of kind ErrInvalid; broken says that the text is not whole JSON, as that of
// a file in the middle of being written.
func readCard(text []byte) (card *Card, broken bool, err error) {
	card = &Card{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(card); err != nil {
		return nil, !json.Valid(text), cyborg.Errorf(cyborg.ErrInvalid, "%w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, true, cyborg.Errorf(cyborg.ErrInvalid, "there is more after the card's closing brace")
	}
	card.fill()
	for step := range card.Fail {
		if err := checkStep(step); err != nil {
			return nil, false, err
		}
	}
	for step := range card.Latency {
		if err := checkStep(step); err != nil {
			return nil, false, err
		}
	}
	return card, false, nil
}

func newCard() *Card {
	card := &Card{}
	card.fill()
	return card
}

// fill puts an empty map or struct where a file has null or nothing.
func (c *Card) fill() {
	if c.Deployables == nil {
		c.Deployables = map[string]*Region{}
	}
	if c.Fail == nil {
		c.Fail = map[Step]Failure{}
	}
	if c.Latency == nil {
		c.Latency = map[Step]Duration{}
	}
	for key, state := range c.Deployables {
		if state == nil {
			state = &Region{}
			c.Deployables[key] = state
		}
		if state.Handles == nil {
			state.Handles = map[string]*Handle{}
		}
		for handle := range state.Handles {
			if state.Handles[handle] == nil {
				state.Handles[handle] = &Handle{}
			}
		}
	}
}

func (c *Card) text() ([]byte, error) {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "a fake card cannot be written: %w", err)
	}
	return append(text, '\n'), nil
}

// settle brings the card to what it is at this moment: every part is there, and what needs power is gone where the
// host was booted since or the card has left the bus. An empty bootID means that nobody can tell.
func (c *Card) settle(s *slot, bootID string) {
	for _, part := range s.regions {
		if c.Deployables[part.key] == nil {
			c.Deployables[part.key] = &Region{Handles: map[string]*Handle{}}
		}
		state := c.Deployables[part.key]
		for _, address := range part.handles {
			if state.Handles[address.String()] == nil {
				state.Handles[address.String()] = &Handle{}
			}
		}
	}
	if bootID != "" && bootID != c.BootID {
		if c.BootID != "" {
			c.powerCycle(s.volatile)
		}
		c.BootID = bootID
	}
	if c.Vanished { // whoever uses it is left as scripted: a kernel waits for him
		c.eachHandle(func(h *Handle) { h.Attached = false })
	}
}

func (c *Card) powerCycle(losesImage bool) {
	c.eachHandle(func(h *Handle) { *h = Handle{} })
	for _, state := range c.Deployables {
		if losesImage {
			state.empty()
		}
	}
}

func (c *Card) eachHandle(do func(h *Handle)) {
	for _, state := range c.Deployables {
		for _, handle := range state.Handles {
			do(handle)
		}
	}
}

// empty takes the loaded image away.
func (r *Region) empty() { r.BitstreamID, r.Function, r.SHA256 = "", "", "" }
