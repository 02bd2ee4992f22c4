package conformance_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/drivers/conformance"
)

// defectVariable gives TestSuiteOnACorrectDriver's driver a defect, in a
// process that TestDefectsAreFound starts.
const defectVariable = "CYBORG_CONFORMANCE_DEFECT"

// TestSuiteOnACorrectDriver runs the suite on a driver without a defect.
func TestSuiteOnACorrectDriver(t *testing.T) {
	t.Parallel()

	conformance.Run(t, conformance.Subject{
		Services: []string{"discover", "install", "attach", "program", "clean", "partition", "in_use", "usage", "health", "watch"},
		New: func(t *testing.T) *conformance.Rig {
			t.Helper()
			return newToy(os.Getenv(defectVariable))
		},
	})
}

// TestSuiteOnAMinimalDriver runs the suite on a driver that can do nothing but
// discover.
func TestSuiteOnAMinimalDriver(t *testing.T) {
	t.Parallel()

	conformance.Run(t, conformance.Subject{
		Services: []string{"discover"},
		New: func(t *testing.T) *conformance.Rig {
			t.Helper()
			return newBareToy(os.Getenv(defectVariable))
		},
	})
}

// TestSuiteOnAFlashingDriver runs the suite on a driver whose images take effect later, and
// whose handles are mediated devices.
func TestSuiteOnAFlashingDriver(t *testing.T) {
	t.Parallel()

	conformance.Run(t, conformance.Subject{
		Services: []string{"discover", "install", "attach", "program", "clean", "partition", "in_use", "usage", "health", "watch"},
		New: func(t *testing.T) *conformance.Rig {
			t.Helper()
			return newFlashingToy(os.Getenv(defectVariable))
		},
	})
}

