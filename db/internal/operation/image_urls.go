package operation

import (
	"context"
	"crypto/sha256"
	"errors"
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
	Image       cyborg.Image
	Size        int64 // bytes
	// Valid is how long the URL can be used, from now and again from each use.
	Valid time.Duration
}

// GrantImage makes the URL with that key the one of its operation and
// accelerator, and an earlier URL invalid. The error is of kind ErrChanged
// where no such operation runs on the host.
func (s *Store) GrantImage(ctx context.Context, url ImageURL, key string) error {
	hash := sha256.Sum256([]byte(key))

	tag, err := s.db.Pool.Exec(ctx, `
		INSERT INTO image_urls (operation_id, deployable_uuid, secret, host, image, size, valid, expires_at)
		SELECT id, $2, $3, host, $5, $6, $7::interval, clock_timestamp() + $7::interval
		FROM operations WHERE id = $1 AND host = $4 AND state = 'running'
		ON CONFLICT (operation_id, deployable_uuid) DO UPDATE SET secret = EXCLUDED.secret, image = EXCLUDED.image,
		    size = EXCLUDED.size, valid = EXCLUDED.valid, expires_at = EXCLUDED.expires_at`,
		url.Operation, url.Accelerator, hash[:], url.Host, url.Image, url.Size, url.Valid)

	if err == nil && tag.RowsAffected() == 0 {
		err = cyborg.Errorf(cyborg.ErrChanged, "operation %s does not run on host %q", url.Operation, url.Host)
	}

	return s.db.Failure(ctx, err)
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
// image. Giving back an invalid URL changes nothing.
func (s *Store) RevokeImage(ctx context.Context, operation uuid.UUID, key string) error {
	hash := sha256.Sum256([]byte(key))
	_, err := s.db.Pool.Exec(ctx, "DELETE FROM image_urls WHERE operation_id = $1 AND secret = $2", operation, hash[:])
	return s.db.Failure(ctx, err)
}
