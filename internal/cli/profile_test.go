package cli_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/cli"
)

// person is a user with a home directory of their own.
type person struct {
	t    *testing.T
	home string
	env  []string
}

// newPerson returns a person without profiles, with these environment
// variables.
func newPerson(t *testing.T, env ...string) *person {
	t.Helper()
	return &person{t: t, home: t.TempDir(), env: env}
}

// types runs a command line; stdin is what is typed where a token is asked for.
func (p *person) types(stdin string, args ...string) result {
	p.t.Helper()
	env := environment(append([]string{"XDG_CONFIG_HOME", p.home}, p.env...)...)
	return run(p.t.Context(), cli.Streams{Env: env, Secret: func(string) (string, error) { return stdin, nil }}, args...)
}

// file is where the profiles are kept.
func (p *person) file() string { return filepath.Join(p.home, "cyborg", "profiles.yaml") }

// whoAsks is an API that remembers the credential of the last request.
func whoAsks(t *testing.T) (api *fakeAPI, credential func() string) {
	t.Helper()
	api = newAPI(t)

	var mu sync.Mutex
	var last string
	api.handles("GET /v1/hosts", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		last = r.Header.Get("Authorization")
		answer(w, http.StatusOK, map[string]any{"host": []cyborg.Host{}})
	})

	return api, func() string {
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}

// TestProfileSetsURLAndToken: a profile supplies URL and token, can be chosen,
// and is never shown with its token.
func TestProfileSetsURLAndToken(t *testing.T) {
	t.Parallel()
	api, credential := whoAsks(t)
	p := newPerson(t)
	got := p.types("first-token-of-16\n", "profile", "set", "first", "--url", api.server.URL, "--token-stdin")
	require.Equal(t, 0, got.code, got.err)
	require.Equal(t, "Profile first is in use now.\n", got.err)
	info, err := os.Stat(p.file())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	require.Equal(t, 0, p.types("", "host", "list").code)
	require.Equal(t, "Bearer first-token-of-16", credential())

	require.Equal(t, 0, p.types("other-token\n", "profile", "set", "other", "--url", api.server.URL, "--token-stdin").code)
	require.Equal(t, 0, p.types("", "host", "list").code)
	require.Equal(t, "Bearer first-token-of-16", credential(), "only the first profile is used without being chosen")
	require.Equal(t, 0, p.types("", "host", "list", "--profile", "other").code)
	require.Equal(t, "Bearer other-token", credential())
	require.Equal(t, 0, p.types("", "profile", "use", "other").code)
	require.Equal(t, 0, p.types("", "host", "list").code)
	require.Equal(t, "Bearer other-token", credential())

	require.Equal(t, "first false\nother true\n", p.types("", "profile", "list", "-f", "value", "-c", "name", "-c", "current").out)
	shown := p.types("", "profile", "show", "-f", "json")
	require.Contains(t, shown.out, `"token": "(hidden)"`)
	require.NotContains(t, shown.out+p.types("", "profile", "list", "-f", "json").out, "other-token")

	require.Equal(t, 0, p.types("", "profile", "delete", "other").code)
	require.Equal(t, 3, p.types("", "profile", "show").code)
	require.Equal(t, 3, p.types("", "profile", "delete", "other").code)
	require.Equal(t, 3, p.types("", "host", "list", "--profile", "other").code)
}

