package fake_test

import (
	"context"
	"fmt"
	"os"

	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// A Bench pulls a card out of a park and puts it back, while a driver, perhaps
// in another process, uses the park.
func ExampleBench() {
	dir, err := os.MkdirTemp("", "cyborg")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()

	driver, err := fake.New(drivers.Environment{Host: "node1", StateDir: dir}, map[string]any{"park": "2xfpga"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, bench := context.Background(), fake.NewBench(dir)
	printCards(ctx, driver)

	if err := bench.Vanish(ctx, "00fa:01:00.0"); err != nil {
		fmt.Println(err)
	}
	printCards(ctx, driver)

	if err := bench.Return(ctx, "00fa:01:00.0"); err != nil {
		fmt.Println(err)
	}
	printCards(ctx, driver)

	// Output:
	// 00fa:01:00.0 00fa:02:00.0
	// 00fa:02:00.0
	// 00fa:01:00.0 00fa:02:00.0
}

// printCards prints the identities of the cards that the driver finds.
func printCards(ctx context.Context, driver drivers.Driver) {
	devices, err := driver.Discover(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}

	for i, device := range devices {
		if i > 0 {
			fmt.Print(" ")
		}
		fmt.Print(device.Identity)
	}
	fmt.Println()
}