// TestDefectsAreFound gives the driver one defect after the other and requires
// that the check for that defect fails.
func TestDefectsAreFound(t *testing.T) {
	t.Parallel()

	for defect, check := range map[string]string{
		"names a deployable twice":                "discover/is valid",
		"excludes itself":                         "discover/is valid",
		"changes what it excludes":                "attach/and detach",
		"names a parameter badly":                 "discover/is valid",
		"has a parameter twice":                   "discover/is valid",
		"has a parameter of another type":         "discover/is valid",
		"does not explain a parameter":            "discover/is valid",
		"has a parameter without values":          "discover/is valid",
		"has an empty range":                      "discover/is valid",
		"has a range of words":                    "discover/is valid",
		"gives one function to two":               "discover/is valid",
		"gives a handle away with another":        "discover/is valid",
		"cleans without saying so":                "discover/is valid",
		"has no way to clean":                     "discover/is valid",
		"cleans in a way that nobody knows":       "discover/is valid",
		"names its strongest way first":           "discover/is valid",
		"names a way to clean twice":              "discover/is valid",
		"demands what it cannot do":               "discover/is valid",
		"lists in another order":                  "discover/is stable and changes nothing",
		"forgets at restart":                      "discover/survives a restart",
		"ignores its context":                     "discover/stops with its context",
		"shows what vanished":                     "discover/loses what vanishes",
		"crashes once it is closed":               "discover/is asked while it is closed and after that",
		"installs once only":                      "install/can be repeated",
		"does not uninstall":                      "install/is undone",
		"begins an install without a context":     "install/does not begin under an ended context",
		"installs what vanished":                  "install/of what vanished fails",
		"leaves a trace of each attach":           "attach/and detach",
		"attaches once only":                      "attach/can be repeated",
		"undoes nothing":                          "attach/is undone",
		"detaches only what is attached":          "attach/of nothing is undone",
		"forgets attachments at restart":          "attach/survives a restart",
		"touches before it notes":                 "attach/notes before it touches",
		"attaches without its note":               "attach/does nothing without its note",
		"stays half attached":                     "attach/stopped after its note is undone",
		"fails to attach over a note":             "attach/stopped after its note is repeated",
		"begins an attach without a context":      "attach/does not begin under an ended context",
		"attaches all handles":                    "attach/leaves other handles alone",
		"takes handles from their user":           "attach/is not taken from its user",
		"detaches before it asks for users":       "attach/is not taken from its user",
		"attaches what vanished":                  "attach/of what vanished",
		"cannot detach what vanished":             "attach/of what vanished",
		"installs another card":                   "install/of another card in its place fails",
		"attaches another card":                   "attach/of another card in its place",
		"cannot detach from another card":         "attach/of another card in its place",
		"looks like another card while attached":  "attach/leaves the fingerprint alone",
		"shows nothing while attached":            "attach/and detach",
		"answers one at a time":                   "attach/is asked about by many",
		"attaches to its host only":               "attach/for an instance and detach",
		"prepares once only":                      "attach/for an instance can be repeated",
		"undoes nothing of an instance":           "attach/for an instance is undone",
		"takes handles from guests":               "attach/for an instance is not taken from its user",
		"detaches from its host only":             "attach/for a service",
		"keeps its first holder":                  "attach/for another holder",
		"gives another holder what is used":       "attach/for another holder",
		"drops the parameters of its host":        "attach/with parameters for its host",
		"ignores parameters":                      "attach/with other parameters",
		"keeps its first parameters":              "attach/with other parameters",
		"keeps parameters that are left out":      "attach/with other parameters",
		"detaches without its parameters":         "attach/with other parameters",
		"stays between two choices":               "attach/with other parameters is undone",
		"needs its note to forget":                "attach/leaves no parameters without a note",
		"takes any parameter":                     "attach/refuses parameters that are wrong",
		"resets before it looks at parameters":    "attach/refuses parameters that are wrong",
		"programs to check":                       "program/checks an image and changes nothing",
		"records another id":                      "program/loads and reads back",
		"programs every set":                      "program/disturbs its own set only",
		"counts its loads":                        "program/can be repeated",
		"loads anything":                          "program/refuses what does not fit",
		"tells progress backwards":                "program/tells its progress",
		"begins a program without a context":      "program/does not begin under an ended context",
		"programs once only after interruption":   "program/is interrupted and repeated",
		"programs what vanished":                  "program/of what vanished fails",
		"keeps what is in registers":              "clean/removes what was left",
		"keeps what is stored":                    "clean/removes what was left",
		"says that it has done less":              "clean/removes what was left",
		"says nothing of its tool":                "clean/removes what was left",
		"reads nothing back":                      "clean/removes what was left",
		"says too much":                           "clean/removes what was left",
		"looks like another card once cleaned":    "clean/removes what was left",
		"cleans once only":                        "clean/can be repeated",
		"cleans before it notes":                  "clean/notes before it touches",
		"cleans without its note":                 "clean/does nothing without its note",
		"fails to clean over a note":              "clean/stopped at any note goes on",
		"takes what it has noted for done":        "clean/stopped at any note goes on",
		"goes on as it has begun":                 "clean/goes on with another method",
		"begins a clean without a context":        "clean/does not begin under an ended context",
		"takes an interrupted clean for done":     "clean/is interrupted",
		"cleans backwards":                        "clean/tells its progress",
		"cleans what is used":                     "clean/leaves its user alone",
		"cleans before it asks for users":         "clean/leaves its user alone",
		"cleans all handles":                      "clean/leaves other handles alone",
		"detaches whoever is beside":              "clean/leaves other handles alone",
		"takes for clean what sticks":             "clean/fails where something stays",
		"attaches nothing that was cleaned":       "clean/is followed by an attach",
		"cleans what vanished":                    "clean/of what vanished fails",
		"cleans another card":                     "clean/of another card in its place fails",
		"names a part badly":                      "discover/is valid",
		"names a part twice":                      "discover/is valid",
		"can have none of a part":                 "discover/is valid",
		"explains a part at length":               "discover/is valid",
		"says nothing of its layout":              "discover/is valid",
		"counts parts that are not there":         "discover/is valid",
		"has parts that it cannot have":           "discover/is valid",
		"makes fewer parts":                       "partition/divides and makes whole",
		"reports what was wanted":                 "partition/fails where parts are missing",
		"stays in parts":                          "partition/divides and makes whole",
		"looks like another card once divided":    "partition/divides and makes whole",
		"divides a stranger":                      "partition/divides and makes whole",
		"keeps the whole beside its parts":        "partition/divides and makes whole",
		"refuses what fits":                       "partition/agrees with what was checked",
		"refuses to be whole":                     "partition/agrees with what was checked",
		"checks nothing":                          "partition/agrees with what was checked",
		"divides to check":                        "partition/agrees with what was checked",
		"divides into anything":                   "partition/agrees with what was checked",
		"divides once only":                       "partition/can be repeated",
		"divides again what is divided":           "partition/can be repeated",
		"forgets its layout at restart":           "partition/survives a restart",
		"gives its parts new names":               "partition/keeps names and handles",
		"gives its parts new handles":             "partition/keeps names and handles",
		"names parts of two kinds alike":          "partition/keeps names and handles",
		"shows parts while it is whole":           "partition/offers the whole or its parts",
		"divides before it notes":                 "partition/notes before it touches",
		"divides without its note":                "partition/does nothing without its note",
		"fails to divide over a note":             "partition/stopped at any note is repeated",
		"goes on as it was wanted first":          "partition/stopped at any note is repeated",
		"begins a partition without a context":    "partition/does not begin under an ended context",
		"takes an interrupted partition for done": "partition/is interrupted",
		"divides backwards":                       "partition/tells its progress",
		"divides what is used":                    "partition/leaves its user alone",
		"divides before it asks for users":        "partition/leaves its user alone",
		"makes parts that cannot be attached":     "partition/makes parts that can be attached",
		"takes fewer parts for all":               "partition/fails where parts are missing",
		"cannot be asked while it is divided":     "partition/is asked about by many",
		"divides what vanished":                   "partition/of what vanished fails",
		"divides another card":                    "partition/of another card in its place fails",
		"knows no users":                          "in_use/tells the user",
		"takes attached for used":                 "in_use/tells the user",
		"asks whichever card is there":            "in_use/of another card in its place fails",
		"measures nonsense":                       "usage/measures and changes nothing",
		"measures a stranger":                     "usage/measures and changes nothing",
		"measures twice":                          "usage/measures and changes nothing",
		"knows a stranger":                        "health/says what people can read and changes nothing",
		"says nothing to people":                  "health/says what people can read and changes nothing",
		"says since when":                         "health/says what people can read and changes nothing",
		"is always well":                          "health/tells what is wrong",
		"stays ill":                               "health/tells what is wrong",
		"watches for ever":                        "watch/ends with its context",
		"watches nothing":                         "watch/notices what vanishes",
		"lacks a service":                         "",
	} {
		t.Run(defect, func(t *testing.T) {
			t.Parallel()
			requireFound(t, defect, testName("TestSuiteOnACorrectDriver", check))
		})
	}
}

