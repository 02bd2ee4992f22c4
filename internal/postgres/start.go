package postgres

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/clock"
)

const (
	// answerLimit is how long a server that is ready may take to answer a query.
	answerLimit = 10 * time.Second
	// lingerLimit is how long start waits for the processes of a server whose
	// postmaster died: they notice that and end, but not at once.
	lingerLimit = 30 * time.Second
	// statusInterval is how often the pid file is read while the server starts.
	statusInterval = 5 * time.Millisecond
)

// start takes over the server that runs on the data, or starts one. A running
// server with other settings is stopped first. If processes of an earlier
// server still use the data, start tries again until lingerLimit.
func (s *Server) start(ctx context.Context, cfg Config, acct account, inst installation, log *slog.Logger) error {
	deadline := time.Now().Add(lingerLimit)
	for {
		running, err := s.layout.findPostmaster()
		if err != nil {
			return err
		}

		want, err := s.configure(cfg, acct, running)
		if err != nil {
			return err
		}

		if running != nil {
			if s.takeOver(ctx, running, want.fingerprint, log) {
				return nil
			}

			// The context ended before it was known whether the running server can be taken
			// over. It is left as it is.
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := running.stop(ctx); err != nil {
				return err
			}
		}

		lingering, err := s.launch(ctx, cfg, acct, inst, want, log)
		if err == nil || !lingering || time.Now().After(deadline) {
			return err
		}

		log.InfoContext(ctx, "waiting for the last processes of an earlier PostgreSQL to end")
		if err := clock.Sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// launch writes the configuration, starts a server and waits until it answers.
// The result lingering is true if the server refused to start because processes
// of an earlier one still use the data.
func (s *Server) launch(ctx context.Context, cfg Config, acct account, inst installation, want settings, log *slog.Logger) (lingering bool, err error) {
	if err := want.write(s.layout); err != nil {
		return false, err
	}

	proc, err := s.layout.launch(acct, inst, cfg) //nolint:contextcheck // the server outlives the context
	if err != nil {
		return false, err
	}
	s.proc = proc

	err = s.awaitReady(ctx, proc, log)
	if err == nil && s.endpoint.password != "" {
		err = s.exec(ctx, "ALTER ROLE "+role+" PASSWORD "+quote(s.endpoint.password, "'"))
	}

	if err == nil {
		return false, nil
	}

	if proc.gone() {
		return stillInUse(s.layout.log().since(proc.logged)), proc.death(s.layout.log())
	}

	// The caller gets no Server and so could not stop it. The context may have
	// ended, which must not keep the server from being stopped.
	if stopErr := proc.stop(context.WithoutCancel(ctx)); stopErr != nil {
		return false, stopErr
	}
	return false, err
}

// configure sets where the server listens, and returns the settings for it.
func (s *Server) configure(cfg Config, acct account, running *postmaster) (settings, error) {
	s.endpoint = endpoint{socketDir: s.layout.socketDir(), port: socketPort}

	if cfg.TCP {
		var err error
		s.endpoint.port, err = s.layout.choosePort(cfg.Port, running)
		if err != nil {
			return settings{}, err
		}

		s.endpoint.password, err = s.layout.password()
		if err != nil {
			return settings{}, err
		}
	}

	return newSettings(cfg, s.layout, acct, s.endpoint), nil
}

// takeOver makes the running server the one of s if it answers and was started
// with the settings that are wanted. It returns whether it did.
func (s *Server) takeOver(ctx context.Context, running *postmaster, fingerprint string, log *slog.Logger) bool {
	log = log.With(slog.Int("pid", running.pid))

	var has string
	err := s.awaitReady(ctx, running, log)
	if err == nil {
		has, err = s.ask(ctx, "SELECT coalesce(current_setting('"+fingerprintSetting+"', true), '')")
	}

	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		log.WarnContext(ctx, "an earlier PostgreSQL of ours still runs and does not answer: restarting it", slog.Any("error", err))
		return false
	case has != fingerprint:
		log.InfoContext(ctx, "an earlier PostgreSQL of ours still runs, with other settings: restarting it")
		return false
	}

	s.proc, s.tookOver = running, true
	log.InfoContext(ctx, "took over the PostgreSQL that an earlier process of ours left running")
	return true
}

// awaitReady waits until the server answers. It returns an error if the server
// or the context ends first. A recovery after a crash may take long, so
// awaitReady logs every ten seconds what the server does.
func (s *Server) awaitReady(ctx context.Context, proc *postmaster, log *slog.Logger) error {
	poll, report := time.NewTicker(statusInterval), time.NewTicker(10*time.Second)
	defer poll.Stop()
	defer report.Stop()

	for {
		info, ok, err := s.layout.readPIDFile()
		if err != nil {
			return err
		}

		// A child that has just started may not have replaced the pid file of an
		// earlier server yet.
		if ok && info.pid == proc.pid {
			switch info.status {
			case "ready":
				// PostgreSQL writes that it is ready. Only an answer proves that this process
				// can connect.
				_, err := s.ask(ctx, "SELECT 'here'")
				return err
			case "stopping":
				return cyborg.Errorf(cyborg.ErrUnavailable, "PostgreSQL (process %d) is stopping", proc.pid)
			}
		}

		select {
		case <-proc.done:
			return proc.death(s.layout.log())
		case <-ctx.Done():
			return cyborg.Errorf(cyborg.ErrTimeout, "PostgreSQL is not ready, its state is %q: %w",
				cmp.Or(info.status, "unknown"), context.Cause(ctx))
		case <-report.C:
			log.InfoContext(ctx, "PostgreSQL is still starting", slog.String("log", lastWords(s.layout.log().since(proc.logged))))
		case <-poll.C:
		}
	}
}

// ask runs a query that returns one text, and waits answerLimit for the answer.
func (s *Server) ask(ctx context.Context, sql string) (answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	err = s.connected(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql).Scan(&answer)
	})
	return answer, err
}

// exec runs a statement that returns nothing.
func (s *Server) exec(ctx context.Context, sql string) error {
	return s.connected(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

// connected calls do with a new connection to the server, and closes it
// afterwards.
func (s *Server) connected(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.URL(maintenance))
	if err == nil {
		err = do(ctx, conn)
		_ = conn.Close(context.WithoutCancel(ctx)) // the work with it is done
	}

	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "PostgreSQL runs, and cannot be asked: %w", err)
	}
	return nil
}

// stillInUse reports whether the output has PostgreSQL's refusal to start
// because another server, or a remaining process of one, uses the data.
func stillInUse(output string) bool {
	return strings.Contains(output, "is still in use") || strings.Contains(output, `lock file "postmaster.pid" already exists`)
}
