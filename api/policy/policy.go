// Package policy decides who may do what on /v2: by the rules of OpenStack
// Cyborg, under its names, overridden by those of the operator's policy.yaml.
// It knows no route and must not import handlers.
//
// A rule is about the caller (auth.CallerOf) and never about the thing that the
// caller asks for. Who owns a thing is checked where the thing is read.
package policy

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
)

// Config says which rules are in force.
type Config struct {
	// File is the path of the operator's policy.yaml; empty for none.
	File string
	// EnforceNewDefaults leaves out OpenStack Cyborg's old defaults, by which every
	// project sees the whole inventory.
	EnforceNewDefaults bool
	Log                *slog.Logger
}

// Policy has the rules that are in force.
type Policy struct {
	config  Config
	builtin map[string]check

	// loaded is replaced as a whole when the file changes, so a request is checked
	// by the rules of one reading.
	loaded atomic.Pointer[rules]
}

// rules are the result of one reading of the file.
type rules struct {
	checks     map[string]check
	overridden map[string]bool
	file       os.FileInfo // nil without one
}

// New reads the rules. The error is of kind ErrInvalid: the file cannot be
// read, or has mistakes, each named with its line.
func New(config Config) (*Policy, error) {
	p := &Policy{config: config, builtin: make(map[string]check, len(builtinTable))}
	for _, r := range builtinTable {
		text := r.requires
		if r.legacy != "" && !config.EnforceNewDefaults {
			text += " or " + r.legacy
		}

		c, err := parse(text)
		if err != nil {
			return nil, cyborg.Errorf(cyborg.ErrInternal, "the built-in rule %s: %w", r.name, err)
		}

		p.builtin[r.name] = c
	}

	if err := p.load(); err != nil {
		return nil, err
	}

	if !config.EnforceNewDefaults {
		config.Log.Warn("OpenStack Cyborg's old policy is in force: whoever has a project sees the whole inventory (policy.enforce_new_defaults)")
	}

	return p, nil
}

// load reads the file and puts its rules in force. After an error the present
// rules stay.
func (p *Policy) load() error {
	if p.config.File == "" {
		p.loaded.Store(&rules{checks: p.builtin})
		return nil
	}

	// The file's state is taken before its content. A change between the two is
	// then seen by the next look, at the price of one more reading.
	file, err := os.Stat(p.config.File)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "the policy file cannot be read: %w", err)
	}

	overrides, err := readFile(p.config.File)
	if err != nil {
		return err
	}

	checks, err := combine(p.builtin, overrides)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "the policy file has a mistake: %s%w", p.config.File, err)
	}

	used, overridden := map[string]bool{}, map[string]bool{}
	for _, c := range checks {
		for _, name := range references(c) {
			used[name] = true
		}
	}

	// A rule that is neither built in nor used by another rule is probably a
	// misspelt name.
	for _, o := range overrides {
		overridden[o.name] = true
		if p.builtin[o.name] == nil && !used[o.name] {
			p.config.Log.Warn("nothing asks for this rule of the policy file",
				slog.String("rule", o.name), slog.String("file", p.config.File), slog.Int("line", o.line))
		}
	}

	p.loaded.Store(&rules{checks: checks, overridden: overridden, file: file})
	return nil
}

// Watch reads the file again whenever it has changed, until ctx ends. If the
// new file has mistakes, the rules stay as they were. It looks at the file in
// the given interval.
func (p *Policy) Watch(ctx context.Context, interval time.Duration) {
	if p.config.File == "" {
		<-ctx.Done()
		return
	}

	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	// A rejected file is not read again until it changes, and the same error is
	// logged only once.
	var (
		rejected  os.FileInfo
		lastError string
	)

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}

		file, err := os.Stat(p.config.File)
		if err == nil && (same(file, p.loaded.Load().file) || rejected != nil && same(file, rejected)) {
			continue
		}

		if err == nil {
			err = p.load()
		}

		if err != nil {
			if err.Error() != lastError {
				p.config.Log.ErrorContext(ctx, "the policy file is not taken; the rules stay as they were", slog.String("error", err.Error()))
			}

			rejected, lastError = file, err.Error()
			continue
		}

		rejected, lastError = nil, ""
		p.config.Log.InfoContext(ctx, "the policy file has changed and is in force", slog.String("file", p.config.File))
	}
}

// same reports whether a file has not changed between two looks at it.
func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// Knows reports whether there is a built-in rule with that name.
func (p *Policy) Knows(name string) bool { return p.builtin[name] != nil }

// Check returns an error of kind ErrForbidden unless the rule allows what the
// caller of ctx asks for. Tokens for the whole system, for a domain, or for
// nothing are always refused, because the rules of OpenStack Cyborg are made
// for projects.
func (p *Policy) Check(ctx context.Context, name string) error {
	caller := auth.CallerOf(ctx)
	refused := cyborg.Errorf(cyborg.ErrForbidden, "Access was denied to the following resource: %s", name)

	switch {
	case caller.System:
		return refused.WithHint("The token is for the whole system. Use one that is for a project.")
	case caller.Domain != "":
		return refused.WithHint("The token is for a domain. Use one that is for a project.")
	case caller.UserID != "" && caller.Project == "":
		return refused.WithHint("The token is for no project. Use one that is.")
	}

	checks := p.loaded.Load().checks
	required, ok := checks[name]
	if !ok {
		return cyborg.Errorf(cyborg.ErrInternal, "a route asks for the rule %q, which does not exist", name)
	}

	if required.allows(factsOf(caller), checks) {
		return nil
	}

	return refused.WithHint("It needs %s, and %s has the roles [%s].", required, caller.Name, strings.Join(caller.Roles, " "))
}

// Rule is a rule that is in force, as people read it.
type Rule struct {
	Name     string
	Requires string // in the syntax of oslo.policy
	About    string // what it permits; empty for the operator's own rules

	// Overridden says that the rule comes from the operator's file.
	Overridden bool
}

// Rules lists all rules that are in force: the built-in ones in their order,
// then the operator's own by name.
func (p *Policy) Rules() []Rule {
	loaded := p.loaded.Load()

	var all []Rule
	add := func(name, about string) {
		all = append(all, Rule{Name: name, Requires: loaded.checks[name].String(), About: about, Overridden: loaded.overridden[name]})
	}

	for _, r := range builtinTable {
		add(r.name, r.about)
	}

	for _, name := range slices.Sorted(maps.Keys(loaded.checks)) {
		if p.builtin[name] == nil {
			add(name, "")
		}
	}

	return all
}
