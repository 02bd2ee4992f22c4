package hostfacts_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/hostfacts"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/internal/capture"
	"github.com/cyborg-project/cyborg/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// long is more than any reading takes.
const long = time.Minute

// read returns the facts below root, and what is logged.
func read(t *testing.T, root string) (facts *cyborg.HostFacts, logged string) {
	t.Helper()
	var log strings.Builder
	facts = hostfacts.Read(t.Context(), root, long, slog.New(slog.NewTextHandler(&log, nil)))
	return facts, log.String()
}

// place writes files below a directory.
func place(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
}

// machine makes the tree of a machine that has these NUMA nodes, with two CPUs and the
// distances to all, and a product.
func machine(t *testing.T, distances map[int]string) string {
	t.Helper()
	root := t.TempDir()
	place(t, root, map[string]string{
		"proc/meminfo":                    "MemTotal:       65918000 kB\nMemFree:  1 kB\nHugepagesize:    2048 kB\nHugetlb:  0 kB\n",
		"sys/class/dmi/id/sys_vendor":     "Supermicro\n",
		"sys/class/dmi/id/product_name":   "AS -4125GS-TNRT\n",
		"sys/class/dmi/id/product_serial": "S123456\n",
	})
	for node, text := range distances {
		dir := fmt.Sprintf("sys/devices/system/node/node%d/", node)
		place(t, root, map[string]string{
			dir + "meminfo":  fmt.Sprintf("Node %d MemTotal:  %d kB\n", node, 1000+node),
			dir + "distance": text + "\n",
			dir + "hugepages/hugepages-2048kB/nr_hugepages":       "0\n",
			dir + fmt.Sprintf("cpu%d/topology/core_id", 2*node):   "0\n",
			dir + fmt.Sprintf("cpu%d/topology/core_id", 2*node+1): "0\n",
		})
	}
	return root
}

// Of each recording, the facts are what its files say.
func TestFactsOfRecordingsAreWhatTheirFilesSay(t *testing.T) {
	t.Parallel()
	nodes := 0
	for _, snapshot := range sysfstest.Recordings(t) {
		root, err := capture.Open(snapshot, filepath.Join(t.TempDir(), "machine"))
		require.NoError(t, err)
		facts, logged := read(t, root)
		if facts == nil {
			require.NoFileExists(t, filepath.Join(root, "proc/meminfo"), snapshot)
			require.Contains(t, logged, "are left out", snapshot)
			continue
		}

		require.Equal(t, memTotal(t, filepath.Join(root, "proc/meminfo")), facts.Memory, snapshot)
		require.Empty(t, facts.Product, "no recording has it")
		if len(facts.NUMANodes) == 0 { // one of them lacks a file of each node
			require.Contains(t, logged, "meminfo: no such file", snapshot)
			continue
		}

		base := filepath.Join(root, "sys/devices/system/node")
		there, err := filepath.Glob(filepath.Join(base, "node[0-9]*"))
		require.NoError(t, err)
		require.Len(t, facts.NUMANodes, len(there), snapshot)
		for _, node := range facts.NUMANodes {
			dir := filepath.Join(base, "node"+strconv.Itoa(node.ID))
			require.Equal(t, memTotal(t, filepath.Join(dir, "meminfo")), node.Memory, snapshot)
			require.Equal(t, text(t, filepath.Join(dir, "distance")), joined(node.Distances), snapshot)
			require.Equal(t, text(t, filepath.Join(dir, "cpulist")), node.CPUList, snapshot)
			require.Equal(t, howMany(t, node.CPUList), node.CPUs, snapshot)
			nodes++
		}
		require.Empty(t, logged, snapshot)
	}
	require.GreaterOrEqual(t, nodes, 8)
}

// text returns what is in a file.
func text(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return strings.TrimSpace(string(content))
}

// memTotal returns the MemTotal of a meminfo, in bytes.
func memTotal(t *testing.T, path string) int64 {
	t.Helper()
	_, rest, found := strings.Cut(text(t, path), "MemTotal:")
	require.True(t, found)
	kilobytes, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	require.NoError(t, err)
	return kilobytes << 10
}

// joined writes distances as the kernel does.
func joined(distances []int) string { return strings.Trim(fmt.Sprint(distances), "[]") }

// howMany counts the CPUs in a list of the kernel.
func howMany(t *testing.T, list string) int {
	t.Helper()
	count := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, _ := strings.Cut(part, "-")
		if last == "" {
			last = first
		}
		from, err := strconv.Atoi(first)
		require.NoError(t, err)
		to, err := strconv.Atoi(last)
		require.NoError(t, err)
		count += to - from + 1
	}
	return count
}

// The nodes are in the order of their ids, to which the distances belong, and not in
// that of their names.
func TestDistancesBelongToTheNodesInTheOrderOfTheirIDs(t *testing.T) {
	t.Parallel()
	facts, logged := read(t, machine(t, map[int]string{0: "10 21 40", 2: "21 10 41", 10: "40 41 10"}))
	require.Empty(t, logged)
	require.Equal(t, []int{0, 2, 10}, []int{facts.NUMANodes[0].ID, facts.NUMANodes[1].ID, facts.NUMANodes[2].ID})

	distance, known := facts.Distance(2, 10)
	require.True(t, known)
	require.Equal(t, 41, distance)
	require.Equal(t, cyborg.NUMANode{ID: 10, CPUs: 2, CPUList: "20-21", Memory: 1010 << 10, Distances: []int{40, 41, 10}}, facts.NUMANodes[2])
}

