package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/english"
)

// change is an event for which a clause is needed.
type change struct {
	cyborg.Event

	narrator *Narrator
	group    []cyborg.Event // all that is told in the same sentence
}

// text returns a text of the event's data, or "".
func (c change) text(key string) string {
	text, _ := c.Data[key].(string)
	return text
}

// clauseTable has a function for each axis. It says what changed, in words that
// fit one subject and several. It returns "" where the event needs no words,
// because another event of the group says the same.
var clauseTable = map[cyborg.EventAxis]func(c change) string{
	cyborg.AxisAccelerator:    acceleratorClause,
	cyborg.AxisAdministration: administrationClause,
	cyborg.AxisAttributes:     unsaid,
	cyborg.AxisBackend:        backendClause,
	cyborg.AxisBitstream:      bitstreamClause,
	cyborg.AxisBoot:           bootClause,
	cyborg.AxisCancel:         cancelClause,
	cyborg.AxisClaim:          unsaid, // the sentence of the operation says enough
	cyborg.AxisConditions:     conditionsClause,
	cyborg.AxisDevice:         deviceClause,
	cyborg.AxisDriver:         driverClause,
	cyborg.AxisExcludes:       excludesClause,
	cyborg.AxisFence:          fenceClause,
	cyborg.AxisHealth:         healthClause,
	cyborg.AxisHolder:         holderClause,
	cyborg.AxisIdentity:       identityClause,
	cyborg.AxisInstallation:   installationClause,
	cyborg.AxisJournal:        func(change) string { return "lost its journal, or came back with an old copy of it" },
	cyborg.AxisLayout:         layoutClause,
	cyborg.AxisLifecycle:      lifecycleClause,
	cyborg.AxisName:           nameClause,
	cyborg.AxisNovaWhitelist:  novaWhitelistClause,
	cyborg.AxisOptions:        func(change) string { return "got other options" },
	cyborg.AxisPendingImage:   pendingImageClause,
	cyborg.AxisPresence:       presenceClause,
	cyborg.AxisProject:        unsaid,
	cyborg.AxisProtected:      protectedClause,
	cyborg.AxisReplacedBy:     replacedByClause,
	cyborg.AxisReported:       reportedClause,
	cyborg.AxisSameHolder:     sameHolderClause,
	cyborg.AxisSettled:        settledClause,
	cyborg.AxisSpecs:          specsClause,
	cyborg.AxisState:          stateClause,
	cyborg.AxisSteps:          unsaid, // the sentence of the operation says which ones were undone
	cyborg.AxisStrayRun:       strayRunClause,
	cyborg.AxisUnclean:        uncleanClause,
	cyborg.AxisUndone:         undoneClause,
}

// reportedClause says what a driver reports now. How it cleans is said in words, because that
// decides what the next holder finds.
func reportedClause(c change) string {
	cleaning, ok := c.Data["cleaning"]
	if !ok {
		return "reported other abilities"
	}

	after := ""
	if object, ok := cleaning.(map[string]any); ok {
		after, _ = object["after"].(string)
	}
	if after == "" {
		return "reported that it need not be cleaned after every holder"
	}
	return "reported that it has to be cleaned (" + after + ") after every holder"
}

// clauseOf returns the clause of a change. It returns "" also for an axis that
// only a newer server has.
func clauseOf(c change) string {
	if class, ok := c.Axis.Drift(); ok {
		return driftClause(c, class)
	}
	if clause, ok := clauseTable[c.Axis]; ok {
		return clause(c)
	}
	return ""
}

// unsaid is the clause of axes whose events need no words.
func unsaid(change) string { return "" }

// acceleratorClause describes a handle that has moved to another accelerator.
func acceleratorClause(c change) string {
	return fmt.Sprintf("moved from %s to %s", c.narrator.accelerator(c.From), c.narrator.accelerator(c.To))
}

// administrationClause names the person who keeps new work off an accelerator,
// or lets it in again. Without a person, the accelerator inherited the
// maintenance of its device, or a maintenance reached its end.
func administrationClause(c change) string {
	switch {
	case c.From == "" && c.To == string(cyborg.AdministrationMaintaining):
		return "began in maintenance, like the rest of the device: " + c.text("reason")
	case c.To == string(cyborg.AdministrationMaintaining):
		return "put " + subjectPlaceholder + " into maintenance" + untilText(c.text("until")) + ": " + c.text("reason")
	case c.From == "":
		return ""
	case person(c.Actor):
		return "took " + subjectPlaceholder + " out of maintenance"
	}

	return "came out of maintenance, whose time was over"
}

// untilText formats the end of a maintenance, and returns "" where none is
// recorded.
func untilText(until string) string {
	at, err := time.Parse(time.RFC3339, until)
	if err != nil {
		return ""
	}
	return " until " + at.UTC().Format(time.RFC3339)
}

