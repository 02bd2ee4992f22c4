package temporalauth

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.temporal.io/server/common/authorization"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

var _ authorization.Authorizer = (*Guard)(nil)

// Authorize decides about a call; it implements Temporal's Authorizer. Temporal
// asks it also about the other namespaces that the commands of a workflow name.
func (g *Guard) Authorize(ctx context.Context, claims *authorization.Claims, target *authorization.CallTarget) (authorization.Result, error) {
	who := caller{err: cyborg.Errorf(cyborg.ErrUnauthenticated, "nobody has said who the caller is")}
	if claims != nil {
		if named, ok := claims.Extensions.(caller); ok {
			who = named
		}
	}

	if err := g.decide(who, target); err != nil {
		g.tell(ctx, who, target.APIName, err)
		return authorization.Result{Decision: authorization.DecisionDeny, Reason: sentence(err)}, nil
	}
	return authorization.Result{Decision: authorization.DecisionAllow}, nil
}

// sentence returns what is wrong, and what to do about it: a client gets nothing
// else.
func sentence(err error) string {
	said := err.Error()
	if hint := cyborg.AsError(err).Hint; hint != "" {
		said += ". " + hint
	}
	return said
}

// decide returns why a call is refused; nil where it is allowed.
func (g *Guard) decide(who caller, target *authorization.CallTarget) error {
	if who.self {
		return nil
	}

	r, err := g.ruleFor(who, target.APIName)
	switch {
	case err != nil:
		return err
	case !r.anywhere && target.Namespace != g.config.Namespace:
		return cyborg.Errorf(cyborg.ErrForbidden, "%s may not call %s in the namespace %q, only in %q",
			who, short(target.APIName), cyborg.Sanitize(target.Namespace, longestShown), g.config.Namespace)
	case r.check == nil:
		return nil
	}
	return r.check(g, who, target.Request)
}

// ruleFor returns what the request must be for a caller that may call the method.
// The error says why this one may not, whatever the request is.
func (g *Guard) ruleFor(who caller, method string) (rule, error) {
	if who.err != nil {
		return rule{}, who.err
	}

	r, listed := g.allowed[method]
	switch {
	case !listed:
		return rule{}, cyborg.Errorf(cyborg.ErrForbidden, "%s may not call %s: nobody may", who, short(method))
	case !slices.Contains(r.roles, who.Role):
		return rule{}, cyborg.Errorf(cyborg.ErrForbidden, "%s may not call %s", who, short(method)).
			WithHint("%s", rolesThatMay(r.roles))
	}
	return r, nil
}

// rolesThatMay says with which certificate the call is allowed.
func rolesThatMay(roles []identity.Role) string {
	names := make([]string, 0, len(roles))
	for _, role := range roles {
		names = append(names, string(role))
	}
	return "Use a certificate with the role " + strings.Join(names, " or ") + "."
}

// longestShown is how many characters of a name from a request a refusal shows.
const longestShown = 100

const (
	// tellEvery is how often the same refusal is logged.
	tellEvery = time.Minute
	// mostTold is how many different refusals are remembered. Beyond it all are
	// forgotten, and are logged once more.
	mostTold = 10_000
)

// probe is the call by which Cyborg's doctors learn that a Temporal has this guard: its
// refusal is what they want to see. See temporalclient.Guarded.
const probe = workflowService + "ListWorkflowRules"

// tell logs a refusal, unless the same one was logged a moment ago.
func (g *Guard) tell(ctx context.Context, who caller, method string, err error) {
	key := refusal{who.String(), method}
	level := slog.LevelWarn
	if _, listed := g.allowed[method]; method == probe && who.err == nil {
		level = slog.LevelDebug
	} else if !listed {
		key.method = "another" // a client can invent as many names as it likes
	}

	g.mu.Lock()
	last, told := g.logged[key]
	now := time.Now()
	if told && now.Sub(last) < tellEvery {
		g.mu.Unlock()
		return
	}
	if len(g.logged) >= mostTold {
		clear(g.logged)
	}
	g.logged[key] = now
	g.mu.Unlock()

	g.log.Log(ctx, level, "Temporal has refused a call", "caller", who.String(), "method", short(method), "error", err)
}
