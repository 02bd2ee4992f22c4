// Package adopt moves an OpenStack Cyborg in: it reads that one's database and makes its devices, deployables, attach
// handles, device profiles and accelerator requests ours, with their UUIDs. It writes through the store only, and must not
// import the API or a workflow.
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

// adopter is who adopts, in the history; it also stands for the driver of what no report has shown yet.
const adopter = "openstack"

// Report says what an adoption did, or would do.
type Report struct {
	Refused []Remark
	Notes   []Remark
	Adopted db.Adopted
	Applied bool
}

// Store is what takes the adoption. *db.Store does.
type Store interface {
	Adopt(ctx context.Context, in db.Adoption, actor cyborg.Actor, apply bool) (db.Adopted, error)
}

// Run reads the records of the OpenStack Cyborg whose database has that URL, and adopts them where apply says so and
// nothing stands against it. It changes nothing there. Errors: Invalid for the URL, Unavailable for a database that does not
// answer, Unsupported for a schema that is not known.
func Run(ctx context.Context, from string, store Store, apply bool, log *slog.Logger) (Report, error) {
	source, err := open(from)
	if err != nil {
		return Report{}, err
	}
	defer func() { _ = source.db.Close() }() // it was only read
	records, err := source.read(ctx)
	if err != nil {
		return Report{}, err
	}
	understood := convert(records)
	report := Report{Refused: understood.refused, Notes: understood.notes}
	if len(report.Refused) > 0 {
		return report, nil
	}
	report.Adopted, err = store.Adopt(ctx, understood.adoption, cyborg.Actor{Name: adopter}, apply)
	if err != nil {
		return report, err
	}
	report.Applied = apply && len(report.Adopted.Conflicts) == 0
	log.InfoContext(ctx, "adoption", slog.Bool("applied", report.Applied), slog.Int("refused", len(report.Refused)),
		slog.Int("conflicts", len(report.Adopted.Conflicts)))
	return report, nil
}

// Refusal is the error of a report in which something stands against the adoption, else nil.
func (r Report) Refusal() error {
	if n := len(r.Refused) + len(r.Adopted.Conflicts); n > 0 {
		return cyborg.Errorf(cyborg.ErrChanged, "%d rows cannot be adopted, so nothing was", n).
			WithHint("Mend them in OpenStack Cyborg, or here, as the report says, and try again.")
	}
	return nil
}

// Write writes the report for people.
func (r Report) Write(w io.Writer) {
	fresh := false
	for _, kind := range []db.AdoptionKind{db.AdoptProfile, db.AdoptDevice, db.AdoptDeployable, db.AdoptHandle, db.AdoptARQ} {
		count, counted := r.Adopted.Counts[kind]
		if !counted { // what is refused is not compared with our records
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