// backendClause describes which backend shows a device; another one may take
// the device over.
func backendClause(c change) string {
	if c.From == "" {
		return "came with backend " + c.To
	}
	return fmt.Sprintf("moved from backend %s to %s", c.From, c.To)
}

// bitstreamClause describes an image that a report has shown. The first image
// of an accelerator that has just appeared needs no words.
func bitstreamClause(c change) string {
	waited := slices.ContainsFunc(c.group, func(e cyborg.Event) bool {
		return e.Axis == cyborg.AxisPendingImage && e.Subject == c.Subject && e.From == c.To && e.To == ""
	})
	if c.From == "" && hasPresenceOf(c.Subject.ID, c.group) || waited { // the clause of the pending image says that
		return ""
	}
	return fmt.Sprintf("showed image %s instead of %s", cmp.Or(c.To, "none"), cmp.Or(c.From, "none"))
}

// pendingImageClause describes an image that takes effect later, and how that ends: it is
// in effect, or is gone before it ever was.
func pendingImageClause(c change) string {
	switch {
	case c.To != "":
		return fmt.Sprintf("has loaded image %s, which takes effect %s", c.To, cyborg.Activation(c.text("until")).Text(c.Host))
	case c.text("bitstream_id") != c.From:
		return "dropped image " + c.From + " before it took effect"
	}

	text := "has image " + c.From + " in effect"
	before := slices.IndexFunc(c.group, func(e cyborg.Event) bool { return e.Axis == cyborg.AxisBitstream && e.Subject == c.Subject })
	if before >= 0 && c.group[before].From != "" {
		text += ", instead of " + c.group[before].From
	}
	return text
}

// bootClause describes a host by its boots: it has none before it registers and
// after it is forgotten.
func bootClause(c change) string {
	switch "" {
	case c.From:
		return "registered"
	case c.To:
		return "was forgotten"
	}
	return "rebooted"
}

// cancelClause describes a cancel of which the run had not heard. The sentence of the
// operation says who cancelled it.
func cancelClause(c change) string {
	if c.To != "repeated" {
		return ""
	}
	return "had its cancel repeated by Reconcile, because its run had not heard of it"
}

// conditionsClause says what the driver has to say about an accelerator now.
func conditionsClause(c change) string {
	if c.To == "" {
		return "is no longer reported as " + c.From
	}
	return "is reported as " + c.To
}

// deviceClause describes an accelerator that its driver now shows on another
// device.
func deviceClause(c change) string {
	return fmt.Sprintf("moved from device %s to %s", short(c.From), short(c.To))
}

// driverClause leaves the driver of a new or a removed backend to the clause of
// its state.
func driverClause(c change) string {
	if c.From == "" || c.To == "" {
		return ""
	}
	return fmt.Sprintf("changed from driver %s to %s", c.From, c.To)
}

// fenceClause gives the reason of a fence, which is a sentence already.
func fenceClause(c change) string {
	if c.To == "" {
		return "is no longer fenced"
	}
	return "was fenced: " + c.To
}

// healthClause describes what was lost when the host booted.
// The event of an accelerator request needs no words: that of its handle says the
// same, with the instance.
func healthClause(c change) string {
	switch {
	case c.Subject.Kind == cyborg.SubjectAccelerator && c.To != "":
		return "lost its image " + c.text("bitstream_id") + " when the host booted"
	case c.Subject.Kind != cyborg.SubjectHandle:
		return "" // the operation says that
	case c.To == "":
		return "came out of doubt for instance " + c.text("instance")
	}

	return "may be lost to instance " + c.text("instance") + ", because the host has booted"
}

// undoneClause describes a handle that its host no longer has attached. The fence that
// comes with it has the reason, unless the accelerator was fenced already.
func undoneClause(c change) string {
	lost, reason := "lost its attachment on the host", c.To
	if reason == "" {
		return "" // the end of the fence, or the operation, says that
	}
	if slices.ContainsFunc(c.group, func(e cyborg.Event) bool { return e.Axis == cyborg.AxisFence && e.To == reason }) {
		return lost
	}
	return lost + ": " + reason
}

// uncleanClause says that a handle has to be cleaned after its last holder, or how it
// became clean.
func uncleanClause(c change) string {
	handle := "handle " + c.text("identity")
	if c.To != "" {
		return fmt.Sprintf("has %s to be cleaned (%s) before somebody gets it", handle, c.To)
	}

	evidence := c.evidence()
	switch {
	case evidence == nil:
		return fmt.Sprintf("no longer has %s to be cleaned", handle)
	case evidence.Method == "":
		return fmt.Sprintf("has %s declared clean: %s", handle, evidence.Declared)
	}

	by := string(evidence.Method)
	if evidence.Tool != "" {
		by += " by " + evidence.Tool
	}
	if evidence.ReadBack != "" {
		by += "; read back: " + evidence.ReadBack
	}
	return fmt.Sprintf("has %s clean (%s)", handle, by)
}

