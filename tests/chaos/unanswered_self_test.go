package chaos_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// TestEachFailedTryNeedsAFault checks the checker: only a fault on the way of a
// request, at that time, explains that a try has failed, and nothing explains a
// 500.
func TestEachFailedTryNeedsAFault(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	injected := func(kind faultKind, target string, from, to int) injection {
		return injection{fault{faultKind: kind, target: target}, at(from), at(to)}
	}
	try := failedTry{what: "attach", api: "api1", began: at(100), ended: at(112), err: errors.New("reset")}
	refused, internal, late := try, try, try
	refused.nova, refused.status = true, http.StatusServiceUnavailable
	internal.status = http.StatusInternalServerError
	late.nova, late.status = true, http.StatusGatewayTimeout

	for name, test := range map[string]struct {
		try       failedTry
		faults    []injection
		explained bool
	}{
		"nothing":                         {try, nil, false},
		"its API is killed":               {try, []injection{injected(kill, "api1", 101, 102)}, true},
		"another API":                     {try, []injection{injected(kill, "api2", 101, 102)}, false},
		"its API was killed long before":  {try, []injection{injected(kill, "api1", 60, 61)}, false},
		"its API was killed just before":  {try, []injection{injected(kill, "api1", 90, 91)}, true},
		"its API is killed afterwards":    {try, []injection{injected(kill, "api1", 113, 114)}, false},
		"its link is silent":              {try, []injection{injected(silence, "client>api1", 101, 107)}, true},
		"the link of another":             {try, []injection{injected(silence, "client>api2", 101, 107)}, false},
		"PostgreSQL stands still":         {try, []injection{injected(freeze, "postgres", 101, 105)}, true},
		"its link to PostgreSQL":          {try, []injection{injected(cut, "api1>postgres", 101, 105)}, true},
		"that of a conductor":             {try, []injection{injected(cut, "conductor1>postgres", 101, 105)}, false},
		"an agent is away":                {try, []injection{injected(stall, "rack1", 90, 125)}, false},
		"a conductor is away":             {try, []injection{injected(stall, "conductor1", 90, 125)}, false},
		"a clock jumps":                   {try, []injection{injected(jump, "api1", 101, 105)}, false},
		"PostgreSQL's clock jumps":        {try, []injection{injected(jump, "postgres", 101, 105)}, false},
		"a run is terminated":             {try, []injection{injected(terminate, theRun, 101, 105)}, false},
		"a backup is put back":            {try, []injection{injected(restore, allData, 101, 105)}, true},
		"Keystone, for an administrator":  {try, []injection{injected(outage, keystone, 101, 105)}, false},
		"Keystone, for Nova":              {refused, []injection{injected(outage, keystone, 101, 105)}, true},
		"an agent is away, for Nova":      {refused, []injection{injected(stall, "rack1", 90, 125)}, false},
		"Nova gives up, an agent is away": {late, []injection{injected(stall, "rack1", 90, 125)}, true},
		"Nova gives up without a fault":   {late, nil, false},
		"a 500":                           {internal, []injection{injected(kill, "api1", 101, 102)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := explainTry(test.faults, nil, test.try)
			require.Equal(t, test.explained, err == nil, "%v", err)
		})
	}
}

// TestTimeoutsOfTheDatabaseNeedAJump checks the checker: that PostgreSQL's clock
// was set forward explains an answer of 5xx at that moment, and nothing else.
func TestTimeoutsOfTheDatabaseNeedAJump(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	ahead := shift{target: "postgres", offset: time.Minute, began: at(10), ended: at(60)}
	behind := shift{target: "postgres", offset: -time.Minute, began: at(100), ended: at(160)}
	other := shift{target: "api1", offset: time.Minute, began: at(200), ended: at(260)}
	shifts := []shift{ahead, behind, other}

	for _, test := range []struct {
		began, ended, status int
		explained            bool
	}{
		{9, 11, http.StatusGatewayTimeout, true},
		{11, 12, http.StatusServiceUnavailable, true},
		{9, 11, 0, false},
		{9, 11, http.StatusInternalServerError, false},
		{13, 14, http.StatusGatewayTimeout, false},
		{59, 61, http.StatusGatewayTimeout, false}, // set back
		{99, 101, http.StatusGatewayTimeout, false},
		{159, 161, http.StatusGatewayTimeout, true},
		{199, 201, http.StatusGatewayTimeout, false},
	} {
		try := failedTry{what: "x", api: "api1", began: at(test.began), ended: at(test.ended), status: test.status, err: errors.New("x")}
		err := explainTry(nil, shifts, try)
		require.Equal(t, test.explained, err == nil, "%+v: %v", test, err)
	}
}

// TestFailedTriesAreNoted checks which tries count as failed: those without an
// answer and those with one of 5xx, also where the client has got an answer
// later; not those that say how an operation has ended, unless by a 500.
func TestFailedTriesAreNoted(t *testing.T) {
	t.Parallel()
	problem := func(kind cyborg.ErrorKind, operation uuid.UUID) error {
		err := cyborg.Errorf(kind, "x")
		err.Operation = operation
		return &apiclient.Problem{Status: kind.HTTPStatus(), Err: err}
	}

	for name, test := range map[string]struct {
		try   failedTry
		noted bool
	}{
		"success":                  {failedTry{}, false},
		"success of Nova":          {failedTry{status: http.StatusAccepted}, false},
		"refusal of Nova":          {failedTry{status: http.StatusConflict}, false},
		"503 to Nova":              {failedTry{status: http.StatusServiceUnavailable}, true},
		"no answer":                {failedTry{err: errors.New("reset")}, true},
		"refusal":                  {failedTry{err: problem(cyborg.ErrInUse, uuid.Nil)}, false},
		"too many requests":        {failedTry{err: problem(cyborg.ErrOverloaded, uuid.Nil)}, false},
		"unavailable":              {failedTry{err: problem(cyborg.ErrUnavailable, uuid.Nil)}, true},
		"a failed operation":       {failedTry{err: problem(cyborg.ErrHostSilent, uuid.New())}, false},
		"internal error":           {failedTry{err: problem(cyborg.ErrInternal, uuid.Nil)}, true},
		"an operation with one":    {failedTry{err: problem(cyborg.ErrInternal, uuid.New())}, true},
		"internal error, for Nova": {failedTry{status: http.StatusInternalServerError}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &driver{}
			d.noteTry(test.try)
			require.Len(t, d.failedTries(), map[bool]int{true: 1}[test.noted])
		})
	}
}

// TestLoggedInternalErrorsAreFound checks that a 500 in the log of an API is found,
// and nothing that only looks like one.
func TestLoggedInternalErrorsAreFound(t *testing.T) {
	t.Parallel()
	require.Regexp(t, internalErrorPattern, "x\ntime=1 level=ERROR msg=request method=GET route=/v1/hosts status=500 bytes=1\ny")
	for _, line := range []string{
		"time=1 level=WARN msg=request method=GET route=/v1/hosts status=503 bytes=500",
		"time=1 level=INFO msg=started status=500",
		"time=1 level=INFO msg=request status=200 duration_ms=5\ntime=2 msg=other status=500",
	} {
		require.NotRegexp(t, internalErrorPattern, line)
	}
}
