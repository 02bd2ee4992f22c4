// Package profile stores how the command line reaches the APIs that a person
// works with: one file for each person, with a named profile for each API. It
// imports nothing of ours but the root package and atomicfile.
package profile

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
)

// Profile says how to reach one API, and how to authenticate there. Empty
// fields are not set.
type Profile struct {
	URL       string `yaml:"url,omitempty"`
	Token     string `yaml:"token,omitempty"`
	TokenFile string `yaml:"token_file,omitempty"`
	CACert    string `yaml:"cacert,omitempty"`
	Cert      string `yaml:"cert,omitempty"`
	Key       string `yaml:"key,omitempty"`
}

// Book is the content of a person's profile file.
type Book struct {
	// Current is the name of the profile that is used where none is named; empty
	// for none.
	Current  string             `yaml:"current,omitempty"`
	Profiles map[string]Profile `yaml:"profiles,omitempty"`

	path string
}

// namePattern is the format of a profile's name.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Path returns the path of a person's profile file, by the XDG Base Directory
// Specification. Env looks up an environment variable. The error is of kind
// ErrInvalid where there is no home directory.
func Path(env func(string) string) (string, error) {
	if home := env("XDG_CONFIG_HOME"); filepath.IsAbs(home) { // the specification demands that a relative path is ignored
		return filepath.Join(home, "cyborg", "profiles.yaml"), nil
	}

	if home := env("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".config", "cyborg", "profiles.yaml"), nil
	}

	return "", cyborg.Errorf(cyborg.ErrInvalid, "there is no place for profiles: neither XDG_CONFIG_HOME nor HOME is set")
}

// Open reads the file at path; a missing file has no profiles. The error is of
// kind ErrInvalid, also for a file that others can access: it may hold tokens.
func Open(path string) (*Book, error) {
	book := &Book{path: path}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return book, nil
	}
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the profiles cannot be read: %w", err)
	}
	defer file.Close()

	info, err := file.Stat()
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the profiles cannot be read: %w", err)
	}
	if open := info.Mode().Perm() & 0o077; open != 0 {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "others have access to %s (mode %#o), which may hold tokens", path, info.Mode().Perm()).
			WithHint("chmod 600 %s, and change the tokens if somebody may have read them.", path)
	}

	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true) // a misspelt field would otherwise be ignored, and be lost with the next write
	if err := decoder.Decode(book); err != nil && !errors.Is(err, io.EOF) {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s holds no profiles as `cyborg profile` writes them: %w", path, err).
			WithHint("Mend it, or remove it and make the profiles anew.")
	}

	return book, nil
}

// Names lists the names of the profiles, sorted.
func (b *Book) Names() []string {
	names := make([]string, 0, len(b.Profiles))
	for name := range b.Profiles {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Get returns the profile of that name. The error is of kind ErrNotFound.
func (b *Book) Get(name string) (Profile, error) {
	found, ok := b.Profiles[name]
	if !ok {
		return found, cyborg.Errorf(cyborg.ErrNotFound, "there is no profile %q", name).
			WithHint("`cyborg profile list` shows what there is; `cyborg profile set %s --url URL` makes it.", name)
	}
	return found, nil
}

// Change reads the file, applies the change and writes the file, under a lock
// on its directory, so that two commands at the same time lose nothing. Where
// change returns an error, the file stays as it is.
func Change(path string, change func(*Book) error) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "the directory of the profiles cannot be made: %w", err)
	}

	lock, err := os.Open(dir)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "the directory of the profiles cannot be read: %w", err)
	}
	defer lock.Close() // which releases the lock

	// The directory is locked instead of the file, because the file is replaced by
	// each write.
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the directory of the profiles cannot be locked: %w", err)
	}

	// The file is read under the lock: another command may have changed it since
	// the caller looked.
	book, err := Open(path)
	if err != nil {
		return err
	}

	if err := change(book); err != nil {
		return err
	}

	return book.write()
}

// Set adds or replaces a profile. The first profile becomes the current one.
// The error is of kind ErrInvalid.
func (b *Book) Set(name string, p Profile) error {
	if !namePattern.MatchString(name) {
		return cyborg.Errorf(cyborg.ErrInvalid, "%q is no name for a profile: use letters, digits, dots, hyphens and underscores", name)
	}

	if len(b.Profiles) == 0 {
		b.Profiles = map[string]Profile{}
		b.Current = name
	}

	b.Profiles[name] = p
	return nil
}

// Delete removes a profile. The error is of kind ErrNotFound.
func (b *Book) Delete(name string) error {
	if _, err := b.Get(name); err != nil {
		return err
	}

	delete(b.Profiles, name)
	if b.Current == name { // no other profile takes its place: the person has to choose one
		b.Current = ""
	}
	return nil
}

// write replaces the file. Only its owner may read it.
func (b *Book) write() error {
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := errors.Join(encoder.Encode(b), encoder.Close()); err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "the profiles cannot be written: %w", err)
	}

	if err := atomicfile.Write(b.path, text.Bytes(), 0o600); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the profiles cannot be written: %w", err)
	}

	return nil
}
