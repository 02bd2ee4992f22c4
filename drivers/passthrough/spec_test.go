package passthrough_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/passthrough"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// function is an A100 at an address.
func function(tb testing.TB, address string) sysfs.Function {
	tb.Helper()
	a, err := cyborg.ParsePCIAddress(address)
	require.NoError(tb, err)
	return sysfs.Function{Address: a, Vendor: "10de", Product: "20b0", Class: 0x030200}
}

// Each spec matches the addresses of its first list, and none of its second
// one.
func TestSpecMatches(t *testing.T) {
	t.Parallel()
	for spec, c := range map[string]struct{ matches, others []string }{
		`*`:                       {[]string{"0000:3b:00.0", "10000:e1:1f.7"}, nil},
		` * `:                     {[]string{"0000:3b:00.0"}, nil},
		`{"vendor_id": "10de"}`:   {[]string{"0000:3b:00.0"}, nil},
		`{"vendor_id": "10DE"}`:   {[]string{"0000:3b:00.0"}, nil},
		`{"vendor_id": "0x10de"}`: {[]string{"0000:3b:00.0"}, nil},
		`{"vendor_id": "*"}`:      {[]string{"0000:3b:00.0"}, nil},
		`{"vendor_id": "8086"}`:   {nil, []string{"0000:3b:00.0"}},
		`{"vendor_id": 8086}`:     {nil, []string{"0000:3b:00.0"}},
		`{"vendor_id": "10de", "product_id": "20b0"}`: {[]string{"0000:3b:00.0"}, nil},
		`{"vendor_id": "10de", "product_id": "20b1"}`: {nil, []string{"0000:3b:00.0"}},
		`{"class": "03"}`:                    {[]string{"0000:3b:00.0"}, nil},
		`{"class": "0302"}`:                  {[]string{"0000:3b:00.0"}, nil},
		`{"class": "0x030200"}`:              {[]string{"0000:3b:00.0"}, nil},
		`{"class": "0300"}`:                  {nil, []string{"0000:3b:00.0"}},
		`{"address": "0000:3b:00.0"}`:        {[]string{"0000:3b:00.0"}, []string{"0000:3b:00.1", "0001:3b:00.0"}},
		`{"address": "0000:3B:00.0"}`:        {[]string{"0000:3b:00.0"}, nil},
		`{"address": "0000:3b:*.*"}`:         {[]string{"0000:3b:00.0", "0000:3b:1f.7"}, []string{"0000:3c:00.0"}},
		`{"address": "*:3b:00.0"}`:           {[]string{"0000:3b:00.0", "10000:3b:00.0"}, []string{"0000:3b:00.1"}},
		`{"address": "0000:3?:*.*"}`:         {[]string{"0000:3b:00.0", "0000:30:00.0"}, []string{"0000:4b:00.0"}},
		`{"address": "0000:*b:*.0"}`:         {[]string{"0000:3b:00.0", "0000:4b:00.0"}, []string{"0000:b3:00.0", "0000:3b:00.1"}},
		`{"address": "3b:00.0"}`:             {[]string{"0000:3b:00.0", "0001:3b:00.0"}, []string{"0000:3c:00.0"}},
		`{"address": ":3b:"}`:                {[]string{"0000:3b:00.0", "0001:3b:02.1"}, []string{"0000:3c:00.0"}},
		`{"address": "00"}`:                  {[]string{"0000:3b:00.0", "0000:3c:00.3"}, []string{"0000:3b:01.0"}},
		`{"address": ".0"}`:                  {[]string{"0000:3b:00.0"}, []string{"0000:3b:00.1"}},
		`{"address": "*"}`:                   {[]string{"0000:3b:00.0"}, nil},
		`{"address": {"domain": ".*"}}`:      {[]string{"0000:3b:00.0"}, nil},
		`{"address": {"bus": "3[bc]"}}`:      {[]string{"0000:3b:00.0", "0000:3c:00.0"}, []string{"0000:3d:00.0"}},
		`{"address": {"bus": "3"}}`:          {[]string{"0000:3b:00.0"}, []string{"0000:b3:00.0"}}, // re.match: from the beginning
		`{"address": {"bus": "a|b"}}`:        {[]string{"0000:a0:00.0", "0000:b0:00.0"}, []string{"0000:0a:00.0"}},
		`{"address": {"function": "[2-7]"}}`: {[]string{"0000:3b:00.2"}, []string{"0000:3b:00.0"}},
		`{"address": {"slot": "0[0-3]$"}}`:   {[]string{"0000:3b:03.0"}, []string{"0000:3b:10.0"}},
		`{"address": {"domain": "0000", "bus": "3b", "slot": "00", "function": "0"}}`: {[]string{"0000:3b:00.0"}, []string{"0000:3b:00.1"}},
	} {
		parsed, err := passthrough.ParseSpec(spec)
		require.NoError(t, err, spec)

		for _, address := range c.matches {
			require.True(t, parsed.Match(function(t, address)), "%s chooses %s", spec, address)
		}
		for _, address := range c.others {
			require.False(t, parsed.Match(function(t, address)), "%s does not choose %s", spec, address)
		}
	}
}

