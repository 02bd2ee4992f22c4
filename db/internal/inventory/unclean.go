package inventory

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// cleanedSoon is the hint of who is refused because of a handle that is not clean.
const cleanedSoon = "A conductor has it cleaned as soon as its host is heard and shows it; its last operations say what prevents that. " +
	"What cannot be cleaned can be declared clean after a cleaning by hand, with cyborg accelerator clean --declare."

// HasUnclean says that a handle of the accelerator has still to be cleaned.
func (a *Accelerator) HasUnclean() bool { return a.AllClean() != nil }

// AllClean refuses an accelerator of which a handle has still to be cleaned.
func (a *Accelerator) AllClean() error {
	at := slices.IndexFunc(a.Handles, func(h cyborg.AttachHandle) bool { return h.Unclean != nil })
	if at < 0 {
		return nil
	}

	h := &a.Handles[at]
	return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q has still to be cleaned (%s): handle %s is unclean since %s",
		a.Name, h.Unclean.Method, h.Identity, h.Unclean.Since.Format(time.RFC3339)).WithHint("%s", cleanedSoon)
}

// NobodyBeside refuses to clean an accelerator while somebody has another one that excludes
// it, such as a part of the same card, or that goes to one holder with it: what is done to a
// whole card is done to its parts, and functions of one IOMMU group reach each other. That
// others are unclean as well is no obstacle.
func (a *Accelerator) NobodyBeside() error {
	clean := a.onceClean()
	for i := range clean.HeldTogether {
		return clean.heldTogether(&clean.HeldTogether[i])
	}
	return clean.NotExcluded()
}

// CompatibleOnceClean is Compatible as it will be when all that is unclean has been cleaned.
func (a *Accelerator) CompatibleOnceClean(holder cyborg.Holder) error {
	return a.onceClean().Compatible(holder)
}

// onceClean returns the accelerator as if it, and what belongs to it, were clean.
func (a *Accelerator) onceClean() *Accelerator {
	unclean := func(h cyborg.OtherHeld) bool { return h.Unclean }
	clean := *a
	clean.ExcludedBy = slices.DeleteFunc(slices.Clone(a.ExcludedBy), unclean)
	clean.HeldTogether = slices.DeleteFunc(slices.Clone(a.HeldTogether), unclean)
	clean.Handles = slices.Clone(a.Handles)
	for i := range clean.Handles {
		clean.Handles[i].Unclean = nil
	}
	return &clean
}

// MarkUncleanAfterNova marks the handles of accelerators that were in Nova's whitelist as
// unclean, where their backend demands that they are cleaned after every holder: nobody here
// knows to whom Nova has given them.
func MarkUncleanAfterNova(ctx context.Context, tx pgx.Tx, accelerators []uuid.UUID) error {
	if len(accelerators) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, uncleanAfterNova("deployable_uuid = ANY($1)"), accelerators)
	return err
}

// uncleanAfterNova is the statement of MarkUncleanAfterNova for the handles that meet a
// condition.
func uncleanAfterNova(condition string) string {
	return `
		UPDATE attach_handles SET unclean = stronger_cleaning(unclean, cleaning_after(deployable_uuid)), unclean_since = coalesce(unclean_since, clock_timestamp())
		WHERE holder_kind IS NULL AND cleaning_after(deployable_uuid) <> '' AND ` + condition
}
