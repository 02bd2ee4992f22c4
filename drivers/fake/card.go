package fake

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"maps"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Card is the content of a card's file: the state of the fake hardware, and a
// script of what goes wrong.
type Card struct {
	// BootID is the boot id of the host when the card was last changed. When the
	// host has another boot id, the card has been without power: attachments and
	// users are gone, and so are the images of FPGAs. What was written to flash memory is in
	// effect.
	BootID string `json:"boot_id"`
	// Prepares says that the host attaches the card's handles for instances and services,
	// too. The driver sets it, for the tripwire.
	Prepares bool `json:"prepares,omitempty"`
	// Clean is what the driver demands after every holder. The driver sets it, for the
	// tripwire.
	Clean cyborg.CleanMethod `json:"clean,omitempty"`
	// Vanished is true while the card is off the bus.
	Vanished bool `json:"vanished"`
	// Product and Serial are those of another card that stands in the place of the
	// park's; empty where it is the park's card.
	Product string `json:"product,omitempty"`
	Serial  string `json:"serial,omitempty"`

	// Layout is into which parts a card is divided that can be divided. There is none
	// where it is whole; with an empty one it has no parts, and is not whole either.
	Layout cyborg.Layout `json:"layout,omitzero"`
	// Fewer is in how many partitions the card still leaves out a part.
	Fewer Times `json:"fewer,omitzero"`

	// Deployables are the parts of the card, by key: r0, r1, …, and of one that can be
	// divided also half0, quarter0, …
	Deployables map[string]*Region `json:"deployables"`

	// Fail makes steps fail. A failure that has happened as often as it should is
	// removed.
	Fail map[Step]Failure `json:"fail"`
	// Latency makes steps slow. It takes precedence over the latencies in the
	// driver's options. A waiting step notices within a tenth of a second when its
	// latency is changed.
	Latency map[Step]Duration `json:"latency"`
	// Script is the checksum of the script in the driver's options that was last
	// applied to the card. It prevents that a restart of the driver applies the
	// same script again.
	Script string `json:"script,omitempty"`
}

// Region is the state of one deployable of a card.
type Region struct {
	Installed bool `json:"installed"`
	// Image is in effect. All of it is empty where there is none.
	Image
	// Pending is what the flash memory has instead; nil where it has the same.
	Pending *PendingImage `json:"pending,omitempty"`

	// Conditions are what a discovery says about it, and Health what a health check
	// says.
	Conditions []cyborg.Condition `json:"conditions,omitempty"`
	Health     []cyborg.Condition `json:"health,omitempty"`

	// Handles are the attach handles, by PCI address.
	Handles map[string]*Handle `json:"handles"`
}

// Image is an image of a part of a card.
type Image struct {
	BitstreamID string `json:"bitstream_id"`
	// Function is the id in the header of the image, and SHA256 is the checksum of the
	// whole image.
	Function string `json:"function"`
	SHA256   string `json:"sha256"`
}

// PendingImage is an image that takes effect when the host boots, which counts as a power
// cycle here.
type PendingImage struct {
	Image
	// Until is what the driver says has to be done.
	Until cyborg.Activation `json:"until"`
}

