package races_test

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestCheckerKnowsTheHardware checks the checker where cards are pulled, hosts
// boot, backends change, Nova gets accelerators, force is used and Reconcile
// settles: for each rule it accepts a history that keeps it, and refuses one that
// breaks it.
func TestCheckerKnowsTheHardware(t *testing.T) {
	t.Parallel()
	target, w, x, y, z := uuid.New(), uuid.New(), uuid.New(), uuid.New(), uuid.New()
	begin := func() *handwritten { return &handwritten{target: target} }
	ready := accelerator{lifecycle: cyborg.LifecycleReady, version: 1}

	toHost := request{kind: cyborg.OperationAttach, holder: "host:h"}
	toInstance := request{kind: cyborg.OperationAttach, holder: "instance:i"}
	toService := request{kind: cyborg.OperationAttach, holder: "service:s"}
	detach := request{kind: cyborg.OperationDetach}
	fromInstance := request{kind: cyborg.OperationDetach, holder: toInstance.holder}
	force := request{kind: cyborg.OperationDetach, force: true}
	aes := request{kind: cyborg.OperationProgram, image: "aes"}
	provision := request{kind: cyborg.OperationProvision}
	retire := request{kind: cyborg.OperationRetire}
	uninstall := request{kind: cyborg.OperationConfigure, change: "uninstall"}
	install := request{kind: cyborg.OperationConfigure, change: "install"}
	update := request{kind: cyborg.OperationConfigure, change: "update"}
	give, takeBack := request{kind: cyborg.OperationWhitelist, named: target}, request{kind: cyborg.OperationWhitelist}

	broken := outcome{state: cyborg.OperationFailed, kind: cyborg.ErrHardware}
	changed := outcome{state: cyborg.OperationFailed, kind: cyborg.ErrChanged}
	stuck := outcome{state: cyborg.OperationNeedsOperator, kind: cyborg.ErrHardware}

	forced := ready // the first handle, which a detach by force has freed
	forced.handles[0], forced.fence, forced.fenceBy = held{left: true}, fenceLeft, y

	inDoubt := ready
	inDoubt.lifecycle, inDoubt.handles[0] = cyborg.LifecycleError, held{holder: toHost.holder, by: x}

	loaded, lost := ready, ready
	loaded.image, lost.lost = "aes", true

	unknown := ready // the image
	unknown.lifecycle, unknown.fence, unknown.fenceBy = cyborg.LifecycleError, fenceImage, x

	ofNova := ready
	ofNova.lifecycle, ofNova.nova = cyborg.LifecycleInactive, true

	gone := ready
	gone.missing = true

	ailing := ready
	ailing.said = cyborg.ConditionUnready

	kept := ready
	kept.lifecycle, kept.maintaining = cyborg.LifecycleInactive, true

	retired := ready
	retired.lifecycle = cyborg.LifecycleInactive

	// awayRetired is a card that x has retired while it was away, and that is back.
	awayRetired := func() *handwritten {
		return begin().did(3, 4, "pull").done(1, 6, x, retire).did(7, 8, "put back").did(8, 8, "present")
	}
	// pulled is a card that x has attached to its host, and that was pulled then.
	pulled := func() *handwritten { return begin().done(1, 2, x, toHost).did(3, 4, "pull").did(3, 4, "missing") }
	// away is that card when y has detached it by force.
	away := func() *handwritten { return pulled().done(5, 6, y, force) }

	// admitted is a card that a service will get from x, and begun what x shows of it then.
	admitted := func() *handwritten {
		return begin().at(1, 2, action{name: "admit", operation: x, request: toService}, outcome{})
	}
	begun := ready
	begun.claim, begun.handles[0] = x, held{holder: toService.holder, by: x}

	for name, c := range map[string]struct{ good, bad *handwritten }{
		"missing before it was pulled": {
			good: begin().did(3, 4, "pull").read(5, 6, ready).read(7, 8, gone).did(9, 10, "missing"),
			bad:  begin().read(1, 2, gone).did(3, 4, "pull").did(9, 10, "missing"),
		},
		"present while it is pulled": {
			good: begin().did(1, 2, "pull").did(3, 4, "missing").did(5, 6, "put back").read(7, 8, gone).read(9, 10, ready),
			bad:  begin().did(1, 2, "pull").did(3, 4, "missing").read(5, 6, ready).did(7, 8, "put back"),
		},
		"not missing where somebody saw that": {
			good: begin().did(1, 2, "pull").read(3, 4, ready).did(5, 6, "missing"),
			bad:  begin().did(1, 2, "pull").did(3, 4, "missing").read(5, 6, ready),
		},
		"attached while it is missing": {
			good: begin().did(1, 2, "pull").did(1, 2, "missing").refused(3, 4, toService, cyborg.ErrChanged, uuid.Nil),
			bad:  begin().did(1, 2, "pull").did(1, 2, "missing").done(3, 4, x, toService),
		},
		"attached to its host without the card": {
			good: begin().did(1, 2, "pull").did(4, 5, "put back").done(3, 6, x, toHost),
			bad:  begin().did(1, 2, "pull").done(3, 6, x, toHost).did(7, 8, "put back"),
		},
		"attached to a service without the card": {
			good: begin().did(1, 2, "pull").did(4, 5, "put back").done(3, 6, x, toService),
			bad:  begin().did(1, 2, "pull").done(3, 6, x, toService).did(7, 8, "put back"),
		},
		"attached to a service while its backend is disabled": {
			good: begin().done(1, 2, x, uninstall).ended(3, 4, y, toService, broken).read(5, 6, ready),
			bad:  begin().done(1, 2, x, uninstall).done(3, 4, y, toService),
		},
		"failed though the card was there": {
			good: begin().did(3, 4, "pull").ended(1, 6, x, toHost, broken).did(7, 8, "put back").read(9, 10, ready),
			bad:  begin().ended(1, 6, x, toHost, broken).did(7, 8, "pull"),
		},
		"failed, and keeps the handle": {
			good: begin().did(3, 4, "pull").ended(1, 6, x, toHost, broken).read(7, 8, ready),
			bad:  begin().did(3, 4, "pull").ended(1, 6, x, toHost, broken).read(7, 8, inDoubt),
		},
		"failed before the card was pulled": {
			good: begin().at(1, 2, action{name: "admit", operation: x, request: toHost}, outcome{}).did(3, 4, "pull").
				at(5, 6, action{name: "end", operation: x, request: toHost}, broken),
			bad: begin().at(1, 2, action{name: "admit", operation: x, request: toHost}, outcome{}).did(5, 6, "pull").
				at(3, 4, action{name: "end", operation: x, request: toHost}, broken),
		},
		"in doubt though the card was there": {
			good: begin().did(3, 4, "pull").ended(1, 6, x, toHost, stuck).read(7, 8, inDoubt),
			bad:  begin().ended(1, 6, x, toHost, stuck).did(7, 8, "pull"),
		},
		"in doubt, and given away": {
			good: begin().did(3, 4, "pull").ended(1, 6, x, toHost, stuck).refused(7, 8, toService, cyborg.ErrChanged, x),
			bad:  begin().did(3, 4, "pull").ended(1, 6, x, toHost, stuck).done(7, 8, y, toService),
		},
		"a doubt that nobody has settled": {
			good: begin().did(3, 4, "power off").ended(1, 6, x, toHost, stuck).round(7, 8).read(9, 10, ready),
			bad:  begin().did(3, 4, "power off").ended(1, 6, x, toHost, stuck).read(7, 8, ready).round(9, 10),
		},
		"a doubt about a card that is gone": {
			good: begin().did(3, 4, "pull").ended(1, 6, x, toHost, stuck).did(7, 8, "missing").read(9, 10, gone),
			bad:  begin().did(3, 4, "power off").ended(1, 6, x, toHost, stuck).read(9, 10, ready),
		},
		"a doubt that is settled under an operation": {
			good: begin().did(3, 4, "pull").ended(1, 6, x, toHost, stuck).round(7, 14).
				at(9, 10, action{name: "admit", operation: y, request: retire}, refuse(cyborg.ErrInUse, x)).read(13, 14, ready),
			bad: begin().did(3, 4, "pull").ended(1, 6, x, toHost, stuck).
				at(7, 8, action{name: "admit", operation: y, request: force}, outcome{}).round(9, 10).
				read(11, 12, func() accelerator { a := ready; a.claim = y; return a }()).
				at(13, 14, action{name: "end", operation: y, request: force}, outcome{state: cyborg.OperationSucceeded}),
		},

		"ready though one handle is in doubt": {
			good: begin().done(1, 2, w, toInstance).did(3, 4, "pull").ended(5, 6, x, toHost, stuck).done(7, 8, y, fromInstance).
				read(9, 10, func() accelerator { a := inDoubt; a.handles[0], a.handles[1] = a.handles[1], a.handles[0]; return a }()),
			bad: begin().done(1, 2, w, toInstance).did(3, 4, "pull").ended(5, 6, x, toHost, stuck).done(7, 8, y, fromInstance).
				read(9, 10, func() accelerator { a := ready; a.handles[1] = inDoubt.handles[0]; return a }()),
		},

		"forced though the card is there": {
			good: pulled().done(5, 6, y, force),
			bad:  pulled().did(5, 6, "put back").did(5, 6, "present").done(7, 8, y, force),
		},
		"forced though the agent is heard": {
			good: begin().done(1, 2, x, toHost).did(3, 4, "power off").did(5, 5, "power on").done(6, 7, y, force).did(8, 8, "booted"),
			bad:  begin().done(1, 2, x, toHost).did(3, 4, "power off").did(5, 5, "power on").did(6, 6, "booted").done(7, 8, y, force),
		},
		"forced though nothing is in doubt": {
			good: begin().did(3, 4, "pull").ended(1, 6, x, toHost, stuck).did(7, 8, "put back").did(9, 9, "present").done(10, 11, y, force),
			bad:  begin().did(3, 4, "pull").done(1, 6, x, toHost).did(7, 8, "put back").did(9, 9, "present").done(10, 11, y, force),
		},
		"forced, and programmed": {
			good: away().did(7, 8, "put back").did(9, 9, "present").refused(10, 11, aes, cyborg.ErrChanged, y),
			bad:  away().done(7, 8, z, aes).did(9, 10, "put back").did(11, 11, "present"),
		},
		"forced, and refused as if it need not be": {
			good: pulled().refused(5, 6, request{kind: cyborg.OperationDetach, force: true, holder: "service:s"}, "", uuid.Nil),
			bad:  pulled().refused(5, 6, force, cyborg.ErrChanged, uuid.Nil),
		},
		"forced, and given away": {
			good: away().did(7, 8, "put back").did(7, 8, "present").refused(9, 10, toService, cyborg.ErrChanged, y).
				round(11, 12).done(13, 14, z, toService),
			bad: away().done(7, 8, z, toService).did(9, 10, "put back").did(9, 10, "present").round(11, 12),
		},
		"undone on its host": {
			good: pulled().did(5, 6, "put back").did(7, 7, "present").refused(8, 9, toService, cyborg.ErrChanged, uuid.Nil).done(10, 11, z, toService),
			bad:  begin().done(1, 2, x, toHost).refused(8, 9, toService, cyborg.ErrChanged, uuid.Nil),
		},
		"forced, and retired": {
			good: begin().did(3, 4, "power off").ended(1, 6, x, toHost, stuck).done(7, 8, y, force).refused(9, 10, retire, cyborg.ErrChanged, y),
			bad:  begin().did(3, 4, "power off").ended(1, 6, x, toHost, stuck).done(7, 8, y, force).done(9, 10, z, retire),
		},
		"retired while away, and once more": {
			good: begin().did(3, 4, "pull").done(1, 6, x, retire).did(7, 8, "put back").done(9, 10, y, retire),
			bad:  begin().done(1, 6, x, retire).done(9, 10, y, retire),
		},
		"retired while away, and given to Nova": {
			good: begin().did(3, 4, "pull").done(1, 6, x, retire).did(7, 8, "put back").did(9, 9, "present").refused(10, 11, give, cyborg.ErrChanged, uuid.Nil).
				done(12, 13, y, retire).done(14, 15, z, give),
			bad: begin().did(1, 2, "pull").done(3, 6, x, retire).did(7, 8, "put back").did(9, 9, "present").done(10, 11, y, give),
		},
		"retired while away, and uninstalled by Reconcile": {
			good: awayRetired().round(9, 20).repaired(0, 30, y).read(13, 14, func() accelerator { a := retired; a.claim = y; return a }()).
				refused(15, 16, provision, cyborg.ErrClaimed, y).refused(21, 22, retire, cyborg.ErrChanged, x),
			bad: awayRetired().repaired(0, 30, y).read(13, 14, func() accelerator { a := retired; a.claim = y; return a }()).round(15, 20),
		},
		"uninstalled by Reconcile, though it was not away": {
			good: begin().done(1, 2, x, retire).round(3, 10).done(5, 6, y, provision),
			bad:  begin().done(1, 2, x, retire).round(3, 10).repaired(0, 30, y),
		},
		"a holder comes back": {
			good: away().did(7, 8, "put back").did(7, 8, "present").round(9, 10).read(11, 12, ready),
			bad: away().did(7, 8, "put back").did(7, 8, "present").round(9, 10).
				read(11, 12, func() accelerator { a := ready; a.handles[0] = held{toHost.holder, x, true, false}; return a }()),
		},

		"an image is lost without a boot": {
			good: begin().done(1, 2, x, aes).did(3, 4, "power off").did(5, 5, "power on").did(6, 6, "booted").read(7, 8, lost),
			bad:  begin().done(1, 2, x, aes).read(3, 4, lost).did(5, 6, "power off").did(7, 7, "power on").did(8, 8, "booted"),
		},
		"an image is kept over a boot": {
			good: begin().done(1, 2, x, aes).did(3, 4, "power off").read(5, 6, loaded).did(5, 5, "power on").did(8, 8, "booted"),
			bad:  begin().done(1, 2, x, aes).did(3, 4, "power off").did(5, 5, "power on").did(6, 6, "booted").read(7, 8, loaded),
		},
		"a loss that a fence hides": {
			good: begin().done(1, 2, x, aes).done(3, 4, w, toHost).did(5, 6, "power off").did(7, 7, "power on").done(8, 9, y, force).did(10, 10, "booted").
				read(11, 12, func() accelerator { a := forced; a.lost = true; return a }()),
			bad: begin().done(1, 2, x, aes).done(3, 4, w, toHost).did(5, 6, "power off").did(7, 7, "power on").done(8, 9, y, force).did(10, 10, "booted").
				read(11, 12, forced),
		},
		"another image is loaded under an instance": {
			good: begin().done(1, 2, x, aes).done(3, 4, y, toInstance).did(5, 6, "power off").did(7, 7, "power on").did(8, 8, "booted").done(9, 10, z, aes),
			bad:  begin().done(1, 2, x, aes).done(3, 4, y, toInstance).done(9, 10, z, aes),
		},
		"another image is loaded under a host": {
			good: begin().done(1, 2, x, aes).done(3, 4, y, toHost).did(5, 6, "power off").did(7, 7, "power on").did(8, 8, "booted").refused(9, 10, aes, cyborg.ErrInUse, y),
			bad:  begin().done(1, 2, x, aes).done(3, 4, y, toHost).did(5, 6, "power off").did(7, 7, "power on").did(8, 8, "booted").done(9, 10, z, aes),
		},
		"programmed between two boots": {
			good: begin().did(1, 2, "power off").did(4, 4, "power on").did(5, 5, "booted").done(3, 6, x, aes),
			bad:  begin().did(1, 2, "power off").done(3, 6, x, aes).did(7, 7, "power on").did(8, 8, "booted"),
		},
		"an image that nobody knows is used": {
			good: begin().did(3, 4, "power off").ended(1, 6, x, aes, stuck).did(7, 7, "power on").did(8, 8, "booted").refused(9, 10, toService, cyborg.ErrChanged, x).
				done(11, 12, y, aes).done(13, 14, z, toService),
			bad: begin().did(3, 4, "power off").ended(1, 6, x, aes, stuck).did(7, 7, "power on").did(8, 8, "booted").done(13, 14, z, toService),
		},

		"an image that nobody knows is used in service": {
			good: begin().did(3, 4, "power off").ended(1, 6, x, aes, stuck).did(7, 7, "power on").did(8, 8, "booted").done(9, 10, y, provision).
				refused(11, 12, toService, cyborg.ErrChanged, x),
			bad: begin().did(3, 4, "power off").ended(1, 6, x, aes, stuck).did(7, 7, "power on").did(8, 8, "booted").done(9, 10, y, provision).
				done(11, 12, z, toService),
		},
		"an image that nobody knows is given to Nova": {
			good: begin().did(3, 4, "power off").ended(1, 6, x, aes, stuck).did(7, 7, "power on").did(8, 8, "booted").done(9, 10, y, retire).
				refused(11, 12, give, cyborg.ErrChanged, x),
			bad: begin().did(3, 4, "power off").ended(1, 6, x, aes, stuck).did(7, 7, "power on").did(8, 8, "booted").done(9, 10, y, retire).
				done(11, 12, z, give),
		},
		"Reconcile cures an image": {
			good: begin().did(3, 4, "power off").ended(1, 6, x, aes, stuck).round(7, 8).read(9, 10, unknown),
			bad: begin().did(3, 4, "power off").ended(1, 6, x, aes, stuck).round(7, 8).
				read(9, 10, func() accelerator { a := unknown; a.lifecycle = cyborg.LifecycleReady; return a }()),
		},

		"uninstalled under its holder": {
			good: begin().done(1, 2, x, toService).refused(3, 4, uninstall, cyborg.ErrInUse, x),
			bad:  begin().done(1, 2, x, toService).done(3, 4, y, uninstall),
		},
		"uninstalled while Nova has it": {
			good: begin().done(1, 2, x, retire).done(3, 4, y, give).refused(5, 6, uninstall, cyborg.ErrInUse, uuid.Nil),
			bad:  begin().done(1, 2, x, retire).done(3, 4, y, give).done(5, 6, z, uninstall),
		},
		"its backend changes under an operation": {
			good: begin().done(1, 4, x, toService).done(3, 8, y, update),
			bad: begin().at(1, 2, action{name: "admit", operation: x, request: toService}, outcome{}).done(3, 4, y, update).
				at(5, 6, action{name: "end", operation: x}, outcome{state: cyborg.OperationSucceeded}),
		},
		"attached to its host without a backend": {
			good: begin().done(1, 2, x, uninstall).done(3, 4, y, install).done(5, 6, z, toHost),
			bad:  begin().done(1, 2, x, uninstall).done(5, 6, z, toHost).done(7, 8, y, install),
		},
		"shown before its backend is installed": {
			good: begin().done(1, 2, x, uninstall).at(3, 4, action{name: "admit", operation: y, request: install}, outcome{}).
				read(5, 6, func() accelerator { a := ready; a.claim = y; return a }()).
				at(7, 8, action{name: "end", operation: y, request: install}, outcome{state: cyborg.OperationSucceeded}),
			bad: begin().done(1, 2, x, uninstall).did(3, 3, "missing").read(5, 6, ready).done(7, 8, y, install),
		},
		"an update installs nothing": {
			good: begin().done(1, 2, x, uninstall).done(3, 4, y, install).done(5, 6, z, toHost),
			bad:  begin().done(1, 2, x, uninstall).done(3, 4, y, update).done(5, 6, z, toHost),
		},

		"given to Nova while it is in service": {
			good: begin().refused(1, 2, give, cyborg.ErrChanged, uuid.Nil),
			bad:  begin().done(1, 2, x, give),
		},
		"taken into service while Nova has it": {
			good: begin().done(1, 2, x, retire).done(3, 4, y, give).refused(5, 6, provision, cyborg.ErrInUse, uuid.Nil).
				done(7, 8, w, takeBack).done(9, 10, z, provision),
			bad: begin().done(1, 2, x, retire).done(3, 4, y, give).done(9, 10, z, provision),
		},
		"taken into service in maintenance": {
			good: begin().done(1, 2, x, retire).at(3, 4, action{name: "maintain"}, outcome{seen: kept}).refused(5, 6, provision, cyborg.ErrChanged, uuid.Nil),
			bad:  begin().done(1, 2, x, retire).at(3, 4, action{name: "maintain"}, outcome{seen: kept}).done(5, 6, y, provision),
		},
		"taken from Nova before the end": {
			good: begin().done(1, 2, x, retire).done(3, 4, y, give).
				at(5, 6, action{name: "admit", operation: z, request: takeBack}, outcome{}).
				read(7, 8, func() accelerator { a := ofNova; a.claim = z; return a }()).
				at(9, 10, action{name: "end", operation: z, request: takeBack}, outcome{state: cyborg.OperationSucceeded}),
			bad: begin().done(1, 2, x, retire).done(3, 4, y, give).
				at(5, 6, action{name: "admit", operation: z, request: takeBack}, outcome{}).
				read(7, 8, func() accelerator { a := ofNova; a.claim, a.nova = z, false; return a }()).
				at(9, 10, action{name: "end", operation: z, request: takeBack}, outcome{state: cyborg.OperationSucceeded}),
		},
		"Nova keeps what a cancelled whitelist had given": {
			good: begin().done(1, 2, x, retire).at(3, 4, action{name: "admit", operation: y, request: give}, outcome{}).
				at(5, 6, action{name: "cancel", operation: y}, outcome{}).
				at(7, 8, action{name: "end", operation: y, request: give}, outcome{state: cyborg.OperationCancelled}).
				read(9, 10, func() accelerator { a := ofNova; a.nova = false; return a }()),
			bad: begin().done(1, 2, x, retire).at(3, 4, action{name: "admit", operation: y, request: give}, outcome{}).
				at(5, 6, action{name: "cancel", operation: y}, outcome{}).
				at(7, 8, action{name: "end", operation: y, request: give}, outcome{state: cyborg.OperationCancelled}).read(9, 10, ofNova),
		},

		"two whitelists of one host": {
			good: begin().done(1, 9, x, give).refused(2, 8, takeBack, cyborg.ErrClaimed, x).done(11, 12, y, takeBack).ofHost(),
			bad: begin().at(1, 2, action{name: "admit", operation: x, request: give}, outcome{}).done(3, 4, y, takeBack).
				at(5, 6, action{name: "end", operation: x, request: give}, outcome{state: cyborg.OperationSucceeded}).ofHost(),
		},
		"two changes of one backend": {
			good: begin().done(1, 4, x, update).done(3, 6, y, uninstall).ofHost(),
			bad: begin().at(1, 2, action{name: "admit", operation: x, request: update}, outcome{}).done(3, 4, y, uninstall).
				at(5, 6, action{name: "end", operation: x, request: update}, outcome{state: cyborg.OperationSucceeded}).ofHost(),
		},
		"an operation of the host is cancelled after its end": {
			good: begin().done(1, 4, x, update).at(3, 6, action{name: "cancel", operation: x, request: update}, outcome{}).ofHost(),
			bad:  begin().done(1, 4, x, update).at(5, 6, action{name: "cancel", operation: x, request: update}, outcome{}).ofHost(),
		},
		"unready before its card says so": {
			good: begin().did(3, 4, "worsen").read(5, 6, ready).read(7, 8, ailing).did(9, 10, "told"),
			bad:  begin().read(1, 2, ailing).did(3, 4, "worsen").did(9, 10, "told"),
		},
		"ready where somebody saw that it is not": {
			good: begin().did(1, 2, "worsen").did(3, 4, "told").did(5, 6, "recover").read(7, 8, ailing).read(9, 10, ready),
			bad:  begin().did(1, 2, "worsen").did(3, 4, "told").read(5, 6, ready).did(7, 8, "recover"),
		},
		"attached while it is unready": {
			good: begin().did(1, 2, "worsen").did(3, 4, "told").refused(5, 6, toService, cyborg.ErrChanged, uuid.Nil),
			bad:  begin().did(1, 2, "worsen").did(3, 4, "told").done(5, 6, x, toService),
		},
		"refused while it is only degraded": {
			good: begin().did(1, 2, "ail").did(3, 4, "told").done(5, 6, x, toService),
			bad:  begin().did(1, 2, "ail").did(3, 4, "told").refused(5, 6, toService, cyborg.ErrChanged, uuid.Nil),
		},
		"unready between the admission and the begin": {
			good: begin().did(3, 4, "worsen").ended(1, 6, x, toService, changed).did(7, 8, "told"),
			bad:  begin().did(3, 4, "ail").ended(1, 6, x, toService, changed).did(7, 8, "told"),
		},
		"its host knows first that it is unready": {
			good: admitted().did(3, 4, "worsen").read(5, 6, begun).at(7, 8, action{name: "end", operation: x, request: toService}, changed).did(9, 10, "told"),
			bad:  admitted().read(5, 6, begun).at(7, 8, action{name: "end", operation: x, request: toService}, changed).did(9, 10, "worsen"),
		},
		"given to Nova while it is unready": {
			good: begin().done(1, 2, x, retire).did(3, 4, "worsen").did(5, 6, "told").refused(7, 8, give, cyborg.ErrChanged, uuid.Nil),
			bad:  begin().done(1, 2, x, retire).did(3, 4, "worsen").did(5, 6, "told").done(7, 8, y, give),
		},
		"kept while it is unready": {
			good: begin().done(1, 2, x, toService).did(3, 4, "worsen").did(5, 6, "told").
				read(7, 8, func() accelerator { a := ailing; a.handles[0] = held{toService.holder, x, true, false}; return a }()),
			bad: begin().done(1, 2, x, toService).did(3, 4, "worsen").did(5, 6, "told").read(7, 8, ailing),
		},

		"detached though it is gone": { // of a card that is away, a detach may succeed or fail
			good: pulled().done(5, 6, y, detach).refused(7, 8, detach, "", uuid.Nil),
			bad:  pulled().ended(5, 6, y, detach, broken).refused(7, 8, detach, "", uuid.Nil),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireTold(t, model(map[uuid.UUID]accelerator{target: ready}), nothing(c.good), nothing(c.bad))
		})
	}
}

