package apiclient

import (
	"context"
	"encoding/json"
	"iter"
	"maps"
	"net/url"
	"strconv"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// pageSize is the number of items per request where the caller wants all of
// them; it is the most that the API returns.
const pageSize = 1000

// Page selects a part of a list; the zero value selects all of it, in as many
// requests as that takes. Each request asks for one db.Page.
type Page struct {
	Limit  int    // at most so many items; 0 for all
	Marker string // begin after the item of this id
}

// list reads a list page by page, as far as the caller consumes it. The key is
// the name of the list in the body; id returns the marker by which the next
// page follows an item.
func list[T any](ctx context.Context, c *Client, path, key string, query url.Values, page Page, id func(T) string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		remaining, marker := page.Limit, page.Marker

		for {
			size := pageSize
			if page.Limit > 0 {
				size = min(size, remaining)
			}

			items, err := onePage[T](ctx, c, path, key, query, size, marker)
			if err != nil {
				var none T
				yield(none, err)
				return
			}

			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}

			// A short page is the last one.
			remaining -= len(items)
			if len(items) < size || (page.Limit > 0 && remaining == 0) {
				return
			}

			marker = id(items[len(items)-1])
		}
	}
}

// onePage reads one page of a list.
func onePage[T any](ctx context.Context, c *Client, path, key string, query url.Values, limit int, marker string) ([]T, error) {
	q := url.Values{}
	maps.Copy(q, query)
	q.Set("limit", strconv.Itoa(limit))

	if marker != "" {
		q.Set("marker", marker)
	}

	return whole[T](ctx, c, path, key, q)
}

// whole reads a list that the API returns in one answer. A missing list is an
// error, since another service may answer at the URL.
func whole[T any](ctx context.Context, c *Client, path, key string, query url.Values) ([]T, error) {
	var body map[string]json.RawMessage
	answer, err := c.get(ctx, path, query, &body)
	if err != nil {
		return nil, err
	}

	content, ok := body[key]
	if !ok {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "the API's answer to %s has no %q", path, key).
			WithHint("Is the URL that of a Cyborg API of this release?")
	}

	items := []T{}
	answer.body = content
	return items, answer.decode(&items)
}

// Collect reads a sequence into a slice. It returns nothing but the error where
// one occurs.
func Collect[T any](items iter.Seq2[T, error]) ([]T, error) {
	all := []T{}
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		all = append(all, item)
	}

	return all, nil
}

// query builds the query of a URL; empty values are left out.
type query url.Values

// add adds each value under the name.
func (q query) add(name string, values ...string) {
	for _, value := range values {
		if value != "" {
			q[name] = append(q[name], value)
		}
	}
}

// addUUID adds a UUID unless it is zero.
func (q query) addUUID(name string, id uuid.UUID) {
	if id != uuid.Nil {
		q.add(name, id.String())
	}
}

// asStrings converts words of the domain to strings.
func asStrings[S ~string](values []S) []string {
	out := make([]string, len(values))
	for i, value := range values {
		out[i] = string(value)
	}
	return out
}
