package postgres

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

const (
	// answerLimit is how long a server that says it is ready may take to answer.
	answerLimit = 10 * time.Second
	// lingerLimit is how long the processes of a server whose postmaster died may take to notice and to end.
	lingerLimit = 30 * time.Second
	// statusInterval is how often the server's state is looked up while it starts.
	statusInterval = 5 * time.Millisecond
)

// start takes over the server that runs on our data, or starts one.
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
			if ctx.Err() != nil { // it may go on; we give up
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
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// launch starts a server of our own. Lingering says that it refused because something still uses the data.
func (s *Server) launch(ctx context.Context, cfg Config, acct account, inst installation, want settings, log *slog.Logger) (lingering bool, err error) {
	if err := want.write(s.layout); err != nil {
		return false, err
	}
	proc, err := s.layout.launch(acct, inst, cfg.DieWithParent) //nolint:contextcheck // the server outlives the context
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
	if stopErr := proc.stop(context.WithoutCancel(ctx)); stopErr != nil {
		return false, stopErr
	}
	return false, err
}

// configure settles where the server listens, and its settings.
func (s *Server) configure(cfg Config, acct account, running *postmaster) (settings, error) {
	s.endpoint = endpoint{socketDir: s.layout.socketDir(), port: socketPort}
	if cfg.TCP {
		var err error
		if s.endpoint.port, err = s.layout.choosePort(cfg.Port, running); err != nil {
			return settings{}, err
		}
		if s.endpoint.password, err = s.layout.password(); err != nil {
			return settings{}, err
		}
	}
	return newSettings(cfg, s.layout, acct, s.endpoint), nil
}

// takeOver makes a running server ours if it answers, and was started with the settings that we want.
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
	s.proc, s.adopted = running, true
	log.InfoContext(ctx, "took over the PostgreSQL that an earlier process of ours left running")
	return true
}

// awaitReady returns when the server answers, with an error when it ends instead or the context does. A recovery after
// a crash may take long, and is reported meanwhile.
func (s *Server) awaitReady(ctx context.Context, proc *postmaster, log *slog.Logger) error {
	poll, report := time.NewTicker(statusInterval), time.NewTicker(10*time.Second)
	defer poll.Stop()
	defer report.Stop()
	for {
		info, ok, err := s.layout.readPIDFile()
		if err != nil {
			return err
		}
		if ok && info.pid == proc.pid {
			switch info.status {
			case "ready":
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

// ask runs a query that returns one text, within answerLimit.
func (s *Server) ask(ctx context.Context, sql string) (answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	err = s.connected(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql).Scan(&answer)
	})
	return answer, err
}

func (s *Server) exec(ctx context.Context, sql string) error {
	return s.connected(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

// connected does something with a connection of its own to the server.
func (s *Server) connected(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.URL(maintenance))
	if err == nil {
		err = do(ctx, conn)
		_ = conn.Close(context.WithoutCancel(ctx)) // nothing is lost with this connection
	}
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "PostgreSQL runs, and cannot be asked: %w", err)
	}
	return nil
}

// stillInUse recognises PostgreSQL's refusal to start while another server, or what is left of one, uses the data.
func stillInUse(output string) bool {
	return strings.Contains(output, "is still in use") || strings.Contains(output, `lock file "postmaster.pid" already exists`)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
