package postgres_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/porttest"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

const (
	waitLimit = 5 * time.Minute
	waitStep  = 20 * time.Millisecond
)

// TestOrphanIsTakenOverAndStopped: a server that outlived its parent serves the
// next process that starts one, and that process can stop it.
func TestOrphanIsTakenOverAndStopped(t *testing.T) {
	t.Parallel()
	for name, tcp := range map[string]bool{"socket": false, "TCP": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t)
			if tcp {
				cfg.TCP, cfg.Port = true, porttest.Ports(t, 1)[0]
			}
			pid := orphan(t, cfg)
			require.True(t, ours(pid, cfg.Dir), "it outlives its parent")

			server := start(t, cfg)
			require.True(t, server.TookOver())
			require.Equal(t, pid, server.PID())
			require.Equal(t, "cyborg", ask[string](t, server.URL("postgres"), "SHOW cluster_name"))
			if tcp {
				require.Equal(t, "cyborg", ask[string](t, server.TCPURL("postgres"), "SHOW cluster_name"))
			}

			stop(t, server)
			<-server.Done()
			require.NoError(t, server.Err())
			require.False(t, ours(pid, cfg.Dir))
		})
	}
}

// TestExitOfAnAdoptedServerIsReported: the end of a server that was taken over
// is noticed, although it is no child of this process.
func TestExitOfAnAdoptedServerIsReported(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	pid := orphan(t, cfg)
	server := start(t, cfg)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	<-server.Done()
	require.ErrorContains(t, server.Err(), fmt.Sprintf("PostgreSQL (process %d) ended", pid))
}

// TestOrphanIsReplaced: a server that outlived its parent and is not as wanted
// is stopped, and another one is started.
func TestOrphanIsReplaced(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T, cfg *postgres.Config, pid int){
		"when it has other settings": func(_ *testing.T, cfg *postgres.Config, _ int) {
			cfg.Settings = map[string]string{"work_mem": "5MB"}
		},
		"when it cannot be reached": func(t *testing.T, cfg *postgres.Config, _ int) {
			t.Helper()
			require.NoError(t, os.Remove(filepath.Join(cfg.Dir, "run", ".s.PGSQL.5432")))
		},
		"when it is about to end": func(t *testing.T, _ *postgres.Config, pid int) {
			t.Helper()
			require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
		},
	}

	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t)
			pid := orphan(t, cfg)
			change(t, &cfg, pid)

			server := start(t, cfg)
			require.False(t, server.TookOver())
			require.NotEqual(t, pid, server.PID())
			require.False(t, ours(pid, cfg.Dir))
			require.Equal(t, "cyborg", ask[string](t, server.URL("postgres"), "SHOW cluster_name"))
		})
	}
}

// TestStalePIDFile: after a crash of the machine, for instance, a pid file may
// name a process that has nothing to do with the data. It is neither taken over
// nor ended.
func TestStalePIDFile(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	stop(t, start(t, cfg))

	other := sleeper(t, cfg.Dir)
	another := start(t, config(t)).PID()
	path := filepath.Join(cfg.Dir, "data", "postmaster.pid")

	for name, content := range map[string]string{
		"of nobody":                           pidFile(1 << 30),
		"that is empty":                       "",
		"that is cut off":                     "12",
		"that is no number":                   "x\ny\n",
		"of another program of the same user": pidFile(other),
		"of another PostgreSQL":               pidFile(another),
	} {
		t.Log("a pid file " + name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		server := start(t, cfg)
		require.False(t, server.TookOver())
		stop(t, server)
	}

	for _, untouched := range []int{other, another} {
		require.NoError(t, syscall.Kill(untouched, 0))
	}
}

// pidFile returns the text of a pid file that names the process.
func pidFile(pid int) string {
	return strconv.Itoa(pid) + "\n/elsewhere\n1700000000\n5432\n/tmp\n\n  1234567    123456\nready   \n"
}

// sleeper runs a program as the user that owns the data. To PostgreSQL, such a
// process could be a server.
func sleeper(t *testing.T, dir string) int {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, "data"))
	require.NoError(t, err)
	stat, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok)

	cmd := exec.CommandContext(context.Background(), "sleep", "600")
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stat.Uid, Gid: stat.Gid}}
	}

	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// TestInterruptedInitdbIsRepeated: a database that was only half created is
// created anew, and what is left of the first attempt is removed.
func TestInterruptedInitdbIsRepeated(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	for try := 0; !interruptMaking(t, cfg); try++ {
		require.Less(t, try, 20, "it is never seen in the middle")
		cfg = config(t)
	}

	server := start(t, cfg) // while the initdb of the killed process may still be at work
	require.Equal(t, "cyborg", ask[string](t, server.URL("postgres"), "SHOW cluster_name"))
	stop(t, server)

	for limit := time.Now().Add(waitLimit); ; stop(t, server) { // while that initdb runs, a start cannot remove everything
		server = start(t, cfg)
		left, err := filepath.Glob(filepath.Join(cfg.Dir, "data.tmp-*"))
		require.NoError(t, err)
		if len(left) == 0 {
			break
		}
		require.Less(t, time.Now(), limit, "%v", left)
	}
}

// interruptMaking kills a process while it creates the database. It returns
// false where the process was faster.
func interruptMaking(t *testing.T, cfg postgres.Config) bool {
	t.Helper()
	data := filepath.Join(cfg.Dir, "data")
	killed, _ := helper(t, cfg)
	made := func() bool { _, err := os.Stat(data); return err == nil }

	require.Eventually(t, func() bool {
		begun, err := filepath.Glob(filepath.Join(cfg.Dir, "data.tmp-*", "PG_VERSION"))
		return err == nil && len(begun) == 1 || made()
	}, waitLimit, time.Millisecond)

	require.NoError(t, killed.Process.Kill())
	_ = killed.Wait()
	if made() {
		stop(t, start(t, cfg)) // it may have left a server behind
		return false
	}
	return true
}
