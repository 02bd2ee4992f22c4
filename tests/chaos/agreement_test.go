package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/openstack/placement/placementtest"
)

// checkAgreement returns an error where accelerator requests, handles, Nova and
// Placement do not agree.
func (k *checker) checkAgreement(ctx context.Context) error {
	shown, err := k.driver.shown(ctx)
	if err != nil {
		return err
	}

	accelerators, err := apiclient.Collect(k.c.API.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
	if err != nil {
		return err
	}

	return errors.Join(k.checkBindings(shown, accelerators), k.records(ctx, func(conn *pgx.Conn) error { return findInconsistency(ctx, conn) }),
		k.records(ctx, func(conn *pgx.Conn) error { return findUnexplainedError(ctx, conn) }), k.checkNovaEvents(ctx, shown), k.checkPlacement(ctx, shown, accelerators),
		k.driver.ledger.checkReboots(k.cloud.nova.Reboots), k.checkWhitelists(ctx))
}

// checkBindings compares the accelerator requests with the ledger: with what
// was requested, and with the answers.
func (k *checker) checkBindings(shown map[uuid.UUID]requestView, accelerators []apiclient.Accelerator) error {
	for _, b := range k.driver.ledger.all() {
		for i, id := range b.ids {
			arq := shown[id]

			switch {
			case !slices.Contains(b.allowed(), arq.State):
				return fmt.Errorf("request %s is in state %q, which does not follow from the last change, %s with answer %d (final: %v)", id, arq.State, b.wish, b.status, b.answered)
			case i > 0 && arq.State != shown[b.ids[0]].State:
				return fmt.Errorf("request %s is %q, but request %s of the same instance is %q", id, arq.State, b.ids[0], shown[b.ids[0]].State)
			case arq.State == "" || arq.Instance == uuid.Nil:
				continue
			case arq.Instance != b.instance || arq.Host != b.at.Host || arq.Provider != b.at.ProviderUUID:
				return fmt.Errorf("request %s is bound to instance %s on %s, provider %s; requested was instance %s on %s, provider %s",
					id, arq.Instance, arq.Host, arq.Provider, b.instance, b.at.Host, b.at.ProviderUUID)
			}

			at := slices.IndexFunc(accelerators, func(a apiclient.Accelerator) bool { return a.UUID == b.at.UUID })
			if b.image != "" && arq.State == cyborg.ARQBound && accelerators[at].BitstreamID != b.image {
				return fmt.Errorf("request %s is bound, but the accelerator has image %q, not %s", id, accelerators[at].BitstreamID, b.image)
			}
		}
	}

	// A try whose answer was lost may have created requests that no client knows.
	unknown := k.driver.ledger.unknown(shown)
	for _, arq := range unknown {
		if arq.State != cyborg.ARQInitial || arq.Instance != uuid.Nil || arq.Handle != uuid.Nil {
			return fmt.Errorf("request %s, which no client knows, is %s for instance %s", arq.UUID, arq.State, arq.Instance)
		}
	}

	if len(unknown) > k.driver.ledger.lost {
		return fmt.Errorf("no client knows of %d requests, but at most %d were created without an answer", len(unknown), k.driver.ledger.lost)
	}
	return nil
}

// checkForgotten returns an error while there are requests that no client
// knows: they are deleted some time after their creation.
func (k *checker) checkForgotten(ctx context.Context) error {
	shown, err := k.driver.shown(ctx)
	if err != nil {
		return err
	}

	if left := k.driver.ledger.unknown(shown); len(left) > 0 {
		return fmt.Errorf("request %s, which no client knows, is not deleted yet", left[0].UUID)
	}
	return nil
}

// inconsistencies lists the possible inconsistencies of requests and handles:
// how they are described, and the SQL that finds them.
var inconsistencies = []struct{ what, sql string }{
	{"is being bound or deleted, or is claimed, without an operation", "SELECT uuid FROM arqs WHERE state IN ('BindStarted', 'Deleting') OR claimed_by IS NOT NULL"},
	{"is bound, but its handle is not the instance's", `
				SELECT a.uuid FROM arqs a LEFT JOIN attach_handles h ON h.uuid = a.handle_uuid
				WHERE a.state = 'Bound' AND (h.holder_kind, h.holder_id, h.attached_at IS NOT NULL) IS DISTINCT FROM ('instance', a.instance_uuid::text, true)`},
	{"has a handle, but is not bound", "SELECT uuid FROM arqs WHERE handle_uuid IS NOT NULL AND state NOT IN ('Bound', 'UnbindFailed')"},
	{"is on another provider than its handle", `
				SELECT a.uuid FROM arqs a JOIN attach_handles h ON h.uuid = a.handle_uuid JOIN deployables d ON d.uuid = h.deployable_uuid
				WHERE a.provider_uuid IS DISTINCT FROM d.provider_uuid`},
	{"was given to an instance by a bind, but no request has it", `
				SELECT h.uuid FROM attach_handles h JOIN operations o ON o.id = h.operation_id
				WHERE o.kind = 'bind' AND h.holder_kind IS NOT NULL AND NOT EXISTS (SELECT FROM arqs WHERE handle_uuid = h.uuid)`},
	{"is held by an instance that Nova has booted, without a request", `
				SELECT h.uuid FROM attach_handles h WHERE h.holder_kind = 'instance' AND h.holder_id NOT LIKE '5f5f5f5f-%'
				AND NOT EXISTS (SELECT FROM arqs WHERE handle_uuid = h.uuid)`},
	{"is a bind of which Nova was not notified", "SELECT id FROM operations WHERE notification_pending"},
	{"is unclean, and nothing keeps its host from cleaning it", `
				SELECT h.uuid FROM attach_handles h JOIN deployables d ON d.uuid = h.deployable_uuid WHERE h.unclean <> '' AND d.lifecycle <> 'error'`},
	{"had a holder, is free, and nothing says how it was cleaned", `
				SELECT h.uuid FROM attach_handles h JOIN deployables d ON d.uuid = h.deployable_uuid
				WHERE d.cleaning ->> 'after' <> '' AND h.holder_kind IS NULL AND h.unclean = '' AND h.cleaned IS NULL AND EXISTS (
					SELECT FROM events WHERE axis = 'holder' AND data ->> 'handle' = h.uuid::text AND to_value = '' AND from_value NOT LIKE '%(in doubt)')`},
	{"was lost when its host booted, and its instance has not got it back yet", "SELECT uuid FROM arqs WHERE lost_at IS NOT NULL"},
}

// findInconsistency returns an error where requests and handles are
// inconsistent.
func findInconsistency(ctx context.Context, records querier) error {
	for _, wrong := range inconsistencies {
		rows, err := records.Query(ctx, wrong.sql)
		if err != nil {
			return err
		}

		found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			return err
		}

		if len(found) > 0 {
			return fmt.Errorf("%s %s", found[0], wrong.what)
		}
	}
	return nil
}

