package config

import (
	"regexp"
	"strings"
)

// kubernetesLink matches the variables that Kubernetes sets in every container
// for each service of the namespace, such as CYBORG_API_SERVICE_HOST for a
// service named cyborg-api (Kubernetes documentation, "Service", "Discovering
// services"). They look like options but are not, and must not be reported as
// mistakes.
var kubernetesLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// fromEnvironment collects the values of variables such as CYBORG_API_LISTEN in
// a tree of sections. An empty variable counts as not set.
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

// mistyped reports whether an unknown variable was probably meant to set an
// option: it begins with the name of a section, or differs from the variable of
// an option in at most two characters. Other variables that begin with CYBORG_
// are ignored, because other programs use the prefix too, such as the command
// line client.
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

// unknownVariable returns the message for a variable that sets no option, with
// the most similar variable that does.
func unknownVariable(name string, names []string) string {
	// In a known section only the rest of the name is compared. The common prefix
	// would make every variable of the section look similar.
	for _, section := range sections() {
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

// insert puts the value into a tree of maps and makes the maps on the way.
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
