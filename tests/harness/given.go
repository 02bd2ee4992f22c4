package harness

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// told is one change of an accelerator, as the feed tells it.
type told struct {
	cursor            cyborg.Cursor
	host, accelerator string
	axis              cyborg.EventAxis
	to                string
	handle            string               // of which the holder changes
	kind              cyborg.OperationKind // of the operation that has done it; empty where none has
}

// known is what the feed has told of an accelerator so far.
type known struct {
	host, accelerator string
	together          string // what it has in common with those that go to one holder with it
	unready           string // what its driver says, where that keeps it from everybody
	nova              bool
	holders           map[string]string // by handle
}

// misgiven follows the feed, and returns an error where somebody was given what
// nobody may get at that moment: what was recorded as unready, or what goes to one
// holder with what somebody else has. Nova is somebody else for all who have a handle.
// Only who gets something is judged: a report may find that two that are given out
// go to one holder since a boot.
func misgiven(feed []told) error {
	all := map[string]*known{}
	for _, e := range feed {
		a := all[e.accelerator]
		if a == nil {
			a = &known{host: e.host, accelerator: e.accelerator, holders: map[string]string{}}
			all[e.accelerator] = a
		}

		switch e.axis {
		case cyborg.AxisPresence:
			if e.to == "" { // it has left the records
				delete(all, e.accelerator)
			}
		case cyborg.AxisSameHolder:
			a.together = e.to
		case cyborg.AxisConditions: // the most severe comes first
			a.unready = ""
			if strings.HasPrefix(e.to, string(cyborg.ConditionUnready)) {
				a.unready = e.to
			}
		case cyborg.AxisNovaWhitelist:
			given := e.to != "" && !a.nova
			a.nova = e.to != ""
			if given {
				if err := a.wrongFor(e, "", all); err != nil {
					return err
				}
			}
		case cyborg.AxisHolder:
			holder := strings.TrimSuffix(e.to, inDoubt)
			given := holder != "" && holder != a.holders[e.handle]
			a.holders[e.handle] = holder
			if given {
				if err := a.wrongFor(e, holder, all); err != nil {
					return err
				}
			}
		default: // it says nothing of who may get what
		}
	}
	return nil
}

// wrongFor returns an error where the accelerator must not be given to a holder, or
// to Nova, which is the empty one. What no operation has given was found with its
// holder, whatever its driver says of it.
func (a *known) wrongFor(e told, holder string, all map[string]*known) error {
	if a.unready != "" && e.kind != "" {
		return fmt.Errorf("event %v: %s gives %q accelerator %s, which is recorded as %s", e.cursor, e.kind, holder, a.accelerator, a.unready)
	}
	if a.together == "" {
		return nil
	}

	for _, other := range all {
		if other.host != a.host || other.together != a.together {
			continue
		}
		if other.nova && holder != "" {
			return fmt.Errorf("event %v: %q gets accelerator %s, and Nova has %s, which shares %s with it", e.cursor, holder, a.accelerator, other.accelerator, a.together)
		}
		for handle, has := range other.holders {
			if has != "" && has != holder {
				return fmt.Errorf("event %v: %q gets a handle of accelerator %s, and %q has handle %s of %s, which shares %s with it",
					e.cursor, holder, a.accelerator, has, handle, other.accelerator, a.together)
			}
		}
	}
	return nil
}

// unsoundGifts returns an error where somebody was given, at any time, what nobody
// may get.
func (s *System) unsoundGifts(ctx context.Context) error {
	address, err := s.DatabaseURL()
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written

	rows, err := conn.Query(ctx, `
		SELECT e.transaction::text::bigint, e.id, e.host, e.subject_id, e.axis, e.to_value, coalesce(e.data->>'handle', ''), coalesce(o.kind, '')
		FROM events e LEFT JOIN operations o ON o.id = e.operation_id
		WHERE e.subject_kind = $1 AND e.axis = ANY($2) ORDER BY e.transaction, e.id`, string(cyborg.SubjectAccelerator),
		[]string{string(cyborg.AxisPresence), string(cyborg.AxisSameHolder), string(cyborg.AxisConditions), string(cyborg.AxisNovaWhitelist), string(cyborg.AxisHolder)})
	if err != nil {
		return err
	}
	feed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e told, err error) {
		err = row.Scan(&e.cursor.Transaction, &e.cursor.Event, &e.host, &e.accelerator, (*string)(&e.axis), &e.to, &e.handle, (*string)(&e.kind))
		return e, err
	})
	if err != nil {
		return err
	}
	return misgiven(feed)
}

// unsoundConditions compares what the records say about an accelerator with what its
// card says. A card that its host does not show says nothing more.
func unsoundConditions(a *apiclient.Accelerator, region *fake.Region) error {
	if a.Presence != cyborg.PresencePresent {
		return nil
	}

	recorded := slices.Clone(a.Conditions)
	for i := range recorded {
		recorded[i] = cyborg.Condition{Code: recorded[i].Code, Level: recorded[i].Level, Message: recorded[i].Message}
	}
	if said := cyborg.SortConditions(slices.Concat(region.Conditions, region.Health)); !slices.Equal(recorded, said) {
		return fmt.Errorf("its conditions are %v in the records and %v on the card", recorded, said)
	}
	return nil
}
