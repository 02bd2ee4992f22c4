package v1

import (
	"net/http"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// clean has the unclean handles of an accelerator cleaned now, or declares them clean,
// in the records alone. Who declares that gives the next holder what the last one has
// left, if it is not so; therefore a clean needs the role Admin.
func (a *API) clean(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}

	if q := readQuery(r); q.err != nil {
		return q.err
	}

	o, err := a.body(w, r)
	if err != nil {
		return err
	}

	request := cyborg.CleanRequest{
		Accelerator: id,
		Method:      readMethod(o),
		Declared:    o.name("declared", cyborg.LongestEvidence),
	}

	if request.Method != "" && request.Declared != "" {
		o.fail("the body has both method and declared; give one")
	}

	if err := o.done(); err != nil {
		return err
	}

	return a.operate(w, r, work{
		request: db.Admission{Request: request}, body: o.canonical, done: a.showSubject,
	})
}

// readMethod reads the property method; "" if it is absent.
func readMethod(o *object) cyborg.CleanMethod {
	method := cyborg.CleanMethod(o.name("method", maxName))
	if methods := cyborg.CleanMethods(); method != "" && !slices.Contains(methods, method) {
		words := each(methods, func(m cyborg.CleanMethod) string { return string(m) })
		o.fail("method is %q, not one of %s", web.Shorten(string(method)), strings.Join(words, ", "))
	}

	return method
}
