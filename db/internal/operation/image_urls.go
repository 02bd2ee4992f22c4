package operation

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// ImageURL is the permission for one host to fetch one image for a running
// operation. Its key is a part of the URL, and only its hash is in the records:
// release 0.1 had a secret there, and its operations may still run.
type ImageURL struct {
	Operation   uuid.UUID
	Accelerator uuid.UUID
	Host        string
	Asked       cyborg.Image // what the operation asks for; read by GrantImage only
	Image       cyborg.Image // what was found for it
	Size        int64        // bytes
	// Valid is how long the URL can be used, from now and again from each use.
	Valid time.Duration
}

// GrantImage makes the URL with that key the one of its operation and
// accelerator, and an earlier URL invalid. It keeps which image was found for them
// first, and returns that: a run that asks again gets the same answer, and what was
// signed and what is recorded at the end is the same.
//
// The error is of kind ErrChanged where no such operation runs on the host,
// ErrSuperseded where another run has it, and ErrForbidden where it does not ask
// for that image for that accelerator.
func (s *Store) GrantImage(ctx context.Context, run Run, url ImageURL, key string) (ImageURL, error) {
	hash := sha256.Sum256([]byte(key))

	err := s.db.ChangeByKey(ctx, cyborg.Actor{}, url.Operation, func(tx pgx.Tx) error {
		o, err := s.lockOperation(ctx, tx, url.Operation)
		if err != nil {
			return err
		}

		if o.state != cyborg.OperationRunning || o.host != url.Host {
			return cyborg.Errorf(cyborg.ErrChanged, "operation %s does not run on host %q", url.Operation, url.Host)
		}
		if err := o.requireOwner(ctx, tx, run); err != nil {
			return err
		}

		asks := slices.ContainsFunc(o.loads(), func(load cyborg.ImageLoad) bool {
			return load.Accelerator == url.Accelerator && load.Image.WithoutQuery() == url.Asked.WithoutQuery()
		})
		if !asks {
			return cyborg.Errorf(cyborg.ErrForbidden, "operation %s does not load the image %q into accelerator %s",
				url.Operation, cyborg.ShowSource(url.Asked.Source), url.Accelerator)
		}

		return tx.QueryRow(ctx, `
			INSERT INTO image_urls AS u (operation_id, deployable_uuid, secret, host, image, size, valid, expires_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7::interval, clock_timestamp() + $7::interval)
			ON CONFLICT (operation_id, deployable_uuid) DO UPDATE SET secret = EXCLUDED.secret,
			    valid = EXCLUDED.valid, expires_at = EXCLUDED.expires_at
			RETURNING image, size`,
			url.Operation, url.Accelerator, hash[:], url.Host, url.Image, url.Size, url.Valid).Scan(&url.Image, &url.Size)
	})
	return url, err
}

// UseImage begins or continues a use of the URL with that key, and extends
// its validity. The error is of kind ErrChanged where there is no valid URL: it
// never existed, has expired, was given back, or its operation no longer runs.
func (s *Store) UseImage(ctx context.Context, operation uuid.UUID, key string) (ImageURL, error) {
	hash := sha256.Sum256([]byte(key))
	url := ImageURL{Operation: operation}

	err := s.db.Pool.QueryRow(ctx, `
		UPDATE image_urls u SET expires_at = clock_timestamp() + valid
		FROM operations o
		WHERE u.secret = $2 AND u.operation_id = $1 AND o.id = u.operation_id AND o.state = 'running' AND u.expires_at > clock_timestamp()
		RETURNING u.deployable_uuid, u.host, u.image, u.size, u.valid`, operation, hash[:]).
		Scan(&url.Accelerator, &url.Host, &url.Image, &url.Size, &url.Valid)
	if errors.Is(err, pgx.ErrNoRows) {
		return url, cyborg.Errorf(cyborg.ErrChanged,
			"the URL of an image for operation %s is not valid: it was given back or replaced, has expired or never existed, or the operation has ended", operation).
			WithHint("Retry the operation: it makes another URL.")
	}

	return url, s.db.Failure(ctx, err)
}

// RevokeImage makes the URL with that key invalid, because the host has the
// image. Which one that is stays known while the operation runs. Giving back an
// invalid URL changes nothing.
func (s *Store) RevokeImage(ctx context.Context, operation uuid.UUID, key string) error {
	hash := sha256.Sum256([]byte(key))
	_, err := s.db.Pool.Exec(ctx, "UPDATE image_urls SET expires_at = '-infinity' WHERE operation_id = $1 AND secret = $2", operation, hash[:])
	return s.db.Failure(ctx, err)
}
