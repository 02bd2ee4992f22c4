package config

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

const (
	// DefaultFile is the configuration file that Load reads if it exists and no
	// other file is named.
	DefaultFile = "/etc/cyborg/cyborg.yaml"
	// FileVariable is the environment variable that names the configuration file.
	FileVariable = EnvPrefix + "CONFIG"
)

// Process names the process that is configured. The sections that it uses are
// checked more strictly: values that it needs must be set, and files that it
// reads must exist on this machine.
type Process string

// The processes. ProcessMigrate is a command that only changes the database,
// and ProcessTemporal is cyborg-standalone temporal.
const (
	ProcessAgent      Process = "agent"
	ProcessMigrate    Process = "migrate"
	ProcessServer     Process = "server"
	ProcessStandalone Process = "standalone"
	ProcessTemporal   Process = "temporal"
)

// uses reports whether the process uses the section.
func (p Process) uses(section string) bool {
	switch p {
	case ProcessStandalone:
		return true
	case ProcessServer:
		return section != "agent" && section != "standalone"
	case ProcessAgent:
		return slices.Contains([]string{"log", "temporal", "identity", "agent"}, section)
	case ProcessMigrate:
		return section == "log" || section == "database"
	case ProcessTemporal:
		return slices.Contains([]string{"log", "database", "temporal", "identity", "retention", "standalone"}, section)
	}
	return false
}

// LoadOptions names the sources of the configuration. Later sources override
// earlier ones, in this order: defaults, file, environment, flags.
type LoadOptions struct {
	// Process is the process that is configured. Empty makes only the checks that
	// do not depend on the machine.
	Process Process
	// File is the configuration file, which must exist. If it is empty, the file is
	// named by the flag --config, else by CYBORG_CONFIG, else it is DefaultFile.
	File string
	// Env is the environment in the form of os.Environ. Nil means os.Environ.
	Env []string
	// Flags is the flag set that AddFlags was called with, or nil.
	Flags *pflag.FlagSet
}

// Load reads the configuration and checks it. The error is of kind ErrInvalid.
// If the sources could be read and parsed, it wraps Problems with every mistake
// in them.
func Load(o LoadOptions) (*Config, error) {
	if o.Env == nil {
		o.Env = os.Environ()
	}

	values := viper.New()
	for _, opt := range options() {
		if text := opt.tag("default"); text != "" {
			node, err := opt.parseText(text)
			if err != nil {
				return nil, cyborg.Errorf(cyborg.ErrInternal, "the default of %s: %w", opt.key, err)
			}
			values.SetDefault(opt.key, given{node: node})
		}
	}

	d := &decoder{}
	file, required := o.file()
	tree, err := d.fromFile(file, required)
	if err != nil {
		return nil, err
	}

	if err := values.MergeConfigMap(tree); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "cannot merge %s: %w", file, err)
	}
	if err := values.MergeConfigMap(d.fromEnvironment(o.Env)); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "cannot merge the environment: %w", err)
	}

	for key, value := range d.fromFlags(o.Flags) {
		values.Set(key, value)
	}

	// The order matters: validate compares values with each other, so they must
	// have been filled in.
	c := d.config(values, o.Process)
	d.complete(c, o.Process)
	d.validate(c, o.Process)

	if len(d.problems) > 0 {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "%w", d.problems.sorted())
	}
	return c, nil
}

// Default returns the configuration in which no option is set.
func Default() *Config {
	values := viper.New()
	d := &decoder{}

	for _, opt := range options() {
		if node, err := opt.parseText(opt.tag("default")); err == nil && opt.tag("default") != "" {
			values.SetDefault(opt.key, given{node: node})
		}
	}

	c := d.config(values, "")
	d.complete(c, "")
	return c
}

// file returns the file to read, and whether it must exist.
func (o LoadOptions) file() (path string, required bool) {
	if o.File != "" {
		return o.File, true
	}

	if o.Flags != nil {
		if flag := o.Flags.Lookup(fileFlag); flag != nil && flag.Value.String() != "" {
			return flag.Value.String(), true
		}
	}

	for _, entry := range o.Env {
		if path, ok := strings.CutPrefix(entry, FileVariable+"="); ok && path != "" {
			return path, true
		}
	}

	return DefaultFile, false
}