// Handle is the state of one attach handle.
type Handle struct {
	Attached bool `json:"attached"`
	// Holder is for what kind of holder it is attached, and Parameters are what was chosen
	// for that one. An attached handle without a holder is attached for the host.
	Holder     cyborg.HolderKind `json:"holder,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
	// UUID is that of the mediated device that the attach has made; zero for a handle that
	// is none.
	UUID uuid.UUID `json:"uuid,omitzero"`
	// InUseBy names the user of the handle; it is empty where nobody uses it. The
	// driver never sets it, only scripts and a Bench do.
	InUseBy string `json:"in_use_by"`
	// HeldBy names who was told to have the handle, and Guest says that it is a
	// virtual machine. Only a Bench sets them, for the tripwire.
	HeldBy string `json:"held_by,omitempty"`
	Guest  bool   `json:"guest,omitempty"`

	// Residue is what its holders have left on it.
	Residue Residue `json:"residue,omitzero"`
	// Scrubbed is how many parts of what it stores a scrub has overwritten that has not
	// ended.
	Scrubbed int `json:"scrubbed,omitempty"`
	// Cleaned is how often a clean has changed it since the card was without power.
	Cleaned int `json:"cleaned,omitempty"`
	// Sticks says that no clean removes anything from it.
	Sticks bool `json:"sticks,omitempty"`
}

// readCard decodes a card's file. The error is of kind ErrInvalid. Broken is
// true where the text is not complete JSON, as it is in a file that somebody is
// just writing: then it is worth while to read the file again.
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

	if err := checkProduct(card.Product); err != nil {
		return nil, false, err
	}
	if err := checkLayout(card.Layout); err != nil {
		return nil, false, err
	}
	if card.Layout != nil {
		card.Layout = card.Layout.Normal()
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

// newCard returns a card without parts; settle adds those.
func newCard() *Card {
	card := &Card{}
	card.fill()
	return card
}

// fill replaces nulls and missing maps with empty ones, so that the rest of the
// package need not check for nil.
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

// text encodes the card as its file has it.
func (c *Card) text() ([]byte, error) {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "a fake card cannot be written: %w", err)
	}
	return append(text, '\n'), nil
}

// settle updates a card that was read from its file to the present moment. It
// adds parts and handles that the file lacks, and drops what needs power where
// the host was booted since or the card has left the bus. With an empty bootID
// a boot cannot be detected.
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

	if !s.divisible {
		c.Layout = nil
	}
	c.Prepares, c.Clean = s.preparation != nil, s.cleaning.After
	if bootID != "" && bootID != c.BootID {
		// A card without a boot id is new and has nothing to lose.
		if c.BootID != "" {
			c.powerCycle(s.volatile)
		}
		c.BootID = bootID
	}

	// The user stays, as the script says: a real kernel waits until the user closes
	// the device.
	if c.Vanished {
		c.eachHandle((*Handle).detach)
	}
}

// losePower drops what every card loses without power: its layout, and what its handles
// lose. Its parts stay installed, for when it is divided like that again.
func (c *Card) losePower() {
	c.Layout = nil
	c.eachHandle((*Handle).losePower)
}

// powerCycle drops what the card loses when the host boots, and brings into effect what
// was written to flash memory.
func (c *Card) powerCycle(losesImage bool) {
	c.losePower()

	for _, state := range c.Deployables {
		switch pending := state.Pending; {
		case pending != nil && pending.BitstreamID != halfWritten:
			state.Image, state.Pending = pending.Image, nil
		case pending != nil || losesImage:
			state.empty()
		}
	}
}

// exchange puts another card in, as new: nothing of it is installed, attached or
// programmed, and nobody uses it.
func (c *Card) exchange(product, serial string) {
	c.Product, c.Serial, c.Vanished, c.Layout = product, serial, false, nil
	for _, state := range c.Deployables {
		state.Installed = false
		state.empty()
	}
	c.eachHandle(func(h *Handle) { *h = Handle{} })
}

// eachHandle calls do with every handle of the card.
func (c *Card) eachHandle(do func(h *Handle)) {
	for _, state := range c.Deployables {
		for _, handle := range state.Handles {
			do(handle)
		}
	}
}

// attach attaches the handle for a holder, with what was chosen. The holder leaves
// something on it. A handle that is a mediated device is one of this UUID then.
func (h *Handle) attach(holder cyborg.Holder, parameters map[string]string, device uuid.UUID) {
	h.Attached, h.Holder, h.Parameters, h.UUID = true, holder.Kind, maps.Clone(parameters), device
	h.leave(leaverOf(holder))
}

// detach detaches the handle. Nothing stays of what was chosen for its holder, or was made.
func (h *Handle) detach() { h.Attached, h.Holder, h.Parameters, h.UUID = false, "", nil, uuid.Nil }

// losePower drops what the handle loses without power: all but what is stored.
func (h *Handle) losePower() {
	*h = Handle{Residue: Residue{Stored: h.Residue.Stored}, Scrubbed: h.Scrubbed, Sticks: h.Sticks}
}

// attachedFor says whether the handle is attached for a holder of this kind.
func (h *Handle) attachedFor(holder cyborg.HolderKind) bool {
	return h.Attached && cmp.Or(h.Holder, cyborg.HolderHost) == cmp.Or(holder, cyborg.HolderHost)
}

// prepared says whether the handle is attached for an instance or a service.
func (h *Handle) prepared() bool { return h.Attached && !h.attachedFor(cyborg.HolderHost) }

// empty removes the loaded image, also where it is pending.
func (r *Region) empty() { r.Image, r.Pending = Image{}, nil }

// loadedLast returns the image that was loaded last, whether or not it is in effect.
func (r *Region) loadedLast() Image {
	if r.Pending != nil {
		return r.Pending.Image
	}
	return r.Image
}
