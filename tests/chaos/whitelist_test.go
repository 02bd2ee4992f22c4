package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// prepareWhitelist makes the work add one card to Nova's whitelist. Where all
// cards that may be there are, it removes all of them.
func (d *driver) prepareWhitelist(ctx context.Context, j *job) error {
	all, err := d.accelerators(ctx, j.host)
	if err != nil {
		return err
	}

	has, err := d.c.API.Whitelist(ctx, j.host)
	if err != nil {
		return err
	}

	may := all[len(all)-novaCards:]
	changed, wanted, listed := may[0], []apiclient.WhitelistDevice{}, ""

	if len(has) < novaCards {
		listed = "in"
		for _, a := range may[:len(has)+1] {
			changed, wanted = a, append(wanted, apiclient.WhitelistDevice{Device: a.Name})
		}
	}

	j.request = request{
		what: "whitelist", kind: cyborg.OperationWhitelist, accelerator: changed.UUID, api: j.api, async: j.async,
		trace: trace{string(cyborg.SubjectAccelerator) + " " + changed.UUID.String(), cyborg.AxisNovaWhitelist, listed},
		send: func(ctx context.Context, c *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return c.ApplyWhitelist(ctx, j.host, wanted, false, options...)
		},
	}

	return d.findCard(ctx, j, changed)
}

// checkWhitelists compares the file that Nova reads on each host with the
// recorded whitelist.
func (k *checker) checkWhitelists(ctx context.Context) error {
	for _, host := range k.c.Hosts {
		has, err := k.c.API.Whitelist(ctx, host)
		if err != nil {
			return err
		}

		file, err := os.ReadFile(filepath.Join(k.c.NovaConfDir(host), "cyborg-pci.conf"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}

		wanted := 0
		for _, a := range has {
			wanted += len(a.Addresses)
			for _, address := range a.Addresses {
				if !strings.Contains(string(file), fmt.Sprintf("%q", address)) {
					return fmt.Errorf("%s is in the recorded whitelist of %s, but not in its file:\n%s", address, host, file)
				}
			}
		}

		if n := strings.Count(string(file), "\ndevice_spec"); n != wanted {
			return fmt.Errorf("the recorded whitelist of %s has %d functions, but its file has %d:\n%s", host, wanted, n, file)
		}
	}
	return nil
}
