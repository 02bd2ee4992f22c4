package revocation_test

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/revocation"
)

// certificate makes one.
func certificate(t *testing.T, trustDomain string, role identity.Role, name string, enrollment int64) *x509.Certificate {
	t.Helper()
	authority, err := pki.Temporary()
	require.NoError(t, err)
	key, _, err := pki.GenerateKey()
	require.NoError(t, err)
	made, err := authority.Issue(key.Public(), pki.Leaf{
		Identity: identity.Identity{TrustDomain: trustDomain, Role: role, Name: name}, Enrollment: enrollment,
	})
	require.NoError(t, err)
	return made
}

// TestCheck: a revocation is about the certificates of this host up to an
// enrollment, and those that bear none.
func TestCheck(t *testing.T) {
	t.Parallel()
	l := revocation.New("cyborg")
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(l.Check(certificate(t, "cyborg", identity.Host, "h1", 1))), "nothing is known yet")
	require.NoError(t, l.Check(certificate(t, "cyborg", identity.Server, "h1", 0)))
	require.NoError(t, l.Load(t.Context(), func(context.Context) (map[string]int64, error) { return map[string]int64{"h1": 2, "h2": 0}, nil }))

	for _, test := range []struct {
		role       identity.Role
		name       string
		enrollment int64
		revoked    bool
	}{
		{identity.Host, "h1", 0, true},
		{identity.Host, "h1", 2, true},
		{identity.Host, "h1", 3, false},
		{identity.Host, "h2", 0, true},
		{identity.Host, "h2", 1, false},
		{identity.Host, "h3", 0, false},
		{identity.Host, "H1", 0, false},
		{identity.Host, "h1.example.org", 0, false},
		{identity.Server, "h1", 0, false},
		{identity.Admin, "h1", 0, false},
	} {
		err := l.Check(certificate(t, "cyborg", test.role, test.name, test.enrollment))
		if test.revoked {
			require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), "%+v", test)
		} else {
			require.NoError(t, err, "%+v", test)
		}
	}
}

// TestFollow: what is revoked is known within seconds, and stays so while the
// records are away.
func TestFollow(t *testing.T) {
	t.Parallel()
	h1 := certificate(t, "cyborg", identity.Host, "h1", 1)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		answers := make(chan map[string]int64)
		l := revocation.New("cyborg")
		ended := make(chan error)
		go func() {
			ended <- l.Follow(ctx, func(ctx context.Context) (map[string]int64, error) {
				select {
				case answer := <-answers:
					if answer == nil {
						return nil, errors.New("away")
					}
					return answer, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}, slog.New(slog.DiscardHandler))
		}()

		answers <- map[string]int64{}
		synctest.Wait()
		require.NoError(t, l.Check(h1))
		answers <- map[string]int64{"h1": 1}
		synctest.Wait()
		require.Error(t, l.Check(h1))
		answers <- nil
		synctest.Wait()
		require.Error(t, l.Check(h1))

		cancel()
		require.NoError(t, <-ended)
	})
}

// TestRevokedWithinFiveSeconds: a certificate is refused five seconds after the
// records say that it was revoked, whenever that is between two looks.
func TestRevokedWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	h1 := certificate(t, "cyborg", identity.Host, "h1", 1)
	for after := time.Duration(0); after < 3*time.Second; after += 100 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var revoked atomic.Bool
			l, ended := revocation.New("cyborg"), make(chan error)
			go func() {
				ended <- l.Follow(ctx, func(context.Context) (map[string]int64, error) {
					if revoked.Load() {
						return map[string]int64{"h1": 1}, nil
					}
					return map[string]int64{}, nil
				}, slog.New(slog.DiscardHandler))
			}()

			<-time.After(after)
			synctest.Wait()
			require.NoError(t, l.Check(h1))
			revoked.Store(true)
			<-time.After(5 * time.Second) // of the bubble
			synctest.Wait()
			require.Error(t, l.Check(h1), "revoked %s after the start", after)

			cancel()
			require.NoError(t, <-ended)
		})
	}
}
