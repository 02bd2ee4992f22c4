package inventory

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// InviteHost records that whoever shows the token may get a certificate of the
// host, once, within the given time. An invitation that is open is replaced. The
// host need not be known. It returns when the invitation ends, by the database's
// clock.
func (s *Store) InviteHost(ctx context.Context, host, token string, within time.Duration, actor cyborg.Actor) (until time.Time, err error) {
	hash := sha256.Sum256([]byte(token))
	err = s.db.Change(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		if err := records.LockHosts(ctx, tx, host); err != nil {
			return err
		}

		return tx.QueryRow(ctx, `
			INSERT INTO host_identities AS i (host, state, token_hash, token_expires_at)
			VALUES ($1, 'invited', $2, clock_timestamp() + $3::interval)
			ON CONFLICT (host) DO UPDATE SET state = 'invited', token_hash = EXCLUDED.token_hash, token_expires_at = EXCLUDED.token_expires_at
			RETURNING token_expires_at`, host, hash[:], within).Scan(&until)
	})
	return until, err
}

// drawEnrollment is the number after that of a row i: milliseconds since 1970. So it
// is also above all that the records have lost in a restore, as long as no clock
// was set back, and above all that they have if one was.
const drawEnrollment = "greatest(i.enrollment + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"

// EnrollHost uses up the invitation with the token, and returns the number of the
// enrollment, which the host's certificates bear. Of several calls with one token,
// one succeeds. The error is of kind ErrUnauthenticated where there is no such
// invitation, or not any more; and of kind ErrForbidden where it is for another
// host, which does not use it up.
func (s *Store) EnrollHost(ctx context.Context, host, token string) (enrollment int64, err error) {
	hash := sha256.Sum256([]byte(token))

	// Whoever has no token must not get as far as the lock of a host.
	var invited string
	err = s.db.Pool.QueryRow(ctx, "SELECT host FROM host_identities WHERE token_hash = $1", hash[:]).Scan(&invited)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, notInvited()
	case err != nil:
		return 0, s.db.Failure(ctx, err)
	case invited != host:
		return 0, cyborg.Errorf(cyborg.ErrForbidden, "the token is for host %s, and this agent is that of %s", invited, host).
			WithHint("Set agent.host to the name for which the token was made. Upper and lower case differ.")
	}

	err = s.db.Change(ctx, cyborg.Actor{Name: "agent"}, uuid.Nil, func(tx pgx.Tx) error {
		if err := records.LockHosts(ctx, tx, host); err != nil {
			return err
		}

		err := tx.QueryRow(ctx, `
			UPDATE host_identities AS i SET state = 'enrolled', token_hash = NULL, token_expires_at = NULL, enrollment = `+drawEnrollment+`
			WHERE host = $1 AND token_hash = $2 AND token_expires_at > clock_timestamp() RETURNING enrollment`, host, hash[:]).Scan(&enrollment)
		if errors.Is(err, pgx.ErrNoRows) {
			return notInvited()
		}
		return err
	})
	return enrollment, err
}

// notInvited is the error for a token of no open invitation.
func notInvited() error {
	return cyborg.Errorf(cyborg.ErrUnauthenticated, "there is no invitation with this token, or not any more").
		WithHint("A token is good once, and for a short time only. Make another one with cyborg host enroll.")
}

// CheckHostIdentity returns an error of kind ErrForbidden if certificates of this
// enrollment of the host were revoked; 0 is the number of those that somebody else
// has made.
func (s *Store) CheckHostIdentity(ctx context.Context, host string, enrollment int64) error {
	var revoked bool
	err := s.db.Pool.QueryRow(ctx, "SELECT coalesce((SELECT revoked_through >= $2 FROM host_identities WHERE host = $1), false)",
		host, enrollment).Scan(&revoked)
	if err != nil {
		return s.db.Failure(ctx, err)
	}
	if revoked {
		return Revoked(host)
	}
	return nil
}

// Revoked is the error for a certificate of a host that was revoked.
func Revoked(host string) error {
	return cyborg.Errorf(cyborg.ErrForbidden, "the certificate of host %s was revoked", host).
		WithHint("Enroll the host again: cyborg host enroll %s.", host)
}

