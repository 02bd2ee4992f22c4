package standalone_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	_ "go.temporal.io/api/operatorservice/v1" // registers its methods
	_ "go.temporal.io/api/workflowservice/v1" // the same
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cyborg-project/cyborg/tests/harness"
)

// change is a request by which the Web UI's API changes something.
type change struct {
	rpc, method, path string
}

// parameterPattern finds the parameters in a path.
var parameterPattern = regexp.MustCompile(`\{[^}]*\}`)

// changes returns all requests of the Web UI's API that are no GET: Temporal
// itself says which there are, where it describes its methods.
func changes(t *testing.T) []change {
	t.Helper()
	var all []change

	for _, service := range []protoreflect.FullName{
		"temporal.api.workflowservice.v1.WorkflowService", "temporal.api.operatorservice.v1.OperatorService",
	} {
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(service)
		require.NoError(t, err)
		methods := found.(protoreflect.ServiceDescriptor).Methods()

		for i := range methods.Len() {
			method := methods.Get(i)
			method.Options().ProtoReflect().Range(func(option protoreflect.FieldDescriptor, value protoreflect.Value) bool {
				if option.FullName() == "google.api.http" {
					all = append(all, changesOf(string(method.Name()), value.Message())...)
				}
				return true
			})
		}
	}

	return all
}

// changesOf returns the requests by which a method can be called, as its option
// google.api.http says.
func changesOf(rpc string, rule protoreflect.Message) []change {
	var all []change

	rule.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch field.Name() {
		case "post", "put", "patch", "delete":
			path := strings.ReplaceAll(value.String(), "{namespace}", "cyborg")
			all = append(all, change{rpc, strings.ToUpper(string(field.Name())), parameterPattern.ReplaceAllString(path, "x")})
		case "additional_bindings":
			for i := range value.List().Len() {
				all = append(all, changesOf(rpc, value.List().Get(i).Message())...)
			}
		}
		return true
	})

	return slices.DeleteFunc(all, func(c change) bool { return !strings.HasPrefix(c.path, "/api/v1/") })
}

// cookies returns the headers that the pages of the Web UI send with a change.
// Without them it would be refused for that alone.
func cookies(t *testing.T, s *harness.Standalone, password string) map[string]string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.UI+"/", nil)
	require.NoError(t, err)
	if password != "" {
		request.SetBasicAuth("whoever", password)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())

	for _, cookie := range response.Cookies() {
		if cookie.Name == "_csrf" {
			return map[string]string{"Cookie": "_csrf=" + cookie.Value, "X-CSRF-Token": cookie.Value, "Content-Type": "application/json"}
		}
	}

	require.Fail(t, "the Web UI has set no cookie")
	return nil
}

// TestWebUIOnlyShows tries everything that the API of the Web UI could change,
// as its pages do. By default all of it is refused. An admin for whom it was
// allowed may end, repeat and signal runs, and no more.
func TestWebUIOnlyShows(t *testing.T) {
	t.Parallel()
	const admin = "secret-of-the-admin"
	open := harness.Start(t, harness.Options{})
	writes := harness.Start(t, harness.Options{Token: admin, Env: []string{
		"CYBORG_API_TOKENS=[{name: ada, role: admin, token: " + admin + "}]", "CYBORG_STANDALONE_TEMPORAL_UI_WRITES=true",
	}})

	refused := func(s *harness.Standalone, c change, password string) bool {
		status, body := asking{method: c.method, path: c.path, password: password, headers: cookies(t, s, password)}.ask(t, s)
		require.NotContains(t, strings.ToLower(body), "csrf", "%+v is refused for another reason: %s", c, body)
		return status == http.StatusForbidden || status == http.StatusMethodNotAllowed
	}

	mayDo := map[string]bool{
		"SignalWorkflowExecution": true, "RequestCancelWorkflowExecution": true, "TerminateWorkflowExecution": true, "ResetWorkflowExecution": true,
		"PatchSchedule": true,
		"QueryWorkflow": true, // it only reads
	}
	var tried []string

	for _, c := range changes(t) {
		tried = append(tried, c.rpc)
		if c.rpc != "QueryWorkflow" {
			require.True(t, refused(open, c, ""), "%+v", c)
		}
		require.Equal(t, !mayDo[c.rpc], refused(writes, c, admin), "%+v", c)
	}

	require.Subset(t, tried, []string{
		"StartWorkflowExecution", "SignalWithStartWorkflowExecution", "SignalWorkflowExecution", "RequestCancelWorkflowExecution",
		"TerminateWorkflowExecution", "ResetWorkflowExecution", "PauseWorkflowExecution", "StartBatchOperation", "PauseActivity",
		"StartActivityExecution", "CreateSchedule", "UpdateSchedule", "PatchSchedule", "DeleteSchedule", "RegisterNamespace",
	})

	// To the Web UI, this looks like the question of a reader.
	require.True(t, refused(open, change{"", http.MethodPost, runsPath + "/x%2Fquery%2Fy/terminate"}, ""))
	harness.RequireSound(t, open)
}
