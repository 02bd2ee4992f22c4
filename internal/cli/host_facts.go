package cli

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/english"
)

// factsText has a line for what is known of a machine, and a table of its NUMA nodes with
// the accelerators on each.
func factsText(facts *cyborg.HostFacts, accelerators []apiclient.Accelerator) string {
	var lines []string
	if product := facts.Product.String(); product != "" {
		lines = append(lines, product)
	}
	if facts.Memory > 0 {
		lines = append(lines, memoryText(facts.Memory)+" of memory")
	}
	if len(facts.NUMANodes) > 0 {
		lines = append(lines, nodesTable(facts.NUMANodes, accelerators))
	}
	return strings.Join(lines, "\n")
}

// nodesTable has a line for each NUMA node, with its distances to all in the order of the
// lines, and one for accelerators on none of them.
func nodesTable(nodes []cyborg.NUMANode, accelerators []apiclient.Accelerator) string {
	on := map[int][]string{} // names, by NUMA node
	for _, node := range nodes {
		on[node.ID] = nil
	}
	var elsewhere []string
	for _, a := range accelerators {
		switch {
		case a.Presence != cyborg.PresencePresent:
		case a.NUMANode == nil:
			elsewhere = append(elsewhere, a.Name)
		default:
			if names, there := on[*a.NUMANode]; there {
				on[*a.NUMANode] = append(names, a.Name)
			} else {
				elsewhere = append(elsewhere, a.Name)
			}
		}
	}

	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NUMA node\tCPUs\tMemory\tDistances\tAccelerators")
	for _, node := range nodes {
		cpus := strconv.Itoa(node.CPUs)
		if node.CPUList != "" {
			cpus += ": " + node.CPUList
		}
		distances := strings.Trim(fmt.Sprint(node.Distances), "[]")
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\n", node.ID, cpus, memoryText(node.Memory), distances, english.Some(on[node.ID]))
	}
	if len(elsewhere) > 0 {
		fmt.Fprintf(table, "unknown\t\t\t\t%s\n", english.Some(elsewhere))
	}
	_ = table.Flush() // into memory, which cannot fail

	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// memoryText is a number of bytes with one decimal, in GiB, or in MiB below one GiB.
func memoryText(bytes int64) string {
	const mebibyte = 1 << 20
	if bytes < 1<<10*mebibyte {
		return fmt.Sprintf("%.1f MiB", float64(bytes)/mebibyte)
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<10*mebibyte))
}