// nothing turns refusals without a kind into the answer that there is nothing to
// do.
func nothing(s *handwritten) *handwritten {
	for i := range s.actions {
		m, out := s.actions[i].Input.(action), s.actions[i].Output.(outcome)
		if m.name == "admit" && m.operation == uuid.Nil && out.kind == "" {
			out.nothing = true
			s.actions[i].Output = out
		}
	}
	return s
}

// TestSearchIsBounded: a search that would take too long says so, and says nothing
// about the history.
func TestSearchIsBounded(t *testing.T) {
	t.Parallel()
	s := &handwritten{target: uuid.New()}
	for range 20 { // at the same time, so that there are many orders to try
		s.done(1, 100, uuid.New(), request{kind: cyborg.OperationAttach, holder: "service:s"})
		s.done(1, 100, uuid.New(), request{kind: cyborg.OperationDetach})
	}
	s.read(101, 102, accelerator{}) // which no order explains

	ready := model(map[uuid.UUID]accelerator{s.target: {lifecycle: cyborg.LifecycleReady, version: 1}})
	const limit = 5000
	found := search(ready, s.actions, limit)
	require.Equal(t, porcupine.Unknown, found.result)
	require.GreaterOrEqual(t, found.states, int64(limit))
	require.Less(t, found.states, int64(limit+100))
	require.Contains(t, found.stuck(ready, s.actions), "of 81 actions have an order")

	few := (&handwritten{target: s.target}).done(1, 2, uuid.New(), request{kind: cyborg.OperationRetire}).read(101, 102, accelerator{})
	found = search(ready, few.actions, limit)
	require.Equal(t, porcupine.Illegal, found.result)
	require.Contains(t, found.stuck(ready, few.actions), "2 of 3 actions have an order")
}