// TestProfilePrecedence: flags, --profile among them, override variables, and
// variables override the profile in use. A profile's token is never sent to
// another URL than the profile's.
func TestProfilePrecedence(t *testing.T) {
	t.Parallel()
	const here, elsewhere = "http://HERE", "http://ELSEWHERE" // one API under two names

	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("of-the-file\n"), 0o600))
	for name, test := range map[string]struct {
		env, args []string
		want      string
	}{
		"profile in use":                  {want: "Bearer of-one"},
		"CYBORG_PROFILE":                  {env: []string{"CYBORG_PROFILE", "two"}, want: "Bearer of-two"},
		"token variable":                  {env: []string{"CYBORG_TOKEN", "of-env"}, want: "Bearer of-env"},
		"token file variable":             {env: []string{"CYBORG_TOKEN_FILE", file}, want: "Bearer of-the-file"},
		"--profile before variables":      {env: []string{"CYBORG_TOKEN", "of-env", "CYBORG_PROFILE", "one", "CYBORG_URL", "http://127.0.0.1:1"}, args: []string{"--profile", "two"}, want: "Bearer of-two"},
		"--token-file before --profile":   {args: []string{"--profile", "two", "--token-file", file}, want: "Bearer of-the-file"},
		"the same URL keeps the profile":  {env: []string{"CYBORG_URL", here}, want: "Bearer of-one"},
		"another URL: nobody's token":     {args: []string{"--url", elsewhere}, want: ""},
		"another URL by variable as well": {env: []string{"CYBORG_URL", elsewhere}, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, credential := whoAsks(t)
			p := newPerson(t)
			for _, profile := range []string{"one", "two"} {
				require.Equal(t, 0, p.types("of-"+profile, "profile", "set", profile, "--url", api.server.URL, "--token-stdin").code)
			}

			names := strings.NewReplacer(here, api.server.URL, elsewhere, strings.Replace(api.server.URL, "127.0.0.1", "localhost", 1))
			args := []string{"host", "list"}
			for _, arg := range test.args {
				args = append(args, names.Replace(arg))
			}
			for _, text := range test.env {
				p.env = append(p.env, names.Replace(text))
			}

			got := p.types("", args...)
			require.Equal(t, 0, got.code, got.err)
			require.Equal(t, test.want, credential())
		})
	}
}

// TestInvalidProfilesAreRefused: a mistake leaves the profiles as they were,
// and a file that others can read is not used.
func TestInvalidProfilesAreRefused(t *testing.T) {
	t.Parallel()
	p := newPerson(t)
	for text, args := range map[string][]string{
		"nothing to set":                     {"profile", "set", "a"},
		"--url is missing":                   {"profile", "set", "a", "--token-stdin"},
		`"ftp://x" is not the URL of an API`: {"profile", "set", "a", "--url", "ftp://x"},
		`"a/b" is no name for a profile`:     {"profile", "set", "a/b", "--url", "http://x"},
		"cannot read the token":              {"profile", "set", "a", "--url", "http://x", "--token-file", "/nowhere"},
		`--unset "nothing": there are token`: {"profile", "set", "a", "--url", "http://x", "--unset", "nothing"},
		"--token-file and --token-stdin":     {"profile", "set", "a", "--url", "http://x", "--token-file", "x", "--token-stdin"},
		"PROFILE is missing":                 {"profile", "use"},
	} {
		got := p.types("token", args...)
		require.Equal(t, 2, got.code, text)
		require.Contains(t, got.err, text)
	}
	require.NoFileExists(t, p.file())

	require.Equal(t, 0, p.types("", "profile", "set", "a", "--url", "http://127.0.0.1:1").code)
	require.Contains(t, p.types("", "host", "list", "--profile", "a", "--url", "http://b").err, "the profile a is for http://127.0.0.1:1, not for http://b")

	require.NoError(t, os.Chmod(p.file(), 0o640))
	got := p.types("", "host", "list")
	require.Equal(t, 2, got.code)
	require.Contains(t, got.err, "others have access to "+p.file()+" (mode 0640), which may hold tokens\nchmod 600 ")
	require.Contains(t, p.types("", "host", "list", "--url", "http://127.0.0.1:1").err, "127.0.0.1:1", "a command with --url does not need the profiles")

	require.NoError(t, os.WriteFile(p.file(), []byte("profiles: {a: {tokn: x}}\n"), 0o600))
	require.NoError(t, os.Chmod(p.file(), 0o600))
	require.Contains(t, p.types("", "profile", "list").err, "field tokn not found")
}

// TestConcurrentProfileChanges: commands that change profiles at the same time
// do not lose each other's changes.
func TestConcurrentProfileChanges(t *testing.T) {
	t.Parallel()
	p := newPerson(t)
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() { p.types("", "profile", "set", name, "--url", "http://"+name) })
	}
	all.Wait()
	require.Equal(t, strings.Join(names, "\n")+"\n", p.types("", "profile", "list", "-f", "value", "-c", "name").out)

	entries, err := os.ReadDir(filepath.Dir(p.file()))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is left beside the file")
}