// TestSpecMatchesByPhysicalFunction checks that the literal address of a
// physical function also chooses its virtual ones, as in Nova.
func TestSpecMatchesByPhysicalFunction(t *testing.T) {
	t.Parallel()
	pf := function(t, "0000:3b:00.0")
	vf := function(t, "0000:3b:01.2")
	vf.PF, vf.Product = &pf.Address, "20ff"

	for spec, chosen := range map[string]bool{
		`{"address": "0000:3b:00.0"}`:                                                 true,
		`{"address": "0000:3b:00.0", "product_id": "20ff"}`:                           true,
		`{"address": "0000:3b:00.0", "product_id": "20b0"}`:                           false,
		`{"address": "0000:3b:00.*"}`:                                                 false,
		`{"address": {"domain": "0000", "bus": "3b", "slot": "00", "function": "0"}}`: false,
	} {
		parsed, err := passthrough.ParseSpec(spec)
		require.NoError(t, err)
		require.Equal(t, chosen, parsed.Match(vf), spec)
	}
}

// The error names the property that is wrong, and says what may be written
// there.
func TestInvalidSpecs(t *testing.T) {
	t.Parallel()
	for spec, messages := range map[string][]string{
		``:                                 {`"*"`},
		`null`:                             {`"*"`},
		`{}`:                               {`"*"`},
		`[]`:                               {`"*"`},
		`"10de"`:                           {`"*"`},
		`{"vendor_id": "10d"}`:             {"vendor_id", `"10d"`, "four hexadecimal digits"},
		`{"vendor_id": "10dg"}`:            {`"10dg"`},
		`{"vendor_id": 302}`:               {"302", "quotes"},
		`{"vendor_id": 8086.5}`:            {"quotes"},
		`{"vendor_id": true}`:              {"true"},
		`{"product_id": null}`:             {"nil"},
		`{"class": "030"}`:                 {"class", `"030"`},
		`{"class": "GPU"}`:                 {`"GPU"`},
		`{"devname": "eth0"}`:              {`"devname"`, "address, class, product_id, vendor_id"},
		`{"address": 3}`:                   {"address is 3"},
		`{"address": "0:1:2:3.4"}`:         {"too many parts"},
		`{"address": "0000:3g:00.0"}`:      {"bus", `"3g"`},
		`{"address": "0000:3b:20.0"}`:      {"slot", `"20"`, "1f"},
		`{"address": "0000:3b:00.8"}`:      {"function", `"8"`},
		`{"address": "0000:[0-9]*:00.0"}`:  {"bus"},
		`{"address": {"bus": "("}}`:        {"address.bus", "regular expression"},
		`{"address": {"bus": "(?=3)"}}`:    {"RE2"},
		`{"address": {"device": "00"}}`:    {`"device"`, "domain, bus, slot, function"},
		`{"address": {"bus": 3}}`:          {"address.bus", "quotes"},
		`{"vendor_id": "x", "class": "y"}`: {`"x"`, `"y"`},
	} {
		_, err := passthrough.ParseSpec(spec)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), spec)
		for _, message := range messages {
			require.ErrorContains(t, err, message, spec)
		}
	}

	_, err := passthrough.ParseSpec(42)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
}

