package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFullLogFileIsRotated: a full file moves aside at the end of a line, also
// after a restart.
func TestFullLogFileIsRotated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), logName)
	line := []byte(strings.Repeat("x", 39) + "\n")

	for range 2 { // the second process continues the file of the first
		log, err := openLogFile(path, 100)
		require.NoError(t, err)
		for range 2 {
			n, err := log.Write(line)
			require.NoError(t, err)
			require.Equal(t, len(line), n)
		}
		require.NoError(t, log.Close())
	}

	for name, lines := range map[string]int{path: 2, path + ".1": 2} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Len(t, text, lines*len(line), name)
	}
}

func TestLongLogLineIsNotSplit(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), logName)
	log, err := openLogFile(path, 10)
	require.NoError(t, err)
	_, err = log.Write([]byte("longer than the limit\n"))
	require.NoError(t, err)
	require.NoError(t, log.Close())

	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "longer than the limit\n", string(text))
}