// RevokeHost makes all certificates of the host count no more that it has got
// until now, from us or from anybody else, and ends its invitation. Afterwards it
// can be invited anew. It draws a number as an enrollment does, so it is also about
// an enrollment that the records have lost in a restore. The error is of kind
// ErrNotFound for a host that neither reports nor was ever invited, and of kind
// ErrChanged for one whose agent is in the process of a server and is heard: it has
// no certificate that could count no more.
func (s *Store) RevokeHost(ctx context.Context, host, reason string, actor cyborg.Actor) error {
	return s.db.Change(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		if err := records.LockHosts(ctx, tx, host); err != nil {
			return err
		}

		var instance string
		err := tx.QueryRow(ctx, "SELECT instance FROM hosts WHERE name = $1 AND "+records.Within("last_seen", "$2::interval"), host, s.db.Options.SilentAfter).
			Scan(&instance)
		switch {
		case err == nil && agentapi.IsInProcess(instance):
			return cyborg.Errorf(cyborg.ErrChanged, "the agent of host %s runs in a server's own process, and has no certificate that could be revoked", host).
				WithHint("To stop it, take the host out of standalone.hosts and start that server again. Once the host is silent, revoke what certificates others have of it.")
		case err != nil && !errors.Is(err, pgx.ErrNoRows):
			return err
		}

		tag, err := tx.Exec(ctx, `
			WITH i AS (
				SELECT enrollment FROM host_identities WHERE host = $1
				UNION ALL SELECT 0 WHERE EXISTS (SELECT FROM hosts WHERE name = $1)
				ORDER BY enrollment DESC LIMIT 1),
			drawn AS (SELECT `+drawEnrollment+` AS number FROM i)
			INSERT INTO host_identities (host, state, enrollment, revoke_reason, revoked_through)
			SELECT $1, 'revoked', number, $2, number FROM drawn
			ON CONFLICT (host) DO UPDATE SET state = 'revoked', token_hash = NULL, token_expires_at = NULL,
				enrollment = EXCLUDED.enrollment, revoked_through = EXCLUDED.revoked_through, revoke_reason = EXCLUDED.revoke_reason`, host, reason)
		if err == nil && tag.RowsAffected() == 0 {
			return records.NoHost(host)
		}
		return err
	})
}

// RevokedHosts returns, by host, through which enrollment its certificates were
// revoked.
func (s *Store) RevokedHosts(ctx context.Context) (map[string]int64, error) {
	rows, err := s.db.Pool.Query(ctx, "SELECT host, revoked_through FROM host_identities WHERE revoked_through >= 0")
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	revoked, host, through := map[string]int64{}, "", int64(0)
	_, err = pgx.ForEachRow(rows, []any{&host, &through}, func() error {
		revoked[host] = through
		return nil
	})
	return revoked, s.db.Failure(ctx, err)
}

// RestoreRevocations records again what the records have lost: by host, through
// which enrollment its certificates were revoked. It changes nothing where they
// know of as much. A host that was enrolled later stays enrolled.
func (s *Store) RestoreRevocations(ctx context.Context, revoked map[string]int64) error {
	hosts := slices.Sorted(maps.Keys(revoked))
	through := make([]int64, len(hosts))
	for i, host := range hosts {
		through[i] = revoked[host]
	}

	return s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		if err := records.LockHosts(ctx, tx, hosts...); err != nil {
			return err
		}

		_, err := tx.Exec(ctx, `
			INSERT INTO host_identities AS i (host, state, enrollment, revoke_reason, revoked_through)
			SELECT host, 'revoked', through, 'the records had lost a revocation', through FROM unnest($1::text[], $2::bigint[]) AS lost (host, through)
			ON CONFLICT (host) DO UPDATE SET revoked_through = EXCLUDED.revoked_through, revoke_reason = EXCLUDED.revoke_reason,
				enrollment = greatest(i.enrollment, EXCLUDED.enrollment),
				state = CASE WHEN i.enrollment > EXCLUDED.enrollment THEN i.state ELSE 'revoked' END,
				token_hash = CASE WHEN i.enrollment > EXCLUDED.enrollment THEN i.token_hash END,
				token_expires_at = CASE WHEN i.enrollment > EXCLUDED.enrollment THEN i.token_expires_at END
			WHERE i.revoked_through < EXCLUDED.revoked_through`, hosts, through)
		return err
	})
}
