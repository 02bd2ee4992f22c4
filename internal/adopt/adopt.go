// Package adopt takes over the records of an OpenStack Cyborg: it reads that
// service's database and copies its devices, deployables, attach handles,
// device profiles and accelerator requests into ours, with their UUIDs. It
// writes only through the store, and must not import the API or a workflow.
package adopt

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// adopter is the actor in the history of adopted rows. It also stands for the
// driver of devices that no report has shown yet.
const adopter = "openstack"

// Report is what an adoption did, or would do.
type Report struct {
	Refused []Remark // rows that cannot be adopted
	Notes   []Remark // rows that are adopted with a change
	Adopted db.Adopted
	Applied bool // false if nothing was written
}

// Store is what writes the adoption; *db.Store implements it. Without apply it
// only compares.
type Store interface {
	Adopt(ctx context.Context, in db.Adoption, actor cyborg.Actor, apply bool) (db.Adopted, error)
}

// Run reads the records of the OpenStack Cyborg whose database has that URL. It
// adopts them if apply is true and if no row is refused or in conflict with
// ours: all rows or none. It changes nothing in that database. Errors:
// ErrInvalid for the URL, ErrUnavailable for a database that does not answer,
// ErrUnsupported for a schema that is not known.
func Run(ctx context.Context, from string, store Store, apply bool, log *slog.Logger) (Report, error) {
	source, err := open(from)
	if err != nil {
		return Report{}, err
	}
	defer func() { _ = source.db.Close() }() // nothing was written, so nothing can be lost

	records, err := source.read(ctx)
	if err != nil {
		return Report{}, err
	}

	// A refused row ends the adoption before the store is asked: what is left of
	// the records would be incomplete.
	converted := convert(records)
	report := Report{Refused: converted.refused, Notes: converted.notes}
	if len(report.Refused) > 0 {
		return report, nil
	}

	report.Adopted, err = store.Adopt(ctx, converted.adoption, cyborg.Actor{Name: adopter}, apply)
	if err != nil {
		return report, err
	}

	// The store writes nothing if there is a conflict with our records.
	report.Applied = apply && len(report.Adopted.Conflicts) == 0

	log.InfoContext(ctx, "adoption", slog.Bool("applied", report.Applied), slog.Int("refused", len(report.Refused)),
		slog.Int("conflicts", len(report.Adopted.Conflicts)))

	return report, nil
}

// Refusal returns an error if a row prevents the adoption, otherwise nil.
func (r Report) Refusal() error {
	if n := len(r.Refused) + len(r.Adopted.Conflicts); n > 0 {
		return cyborg.Errorf(cyborg.ErrChanged, "%d rows cannot be adopted, so nothing was", n).
			WithHint("Mend them in OpenStack Cyborg, or here, as the report says, and try again.")
	}
	return nil
}

// Write writes the report as text for people.
func (r Report) Write(w io.Writer) {
	fresh := false
	for _, kind := range []db.AdoptionKind{db.AdoptProfile, db.AdoptDevice, db.AdoptDeployable, db.AdoptHandle, db.AdoptARQ} {
		count, counted := r.Adopted.Counts[kind]
		if !counted { // with refused rows, nothing is compared with our records
			break
		}

		fresh = fresh || count.New > 0
		fmt.Fprintf(w, "%-20s %6d new, %d adopted before\n", strings.ReplaceAll(string(kind), "_", " ")+"s", count.New, count.Already)
	}

	for _, note := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", note)
	}

	for _, refused := range r.Refused {
		fmt.Fprintf(w, "refused: %s\n", refused)
	}

	for _, conflict := range r.Adopted.Conflicts {
		fmt.Fprintf(w, "refused: %s %s: %s\n", conflict.Kind, conflict.UUID, conflict.Why)
	}

	switch {
	case r.Refusal() != nil:
	case !fresh:
		fmt.Fprintln(w, "There is nothing new to adopt.")
	case r.Applied:
		fmt.Fprintln(w, "Adopted.")
	default:
		fmt.Fprintln(w, "Nothing was changed; --apply adopts this.")
	}
}