// evidence returns how the handle of the event was cleaned; nil where the event does not
// say it.
func (c change) evidence() *cyborg.Evidence {
	cleaned, ok := c.Data["cleaned"].(map[string]any)
	if !ok {
		return nil
	}

	var evidence cyborg.Evidence
	if text, err := json.Marshal(cleaned); err != nil || json.Unmarshal(text, &evidence) != nil {
		return nil
	}
	return &evidence
}

// installationClause describes an accelerator that was taken out of service while
// its host did not show it. The operation that ends this says so itself.
func installationClause(c change) string {
	if c.To == "" {
		return ""
	}
	return "could not be uninstalled, because the host did not show it"
}

// settledClause describes what the host has corrected, and why: because its journal said
// otherwise than the records, or was in doubt like these. What the records no longer had,
// it has only taken back late.
func settledClause(c change) string {
	handle, now := "had handle "+c.text("identity"), c.text("now")
	if c.text("recorded") == "left" && now == "detached" {
		return handle + " taken back by its host"
	}

	said := "its host's journal " + journalPhrase(c.text("journal"))
	if c.text("recorded") == inDoubt && c.text("journal") == "attached" && now == "attached" {
		said = "the records had it in doubt"
	}
	return handle + " " + now + " by Reconcile, because " + said
}

// inDoubt is the state of an attachment of which nobody knows whether it is there.
const inDoubt = string(cyborg.AttachmentInDoubt)

// journalPhrase says what the journal of a host had about a handle.
func journalPhrase(state string) string {
	switch state {
	case "":
		return "did not have it"
	case inDoubt:
		return "had it in doubt"
	}
	return "had it as " + state
}

// holderClause describes how a handle changed hands. A change of the note
// "(in doubt)" alone is not worth a sentence.
func holderClause(c change) string {
	from, to, handle := holderPhrase(c.From), holderPhrase(c.To), c.text("identity")
	switch {
	case c.From == "":
		return fmt.Sprintf("went to %s (%s)", to, handle) + chosenText(c.Event)
	case c.To == "":
		return fmt.Sprintf("came back from %s (%s)", from, handle)
	case from == to:
		return ""
	}

	return fmt.Sprintf("went from %s to %s (%s)", from, to, handle) + chosenText(c.Event)
}

// chosenText says which parameters were chosen for the handle that somebody got; "" for
// none.
func chosenText(e cyborg.Event) string {
	data, _ := e.Data["parameters"].(map[string]any)
	chosen := map[string]string{}
	for name, value := range data {
		chosen[name], _ = value.(string)
	}

	if len(chosen) == 0 {
		return ""
	}
	return " with " + cyborg.ParametersText(chosen)
}

// identityClause describes how a host's agent got its certificates, or lost them. A
// host whose earlier certificates were revoked stays what it is.
func identityClause(c change) string {
	reason := c.text("reason")
	switch {
	case c.To == "revoked":
		return "revoked the certificates of " + subjectPlaceholder + reasonText(reason)
	case reason != "":
		return "revoked the earlier certificates of " + subjectPlaceholder + reasonText(reason)
	case c.To == "invited":
		return "invited the agent of " + subjectPlaceholder + " to enroll"
	}
	return "enrolled"
}

