package apiclient_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// A client lists the accelerators that are ready, attaches the first of them to
// its own host, and follows the operation to its end.
func Example() {
	api := httptest.NewServer(exampleAPI())
	defer api.Close()

	client, err := apiclient.New(apiclient.Options{URL: api.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	ctx := context.Background()
	ready := apiclient.AcceleratorFilter{Statuses: []cyborg.Status{cyborg.StatusReady}}

	for accelerator, err := range client.Accelerators(ctx, ready, apiclient.Page{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s on %s is %s\n", accelerator.Name, accelerator.Host, accelerator.Status)

		answer, err := client.Attach(ctx, accelerator.UUID, cyborg.Holder{}, apiclient.Async())
		if err != nil {
			fmt.Println(err)
			return
		}

		for operation, err := range client.Watch(ctx, answer.Operation.ID, nil) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Printf("%s: %s\n", operation.Kind, operation.State)
		}
	}

	// Output:
	// fpga-1 on compute-1 is ready
	// attach: succeeded
}

// Every failure of the API is a *cyborg.Error, whose kind a program can tell
// apart and whose hint helps a person.
func Example_errors() {
	api := httptest.NewServer(exampleAPI())
	defer api.Close()

	client, err := apiclient.New(apiclient.Options{URL: api.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	_, err = client.Host(context.Background(), "compute-9")
	if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
		fmt.Println(cyborg.AsError(err).Message)
		fmt.Println(cyborg.AsError(err).Hint)
	}

	// Output:
	// there is no host "compute-9"
	// See `cyborg host list`.
}

// exampleAPI stands in for the API: it knows one accelerator and no host.
func exampleAPI() http.Handler {
	const (
		accelerator = "0a1b2c3d-0000-4000-8000-000000000001"
		operation   = "0a1b2c3d-0000-4000-8000-000000000002"
	)

	api := http.NewServeMux()
	api.HandleFunc("GET /v1/accelerators", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, `{"accelerator": [{"uuid": "`+accelerator+`", "name": "fpga-1", "host": "compute-1", "status": "ready"}]}`)
	})
	api.HandleFunc("PUT /v1/accelerators/"+accelerator, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusAccepted, `{"id": "`+operation+`", "kind": "attach", "state": "admitted"}`)
	})
	api.HandleFunc("GET /v1/operations/"+operation, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, `{"id": "`+operation+`", "kind": "attach", "state": "succeeded"}`)
	})
	api.HandleFunc("GET /v1/operations/"+operation+"/events", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent) // the operation has ended
	})
	api.HandleFunc("GET /v1/hosts/compute-9", func(w http.ResponseWriter, _ *http.Request) {
		answerProblem(w, http.StatusNotFound, `{"status": 404, "kind": "not_found",
			"detail": "there is no host \"compute-9\"", "hint": "See `+"`cyborg host list`"+`."}`)
	})
	return api
}
