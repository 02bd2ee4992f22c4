package inventory

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// A host whose certificates were revoked gets no step until it is enrolled anew, so
// what it would have to do is refused as soon as it is asked for. An operation that
// waited for it in vain would keep the accelerator, and what it does not hand out can
// not be lost half done.

// RevokedSQL is an SQL condition about a host, of the table hosts under an alias: its
// certificates were revoked, and it was not enrolled again. An agent in a server's own
// process shows none; where the last one of the host was such, the host counts as
// silent soon, and does not count as revoked.
func RevokedSQL(alias string) string {
	return "(EXISTS (SELECT FROM host_identities i WHERE i.host = " + alias + ".name AND i.revoked_through = i.enrollment) AND length(" + alias +
		".instance) <> " + strconv.Itoa(agentapi.InProcessLength) + ")"
}

// CheckEnrolled is Accelerator.Enrolled for what a host is asked that is about none of
// its accelerators. The error is of kind ErrNotFound where there is no such host.
func CheckEnrolled(ctx context.Context, tx pgx.Tx, host string) error {
	var revoked bool
	err := tx.QueryRow(ctx, "SELECT "+RevokedSQL("h")+" FROM hosts h WHERE h.name = $1", host).Scan(&revoked)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return records.NoHost(host)
	case err == nil && revoked:
		return revokedHost(host)
	}
	return err
}

// revokedHost is the error for a host that nobody can ask.
func revokedHost(host string) error {
	return cyborg.Errorf(cyborg.ErrHostSilent, "host %s cannot be asked for anything: its certificates were revoked", host).
		WithHint("Enroll it again, with cyborg host enroll %s. If it will not come back, detach what it has by force, and forget the host.", host)
}
