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
	// database is the name of our own among the server's; Temporal has two more.
	database = "cyborg"
	// connectLimit is how long a configured PostgreSQL may take to answer.
	connectLimit = 10 * time.Second
)

// records is the PostgreSQL that holds everything.
type records struct {
	url  func(database string) string
	done <-chan struct{} // closed when a private one has ended; nil for one that is somebody else's
	err  func() error    // why it has
}

// database starts the private PostgreSQL, or takes the one that is configured.
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
	if pg.Adopted() {
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

// urlsBeside returns the URLs of the databases in the PostgreSQL of a configured one.
func urlsBeside(configured string) (func(name string) string, error) {
	base, err := url.Parse(configured)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "database.url cannot be read") // the error would show the password
	}
	return func(name string) string {
		if name == database {
			return configured // whatever its own name is
		}
		u := *base
		u.Path = "/" + name
		return u.String()
	}, nil
}

// reach says in a sentence why the configured PostgreSQL cannot be used.
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
	if failure, ok := errors.AsType[*net.OpError](err); ok { // without a line for each address and each try
		err = failure.Err
	}
	return cyborg.Errorf(cyborg.ErrUnavailable, "the PostgreSQL at %s does not answer: %w", s.config.Database.URL, err)
}
