package config

import (
	"regexp"
	"strings"
)

// kubernetesLink matches what Kubernetes puts into the environment of every container for a service, here one whose
// name begins with cyborg (Kubernetes documentation, "Service", discovering services): it sets no option of ours.
var kubernetesLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// fromEnvironment gathers the values of variables such as CYBORG_API_LISTEN, as a tree. An empty variable counts as
// one that is not set.
func (d *decoder) fromEnvironment(environ []string) map[string]any {
	known := map[string]option{}
	var names []string
	for _, opt := range options() {
		known[opt.env()] = opt
		names = append(names, opt.env())
	}
	tree := map[string]any{}
	for _, entry := range environ {
		name, text, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, EnvPrefix) || name == FileVariable || text == "" {
			continue
		}
		source := "environment variable " + name
		opt, ok := known[name]
		if !ok {
			if mistyped(name, names) {
				d.problems = append(d.problems, Problem{Source: source, Message: unknownVariable(name, names)})
			}
			continue
		}
		node, err := opt.parseText(text)
		if err != nil {
			d.problems = append(d.problems, Problem{Source: source, Key: opt.key, Message: err.Error()})
			continue
		}
		insert(tree, strings.Split(opt.key, "."), given{source: source, node: node})
	}
	return tree
}

// mistyped says whether an unknown variable was meant for us: it begins like one of our sections, or is all but one of
// ours. Others that begin with CYBORG_ are somebody else's, such as those of the command line client.
func mistyped(name string, names []string) bool {
	if kubernetesLink.MatchString(name) {
		return false
	}
	for _, section := range sections() {
		if strings.HasPrefix(name, EnvPrefix+strings.ToUpper(section)+"_") {
			return true
		}
	}
	like := nearest(name, names)
	return like != "" && distance(name, like) <= 2
}

func unknownVariable(name string, names []string) string {
	for _, section := range sections() { // what all of a section's variables begin with makes none of them more like it
		prefix := EnvPrefix + strings.ToUpper(section) + "_"
		rest, ours := strings.CutPrefix(name, prefix)
		if !ours {
			continue
		}
		var siblings []string
		for _, candidate := range names {
			if sibling, ok := strings.CutPrefix(candidate, prefix); ok {
				siblings = append(siblings, sibling)
			}
		}
		if like := nearest(rest, siblings); like != "" {
			return "there is no such option; did you mean " + prefix + like + "?"
		}
		return "there is no such option; docs/configuration.md lists them all"
	}
	if like := nearest(name, names); like != "" {
		return "there is no such option; did you mean " + like + "?"
	}
	return "there is no such option; docs/configuration.md lists them all"
}

// insert puts the value into a tree of maps.
func insert(tree map[string]any, path []string, value given) {
	for len(path) > 1 {
		branch, ok := tree[path[0]].(map[string]any)
		if !ok {
			branch = map[string]any{}
			tree[path[0]] = branch
		}
		tree, path = branch, path[1:]
	}
	tree[path[0]] = value
}
