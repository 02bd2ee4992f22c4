package harness

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// unsoundLayouts returns an error where a card that can be divided is divided otherwise than
// wanted or recorded, or where a part that is recorded of it is not there. A partition that
// could not be undone leaves all of the card in error, with nobody knowing how it is divided.
// errorsOf has the kinds of the operations that have left accelerators in error.
func (s *System) unsoundLayouts(ctx context.Context, accelerators []apiclient.Accelerator, errorsOf map[uuid.UUID]cyborg.OperationKind) error {
	devices, err := apiclient.Collect(s.API.Devices(ctx, apiclient.DeviceFilter{}, apiclient.Page{}))
	if err != nil {
		return err
	}

	for i := range devices {
		device := &devices[i]
		if device.Partitioning == nil || device.Presence != cyborg.PresencePresent {
			continue
		}
		parts := slices.DeleteFunc(slices.Clone(accelerators), func(a apiclient.Accelerator) bool { return a.DeviceUUID != device.UUID })
		if slices.ContainsFunc(parts, func(a apiclient.Accelerator) bool { return errorsOf[a.UUID].Doubt() == cyborg.DoubtLayout }) {
			continue
		}

		if err := unsoundLayout(device, parts); err != nil {
			return fmt.Errorf("device %s of %s: %w", device.Identity, device.Host, err)
		}
		if device.Driver != "fake" {
			continue
		}
		card, err := fake.NewBench(s.parkDir(device.Host, device.Backend)).Card(ctx, device.Identity)
		if err != nil {
			return err
		}
		if err := unlikeCard(device, parts, &card); err != nil {
			return fmt.Errorf("device %s of %s: %w", device.Identity, device.Host, err)
		}
	}
	return nil
}

// unsoundLayout compares a device with what is wanted of it, and with its parts.
func unsoundLayout(device *apiclient.Device, parts []apiclient.Accelerator) error {
	if now, wanted := device.Partitioning.Layout, device.WantedLayout; wanted != nil && !wanted.Equal(now) {
		return fmt.Errorf("it is divided into %s, and wanted is %s", now, wanted)
	}
	for _, a := range parts {
		if a.Presence != cyborg.PresencePresent {
			return fmt.Errorf("%s is %s, and its card is there, divided as wanted: %s", a.Name, a.Presence, device.Partitioning.Layout)
		}
	}
	return nil
}

// unlikeCard compares a device and its parts with its card: the records have exactly the
// parts that the card has.
func unlikeCard(device *apiclient.Device, parts []apiclient.Accelerator, card *fake.Card) error {
	if recorded := device.Partitioning.Layout; !recorded.Equal(card.Layout) || (card.Layout == nil) != (len(recorded) == 0) {
		return fmt.Errorf("its card is divided into %v, and the records say %s", map[string]int(card.Layout), recorded)
	}

	var there, recorded []string // handles
	for key, region := range card.Deployables {
		if hasPart(device.Partitioning.Parts, card, key) {
			for handle := range region.Handles {
				there = append(there, handle)
			}
		}
	}
	for i := range parts {
		for _, h := range parts[i].Handles {
			recorded = append(recorded, h.Identity)
		}
	}
	slices.Sort(there)
	slices.Sort(recorded)
	if !slices.Equal(there, recorded) {
		return fmt.Errorf("its card has the handles %v, and the records have %v", there, recorded)
	}
	return nil
}

// hasPart says whether a card has, as it is divided now, the part of that key in its file:
// quarter3 is the fourth of kind quarter, and what is of no such kind belongs to the whole
// card.
func hasPart(kinds []cyborg.PartKind, card *fake.Card, key string) bool {
	for _, kind := range kinds {
		if number, err := strconv.Atoi(strings.TrimPrefix(key, kind.Name)); err == nil && strings.HasPrefix(key, kind.Name) {
			return number < card.Layout[kind.Name]
		}
	}
	return card.Layout == nil
}
