package openstack_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// patience is how long a cloud may take for one request. It bounds hangs only:
// on a quiet machine no request takes longer than some seconds.
const patience = 5 * time.Minute

// cloud is Cyborg in an OpenStack: a standalone with fake FPGAs on Nova's
// hosts. Each FPGA is a resource provider with one resource for each of its
// handles.
type cloud struct {
	*harness.Standalone

	rig          *rig.Rig
	killProxy    *killProxy              // nil unless a test kills Cyborg during requests
	tokens       map[string]string       // by user
	accelerators []apiclient.Accelerator // at the start of the test
}

// cloudOptions are the options of a cloud.
type cloudOptions struct {
	part    rig.Part
	hosts   []string // empty for Nova's hosts
	cards   int      // of each host
	handles int      // of each card
	env     []string
}

// start runs Cyborg in a cloud that no other test uses meanwhile, and returns
// when all accelerators are in service.
func start(t *testing.T, options cloudOptions) *cloud {
	t.Helper()
	r := rig.Up(t, options.part)
	r.Alone(t)

	if len(options.hosts) == 0 {
		options.hosts = r.Computes
	}

	var parks []string
	for _, host := range options.hosts {
		parks = append(parks, fmt.Sprintf("%s=fake:%dxfpga", host, options.cards))
	}

	c := &cloud{rig: r, tokens: map[string]string{}}
	c.clear(t, options.hosts)
	t.Cleanup(func() { c.clear(t, options.hosts) }) // after the standalone has stopped

	c.Standalone = harness.New(t, harness.Options{
		Hosts: parks, Token: "the-token-of-the-tests",
		Env: append([]string{
			"CYBORG_OPENSTACK_AUTH_URL=" + r.Keystone,
			"CYBORG_OPENSTACK_PASSWORD=" + r.Password,
			"CYBORG_OPENSTACK_REGION=" + r.Region,
			"CYBORG_KEYSTONE_ENABLED=true",
			"CYBORG_INVENTORY_ADMISSION=auto",
			"CYBORG_CONDUCTOR_RECONCILE_INTERVAL=2s", // Reconcile takes them into service
		}, options.env...),
	})

	r.Announce(t, c.URL+"/v2")
	c.Launch(t)
	c.WaitReady(t)
	c.waitReady(t, len(options.hosts)*options.cards, 1)

	for _, host := range options.hosts {
		_, err := c.API.UpdateDriver(t.Context(), host, "fake", cyborg.JSONObject{
			"park": fmt.Sprintf("%dxfpga", options.cards), "handles": options.handles,
		})
		require.NoError(t, err)
	}

	c.accelerators = c.waitReady(t, len(options.hosts)*options.cards, options.handles)
	return c
}

// until waits until check returns nil; what names the awaited state.
func (c *cloud) until(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	harness.Until(t, ctx, what, func() error { return check(ctx) })
}

// waitReady waits until this many accelerators are ready, each with this many
// handles, and returns them.
func (c *cloud) waitReady(t *testing.T, cards, handles int) []apiclient.Accelerator {
	t.Helper()
	var all []apiclient.Accelerator
	c.until(t, "in service", func(ctx context.Context) error {
		var err error
		all, err = apiclient.Collect(c.API.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
		if err != nil {
			return err
		}

		ready := 0
		for i := range all {
			if all[i].Status == cyborg.StatusReady && len(all[i].Handles) == handles {
				ready++
			}
		}

		if ready != cards {
			return fmt.Errorf("%d of %d accelerators are ready with %d handles", ready, cards, handles)
		}
		return nil
	})
	return all
}

// token returns a token of a user. It gets the token once in a test.
func (c *cloud) token(t *testing.T, who string) string {
	t.Helper()

	if c.tokens[who] == "" {
		c.tokens[who] = c.rig.Token(t, who)
	}
	return c.tokens[who]
}

// answer is the answer of a service.
type answer struct {
	what   string // the request, for failure messages
	status int
	header http.Header
	body   []byte
}

// into decodes the body.
func (a answer) into(t *testing.T, value any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(a.body, value), "%s: %s", a.what, a.body)
}

// expect asserts the status.
func (a answer) expect(t *testing.T, status int) answer {
	t.Helper()
	require.Equal(t, status, a.status, "%s: %s", a.what, a.body)
	return a
}

