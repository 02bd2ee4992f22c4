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

// pageSize is how many items one request asks for where the caller wants them all; the API gives no more.
const pageSize = 1000

// Page asks for a part of a list.
type Page struct {
	Limit  int    // at most so many items; 0 for all
	Marker string // begin after the item of this id
}

// list reads a list page by page, as far as it is asked for items. Key is the name of the list in the body; id is what
// a page's last item is called as the next one's marker.
func list[T any](ctx context.Context, c *Client, path, key string, query url.Values, page Page, id func(T) string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		left, marker := page.Limit, page.Marker
		for {
			size := pageSize
			if page.Limit > 0 {
				size = min(size, left)
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
			left -= len(items)
			if len(items) < size || (page.Limit > 0 && left == 0) {
				return
			}
			marker = id(items[len(items)-1])
		}
	}
}

func onePage[T any](ctx context.Context, c *Client, path, key string, query url.Values, limit int, marker string) ([]T, error) {
	q := url.Values{}
	maps.Copy(q, query)
	q.Set("limit", strconv.Itoa(limit))
	if marker != "" {
		q.Set("marker", marker)
	}
	return whole[T](ctx, c, path, key, q)
}

// whole reads a list that the API does not page.
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

// Collect reads a whole list.
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

// query builds a query from values; empty ones are left out.
type query url.Values

func (q query) add(name string, values ...string) {
	for _, value := range values {
		if value != "" {
			q[name] = append(q[name], value)
		}
	}
}

func (q query) addUUID(name string, id uuid.UUID) {
	if id != uuid.Nil {
		q.add(name, id.String())
	}
}

func asStrings[S ~string](values []S) []string {
	out := make([]string, len(values))
	for i, value := range values {
		out[i] = string(value)
	}
	return out
}
