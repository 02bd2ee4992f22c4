package novaconf

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// around is how many unchanged lines a diff shows before and after a change, as
// diff -u does.
const around = 3

// edit is one line of a diff. Its sign is '-' for a removed line, '+' for an
// added one and ' ' for one that stays.
type edit struct {
	sign byte
	line string
}

// Diff returns the unified diff between two contents of the file at path; empty
// where they are equal. An empty content appears as /dev/null, as diff does it
// for a missing file.
func Diff(path string, before, after []byte) string {
	if string(before) == string(after) {
		return ""
	}

	edits := compare(linesOf(before), linesOf(after))
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", nameIn(path, before), nameIn(path, after))

	for from := 0; ; {
		next := slices.IndexFunc(edits[from:], changes)
		if next < 0 {
			return out.String()
		}

		begin, end := max(from, from+next-around), from+next+1
		// Changes that are closer than both their surroundings belong to one hunk.
		for quiet := 0; end < len(edits) && quiet <= 2*around; end++ {
			quiet++
			if changes(edits[end]) {
				quiet = 0
			}
		}

		// The loop has run into the unchanged lines behind the last change.
		for !changes(edits[end-1]) {
			end--
		}

		end = min(end+around, len(edits))
		writeHunk(&out, edits, begin, end)
		from = end
	}
}

// changes reports whether a line differs between the two contents.
func changes(e edit) bool { return e.sign != ' ' }

// nameIn is the file's name in the header of a diff.
func nameIn(path string, content []byte) string {
	if len(content) == 0 {
		return "/dev/null"
	}
	return path
}

// writeHunk writes the edits from begin up to end, under a header with their
// line numbers in both contents.
func writeHunk(out *strings.Builder, edits []edit, begin, end int) {
	place := func(sign byte) string {
		is := func(e edit) bool { return e.sign == ' ' || e.sign == sign }
		first, count := tally(edits[:begin], is)+1, tally(edits[begin:end], is)
		if count == 0 { // an empty range is named by the line before it
			first--
		}
		return fmt.Sprintf("%d,%d", first, count)
	}

	fmt.Fprintf(out, "@@ -%s +%s @@\n", place('-'), place('+'))
	for _, e := range edits[begin:end] {
		out.WriteByte(e.sign)
		out.WriteString(e.line)
		out.WriteByte('\n')
	}
}

// tally counts the edits that is accepts.
func tally(edits []edit, is func(edit) bool) int {
	n := 0
	for _, e := range edits {
		if is(e) {
			n++
		}
	}
	return n
}

// linesOf splits a content into lines. It replaces control characters and
// invalid UTF-8, because a diff is shown on terminals.
func linesOf(content []byte) []string {
	text := strings.TrimSuffix(strings.ToValidUTF8(string(content), "�"), "\n")
	if text == "" {
		return nil
	}

	return strings.Split(strings.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' && c != '\t' {
			return '�'
		}
		return c
	}, text), "\n")
}

// mostCompared limits the table of align: the number of pairs of lines for
// which a common subsequence is searched. Above it everything counts as
// replaced.
const mostCompared = 4 << 20

// compare lists the edits that lead from one content to the other. Equal lines
// at both ends stay; between them align keeps the longest common subsequence.
func compare(before, after []string) []edit {
	var head, tail []edit
	for len(before) > 0 && len(after) > 0 && before[0] == after[0] {
		head = append(head, edit{' ', before[0]})
		before, after = before[1:], after[1:]
	}

	for len(before) > 0 && len(after) > 0 && before[len(before)-1] == after[len(after)-1] {
		tail = append(tail, edit{' ', before[len(before)-1]})
		before, after = before[:len(before)-1], after[:len(after)-1]
	}

	slices.Reverse(tail)
	return slices.Concat(head, align(before, after), tail)
}

// align compares two lists of lines by their longest common subsequence.
func align(before, after []string) []edit {
	if len(before)*len(after) > mostCompared {
		return slices.Concat(signed('-', before), signed('+', after))
	}

	// common[i][j] is the number of lines that before[i:] and after[j:] can have in
	// common.
	common := make([][]int32, len(before)+1)
	for i := range common {
		common[i] = make([]int32, len(after)+1)
	}

	for i, was := range slices.Backward(before) {
		for j, is := range slices.Backward(after) {
			if was == is {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}

	var out []edit
	i, j := 0, 0

	for i < len(before) && j < len(after) {
		switch {
		case before[i] == after[j]:
			out = append(out, edit{' ', before[i]})
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			out = append(out, edit{'-', before[i]})
			i++
		default:
			out = append(out, edit{'+', after[j]})
			j++
		}
	}

	return slices.Concat(out, signed('-', before[i:]), signed('+', after[j:]))
}

// signed makes an edit of each line.
func signed(sign byte, lines []string) []edit {
	out := make([]edit, len(lines))
	for i, line := range lines {
		out[i] = edit{sign, line}
	}
	return out
}
