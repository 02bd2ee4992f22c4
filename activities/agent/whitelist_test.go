package agent_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/novaconf"
	"github.com/cyborg-project/cyborg/workflows"
)

// third and fourth are the functions of the card's second region.
const (
	third  = "00fa:01:00.2"
	fourth = "00fa:01:00.3"
)

// whitelist is the input that gives these deployables of the card to Nova.
func whitelist(operation uuid.UUID, parts ...string) workflows.WhitelistInput {
	in := workflows.WhitelistInput{Operation: operation, Host: hostName}
	for _, part := range parts {
		in.Work.Entries = append(in.Work.Entries, cyborg.WhitelistEntry{Target: partTarget(part)})
	}
	return in
}

// partTarget is a deployable of the card.
func partTarget(part string) cyborg.Target {
	return cyborg.Target{
		Accelerator: uuid.NewSHA1(uuid.NameSpaceOID, []byte(part)), Backend: backend, Device: card, Deployable: part,
	}
}

// had adds what the whitelist contained before.
func had(in workflows.WhitelistInput, parts ...string) workflows.WhitelistInput {
	in.Work.Before = whitelist(uuid.Nil, parts...).Work.Entries
	return in
}

// novaFile returns the path of the drop-in file.
func (h *host) novaFile() string { return filepath.Join(h.nova, novaconf.Name) }

// whitelisted returns the addresses in the drop-in file, and requires that no
// other file is next to it.
func (h *host) whitelisted() []string {
	h.t.Helper()
	there, err := os.ReadDir(h.nova)
	require.NoError(h.t, err)
	if len(there) == 0 {
		return nil
	}

	require.Len(h.t, there, 1)
	content, err := os.ReadFile(h.novaFile())
	require.NoError(h.t, err)
	require.Empty(h.t, novaconf.ForeignReason(hostName, content))

	var out []string
	for _, found := range regexp.MustCompile(`(?m)^device_spec = .*"address":"([^"]*)"`).FindAllSubmatch(content, -1) {
		out = append(out, string(found[1]))
	}
	return out
}

// A preview shows the change without making it. A write can be repeated, keeps
// the lines of devices that stay, and removes the file when the whitelist is
// empty.
func TestWhitelist(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	var preview cyborg.WhitelistPreview
	h.must(workflows.PreviewWhitelistActivity, whitelist(uuid.Nil, region), &preview)
	require.True(t, preview.Changed)
	require.Equal(t, h.novaFile(), preview.File)
	require.Contains(t, preview.Diff, "--- /dev/null\n+++ "+h.novaFile()+"\n@@ -0,0 +1,5 @@\n")
	require.Contains(t, preview.Diff, `+device_spec = {"vendor_id":"abcd","product_id":"fa01","address":"00fa:01:00.1"}`)
	require.Contains(t, preview.Notes[0], "Restart nova-compute on node-1")
	require.Contains(t, preview.Notes[1], `"device_type": "type-PCI"`)
	require.Empty(t, h.whitelisted(), "a preview changes nothing")

	op := uuid.New()
	var result workflows.WhitelistResult
	h.must(workflows.WriteWhitelistActivity, whitelist(op, region), &result)
	require.Equal(t, []string{handle, second}, h.whitelisted())
	require.True(t, result.Changed)

	content, err := os.ReadFile(h.novaFile())
	require.NoError(t, err)
	require.Equal(t, preview.Content, string(content))
	require.Equal(t, sum(content), result.SHA256)
	info, err := os.Stat(h.novaFile())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())

	var again workflows.WhitelistResult
	h.must(workflows.WriteWhitelistActivity, whitelist(op, region), &again)
	require.Equal(t, result, again, "a repeat says the same")

	kept := whitelist(uuid.New(), region, other)
	h.must(workflows.PreviewWhitelistActivity, kept, &preview)
	require.Contains(t, preview.Diff, "\n "+`device_spec = {"vendor_id":"abcd","product_id":"fa01","address":"00fa:01:00.1"}`+"\n+device_spec")

	none := had(whitelist(uuid.New()), region)
	var emptied, nothing workflows.WhitelistResult
	h.must(workflows.WriteWhitelistActivity, none, &emptied)
	require.Empty(t, h.whitelisted())
	require.Empty(t, emptied.SHA256)
	require.Contains(t, emptied.Notes[1], "Do not take removed devices into service before nova-compute has been restarted")

	h.must(workflows.WriteWhitelistActivity, whitelist(uuid.New()), &nothing)
	require.False(t, nothing.Changed)
	require.Empty(t, nothing.Notes)
}