// TestHistoryIsWhatClientsSaw: an operation takes its place in the history from
// the requests and answers alone, and answers that contradict each other fail the
// race.
func TestHistoryIsWhatClientsSaw(t *testing.T) {
	t.Parallel()
	target, other, x, y, z := uuid.New(), uuid.New(), uuid.New(), uuid.New(), uuid.New()
	h := newHistory()

	attach := &submission{accelerator: target, request: request{kind: cyborg.OperationAttach, holder: "service:s"}, http: httpRequest{key: "1"}}
	h.answered(attach, answer{call: 10, ret: 20})                            // nobody knows
	h.answered(attach, answer{call: 30, ret: 40, status: 202, operation: x}) // admitted, perhaps by the first try
	h.answered(attach, answer{call: 35, ret: 60, status: 200, operation: x}) // ended
	h.answered(attach, answer{call: 50, ret: 70, status: 200, operation: x}) // the end was seen before

	update := &submission{request: request{kind: cyborg.OperationConfigure, change: "update"}, http: httpRequest{key: "2"}}
	refusal := answer{call: 12, ret: 55, status: 409}
	refusal.problem.Kind, refusal.problem.Operation = cyborg.ErrClaimed, x
	h.answered(update, refusal)
	h.answered(update, answer{call: 80, ret: 90, status: 202, operation: y})
	require.Equal(t, []uuid.UUID{y}, h.unseen())
	h.sawEnd(y, sight{100, cyborg.OperationFailed, cyborg.ErrHardware})

	type moment struct {
		name        string
		accelerator uuid.UUID
		call, ret   time.Duration
	}
	var got []moment
	for _, o := range h.complete(t, []uuid.UUID{target, other}) {
		m := o.Input.(action)
		got = append(got, moment{m.name, m.accelerator, time.Duration(o.Call), time.Duration(o.Return)})
	}
	want := []moment{
		{"admit", target, 10, 40},
		{"end", target, 10, 60},
		{"admit", target, 12, 55}, // the refusal is about the accelerator of the operation in the way
	}
	for _, part := range []uuid.UUID{uuid.Nil, target, other} {
		want = append(want, moment{"admit", part, 80, 90}, moment{"end", part, 80, 100})
	}
	require.ElementsMatch(t, want, got)

	h.sawEnd(z, sight{1, cyborg.OperationSucceeded, ""})
	h.sawEnd(z, sight{2, cyborg.OperationCancelled, cyborg.ErrCancelled})
	require.Len(t, h.contradictions, 1)
}
