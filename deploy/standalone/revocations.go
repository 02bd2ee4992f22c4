package main

import (
	"cmp"
	"context"
	"log/slog"
	"sync"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/revocation"
)

// revocations are what a Temporal that runs apart knows of revoked hosts: it
// looks at the records every second, as the servers do.
type revocations struct {
	list *revocation.List
	stop func()
}

// followRevocations looks at the records once, and then again and again until it
// is stopped. The error is that of the first look.
func followRevocations(ctx context.Context, c *config.Config, log *slog.Logger) (revocations, error) {
	records, err := db.OpenRevocations(ctx, cmp.Or(c.Standalone.TemporalRecords, c.Database.URL).Reveal())
	if err != nil {
		return revocations{}, err
	}

	// It keeps no file: the servers put back what the records lose in a restore.
	list, from := revocation.New(c.Identity.TrustDomain, "", log), &reading{from: records.Read, log: log}
	if err := list.Load(ctx, from); err != nil {
		records.Close()
		return revocations{}, cyborg.Errorf(cyborg.ErrorKindOf(err), "which hosts were revoked cannot be read in the records: %w", err).
			WithHint("The database of standalone.temporal_records, or else of database.url, must answer, and let its role read the table host_identities.")
	}

	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() {
		if err := list.Follow(ctx, from); err != nil {
			log.ErrorContext(ctx, "revoked hosts are no longer looked for", slog.String("error", err.Error()))
		}
	})
	return revocations{list, func() { cancel(); following.Wait(); records.Close() }}, nil
}

// reading reads the records one time after the other.
type reading struct {
	from  func(ctx context.Context) (map[string]int64, error)
	log   *slog.Logger
	began bool
	there bool // the records were there
}

// RevokedHosts returns what was revoked. Temporal may run before the records are made, or
// where they never are. In a database without records nothing was revoked, but
// once they were there, their absence means that nothing is known.
func (r *reading) RevokedHosts(ctx context.Context) (map[string]int64, error) {
	revoked, err := r.from(ctx)
	absent := cyborg.ErrorKindOf(err) == cyborg.ErrNotFound && !r.there

	switch {
	case absent && !r.began:
		r.log.WarnContext(ctx, "the database has no records of Cyborg: until it has, a host that is revoked can still poll its queue and gets its steps. "+
			"If the records are in another database, name it in standalone.temporal_records")
	case err == nil && r.began && !r.there:
		r.log.InfoContext(ctx, "the database has records of Cyborg now: revoked hosts are refused from here on")
	}

	r.began, r.there = true, r.there || err == nil
	if absent {
		return map[string]int64{}, nil
	}
	return revoked, err
}

// RestoreRevocations leaves it to the servers, because a role that may read the
// records is enough here.
func (*reading) RestoreRevocations(context.Context, map[string]int64) error {
	return cyborg.Errorf(cyborg.ErrUnsupported, "the servers do that; this process only reads the records")
}