// reasonText formats a reason, and returns "" where none was given.
func reasonText(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// lifecycleClause leaves the steps of a provision to the sentence about its
// operation.
func lifecycleClause(c change) string {
	switch cyborg.Lifecycle(c.To) {
	case cyborg.LifecycleError:
		return "went into error: " + c.text("reason")
	case cyborg.LifecycleReady:
		return "came into service"
	case cyborg.LifecycleInactive:
		if c.From == "" {
			return ""
		}
		return "left service"
	case cyborg.LifecycleInstalling:
		return ""
	}

	return "became " + c.To
}

// layoutClause describes a device that is divided otherwise than before, as its host has
// reported. What a partition has done is in the operation's own sentence.
func layoutClause(c change) string {
	whole := cyborg.Layout{}.String()
	switch {
	case c.To == "":
		return "cannot be divided any more"
	case c.From == "" && c.To == whole:
		return "" // it only can be divided
	case c.To == whole:
		return "was made whole"
	}

	layout, err := cyborg.ParseLayout(strings.Fields(c.To))
	if err != nil { // of a form that only a newer server has
		return "was divided into " + c.To
	}
	return "was divided into " + partsPhrase(layout)
}

// nameClause leaves the first name out: the clause of the presence uses it.
func nameClause(c change) string {
	if c.From == "" {
		return ""
	}
	return fmt.Sprintf("changed its name from %s to %s", c.From, c.To)
}

// novaWhitelistClause describes an accelerator that Nova itself gives out. Its
// tags are what Nova knows of it.
func novaWhitelistClause(c change) string {
	switch "" {
	case c.From:
		return "got into the whitelist of Nova"
	case c.To:
		return "left the whitelist of Nova"
	}
	return "got other tags in the whitelist of Nova"
}

// strayRunClause describes a run that somebody has made by a reset, for example.
func strayRunClause(c change) string {
	return "had run " + short(c.To) + " terminated by Reconcile, because it belonged to another one"
}

// presenceClause describes appearing and disappearing. A handle comes and goes
// with its accelerator.
func presenceClause(c change) string {
	if c.Subject.Kind == cyborg.SubjectHandle && hasPresenceOf(c.text("accelerator"), c.group) {
		return ""
	}

	where := ""
	if c.Host != "" {
		where = " on " + c.Host
	}

	switch {
	case c.From == "" && c.To == string(cyborg.PresencePresent):
		return "appeared" + where
	case c.To == string(cyborg.PresenceMissing):
		return "vanished" + strings.Replace(where, " on ", " from ", 1)
	case c.To == string(cyborg.PresencePresent):
		return "came back" + where
	}

	return "left the records"
}

// hasPresenceOf reports whether the group has an event about an accelerator's
// appearing or disappearing. That event's clause covers the lesser ones.
func hasPresenceOf(id string, group []cyborg.Event) bool {
	return slices.ContainsFunc(group, func(e cyborg.Event) bool {
		return e.Axis == cyborg.AxisPresence && e.Subject.Kind == cyborg.SubjectAccelerator && e.Subject.ID == id
	})
}

// protectedClause describes an accelerator that the host itself depends on, or
// no longer depends on.
func protectedClause(c change) string {
	if c.To == "" {
		return "lost its protection"
	}
	return "came under protection: " + c.To
}

// replacedByClause describes another card in the place of a device.
func replacedByClause(c change) string {
	if c.To == "" {
		return "" // that it is back, or that nothing is there, is told by its presence
	}
	return "had another card in its place, " + c.To
}

// excludesClause describes an accelerator that excludes others of its host, as its
// driver names them. What an accelerator that has just appeared says of it needs no
// words.
func excludesClause(c change) string {
	if c.From == "" && hasPresenceOf(c.Subject.ID, c.group) {
		return ""
	}
	if c.To == "" {
		return "no longer excludes " + english.Some(strings.Split(c.From, ", "))
	}
	return "excludes " + english.Some(strings.Split(c.To, ", ")) + " while somebody has it"
}

// sameHolderClause describes an accelerator that goes to one holder with others of
// its host, or no longer does. What an accelerator that has just appeared says of it
// needs no words.
func sameHolderClause(c change) string {
	if c.From == "" && hasPresenceOf(c.Subject.ID, c.group) {
		return ""
	}
	if c.To == "" {
		return "may be given out whoever has the others of its host"
	}
	return "goes to one holder with what else is of " + c.To
}

// specsClause shows all that is set now, as JSON: the event does not say what
// was set before.
func specsClause(c change) string {
	set, err := json.Marshal(c.Data)
	if err != nil {
		return "set the specs of " + subjectPlaceholder
	}
	return "set the specs of " + subjectPlaceholder + " to " + string(set)
}

// stateClause describes a backend's new state, with its error. That of an
// operation is in its own sentence.
func stateClause(c change) string {
	if c.Subject.Kind != cyborg.SubjectBackend {
		return ""
	}

	reason := c.text("error")
	switch {
	case c.To == "":
		return "was removed"
	case reason != "":
		return "reported " + c.To + ": " + reason
	}

	return "reported " + c.To
}

// driftClause describes a difference from OpenStack Placement, from the
// instance in Nova, or from a host's whitelist file.
func driftClause(c change, class cyborg.DriftClass) string {
	words := strings.ReplaceAll(string(class), "_", " ")
	if instance, ok := c.Data["instance"].(string); ok {
		if c.To != "" {
			return fmt.Sprintf("differed from its instance %s (%s): %s", instance, words, c.To)
		}
		return fmt.Sprintf("differed from its instance %s no longer (%s)", instance, words)
	}

	repaired, _ := c.Data["repaired"].(bool)
	switch {
	case c.Subject.Kind == cyborg.SubjectHost && class == cyborg.DriftNovaWhitelist:
		if c.To != "" {
			return "differed from the whitelist that was written for Nova: " + c.To
		}
		return "no longer differed from the whitelist that was written for Nova"
	case c.To != "":
		return fmt.Sprintf("differed in Placement (%s): %s", words, c.To)
	case repaired:
		return fmt.Sprintf("was put right in Placement (%s)", words)
	}

	return fmt.Sprintf("differed in Placement no longer (%s)", words)
}