// fromFile reads the file into a tree of sections whose leaves are given
// values. A file that is missing or empty is an empty tree, unless a missing
// file was required.
func (d *decoder) fromFile(path string, required bool) (map[string]any, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !required {
		return map[string]any{}, nil
	}

	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "cannot read the configuration file: %w", err)
	}

	var document, next yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return map[string]any{}, nil
	case err != nil:
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the configuration file %s is not YAML: %s",
			path, strings.TrimPrefix(err.Error(), "yaml: "))
	}

	// A second document would be ignored without a word.
	if err := decoder.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the configuration file %s holds more than one YAML document", path)
	}

	return d.section(given{source: path, file: true}, document.Content[0], "", reflect.TypeFor[Config]()), nil
}

// section reads one mapping of the file. A section without a value is empty and
// not a mistake: an operator may have commented out all of its lines.
func (d *decoder) section(g given, node *yaml.Node, key string, t reflect.Type) map[string]any {
	tree := map[string]any{}
	if node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null" {
		return tree
	}

	if node.Kind != yaml.MappingNode {
		d.addf(g, node, key, "", "expected keys with values, of %s", strings.Join(keysOf(t), ", "))
		return tree
	}

	fields := map[string]reflect.StructField{}
	for field := range t.Fields() {
		fields[field.Tag.Get("key")] = field
	}

	d.eachPair(g, node, key, keysOf(t), func(name string, value *yaml.Node) {
		if field := fields[name]; field.Type.Kind() == reflect.Struct {
			tree[name] = d.section(g, value, strings.TrimPrefix(key+"."+name, "."), field.Type)
			return
		}
		tree[name] = given{source: g.source, file: true, node: value}
	})

	return tree
}

// config decodes the value of each option from the source that won, and keeps
// where it came from.
func (d *decoder) config(values *viper.Viper, process Process) *Config {
	c := &Config{origins: map[string]given{}}
	target := reflect.ValueOf(c).Elem()

	for _, opt := range options() {
		g, ok := values.Get(opt.key).(given)
		if !ok {
			continue
		}

		d.checkFiles = process.uses(opt.section())
		if g.source != "" {
			c.origins[opt.key] = g
		}
		d.decode(g, g.node, opt.key, opt.field.Tag, target.FieldByIndex(opt.index))
	}

	return c
}

// RevocationsFile is the usual name of the file of identity.revocations.
const RevocationsFile = "revoked-hosts"

// complete fills in the defaults that depend on the machine or on other options:
// the name of the host, the state directories, the file of revocations and the
// names of backends.
func (d *decoder) complete(c *Config, process Process) {
	if c.Agent.Host == "" {
		if name, err := os.Hostname(); err == nil && cyborg.CheckHostName(name) == nil {
			c.Agent.Host = name
		} else if process.uses("agent") {
			d.missingf("agent.host", "this machine has no usable name of its own (%q); set", name)
		}
	}

	if state, err := statedir.Default(); err == nil {
		if c.Standalone.StateDir == "" {
			c.Standalone.StateDir = state
		}
		if c.Agent.StateDir == "" {
			c.Agent.StateDir = state + "-agent"
		}
	} else {
		needed := process == ProcessStandalone || process == ProcessTemporal && c.Standalone.TemporalTLS.Cert == ""
		if c.Standalone.StateDir == "" && needed {
			d.missingf("standalone.state_dir", "neither XDG_STATE_HOME nor HOME is set; set")
		}
		if c.Agent.StateDir == "" && process == ProcessAgent {
			d.missingf("agent.state_dir", "neither XDG_STATE_HOME nor HOME is set; set")
		}
	}

	if c.Identity.Revocations == "" && c.Identity.Authority != "" {
		c.Identity.Revocations = filepath.Join(c.Identity.Authority, RevocationsFile)
	}

	for i := range c.Agent.Backends {
		if backend := &c.Agent.Backends[i]; backend.Name == "" {
			backend.Name = backend.Driver
		}
	}
}
