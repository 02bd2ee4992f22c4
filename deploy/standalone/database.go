package main

import (
	"context"
	"errors"
	"net"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

const (
	// database is the name of Cyborg's database in the private PostgreSQL. Temporal
	// has two more in the same server.
	database = "cyborg"
	// connectLimit is how long a configured PostgreSQL may take to answer at the
	// start.
	connectLimit = 10 * time.Second
)

// records is the PostgreSQL server that holds the records and Temporal's state.
type records struct {
	url  func(database string) string // the connection URL of a database
	done <-chan struct{}              // closed when a private server has ended; nil for a configured one
	err  func() error                 // why the private server has ended
}

// database starts the private PostgreSQL, or uses the one that is configured.
func (s *standalone) database(ctx context.Context) (records, error) {
	if s.config.Database.URL != "" {
		return s.configuredDatabase(ctx)
	}

	began := time.Now()
	pg, err := postgres.Start(ctx, postgres.Config{Dir: s.state.Join("postgres")}, s.log)
	if err != nil {
		return records{}, err
	}

	s.later(pg.Stop)
	how := "started"
	if pg.TookOver() {
		how = "taken over from a process that was killed"
	}
	s.say("PostgreSQL is ready (%s, %s).", how, since(began))

	why := func() error {
		if err := pg.Err(); err != nil {
			return err
		}
		return cyborg.Errorf(cyborg.ErrUnavailable, "somebody stopped it")
	}

	return records{url: pg.URL, done: pg.Done(), err: why}, pg.CreateDatabase(ctx, database)
}

// configuredDatabase uses the PostgreSQL of database.url, after a check that it
// answers.
func (s *standalone) configuredDatabase(ctx context.Context) (records, error) {
	configured := s.config.Database.URL.Reveal()
	urls, err := urlsBeside(configured)
	if err != nil {
		return records{}, err
	}

	if err := s.reach(ctx, configured); err != nil {
		return records{}, err
	}

	s.say("Using the PostgreSQL at %s.", s.config.Database.URL)
	return records{url: urls}, nil
}

// urlsBeside returns a function that makes the URL of a database by its name.
// The configured URL is that of Cyborg's own database; the others are in the
// same server.
func urlsBeside(configured string) (func(name string) string, error) {
	base, err := url.Parse(configured)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "database.url cannot be read") // the error would show the password
	}

	return func(name string) string {
		if name == database {
			return configured // the operator may have given it another name
		}

		u := *base
		u.Path = "/" + name
		return u.String()
	}, nil
}

// reach connects to the configured PostgreSQL once. If that fails, the error
// says why in one sentence.
func (s *standalone) reach(ctx context.Context, configured string) error {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()

	conn, err := pgx.Connect(ctx, configured)
	if err == nil {
		return conn.Close(ctx)
	}

	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		return cyborg.Errorf(cyborg.ErrInvalid, "the PostgreSQL at %s refuses the connection: %s", s.config.Database.URL, refusal.Message).
			WithHint("Correct --database-url, or leave it out to have a private PostgreSQL.")
	}

	if failure, ok := errors.AsType[*net.OpError](err); ok { // pgx lists each address and each attempt in a line
		err = failure.Err
	}

	return cyborg.Errorf(cyborg.ErrUnavailable, "the PostgreSQL at %s does not answer: %w", s.config.Database.URL, err)
}
