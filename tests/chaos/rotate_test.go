package chaos_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// Each server signs steps with a key that it draws when it starts. So the keys
// rotate as the servers are restarted one by one, and no step may be lost by that.

// rotateKeys restarts all servers, each after the one before it answers again.
func (s *injector) rotateKeys(ctx context.Context, f fault) error {
	began := time.Now()
	for _, name := range slices.Concat(nodesOf(harness.NodeConductor), nodesOf(harness.NodeAPI)) {
		node := s.c.Node(name)
		code, err := node.Stop()
		node.Up()
		if err := stoppedInOrder(node, code, err); err != nil {
			return err
		}

		waited, cancel := context.WithTimeout(ctx, reachLimit) // another fault may keep it down
		for s.c.Answers(waited, name) != nil && clock.Sleep(waited, 50*time.Millisecond) == nil {
			continue
		}
		cancel()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.rotated = true
	s.t.Logf("all keys have rotated: %s, within %s", f, time.Since(began).Round(time.Millisecond))
	return nil
}

// renewCertificates has another authority take the place of the present one, with
// pauses while both count.
func (s *injector) renewCertificates(ctx context.Context, f fault) error {
	err := s.c.Certificates.ReplaceAuthority(func() error { return clock.Sleep(ctx, f.lasts/2) })
	s.t.Logf("another authority has taken the place of the one before: %s (%v)", f, err)
	return err
}

// signersOf returns the names of the keys that are good for signing.
func (s *injector) signersOf(ctx context.Context) (names []string, err error) {
	address, err := s.c.DatabaseURL()
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	rows, err := conn.Query(ctx, "SELECT id FROM grant_keys ORDER BY last_seen")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// noteSigners notes the keys before a round.
func (s *injector) noteSigners(ctx context.Context) (err error) {
	s.rotated = false
	s.signers, err = s.signersOf(ctx)
	return err
}

// checkRotation returns an error where the keys of a round should have rotated,
// and have not.
func (s *injector) checkRotation(ctx context.Context) error {
	if !s.rotated {
		return nil
	}
	now, err := s.signersOf(ctx)
	if err != nil {
		return err
	}
	return unrotated(s.signers, now)
}

// unrotated returns an error where fewer keys are new than there are conductors.
func unrotated(before, now []string) error {
	fresh := slices.DeleteFunc(slices.Clone(now), func(id string) bool { return slices.Contains(before, id) })
	if len(fresh) < len(nodesOf(harness.NodeConductor)) {
		return fmt.Errorf("the servers were restarted one by one, and only the keys %v are new", fresh)
	}
	return nil
}

// keepsFromKeys reports whether the agent of a host may not learn of a new key
// during the fault, or may not know what its journal should hold: it or what it
// asks is away.
func (f fault) keepsFromKeys(host string) bool {
	switch f.faultKind {
	case rotate, renew, forge, terminate, reset, jump, sever:
		return false
	case restore, failover, lag:
		return true
	}

	from, to, link := strings.Cut(f.target, ">")
	if link {
		return from == host && strings.HasPrefix(to, "conductor") || to == "postgres"
	}
	return f.target == host || f.target == "postgres" || slices.Contains(nodesOf(harness.NodeConductor), f.target)
}

// lostStep returns an error where an operation has failed for want of a grant, and
// no fault has kept its host from what it needs in order to take one.
func lostStep(injected []injection, op ended) error {
	if slices.ContainsFunc(injected, func(i injection) bool {
		return i.keepsFromKeys(op.host) && i.began.Before(op.over) && i.ended.Add(backWithin).After(op.began)
	}) {
		return nil
	}
	return fmt.Errorf("%s %s on %s is %s for want of a grant (%s), and nothing has kept its host from learning of the key",
		op.kind, op.id, op.host, op.state, op.message)
}

// checkGranted returns an error where a step of an operation was lost, because its
// host did not believe its grant.
func (k *checker) checkGranted(ctx context.Context, injected []injection, shifts []shift) error {
	return k.eachEnded(ctx, shifts, "error->>'kind' = $1", string(cyborg.ErrNotGranted), func(op ended) error { return lostStep(injected, op) })
}
