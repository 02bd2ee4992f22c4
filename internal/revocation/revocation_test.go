package revocation_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/revocation"
	"github.com/cyborg-project/cyborg/internal/transcript"
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

// recordsFunc are records that are read, and never lose anything.
type recordsFunc func(context.Context) (map[string]int64, error)

func (f recordsFunc) RevokedHosts(ctx context.Context) (map[string]int64, error) { return f(ctx) }

func (recordsFunc) RestoreRevocations(_ context.Context, lost map[string]int64) error {
	return fmt.Errorf("lost: %v", lost)
}

// TestCheck: a revocation is about the certificates of this host up to an
// enrollment, and those that bear none.
func TestCheck(t *testing.T) {
	t.Parallel()
	l := revocation.New("cyborg", "", slog.New(slog.DiscardHandler))
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(l.Check(certificate(t, "cyborg", identity.Host, "h1", 1))), "nothing is known yet")
	require.NoError(t, l.Check(certificate(t, "cyborg", identity.Server, "h1", 0)))
	require.NoError(t, l.Load(t.Context(), recordsFunc(func(context.Context) (map[string]int64, error) { return map[string]int64{"h1": 2, "h2": 0}, nil })))

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

// TestOnRevocation: whoever closes what is refused by now hears of each new revocation,
// once, and can ask about it then.
func TestOnRevocation(t *testing.T) {
	t.Parallel()
	l, told := revocation.New("cyborg", "", slog.New(slog.DiscardHandler)), []bool{}
	h1 := certificate(t, "cyborg", identity.Host, "h1", 2)
	l.OnRevocation(func() { told = append(told, l.Check(h1) != nil) })

	for _, revoked := range []map[string]int64{{}, {}, {"h1": 1}, {"h1": 1}, {"h1": 2}, {"h1": 2}, {"h1": 2, "h2": 0}, {"h1": 2, "h2": 0}} {
		require.NoError(t, l.Load(t.Context(), recordsFunc(func(context.Context) (map[string]int64, error) { return revoked, nil })))
	}
	require.Equal(t, []bool{false, true, true}, told)
}