// A whitelist with one wrong entry is not written at all, nor is one that adds
// or removes a function in use.
func TestInvalidWhitelistIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.must(workflows.WriteWhitelistActivity, whitelist(uuid.New(), region), nil)
	before := h.whitelisted()

	remote := true
	tagged := func(spec cyborg.NovaSpec) workflows.WhitelistInput {
		in := whitelist(uuid.New(), other)
		in.Work.Entries[0].Spec = spec
		return in
	}
	strange := whitelist(uuid.New())
	strange.Host = "node-2"
	gone := whitelist(uuid.New(), other, "nothing", "nowhere")

	for _, test := range []struct {
		in    workflows.WhitelistInput
		kind  cyborg.ErrorKind
		texts []string
	}{
		{strange, cyborg.ErrInvalid, []string{"not of node-2"}},
		{gone, cyborg.ErrNotFound, []string{"2 of 3 devices", `"nothing"`, `"nowhere"`}},
		{tagged(cyborg.NovaSpec{ResourceClass: "Gpu"}), cyborg.ErrInvalid, []string{"Gpu"}},
		{tagged(cyborg.NovaSpec{PhysicalNetwork: "a\"}\n[DEFAULT]\nx"}), cyborg.ErrInvalid, []string{"physical_network"}},
		{tagged(cyborg.NovaSpec{RemoteManaged: &remote}), cyborg.ErrInvalid, []string{"no virtual function"}},
	} {
		err := h.refused(test.kind, workflows.WriteWhitelistActivity, test.in)
		for _, text := range test.texts {
			require.Contains(t, err.Message, text)
		}
		require.Equal(t, before, h.whitelisted())
	}

	// A function in use is neither given to Nova nor taken from it.
	require.NoError(t, h.bench.Use(t.Context(), card, third, "a process"))
	err := h.refused(cyborg.ErrInUse, workflows.WriteWhitelistActivity, whitelist(uuid.New(), region, other))
	require.Contains(t, err.Message, third+" is in use by a process")
	require.NoError(t, h.bench.Use(t.Context(), card, third, ""))

	h.ready()
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
	none := had(whitelist(uuid.New()), region)
	err = h.refused(cyborg.ErrInUse, workflows.WriteWhitelistActivity, none)
	require.Contains(t, err.Message, "in use by qemu")

	h.must(workflows.WriteWhitelistActivity, had(whitelist(uuid.New(), region), region), nil)

	// A device that has vanished can be removed from the whitelist.
	require.NoError(t, h.bench.Vanish(t.Context(), card))
	none.Operation = uuid.New()
	h.must(workflows.WriteWhitelistActivity, none, nil)
	require.Empty(t, h.whitelisted())
}

func TestWhitelistOfAProtectedFunction(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.must(workflows.ConfigureActivity, configure(cyborg.ConfigureInstall, "plain", "plain", nil), nil)

	for name, kind := range map[string]cyborg.ErrorKind{"plain_0": cyborg.ErrUnsupported, "plain_1": cyborg.ErrProtected} {
		in := whitelist(uuid.New())
		in.Work.Entries = []cyborg.WhitelistEntry{{Target: plainTarget(name)}}
		h.refused(kind, workflows.PreviewWhitelistActivity, in)
		h.refused(kind, workflows.WriteWhitelistActivity, in)
	}
	require.Empty(t, h.whitelisted())
}

// A file that somebody else wrote or changed is replaced only by force, and an
// undo brings it back.
func TestForeignWhitelistIsNotReplaced(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for name, theirs := range map[string]string{
		"written": "[pci]\ndevice_spec = {}\n", "changed": "", "of another host": string(novaconf.Content("node-2", nil)),
	} {
		if theirs == "" {
			h.must(workflows.WriteWhitelistActivity, whitelist(uuid.New(), region), nil)
			ours, err := os.ReadFile(h.novaFile())
			require.NoError(t, err)
			theirs = string(ours) + "# mine\n"
		}
		if name == "of another host" {
			theirs = string(novaconf.Content("node-2", []novaconf.Device{{VendorID: "1234", ProductID: "0001"}}))
		}
		require.NoError(t, os.WriteFile(h.novaFile(), []byte(theirs), 0o600))

		in := whitelist(uuid.New(), region)
		var preview cyborg.WhitelistPreview
		h.must(workflows.PreviewWhitelistActivity, in, &preview)
		require.NotEmpty(t, preview.Foreign, name)
		require.Contains(t, preview.Diff, "\n-", name)
		h.refused(cyborg.ErrChanged, workflows.WriteWhitelistActivity, in)

		content, err := os.ReadFile(h.novaFile())
		require.NoError(t, err)
		require.Equal(t, theirs, string(content))

		in.Work.Force = true
		h.must(workflows.WriteWhitelistActivity, in, nil)
		require.Equal(t, []string{handle, second}, h.whitelisted())

		h.must(workflows.RestoreWhitelistActivity, in, nil)
		content, err = os.ReadFile(h.novaFile())
		require.NoError(t, err)
		require.Equal(t, theirs, string(content), name)
		require.NoError(t, os.Remove(h.novaFile()))
	}

	// An undo does not overwrite what was written since.
	in := whitelist(uuid.New(), region)
	h.must(workflows.WriteWhitelistActivity, in, nil)
	require.NoError(t, os.WriteFile(h.novaFile(), []byte("[pci]\n"), 0o600))
	h.refused(cyborg.ErrChanged, workflows.RestoreWhitelistActivity, in)
}

