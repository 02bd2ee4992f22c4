package conductor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/english"
	"github.com/cyborg-project/cyborg/workflows"
)

// EnsureSearchAttributes registers the search attributes that the namespace
// lacks. The error is of kind ErrUnavailable. Where the process may not
// register them, an operator can: the hint lists them.
func EnsureSearchAttributes(ctx context.Context, c client.Client, namespace string) error {
	fail := func(err error) error {
		failure := cyborg.Errorf(cyborg.ErrUnavailable, "search attributes cannot be registered in namespace %s: %w", namespace, err)
		if _, away := errors.AsType[*serviceerror.Unavailable](err); away {
			return failure // its text says what to do
		}
		return failure.WithHint("Register them by hand, or give this process the right to: %s.", attributesText(workflows.SearchAttributes()))
	}

	known, err := c.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: namespace})
	if err != nil {
		return fail(err)
	}

	missing := workflows.SearchAttributes()
	for name := range known.GetCustomAttributes() {
		delete(missing, name)
	}

	if len(missing) == 0 {
		return nil
	}

	_, err = c.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
		Namespace: namespace, SearchAttributes: missing,
	})

	// Another replica may have registered them between the two requests.
	var exists *serviceerror.AlreadyExists
	if err != nil && !errors.As(err, &exists) {
		return fail(err)
	}

	return nil
}

// attributesText lists search attributes with their types, as the temporal command
// line takes them.
func attributesText(all map[string]enumspb.IndexedValueType) string {
	texts := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		texts = append(texts, fmt.Sprintf("%s (%s)", name, all[name]))
	}
	return english.List(texts)
}