// The product is that of the firmware, and its serial number stays on the host.
func TestProductIsToldWithoutItsSerialNumber(t *testing.T) {
	t.Parallel()
	facts, _ := read(t, machine(t, map[int]string{0: "10"}))
	require.Equal(t, cyborg.HostProduct{Vendor: "Supermicro", Name: "AS -4125GS-TNRT"}, facts.Product)
	require.NotContains(t, fmt.Sprintf("%+v", facts), "S123456")
}

// What is wrong in one part of the tree costs that part alone, and the log says why. Nobody
// is told of some NUMA nodes as if they were all.
func TestWhatCannotBeReadIsLeftOut(t *testing.T) {
	t.Parallel()
	const node1 = "sys/devices/system/node/node1/"
	two := map[int]string{0: "10 21", 1: "21 10"}
	for name, test := range map[string]struct {
		files  map[string]string
		remove string
		logged string
	}{
		"a node without memory":           {remove: node1 + "meminfo", logged: "meminfo"},
		"a node without distances":        {remove: node1 + "distance", logged: "distance"},
		"a distance that is no number":    {files: map[string]string{node1 + "distance": "21 near"}, logged: "near"},
		"a distance to a third node":      {files: map[string]string{node1 + "distance": "21 10 30"}, logged: "2 of 3"},
		"a distance that does not exist":  {files: map[string]string{node1 + "distance": "-1 10"}, logged: "distance -1"},
		"less than no memory":             {files: map[string]string{node1 + "meminfo": "Node 1 MemTotal: -5 kB"}, logged: "-5120 bytes"},
		"memory of which ghw panics":      {files: map[string]string{node1 + "meminfo": "Node 1 MemTotal"}, logged: "index out of range"},
		"page sizes of which ghw panics":  {files: map[string]string{node1 + "hugepages/odd/nr_hugepages": ""}, logged: "index out of range"},
		"a node whose name has no number": {files: map[string]string{"sys/devices/system/node/node0b/distance": "10"}, logged: "node ID"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := machine(t, two)
			place(t, root, test.files)
			if test.remove != "" {
				require.NoError(t, os.Remove(filepath.Join(root, test.remove)))
			}

			facts, logged := read(t, root)
			require.Empty(t, facts.NUMANodes)
			require.Contains(t, logged, test.logged)
			require.EqualValues(t, 65918000<<10, facts.Memory)
			require.Equal(t, "Supermicro", facts.Product.Vendor)
		})
	}
}

// More nodes than a report may have, and texts that nobody could show, come from no
// machine.
func TestOddTreesGiveNoFactsThatAReportCannotHave(t *testing.T) {
	t.Parallel()
	many := map[int]string{}
	for node := range cyborg.MaxNUMANodes + 1 {
		many[node] = strings.TrimSpace(strings.Repeat("10 ", cyborg.MaxNUMANodes+1))
	}
	root := machine(t, many)
	place(t, root, map[string]string{"sys/class/dmi/id/product_name": strings.Repeat("x\x1b[31m", 1000)})
	facts, logged := read(t, root)
	require.Empty(t, facts.NUMANodes)
	require.Contains(t, logged, "129 NUMA nodes are more than 128")
	require.NoError(t, facts.Check())
	require.NotContains(t, facts.Product.Name, "\x1b")
}

// A machine of which nothing can be read has no facts.
func TestAnEmptyTreeHasNoFacts(t *testing.T) {
	t.Parallel()
	facts, logged := read(t, t.TempDir())
	require.Nil(t, facts)
	require.Contains(t, logged, "are left out")
}

// A file that hangs, as those of a broken device do, costs the facts and no more.
func TestAFileThatHangsIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "proc"), 0o755))
	pipe := filepath.Join(root, "proc/meminfo")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	t.Cleanup(func() { // whoever reads the pipe is let go
		writer, err := os.OpenFile(pipe, os.O_RDWR, 0)
		require.NoError(t, err)
		require.NoError(t, os.Remove(pipe))
		require.NoError(t, writer.Close())
	})

	var log strings.Builder
	require.Nil(t, hostfacts.Read(t.Context(), root, time.Millisecond, slog.New(slog.NewTextHandler(&log, nil))))
	require.Contains(t, log.String(), "could not be read in time")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Nil(t, hostfacts.Read(ended, root, long, slog.New(slog.DiscardHandler)))
}

// BenchmarkRead reads the facts of the recording with the most NUMA nodes, as an agent
// does when it starts.
func BenchmarkRead(b *testing.B) {
	root, err := capture.Open(filepath.Join(filepath.Dir(sysfstest.Recordings(b)[0]), "linux-amd64-8581cf3a529e5d8b97ea876eade2f60d.tar.gz"), filepath.Join(b.TempDir(), "machine"))
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		require.Len(b, hostfacts.Read(b.Context(), root, long, slog.New(slog.DiscardHandler)).NUMANodes, 2)
	}
}
