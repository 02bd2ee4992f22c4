package harness

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg/internal/temporalclient"
)

// Secrets are what nobody may find: by what they are, the ways in which each may
// be written.
type Secrets map[string][]string

// Add adds a secret: as it is, and as programs print the bytes of a text.
func (s Secrets) Add(what, secret string) {
	s[what] = append(s[what], secret, hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte(secret)),
		strings.Trim(fmt.Sprintf("%d", []byte(secret)), "[]"))
}

// AddKeys adds the private keys in files in PEM format, each of which must have
// one.
func (s Secrets) AddKeys(t testing.TB, paths ...string) {
	t.Helper()
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		s.AddKey(t, "the key in "+path, string(text))
	}
}

// AddKey adds the private keys in a text in PEM format, which must have one: as a
// whole, and each line but the last, in which only the public part may be.
func (s Secrets) AddKey(t testing.TB, what, text string) {
	t.Helper()
	found := false
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue
		}
		found = true
		s.Add(what, string(block.Bytes))

		lines := strings.Split(strings.TrimSpace(string(pem.EncodeToMemory(block))), "\n")
		lines = lines[1 : len(lines)-1]
		s[what] = append(s[what], lines[:max(1, len(lines)-1)]...)
	}
	require.True(t, found, "%s is no private key", what)
}

// RequireAbsent fails the test for each text that has one of the secrets; places
// are the texts, by where somebody may read them.
func (s Secrets) RequireAbsent(t testing.TB, places map[string]string) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(s)) {
		for _, written := range s[what] {
			require.NotEmpty(t, written, what)
			for _, where := range slices.Sorted(maps.Keys(places)) {
				if at := strings.Index(places[where], written); at >= 0 {
					t.Errorf("%s has %s, after: %.300q", where, what, places[where][max(0, at-300):at])
				}
			}
		}
	}
}

// Histories returns all that Temporal has of all runs: their histories with the
// payloads, their memos and search attributes, the summaries, the details that
// they show, and the heartbeats of what runs now.
func Histories(ctx context.Context, t testing.TB, temporal client.Client) string {
	t.Helper()
	var text strings.Builder
	var next []byte

	for {
		page, err := temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			Namespace: temporalclient.DefaultNamespace, NextPageToken: next,
		})
		require.NoError(t, err)

		for _, run := range page.GetExecutions() {
			text.WriteString(run.String())
			described, err := temporal.DescribeWorkflowExecution(ctx, run.GetExecution().GetWorkflowId(), run.GetExecution().GetRunId())
			require.NoError(t, err)
			text.WriteString(described.String())

			events := temporal.GetWorkflowHistory(ctx, run.GetExecution().GetWorkflowId(), run.GetExecution().GetRunId(), false,
				enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)

			for events.HasNext() {
				event, err := events.Next()
				require.NoError(t, err)
				text.WriteString(event.String())
			}
		}

		if next = page.GetNextPageToken(); len(next) == 0 {
			return text.String()
		}
	}
}

// descendants returns the children of a process, their children, and so on.
func descendants(pid int) []int {
	var all []int
	for _, child := range family(pid) {
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

// Arguments returns the command lines of a process and of all its descendants,
// which every user of the machine can read.
func Arguments(t testing.TB, pid int) string {
	t.Helper()
	var own []byte
	require.Eventually(t, func() bool { // the kernel sets it a moment after the program has begun
		var err error
		own, err = os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err == nil && len(own) > 0
	}, time.Minute, time.Millisecond)

	var text strings.Builder
	text.Write(own)
	for _, child := range descendants(pid) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
		if err == nil { // else it has ended
			text.Write(line)
		}
	}
	return text.String()
}

// Environments returns the environments that a process has given to all its
// descendants: they may run as other users.
func Environments(pid int) string {
	var text strings.Builder
	for _, child := range descendants(pid) {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", child))
		if err == nil { // else it has ended
			text.Write(environ)
		}
	}
	return text.String()
}

// Rows returns all rows of all tables in all databases of a PostgreSQL. Bytes are
// in hexadecimal.
func Rows(ctx context.Context, t testing.TB, server *url.URL) string {
	t.Helper()
	ask := func(database, sql string) []string {
		one := *server
		one.Path = "/" + database
		c, err := pgx.Connect(ctx, one.String())
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close(ctx)) }()

		rows, err := c.Query(ctx, sql)
		require.NoError(t, err)
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return found
	}

	var text strings.Builder
	for _, database := range ask("postgres", "SELECT datname FROM pg_database WHERE NOT datistemplate") {
		for _, table := range ask(database, `
			SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables
			WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('pg_catalog', 'information_schema')`) {
			for _, row := range ask(database, "SELECT r::text FROM "+table+" r") {
				text.WriteString(row + "\n")
			}
		}
	}
	return text.String()
}

// GrantKey returns the private key of which a process has drawn one of the public
// ones to sign steps, from the only place where it is: the memory of the process.
func (p *process) GrantKey(t testing.TB, public [][]byte) ed25519.PrivateKey {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", p.PID())
	maps, err := os.ReadFile(filepath.Join(proc, "maps"))
	require.NoError(t, err)
	memory, err := os.Open(filepath.Join(proc, "mem"))
	require.NoError(t, err)
	defer memory.Close()

	for line := range strings.Lines(string(maps)) {
		var begin, end int64
		var mode string
		_, err := fmt.Sscanf(line, "%x-%x %s", &begin, &end, &mode)
		require.NoError(t, err)
		if !strings.HasPrefix(mode, "rw") {
			continue
		}

		held := make([]byte, end-begin)
		if _, err := memory.ReadAt(held, begin); err != nil {
			continue // the kernel's own, or given back meanwhile
		}
		for _, key := range public {
			if found := keyIn(held, key); found != nil {
				return found
			}
		}
	}

	require.Fail(t, "the process holds none of the keys")
	return nil
}

// keyIn returns the private key in a part of a memory that belongs to the public
// one: Go keeps it as the seed and, after that, the public key.
func keyIn(held, public []byte) ed25519.PrivateKey {
	for at := 0; ; at++ {
		next := bytes.Index(held[at:], public)
		if next < 0 {
			return nil
		}
		if at += next; at < ed25519.SeedSize {
			continue
		}
		if key := ed25519.NewKeyFromSeed(held[at-ed25519.SeedSize : at]); bytes.Equal(key[ed25519.SeedSize:], public) {
			return key
		}
	}
}