// send sends a request as a user. The header is given as "Name: value" lines.
// The body is encoded as JSON, unless it is nil.
func (c *cloud) send(t *testing.T, who, method, url string, body any, header ...string) answer {
	t.Helper()
	got, err := send(t.Context(), method, url, body, append(header, "X-Auth-Token: "+c.token(t, who))...)
	require.NoError(t, err)
	return got
}

// send sends a request without a token.
func send(ctx context.Context, method, url string, body any, header ...string) (answer, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return answer{}, err
		}
		content = bytes.NewReader(text)
	}

	request, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return answer{}, err
	}

	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		request.Header.Set(name, value)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()

	a := answer{what: method + " " + url, status: response.StatusCode, header: response.Header}
	a.body, err = io.ReadAll(response.Body)
	return a, err
}

// object is any JSON object.
type object = map[string]any

const (
	placementVersion = "OpenStack-API-Version: placement 1.39"
	computeVersion   = "OpenStack-API-Version: compute 2.90"
)

// provider is a resource provider of Placement.
type provider struct {
	UUID   string
	Name   string
	Parent string `json:"parent_provider_uuid"`
}

// providers returns the resource providers of a host in Placement, the host
// itself first.
func (c *cloud) providers(ctx context.Context, token, host string) ([]provider, error) {
	var found, tree struct {
		Providers []provider `json:"resource_providers"`
	}

	root := c.rig.Placement + "/resource_providers?name=" + url.QueryEscape(host)
	if err := read(ctx, token, root, &found); err != nil || len(found.Providers) == 0 {
		return nil, err
	}

	id := found.Providers[0].UUID
	if err := read(ctx, token, c.rig.Placement+"/resource_providers?in_tree="+id, &tree); err != nil {
		return nil, err
	}

	all := []provider{found.Providers[0]}
	for _, p := range tree.Providers {
		if p.UUID != id {
			all = append(all, p)
		}
	}
	return all, nil
}

// read gets a URL and decodes the answer.
func read(ctx context.Context, token, url string, into any) error {
	version := placementVersion + ", compute 2.90, accelerator 2.0" // each service takes its own

	a, err := send(ctx, http.MethodGet, url, nil, "X-Auth-Token: "+token, version)
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return fmt.Errorf("%s is answered %d: %s", a.what, a.status, a.body)
	}
	return json.Unmarshal(a.body, into)
}

// clear removes everything below the hosts in Placement, and creates hosts that
// do not exist, as in a cloud without Cyborg.
func (c *cloud) clear(t *testing.T, hosts []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	token := c.token(t, "admin")
	for _, host := range hosts {
		tree, err := c.providers(ctx, token, host)
		require.NoError(t, err)

		if len(tree) == 0 {
			a, err := send(ctx, http.MethodPost, c.rig.Placement+"/resource_providers", object{"name": host}, "X-Auth-Token: "+token, placementVersion)
			require.NoError(t, err)
			a.expect(t, http.StatusOK)
			continue
		}

		for _, p := range tree[1:] {
			a, err := send(ctx, http.MethodDelete, c.rig.Placement+"/resource_providers/"+p.UUID, nil, "X-Auth-Token: "+token, placementVersion)
			require.NoError(t, err)
			a.expect(t, http.StatusNoContent)
		}
	}
}

// image adds an image for a type of card to Glance, and returns its id.
func (c *cloud) image(t *testing.T, target cyborg.DeviceType, name string, properties object) string {
	t.Helper()
	body := object{"name": name, "disk_format": "raw", "container_format": "bare", "visibility": "public"}
	maps.Copy(body, properties)

	var created struct{ ID string }
	c.send(t, "admin", http.MethodPost, c.rig.Glance+"/v2/images", body).expect(t, http.StatusCreated).into(t, &created)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, c.rig.Glance+"/v2/images/"+created.ID+"/file",
		strings.NewReader(string(fake.MakeImage(target, name, []byte("payload")))))
	require.NoError(t, err)

	request.Header.Set("X-Auth-Token", c.token(t, "admin"))
	request.Header.Set("Content-Type", "application/octet-stream")

	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusNoContent, response.StatusCode)

	return created.ID
}

// fpga returns a group of a device profile that asks for one fake FPGA. more
// holds further entries as key=value.
func fpga(more ...string) object {
	group := object{"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
	for _, line := range more {
		key, value, _ := strings.Cut(line, "=")
		group[key] = value
	}
	return group
}