// querier is a connection to PostgreSQL or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, values ...any) (pgx.Rows, error)
}

// checkNovaEvents compares the events that Nova has received with the ends of
// the binds. Nova may receive the same event more than once.
func (k *checker) checkNovaEvents(ctx context.Context, shown map[uuid.UUID]requestView) error {
	said := map[string][]string{} // of each request, oldest first
	for _, e := range k.cloud.nova.Events() {
		if e.Name != "accelerator-request-bound" {
			return fmt.Errorf("Nova has received an event %q, which Cyborg does not send", e.Name)
		}
		said[e.Tag] = append(said[e.Tag], e.Status)
	}

	type bind struct {
		state cyborg.OperationState
		begun bool
	}
	binds := map[string][]bind{} // of each request, oldest first

	err := k.records(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT s.subject_id, o.state, o.started_at IS NOT NULL FROM operation_subjects s JOIN operations o ON o.id = s.operation_id
			WHERE o.kind = 'bind' AND s.kind = $1 ORDER BY o.admitted_at`, string(cyborg.SubjectARQ))
		if err != nil {
			return err
		}

		var (
			id  string
			one bind
		)

		_, err = pgx.ForEachRow(rows, []any{&id, (*string)(&one.state), &one.begun}, func() error {
			binds[id] = append(binds[id], one)
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}

	word := func(succeeded bool) string {
		if succeeded {
			return "completed"
		}
		return "failed"
	}

	met := k.driver.ledger.metLosses()
	for id, words := range said {
		if met[id] { // its binds may be unknown, or have been done again with another end
			continue
		}
		if len(binds[id]) == 0 {
			return fmt.Errorf("Nova has received %v for request %s, which was never bound", words, id)
		}
		if want := word(binds[id][0].state == cyborg.OperationSucceeded); len(binds[id]) == 1 && slices.ContainsFunc(words, func(w string) bool { return w != want }) {
			return fmt.Errorf("Nova has received %v for request %s, whose only bind is %s", words, id, binds[id][0].state)
		}
	}

	for id, arq := range shown {
		if arq.State != cyborg.ARQBound && arq.State != cyborg.ARQBindFailed {
			continue
		}

		words, all := said[id.String()], binds[id.String()]
		switch want := word(arq.State == cyborg.ARQBound); {
		case len(all) == 0:
			return fmt.Errorf("request %s is %s, but no bind operation names it", id, arq.State)
		case !all[len(all)-1].begun && len(words) == 0: // it failed before it began, which the answer to Nova said
		case len(words) == 0:
			return fmt.Errorf("request %s is %s, but Nova has received no event", id, arq.State)
		case words[len(words)-1] != want:
			return fmt.Errorf("request %s is %s, but Nova has received %v", id, arq.State, words)
		}
	}

	return nil
}

// The trait and the resource class that somebody else adds to a provider.
const (
	foreignTrait = "CUSTOM_NOT_OURS"
	foreignClass = "CUSTOM_NOT_OURS"
)

// checkPlacement compares the providers in Placement with the records.
func (k *checker) checkPlacement(ctx context.Context, shown map[uuid.UUID]requestView, accelerators []apiclient.Accelerator) error {
	if err := k.checkPlacementSync(ctx); err != nil {
		return err
	}

	givenByNova := map[uuid.UUID]bool{} // handles
	for _, arq := range shown {
		if arq.Handle != uuid.Nil && arq.Instance != uuid.Nil {
			givenByNova[arq.Handle] = true
		}
	}

	providers := k.cloud.placement.Providers()
	for _, host := range k.c.Hosts {
		root, ok := providers[host]
		if !ok || root.Inventories["VCPU"].Total != 8 || !slices.Contains(root.Traits, "COMPUTE_ACCELERATORS") {
			return fmt.Errorf("the compute node of %s is no longer as Nova has created it: %+v", host, root)
		}
	}

	for i := range accelerators {
		a := &accelerators[i]
		p, ok := providers[a.ProviderName]
		if !ok {
			if a.Lifecycle == cyborg.LifecycleReady {
				return fmt.Errorf("%s is ready, but has no provider", a.ProviderName)
			}
			continue // it was never in service
		}

		if err := k.checkProvider(a, &p, providers[a.Host].UUID, givenByNova); err != nil {
			return fmt.Errorf("provider %s of an accelerator that is %s: %w", a.ProviderName, a.Status, err)
		}
	}

	return nil
}

// checkProvider compares one provider with its accelerator.
func (k *checker) checkProvider(a *apiclient.Accelerator, p *placementtest.Provider, root uuid.UUID, givenByNova map[uuid.UUID]bool) error {
	class := "FPGA"
	inventory := p.Inventories[class]
	reserved := 0

	for _, h := range a.Handles {
		if h.Holder != nil && !givenByNova[h.UUID] || h.Presence != cyborg.PresencePresent {
			reserved++
		}
	}

	if a.Lifecycle != cyborg.LifecycleReady || a.Fence != nil || a.Presence != cyborg.PresencePresent || a.Admin != cyborg.AdministrationEnabled ||
		cyborg.Unready(a.Conditions) != nil {
		reserved = inventory.Total
	}
	if a.SameHolder != "" && (len(a.Holders) > 0 || len(a.HeldTogether) > 0) { // Nova has bound none of these
		reserved = inventory.Total
	}

	switch {
	case p.UUID != a.ProviderUUID || p.Parent != root:
		return fmt.Errorf("its UUID is %s below %s, but should be %s below %s", p.UUID, p.Parent, a.ProviderUUID, root)
	case inventory.Total != a.Specs.Num || inventory.MaxUnit != inventory.Total:
		return fmt.Errorf("its inventory is %+v, but the accelerator serves %d consumers", inventory, a.Specs.Num)
	case inventory.Reserved != reserved:
		return fmt.Errorf("%d are reserved, but should be %d", inventory.Reserved, reserved)
	case !slices.Contains(p.Traits, "OWNER_CYBORG") || !slices.Contains(p.Traits, "CUSTOM_FAKE_DEVICE"):
		return fmt.Errorf("its traits %v lack OWNER_CYBORG or CUSTOM_FAKE_DEVICE", p.Traits)
	case k.foreign[p.UUID] && (!slices.Contains(p.Traits, foreignTrait) || p.Inventories[foreignClass].Total != 7):
		return fmt.Errorf("the trait or inventory that somebody else added is gone: %v, %+v", p.Traits, p.Inventories)
	}
	return nil
}

// checkPlacementSync returns an error while a host counts as silent in
// Placement, or while changes of it have not been written to Placement.
func (k *checker) checkPlacementSync(ctx context.Context) error {
	return k.records(ctx, func(conn *pgx.Conn) error {
		var host, why string

		err := conn.QueryRow(ctx, "SELECT host, error FROM placement_sync WHERE done < wanted OR silent LIMIT 1").Scan(&host, &why)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("Placement is not in step with %s: %s", host, why)
	})
}

// addForeign adds a trait and an inventory of somebody else to each provider
// that has none yet. It leaves out the cards that may get into Nova's
// whitelist: their providers are deleted then, with everything in them.
func (k *checker) addForeign(ctx context.Context) error {
	providers := k.cloud.placement.Providers()
	for _, host := range k.c.Hosts {
		accelerators, err := k.driver.accelerators(ctx, host)
		if err != nil {
			return err
		}

		for _, a := range accelerators[:len(accelerators)-novaCards] {
			p, ok := providers[a.ProviderName]
			if !ok || k.foreign[p.UUID] || len(p.Inventories) == 0 {
				continue
			}

			k.foreign[p.UUID] = true
			p.Traits = append(p.Traits, foreignTrait)
			p.Inventories[foreignClass] = placementtest.Inventory{Total: 7, MinUnit: 1, MaxUnit: 7, StepSize: 1, AllocationRatio: 1}
			k.cloud.placement.Put(p)
		}
	}

	return nil
}