// No symbolic link is followed, and only a plain file is replaced.
func TestWhitelistSymlinkIsNotFollowed(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	victim := filepath.Join(h.dir, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("secret"), 0o600))
	require.NoError(t, os.Symlink(victim, h.novaFile()))

	in := whitelist(uuid.New(), region)
	in.Work.Force = true
	h.refused(cyborg.ErrChanged, workflows.PreviewWhitelistActivity, in)
	h.refused(cyborg.ErrChanged, workflows.WriteWhitelistActivity, in)

	require.NoError(t, os.Remove(h.novaFile()))
	require.NoError(t, os.Symlink(victim, filepath.Join(h.nova, "."+novaconf.Name+".new")))
	h.must(workflows.WriteWhitelistActivity, in, nil)
	require.Equal(t, []string{handle, second}, h.whitelisted())

	text, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "secret", string(text))

	require.NoError(t, os.Rename(h.nova, filepath.Join(h.dir, "elsewhere")))
	err2 := h.refused(cyborg.ErrUnsupported, workflows.WriteWhitelistActivity, whitelist(uuid.New(), region))
	require.Contains(t, err2.Message, "does not exist")
	require.NoError(t, os.Symlink(filepath.Join(h.dir, "elsewhere"), h.nova))
	h.refused(cyborg.ErrUnsupported, workflows.WriteWhitelistActivity, whitelist(uuid.New(), region))
}

// The host reports its whitelist file's checksum or what is wrong with the
// file, and the digest changes with it.
func TestWhitelistIsReported(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	reported := func() (cyborg.WhitelistFile, string) {
		content := h.inventory.Content()
		require.NotNil(t, content.Whitelist)
		return *content.Whitelist, content.Digest()
	}

	h.inventory.Scan(t.Context())
	file, before := reported()
	require.Zero(t, file)

	op := uuid.New()
	var result workflows.WhitelistResult
	h.must(workflows.WriteWhitelistActivity, whitelist(op, region), &result)
	file, written := reported()
	require.Equal(t, cyborg.WhitelistFile{SHA256: result.SHA256}, file)
	require.NotEqual(t, before, written)

	h.inventory.Scan(t.Context())
	_, digest := reported()
	require.Equal(t, written, digest, "nothing has changed")

	for text, why := range map[string]string{
		"[pci]\n": "somebody else wrote it",
		"# Written by cyborg-agent for host \x00\x1b[31m. Change it with `cyborg host whitelist`, not by hand.\n# sha256 of the other lines: \n": "somebody has changed it",
	} {
		require.NoError(t, os.WriteFile(h.novaFile(), []byte(text), 0o600))
		h.inventory.Scan(t.Context())
		file, digest = reported()
		require.Contains(t, file.Foreign, why)
		require.NotEqual(t, written, digest)
	}

	require.NoError(t, os.Remove(h.novaFile()))
	require.NoError(t, os.Mkdir(h.novaFile(), 0o755))
	h.inventory.Scan(t.Context())
	file, _ = reported()
	require.Empty(t, file.SHA256)
	require.Contains(t, file.Foreign, "is no plain file")

	require.NoError(t, os.Remove(h.novaFile()))
	h.must(workflows.RestoreWhitelistActivity, whitelist(op, region), nil)
	_, digest = reported()
	require.Equal(t, before, digest)
}

// The message on a file for another host quotes that host's name. Whoever wrote
// the file chose it, so it must be short and printable there.
func TestHostNamesInAWhitelistAreSanitized(t *testing.T) {
	t.Parallel()
	content := string(novaconf.Content("a\x1b[31m"+strings.Repeat("x", 1000), []novaconf.Device{{Address: cyborg.PCIAddress{Bus: 1}, VendorID: "10de", ProductID: "20b5"}}))
	why := novaconf.ForeignReason(hostName, []byte(content))
	require.Contains(t, why, "it was written for host a")
	require.NotContains(t, why, "\x1b")
	require.Less(t, len(why), 400)
}

// TestRestoreOfAWhitelistWithAnotherCard: the journal is lost, and a card that was in
// the whitelist has been exchanged. Its line is as before if the model is.
func TestRestoreOfAWhitelistWithAnotherCard(t *testing.T) {
	t.Parallel()
	for product, want := range map[string][]string{"": {handle, second}, "fa11": nil} {
		h := newHost(t)
		fingerprint := h.look()
		op := uuid.New()
		h.must(workflows.WriteWhitelistActivity, whitelist(uuid.New(), region), nil)
		h.must(workflows.WriteWhitelistActivity, had(whitelist(op, other), region), nil)
		h.lose()

		require.NoError(t, h.bench.Exchange(t.Context(), card, product, otherSerial))
		h.look()
		in := had(whitelist(op, other), region)
		in.Work.Before[0].Target.Fingerprint = fingerprint
		h.must(workflows.RestoreWhitelistActivity, in, nil)
		require.Equal(t, want, h.whitelisted())
	}
}