// TestFollow: what is revoked is known within seconds, and stays so while the
// records are away.
func TestFollow(t *testing.T) {
	t.Parallel()
	h1 := certificate(t, "cyborg", identity.Host, "h1", 1)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		answers := make(chan map[string]int64)
		l := revocation.New("cyborg", "", slog.New(slog.DiscardHandler))
		ended := make(chan error)
		go func() {
			ended <- l.Follow(ctx, recordsFunc(func(ctx context.Context) (map[string]int64, error) {
				select {
				case answer := <-answers:
					if answer == nil {
						return nil, errors.New("away")
					}
					return answer, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}))
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
			l, ended := revocation.New("cyborg", "", slog.New(slog.DiscardHandler)), make(chan error)
			go func() {
				ended <- l.Follow(ctx, recordsFunc(func(context.Context) (map[string]int64, error) {
					if revoked.Load() {
						return map[string]int64{"h1": 1}, nil
					}
					return map[string]int64{}, nil
				}))
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

// memory are records that somebody restores from a backup.
type memory struct {
	revoked map[string]int64
	away    error
}

func (m *memory) RevokedHosts(context.Context) (map[string]int64, error) { return m.revoked, nil }

func (m *memory) RestoreRevocations(_ context.Context, lost map[string]int64) error {
	if m.away == nil {
		now := map[string]int64{}
		for _, some := range []map[string]int64{m.revoked, lost} {
			maps.Copy(now, some)
		}
		m.revoked = now
	}
	return m.away
}

// TestRestoredRecords: what the records have lost stays revoked, in a process that
// runs and in one that is started, and they get it back. They may also know of
// something that the file does not have.
func TestRestoredRecords(t *testing.T) {
	t.Parallel()
	file := revocation.File(filepath.Join(t.TempDir(), "revoked"))
	records := &memory{revoked: map[string]int64{"h1": 7, "h2": 3}}
	running := revocation.New("cyborg", file, slog.New(slog.DiscardHandler))
	require.NoError(t, running.Load(t.Context(), records))

	backup := map[string]int64{"h1": 5, "h3": 1}
	for name, process := range map[string]*revocation.List{
		"that runs": running, "that is started": revocation.New("cyborg", file, slog.New(slog.DiscardHandler)),
	} {
		records.revoked, records.away = backup, errors.New("read-only")
		require.NoError(t, process.Load(t.Context(), records))
		require.Equal(t, backup, records.revoked)
		for range 2 {
			require.Error(t, process.Check(certificate(t, "cyborg", identity.Host, "h1", 7)), name)
			require.Error(t, process.Check(certificate(t, "cyborg", identity.Host, "h2", 3)), name)
			require.Error(t, process.Check(certificate(t, "cyborg", identity.Host, "h3", 1)), name)
			require.NoError(t, process.Check(certificate(t, "cyborg", identity.Host, "h1", 8)), name)

			records.away = nil
			require.NoError(t, process.Load(t.Context(), records))
		}
		require.Equal(t, map[string]int64{"h1": 7, "h2": 3, "h3": 1}, records.revoked, name)
	}

	kept, err := file.Read()
	require.NoError(t, err)
	require.Equal(t, records.revoked, kept)
}

// TestSharedFile: processes that keep different things in one file at once lose
// none of them.
func TestSharedFile(t *testing.T) {
	t.Parallel()
	file := revocation.File(filepath.Join(t.TempDir(), "revoked"))
	var writers sync.WaitGroup
	want := map[string]int64{"h": 9}
	for i := range int64(10) {
		name := fmt.Sprint("h", i)
		want[name] = i
		writers.Go(func() {
			var err error = cyborg.Errorf(cyborg.ErrUnavailable, "not tried yet")
			for cyborg.ErrorKindOf(err) == cyborg.ErrUnavailable {
				err = file.Add(map[string]int64{name: i, "h": i})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()

	kept, err := file.Read()
	require.NoError(t, err)
	require.Equal(t, want, kept)
}

// TestLockedFile: who holds the lock, which another user of the machine may, keeps
// nobody from the next revocation.
func TestLockedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := revocation.File(filepath.Join(dir, "revoked"))
	unlock, err := pki.TryLock(dir)
	require.NoError(t, err)

	records := &memory{revoked: map[string]int64{"h1": 1}}
	said := &transcript.Text{}
	l := revocation.New("cyborg", file, slog.New(slog.NewTextHandler(said, nil)))
	require.NoError(t, l.Load(t.Context(), records))
	require.NotContains(t, said.String(), "cannot be kept", "another process may have written at this moment")
	records.revoked["h2"] = 2
	for range 2 {
		require.NoError(t, l.Load(t.Context(), records))
		require.Equal(t, 1, strings.Count(said.String(), "cannot be kept"), said)
	}
	require.Error(t, l.Check(certificate(t, "cyborg", identity.Host, "h2", 2)))
	kept, err := file.Read()
	require.NoError(t, err)
	require.Empty(t, kept)

	unlock()
	require.NoError(t, l.Load(t.Context(), records))
	kept, err = file.Read()
	require.NoError(t, err)
	require.Equal(t, records.revoked, kept)
}

// TestLockedNowAndThen: that the lock is taken at two looks says nothing where the file
// had all between them, because another process had written it.
func TestLockedNowAndThen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := revocation.File(filepath.Join(dir, "revoked"))
	said := &transcript.Text{}
	l := revocation.New("cyborg", file, slog.New(slog.NewTextHandler(said, nil)))

	records := &memory{revoked: map[string]int64{}}
	for _, host := range []string{"h1", "h2", "h3"} {
		records.revoked[host] = 1
		unlock, err := pki.TryLock(dir)
		require.NoError(t, err)
		require.NoError(t, l.Load(t.Context(), records))
		unlock()

		require.NoError(t, file.Add(records.revoked))
		require.NoError(t, l.Load(t.Context(), records))
	}
	require.NotContains(t, said.String(), "cannot be kept")
}

// TestReplacedFile: a file that is removed, put back from an old copy or damaged
// while a process runs takes nothing back, and has all again when it can be written.
func TestReplacedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "revoked")
	records := &memory{revoked: map[string]int64{"h1": 1, "h2": 2}}
	l := revocation.New("cyborg", revocation.File(path), slog.New(slog.DiscardHandler))
	require.NoError(t, l.Load(t.Context(), records))

	for _, replace := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.WriteFile(path, []byte(`{"h1": 1}`), 0o600) },
	} {
		require.NoError(t, replace())
		require.NoError(t, l.Load(t.Context(), records))
		kept, err := revocation.File(path).Read()
		require.NoError(t, err)
		require.Equal(t, records.revoked, kept)
	}

	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	require.NoError(t, l.Load(t.Context(), records))
	require.Error(t, l.Check(certificate(t, "cyborg", identity.Host, "h2", 2)))
	_, err := revocation.File(path).Read()
	require.Error(t, err, "it stays as it is")
}

// slow are records that answer a restore only after some tries.
type slow struct {
	memory
	tries int
}

func (s *slow) RestoreRevocations(ctx context.Context, lost map[string]int64) error {
	if s.tries--; s.tries < 0 {
		return s.memory.RestoreRevocations(ctx, lost)
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestUnrestoredIsSaid: that the records lack revocations is said once, also where
// they have not answered in time at first.
func TestUnrestoredIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		records := &slow{memory: memory{revoked: map[string]int64{"h1": 1}, away: errors.New("read-only")}, tries: 1}
		l := revocation.New("cyborg", "", slog.New(slog.NewTextHandler(&text, nil)))
		require.NoError(t, l.Load(t.Context(), records))

		records.revoked = nil
		for range 3 {
			require.NoError(t, l.Load(t.Context(), records))
			require.Equal(t, 1, strings.Count(text.String(), "cannot be recorded again"), text.String())
		}
	})
}

// TestDamagedFile: nobody is let in while a file cannot be read that may have what
// nobody else knows, and it stays as it is. Where a file cannot be written, what the
// records say is in force.
func TestDamagedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "revoked")
	records := &memory{revoked: map[string]int64{"h1": 1}}
	for _, text := range []string{"", "{", "null", "[]", `{"h1": "1"}`} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		l := revocation.New("cyborg", revocation.File(path), slog.New(slog.DiscardHandler))
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(l.Load(t.Context(), records)), text)
		require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(l.Check(certificate(t, "cyborg", identity.Host, "h1", 2))))
		require.Error(t, revocation.File(path).Add(records.revoked))
		kept, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, string(kept))
	}

	l := revocation.New("cyborg", revocation.File(filepath.Join(path, "in a file")), slog.New(slog.DiscardHandler))
	require.Error(t, l.Load(t.Context(), records), "a directory that is none cannot be read either")
	l = revocation.New("cyborg", revocation.File(filepath.Join(t.TempDir(), "no directory", "revoked")), slog.New(slog.DiscardHandler))
	require.NoError(t, l.Load(t.Context(), records))
	require.Error(t, l.Check(certificate(t, "cyborg", identity.Host, "h1", 1)))
	records.revoked, records.away = nil, errors.New("read-only")
	require.NoError(t, l.Load(t.Context(), records))
	require.Error(t, l.Check(certificate(t, "cyborg", identity.Host, "h1", 1)))
}
