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
	read func(ctx context.Context, client *apiclient.Client, page apiclient.Page) ([]T, error)

	// feed returns the events that may change the list, for --watch; nil means all
	// events.
	feed func() apiclient.EventFilter
}

// list completes a command with what all lists have in common: the flags -f,
// -c, --long, --sort, -w, --limit and --marker, and the reading and printing.
func list[T any](s *shell, cmd *cobra.Command, l listing[T]) *cobra.Command {
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
		flags.BoolVar(&long, "long", false, "more columns")
	}
	if l.pages {
		page.addFlags(cmd, l.limit)
	}
	flags.StringSliceVar(&order, "sort", nil, "sort what was listed by COLUMN[:asc|:desc][,...]")

	p.addWatch(cmd)

	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// Mistakes in the flags are reported before the API is asked.
		chosen, err := chooseColumns(p, l.columns, long)
		if err != nil {
			return err
		}
		compare, err := parseOrder(cmd, order, l.columns)
		if err != nil {
			return err
		}

		client, err := s.connect()
		if err != nil {
			return err
		}

		feed := apiclient.EventFilter{}
		if l.feed != nil {
			feed = l.feed()
		}

		return p.show(cmd.Context(), client, feed, func(ctx context.Context) error {
			items, err := l.read(ctx, client, page.page())
			if err != nil {
				return err
			}

			// Only the page that was read is sorted: the API decides what is on it.
			if compare != nil {
				slices.SortStableFunc(items, compare)
			}

			return printColumns(p, items, l.columns, chosen)
		})
	}

	return cmd
}

// pageFlags are a list's --limit and --marker.
type pageFlags struct {
	limit  uint
	marker string
}

// addFlags adds --limit and --marker.
func (f *pageFlags) addFlags(cmd *cobra.Command, limit uint) {
	cmd.Flags().UintVar(&f.limit, "limit", limit, "at most so many; 0 for all")
	cmd.Flags().StringVar(&f.marker, "marker", "", "begin after this one, the last of an earlier list")
	allowEmpty(cmd.Flags(), "marker") // a script passes an empty marker for its first page
}

// page converts the flags to what the client takes.
func (f *pageFlags) page() apiclient.Page {
	return apiclient.Page{Limit: int(min(f.limit, math.MaxInt32)), Marker: f.marker}
}

// onlyHost returns the feed of a list that shows one host. A filter takes one
// host only, so a list of several follows all events.
func onlyHost(hosts []string) apiclient.EventFilter {
	if len(hosts) == 1 {
		return apiclient.EventFilter{Host: hosts[0]}
	}
	return apiclient.EventFilter{}
}
