package imagesource

import (
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzCheck asks for arbitrary URLs. Only those below the allowed one may pass,
// however they are spelled.
func FuzzCheck(f *testing.F) {
	source, err := New(Options{Allow: []string{"https://images.example.org/fpga"}})
	require.NoError(f, err)
	f.Cleanup(source.Close)

	for _, text := range append(fuzztest.Texts(), "https://images.example.org/fpga/a.bin", "https://IMAGES.example.org:443/fpga", "https://images.example.org/fpga/../x",
		"https://images.example.org/fpga/%2e%2e/x", "https://images.example.org/fpgax", "https://u:p@images.example.org/fpga/a", "https://images.example.org@evil/fpga/a",
		"https://images.example.org.evil/fpga/a", "https://images.example.org\\@evil/fpga", "http://images.example.org/fpga/a", "https://2130706433/fpga/a", "https://0x7f.1/fpga",
		"https://[::1]/fpga", "//images.example.org/fpga/a", "https:images.example.org/fpga", "https://images.example.org:0443/fpga", "https://images.example.org./fpga") {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		asked, err := url.Parse(text)
		if err != nil {
			return
		}

		if err := source.check(asked); err != nil {
			require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err))
			return
		}

		require.Equal(t, "https", asked.Scheme)
		require.Equal(t, "images.example.org", strings.ToLower(asked.Hostname()))
		require.Contains(t, []string{"", "443"}, asked.Port())
		require.Nil(t, asked.User)

		clean := path.Clean(asked.Path)
		require.True(t, clean == "/fpga" || strings.HasPrefix(clean, "/fpga/"), text)
	})
}