// TestDefectsOfAFlashingDriverAreFound does the same as TestDefectsAreFound with a driver
// whose images take effect later, and whose handles are mediated devices.
func TestDefectsOfAFlashingDriverAreFound(t *testing.T) {
	t.Parallel()

	for defect, check := range map[string]string{
		"has a pending image without an id":        "discover/is valid",
		"reports pending and nothing loaded":       "program/loads and reads back",
		"drops what is pending at a restart":       "program/loads and reads back",
		"reports one image twice":                  "program/loads and reads back",
		"forgets what is in effect":                "program/loads and reads back",
		"says in its own words what is to be done": "program/loads and reads back",
		"keeps the first pending image":            "program/loads and reads back",
		"attaches under any UUID":                  "attach/is of one UUID",
		"detaches whatever is there":               "attach/for an instance is of one UUID",
		"needs the UUID to detach":                 "attach/is of one UUID",
		"keeps its first UUID":                     "attach/for another UUID",
		"takes a device from its user":             "attach/for an instance for another UUID",
	} {
		t.Run(defect, func(t *testing.T) {
			t.Parallel()
			requireFound(t, defect, testName("TestSuiteOnAFlashingDriver", check))
		})
	}
}

// TestDefectsOfAMinimalDriverAreFound does the same as TestDefectsAreFound with a driver
// that can do nothing but discover.
func TestDefectsOfAMinimalDriverAreFound(t *testing.T) {
	t.Parallel()
	for _, defect := range []string{"reports what it cannot do", "reports parts that it cannot make", "reports an image that it cannot load"} {
		requireFound(t, defect, testName("TestSuiteOnAMinimalDriver", "discover/is valid"))
	}
}

// requireFound requires that the test fails a driver with the defect, and passes one
// without.
func requireFound(t *testing.T, defect, test string) {
	t.Helper()
	output, failed := runSubject(t, defect, test)
	require.Truef(t, failed, "the suite finds nothing wrong with a driver that %s:\n%s", defect, output)
	require.Contains(t, output, "--- FAIL: "+test+" (")
	require.NotContains(t, output, "panic:")

	output, failed = runSubject(t, "", test)
	require.Falsef(t, failed, "the check fails a sound driver:\n%s", output)
	require.Contains(t, output, "--- PASS: "+test+" (", "the check runs")
}

// testName is the name of the subtest that runs a check.
func testName(test, check string) string {
	return strings.TrimSuffix(test+"/"+strings.ReplaceAll(check, " ", "_"), "/")
}

// runSubject runs one check in a process of its own.
func runSubject(t *testing.T, defect, test string) (output string, failed bool) {
	t.Helper()
	pattern := "^" + strings.ReplaceAll(test, "/", "$/^") + "$"
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run", pattern)
	command.Env = append(os.Environ(), defectVariable+"="+defect, "GORACE=atexit_sleep_ms=0") // otherwise each exit of a race-enabled binary takes a second

	text, err := command.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); !exited {
		require.NoError(t, err)
	}
	return string(text), err != nil
}
