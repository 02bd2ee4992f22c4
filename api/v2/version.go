package v2

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// The microversions: 2.lowestMinor to 2.highestMinor. A request is of the one that its header names, and of the lowest
// without it.
const (
	major        = 2
	lowestMinor  = 0
	highestMinor = 3
)

// What came with which microversion.
const (
	minorProject = 1 // the project of an ARQ can be given when it is bound
	minorName    = 2 // a device profile can be shown by its name
	minorStatus  = 3 // devices have a status
)

// serviceType is upstream's in the catalog.
const serviceType = "accelerator"

const (
	versionHeader = "Openstack-Api-Version"
	lowestHeader  = "Openstack-Api-Minimum-Version"
	highestHeader = "Openstack-Api-Maximum-Version"
)

var versionPattern = regexp.MustCompile(`^([0-9]{1,9})\.([0-9]{1,9})$`)

type minorKey struct{}

// minorOf is the microversion of the request that ctx belongs to: 2.minor.
func minorOf(ctx context.Context) int {
	minor, _ := ctx.Value(minorKey{}).(int)
	return minor
}

// needs refuses what a later microversion than the request's has brought.
func needs(ctx context.Context, minor int) error {
	if minorOf(ctx) >= minor {
		return nil
	}
	return web.WithStatus(cyborg.Errorf(cyborg.ErrInvalid,
		"Request not acceptable. The minimal required API version should be %d.%d", major, minor).
		WithHint("Send the header OpenStack-API-Version: %s %d.%d.", serviceType, major, minor), http.StatusNotAcceptable)
}

func versionText(minor int) string { return fmt.Sprintf("%d.%d", major, minor) }

// negotiate finds the microversion of a request and says in the answer's headers which ones there are.
func negotiate(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	header := w.Header()
	header.Set("Vary", "OpenStack-API-Version") // as upstream writes it
	given := r.Header.Values(versionHeader)
	asked, ok := askedVersion(given)
	if !ok {
		return nil, notAcceptable("Invalid value for OpenStack-API-Version header: %q.", web.Shorten(strings.Join(given, ",")))
	}
	header.Set(lowestHeader, versionText(lowestMinor))
	header.Set(highestHeader, versionText(highestMinor))
	supported := fmt.Sprintf("[%s, %s]", versionText(lowestMinor), versionText(highestMinor))
	switch {
	case asked.major != major:
		return nil, notAcceptable("Mutually exclusive versions requested. Version %d.%d requested but not supported by this service. "+
			"The supported version range is: %s.", asked.major, asked.minor, supported)
	case asked.minor > highestMinor:
		return nil, notAcceptable("Version %d.%d was requested but the minor version is not supported by this service. "+
			"The supported version range is: %s.", asked.major, asked.minor, supported)
	}
	header.Set(versionHeader, serviceType+" "+versionText(asked.minor))
	return r.WithContext(context.WithValue(r.Context(), minorKey{}, asked.minor)), nil
}

type askedFor struct{ major, minor int }

// askedVersion reads the header: a list in which each service has its own, "accelerator 2.3". Upstream takes one without
// a service, too.
func askedVersion(values []string) (askedFor, bool) {
	if len(values) == 0 {
		return askedFor{major, lowestMinor}, true
	}
	for item := range strings.SplitSeq(strings.Join(values, ","), ",") {
		words := strings.Fields(item)
		if len(words) == 2 && strings.EqualFold(words[0], serviceType) {
			words = words[1:]
		}
		if len(words) != 1 {
			continue // of another service
		}
		if strings.EqualFold(words[0], "latest") {
			return askedFor{major, highestMinor}, true
		}
		if parts := versionPattern.FindStringSubmatch(words[0]); parts != nil {
			// At most nine digits each.
			first, _ := strconv.Atoi(parts[1])
			second, _ := strconv.Atoi(parts[2])
			return askedFor{first, second}, true
		}
	}
	return askedFor{}, false
}

// VersionView is one version in upstream's version documents.
type VersionView struct {
	ID      string     `json:"id"`
	Status  string     `json:"status"`
	Highest string     `json:"max_version"`
	Lowest  string     `json:"min_version"`
	Links   []linkView `json:"links"`
}

// DiscoveryView is upstream's document of all versions.
type DiscoveryView struct {
	Name        string        `json:"name"`
	Description string        `json:"description"`
	Versions    []VersionView `json:"versions"`
	Default     VersionView   `json:"default_version"`
}

// Discovery is the document of all versions; its links lead to the host that was asked.
func Discovery(r *http.Request) DiscoveryView {
	version := viewVersion("v2", requestHost(r)+linkPrefix)
	return DiscoveryView{
		Name:        "OpenStack Cyborg API",
		Description: "Cyborg manages the life of accelerators: it finds them, programs them, and hands them to instances.",
		Versions:    []VersionView{version},
		Default:     version,
	}
}

func viewVersion(id, href string) VersionView {
	return VersionView{
		ID: id, Status: "CURRENT", Highest: versionText(highestMinor), Lowest: versionText(lowestMinor),
		Links: []linkView{{Href: href, Rel: "self"}},
	}
}

func (a *API) showVersion(w http.ResponseWriter, r *http.Request) error {
	view := viewVersion("v2.0", a.base(r)+linkPrefix+"/")
	return web.WriteJSON(w, http.StatusOK, struct { // in the order of upstream's document
		ID      string     `json:"id"`
		Links   []linkView `json:"links"`
		Highest string     `json:"max_version"`
		Lowest  string     `json:"min_version"`
		Status  string     `json:"status"`
	}{view.ID, view.Links, view.Highest, view.Lowest, view.Status})
}
