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

// The supported microversions are 2.lowestMinor to 2.highestMinor. A request
// without the version header gets the lowest.
const (
	major        = 2
	lowestMinor  = 0
	highestMinor = 3
)

// Each constant is the minor version that introduced a feature.
const (
	minorProject = 1 // a bind may set the project of an ARQ
	minorName    = 2 // a device profile can be shown by its name
	minorStatus  = 3 // devices have a status
)

// serviceType is upstream's type in the service catalog; the version header
// names it too.
const serviceType = "accelerator"

// The version headers, in Go's canonical spelling.
const (
	versionHeader = "Openstack-Api-Version"
	lowestHeader  = "Openstack-Api-Minimum-Version"
	highestHeader = "Openstack-Api-Maximum-Version"
)

// versionPattern matches a microversion. Nine digits are more than any version
// has and always fit into an int.
var versionPattern = regexp.MustCompile(`^([0-9]{1,9})\.([0-9]{1,9})$`)

// minorKey is the context key of the negotiated minor version.
type minorKey struct{}

// minorOf returns the minor version of the request that ctx belongs to.
func minorOf(ctx context.Context) int {
	minor, _ := ctx.Value(minorKey{}).(int)
	return minor
}

// needs returns an error with status 406 if a feature is newer than the
// request's microversion.
func needs(ctx context.Context, minor int) error {
	if minorOf(ctx) >= minor {
		return nil
	}
	return web.WithStatus(cyborg.Errorf(cyborg.ErrInvalid,
		"Request not acceptable. The minimal required API version should be %d.%d", major, minor).
		WithHint("Send the header OpenStack-API-Version: %s %d.%d.", serviceType, major, minor), http.StatusNotAcceptable)
}

// versionText returns the text of a version, such as "2.3".
func versionText(minor int) string { return fmt.Sprintf("%d.%d", major, minor) }

// negotiate determines the microversion of a request, puts it into the
// request's context, and sets the version headers of the answer.
func negotiate(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	header := w.Header()
	header.Set("Vary", "OpenStack-API-Version") // spelt as in upstream, not in Go's canonical form

	given := r.Header.Values(versionHeader)
	asked, ok := askedVersion(given)
	if !ok {
		return nil, notAcceptable("Invalid value for OpenStack-API-Version header: %q.", web.Shorten(strings.Join(given, ",")))
	}

	header.Set(lowestHeader, versionText(lowestMinor))
	header.Set(highestHeader, versionText(highestMinor))

	// The headers above belong to refusals, too, so that clients can choose another
	// version.
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

// askedFor is the version that a request asks for.
type askedFor struct{ major, minor int }

// askedVersion reads the values of the version header: a list with an entry for
// each service, such as "accelerator 2.3". As in upstream, an entry without a
// service counts too. It returns false if no entry is meant for this service.
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
			continue // an entry of another service
		}

		if strings.EqualFold(words[0], "latest") {
			return askedFor{major, highestMinor}, true
		}

		if parts := versionPattern.FindStringSubmatch(words[0]); parts != nil {
			// The pattern allows at most nine digits, so Atoi cannot fail.
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

// Discovery returns the document of all versions. Its links lead to the host
// that the request was sent to.
func Discovery(r *http.Request) DiscoveryView {
	version := viewVersion("v2", requestHost(r)+linkPrefix)
	return DiscoveryView{
		Name:        "OpenStack Cyborg API",
		Description: "Cyborg manages the life of accelerators: it finds them, programs them, and hands them to instances.",
		Versions:    []VersionView{version},
		Default:     version,
	}
}

// viewVersion returns the view of the only version, under the id and address
// that the document needs.
func viewVersion(id, href string) VersionView {
	return VersionView{
		ID: id, Status: "CURRENT", Highest: versionText(highestMinor), Lowest: versionText(lowestMinor),
		Links: []linkView{{Href: href, Rel: "self"}},
	}
}

// showVersion answers with the version document of /v2. The members are
// declared here in the order of upstream's document.
func (a *API) showVersion(w http.ResponseWriter, r *http.Request) error {
	view := viewVersion("v2.0", a.base(r)+linkPrefix+"/")
	return web.WriteJSON(w, http.StatusOK, struct {
		ID      string     `json:"id"`
		Links   []linkView `json:"links"`
		Highest string     `json:"max_version"`
		Lowest  string     `json:"min_version"`
		Status  string     `json:"status"`
	}{view.ID, view.Links, view.Highest, view.Lowest, view.Status})
}