// TestSpecAgainstModel draws functions and specs and compares Match with a
// simple model of it.
func TestSpecAgainstModel(t *testing.T) {
	t.Parallel()
	id := rapid.SampledFrom([]string{"10de", "8086", "10ee", "0001"})
	rapid.Check(t, func(r *rapid.T) {
		f := sysfs.Function{
			Address: cyborg.PCIAddress{
				Domain: rapid.SampledFrom([]uint32{0, 1, 0x10000}).Draw(r, "domain"), Bus: rapid.Uint8Range(0, 3).Draw(r, "bus"),
				Device: rapid.Uint8Range(0, 31).Draw(r, "slot"), Function: rapid.Uint8Range(0, 7).Draw(r, "function"),
			},
			Vendor: id.Draw(r, "vendor"), Product: id.Draw(r, "product"),
			Class: sysfs.Class(rapid.SampledFrom([]uint32{0x030000, 0x030200, 0x120000}).Draw(r, "class")),
		}

		spec := map[string]any{}
		want := true

		if rapid.Bool().Draw(r, "by vendor") {
			wanted := id.Draw(r, "wanted vendor")
			spec["vendor_id"], want = wanted, want && wanted == f.Vendor
		}
		if rapid.Bool().Draw(r, "by product") {
			wanted := id.Draw(r, "wanted product")
			spec["product_id"], want = strings.ToUpper(wanted), want && wanted == f.Product
		}
		if rapid.Bool().Draw(r, "by class") {
			wanted := rapid.SampledFrom([]string{"03", "0300", "0302", "12", "120000"}).Draw(r, "wanted class")
			spec["class"], want = wanted, want && strings.HasPrefix(f.Class.String(), wanted)
		}

		part := func(name string, width int, value uint32) string {
			if rapid.Bool().Draw(r, "any "+name) {
				return "*"
			}
			wanted := rapid.SampledFrom([]uint32{value, 1}).Draw(r, "wanted "+name)
			want = want && wanted == value
			return fmt.Sprintf("%0*x", width, wanted)
		}

		spec["address"] = part("domain", 4, f.Address.Domain) + ":" + part("bus", 2, uint32(f.Address.Bus)) + ":" +
			part("slot", 2, uint32(f.Address.Device)) + "." + part("function", 1, uint32(f.Address.Function))

		text, err := json.Marshal(spec)
		require.NoError(r, err)
		for _, form := range []any{spec, string(text)} {
			parsed, err := passthrough.ParseSpec(form)
			require.NoError(r, err)
			require.Equal(r, want, parsed.Match(f), "%s and %v", text, f)
		}
	})
}

// FuzzParseSpec looks for a text that makes the parser panic, or a spec that
// does not survive being written down.
func FuzzParseSpec(f *testing.F) {
	for _, seed := range []string{
		`*`, `{}`, `{"vendor_id": "10de", "product_id": 1234, "class": "0302"}`, `{"address": "0000:3b:*.*"}`,
		`{"address": {"domain": ".*", "bus": "3[bc]", "slot": "00", "function": "[0-3]"}}`, `{"address": "::::."}`,
	} {
		f.Add(seed, uint32(0), uint8(0x3b), uint8(0), uint8(0))
	}

	f.Fuzz(func(t *testing.T, text string, domain uint32, bus, slot, function uint8) {
		spec, err := passthrough.ParseSpec(text)
		if err != nil {
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
			return
		}

		again, err := passthrough.ParseSpec(spec.String())
		require.NoError(t, err)

		address := cyborg.PCIAddress{Domain: domain, Bus: bus, Device: slot & 0x1f, Function: function & 7}
		subject := sysfs.Function{Address: address, Vendor: "10de", Product: "20b0", Class: 0x030200}
		require.Equal(t, spec.Match(subject), again.Match(subject))
	})
}
