package passthrough_test

import (
	"fmt"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/passthrough"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// functions are two GPUs, and a network card on another bus, as
// sysfs.Tree.Functions returns them.
func functions() []sysfs.Function {
	return []sysfs.Function{
		{Address: cyborg.PCIAddress{Bus: 0x3b}, Vendor: "10de", Product: "20b0", Class: 0x030200},
		{Address: cyborg.PCIAddress{Bus: 0x86}, Vendor: "10de", Product: "20b0", Class: 0x030200},
		{Address: cyborg.PCIAddress{Bus: 0x3b, Function: 1}, Vendor: "8086", Product: "1572", Class: 0x020000},
	}
}

// A spec chooses the functions for which all of its properties match.
func ExampleSpec_Match() {
	spec, err := passthrough.ParseSpec(map[string]any{"vendor_id": "10de", "class": "03", "address": "0000:3b:*.*"})
	if err != nil {
		fmt.Println(err)
		return
	}

	for _, f := range functions() {
		fmt.Println(f.Address, spec.Match(f))
	}

	// Output:
	// 0000:3b:00.0 true
	// 0000:86:00.0 false
	// 0000:3b:00.1 false
}

// A spec may be JSON text, and its address may have a regular expression for
// each part. An error names every mistake.
func ExampleParseSpec() {
	spec, err := passthrough.ParseSpec(`{"address": {"bus": "3[b-d]", "function": "[01]"}}`)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(spec)

	for _, f := range functions() {
		fmt.Println(f.Address, spec.Match(f))
	}

	_, err = passthrough.ParseSpec(`{"vendor": "10de", "class": "3"}`)
	fmt.Println(cyborg.ErrorKindOf(err))
	fmt.Println(err)

	// Output:
	// {"address":{"bus":"3[b-d]","function":"[01]"}}
	// 0000:3b:00.0 true
	// 0000:86:00.0 false
	// 0000:3b:00.1 true
	// invalid
	// class is "3"; write two, four or six hexadecimal digits, such as "0302", or "*"; device_spec has no property "vendor"; it has address, class, product_id, vendor_id
}
