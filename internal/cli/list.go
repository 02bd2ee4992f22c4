package cli

import (
	"context"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// listing is what a list command shows and where it reads it.
type listing[T any] struct {
	columns []column[T]

	// pages says that the API returns the list in pages. The command then has
	// --limit, with the default limit (0 for all), and --marker.
	pages bool
	limit uint

	// read fetches the list; it is called again for each refresh of a watch.
	read func(ctx context.Context, c call, page apiclient.Page) ([]T, error)
	feed feeder
}

// list completes a command with what all lists have in common: the flags -f,
// -c, --long, --sort, -w, --limit and --marker, and the reading and printing.
func list[T any](s *shell, cmd *cobra.Command, l listing[T]) {
	var page pageFlags
	var long bool
	var order []string

	p := s.printer(cmd)
	keys := make([]string, len(l.columns))
	for i, c := range l.columns {
		keys[i] = c.key
	}
	// Completion of --column and --sort offers these keys.
	cmd.Annotations = map[string]string{columnsOf: strings.Join(keys, ",")}

	flags := cmd.Flags()
	if slices.ContainsFunc(l.columns, func(c column[T]) bool { return c.long }) {
		flags.BoolVar(&long, "long", false, "show more columns")
	}
	if l.pages {
		page.addFlags(cmd, l.limit)
	}
	flags.StringSliceVar(&order, "sort", nil, "sort the entries by COLUMN[:asc|:desc][,...]")

	p.addWatch(cmd)

	var chosen []column[T]
	var compare func(a, b T) int
	before(cmd, func() (err error) {
		if chosen, err = chooseColumns(p, l.columns, long); err != nil {
			return err
		}
		compare, err = parseOrder(cmd, order, l.columns)
		return err
	})

	s.run(cmd, func(ctx context.Context, c call) error {
		return p.show(ctx, c, l.feed, func(ctx context.Context) error {
			items, err := l.read(ctx, c, page.page())
			if err != nil {
				return err
			}

			// Only the page that was read is sorted: the API decides what is on it.
			if compare != nil {
				slices.SortStableFunc(items, compare)
			}

			return printColumns(p, items, l.columns, chosen)
		})
	})
}

// pageFlags are a list's --limit and --marker.
type pageFlags struct {
	limit  uint
	marker string
}

// addFlags adds --limit and --marker.
func (f *pageFlags) addFlags(cmd *cobra.Command, limit uint) {
	cmd.Flags().UintVar(&f.limit, "limit", limit, "show at most this many; 0 means all")
	cmd.Flags().StringVar(&f.marker, "marker", "", "start after this entry, the last one of the previous list")
	allowEmpty(cmd.Flags(), "marker") // a script passes an empty marker for its first page
}

// page converts the flags to what the client takes.
func (f *pageFlags) page() apiclient.Page {
	return apiclient.Page{Limit: int(min(f.limit, math.MaxInt32)), Marker: f.marker}
}

// onlyHost returns the feed of a list that shows one host. A filter takes one
// host only, so a list of several follows all events.
func onlyHost(hosts *[]string) feeder {
	return func(context.Context, call) (apiclient.EventFilter, error) {
		if len(*hosts) == 1 {
			return apiclient.EventFilter{Host: (*hosts)[0]}, nil
		}
		return apiclient.EventFilter{}, nil
	}
}
