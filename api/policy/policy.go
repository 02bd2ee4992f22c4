// Package policy says who may do what on /v2: OpenStack Cyborg's rules, by its names, with those of the operator's
// policy.yaml over them. It knows no route and must not import handlers.
//
// A rule is about whoever asks (auth.CallerOf), never about the thing that is asked for: whose that is, is decided where
// it is read.
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
	// File is the operator's policy.yaml; empty for none.
	File string
	// EnforceNewDefaults keeps OpenStack Cyborg's old defaults out, by which every project sees the whole inventory.
	EnforceNewDefaults bool
	Log                *slog.Logger
}

// Policy is the rules that are in force.
type Policy struct {
	config  Config
	builtin map[string]check
	loaded  atomic.Pointer[rules]
}

// rules are those that one reading of the file made.
type rules struct {
	checks     map[string]check
	overridden map[string]bool
	file       os.FileInfo // nil without one
}

// New reads the rules. The error is of kind ErrInvalid: a file that cannot be read, or each mistake in it with its line.
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

// load reads the file and puts its rules in force.
func (p *Policy) load() error {
	if p.config.File == "" {
		p.loaded.Store(&rules{checks: p.builtin})
		return nil
	}
	file, err := os.Stat(p.config.File) // before it is read, so that no later change is missed
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

// Watch reads the file again when it has changed, until ctx ends. Where it has a mistake, the rules stay as they were.
func (p *Policy) Watch(ctx context.Context, interval time.Duration) {
	if p.config.File == "" {
		<-ctx.Done()
		return
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var (
		refused os.FileInfo // is not read twice
		told    string      // nor told twice
	)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		file, err := os.Stat(p.config.File)
		if err == nil && (same(file, p.loaded.Load().file) || refused != nil && same(file, refused)) {
			continue
		}
		if err == nil {
			err = p.load()
		}
		if err != nil {
			if err.Error() != told {
				p.config.Log.ErrorContext(ctx, "the policy file is not taken; the rules stay as they were", slog.String("error", err.Error()))
			}
			refused, told = file, err.Error()
			continue
		}
		refused, told = nil, ""
		p.config.Log.InfoContext(ctx, "the policy file has changed and is in force", slog.String("file", p.config.File))
	}
}

func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// Knows says whether there is a built-in rule of that name.
func (p *Policy) Knows(name string) bool { return p.builtin[name] != nil }

// Check returns an error of kind ErrForbidden unless the rule allows what the caller of ctx asks for. Tokens for the whole
// system, for a domain or for nothing are always refused, as the rules of OpenStack Cyborg are for projects.
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
		return cyborg.Errorf(cyborg.ErrInternal, "a route asks for the rule %q, and there is none", name)
	}
	if required.allows(factsOf(caller), checks) {
		return nil
	}
	return refused.WithHint("It needs %s, and %s has the roles [%s].", required, caller.Name, strings.Join(caller.Roles, " "))
}

// Rule is one that is in force, for who reads it.
type Rule struct {
	Name     string
	Requires string // in the syntax of oslo.policy
	About    string // empty for one of the operator's own
	// Overridden says that it is the file's.
	Overridden bool
}

// Rules lists all that are in force: the built-in ones in their order, then the operator's own by name.
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
