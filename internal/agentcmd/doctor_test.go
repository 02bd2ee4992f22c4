package agentcmd

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/novaconf"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// TestDoctorExaminesEachCertificateOnce: also where the agent and Temporal have the
// same files, as after an enrollment. A configuration with the certificate of another
// host is not good.
func TestDoctorExaminesEachCertificateOnce(t *testing.T) {
	t.Parallel()
	examine := func(files string) string {
		_, out, errOut := command(t, "agent: {host: h1, endpoints: [\"https://127.0.0.1:1\"], tls: "+files+"}\ntemporal: {address: \"127.0.0.1:1\", tls: "+files+"}",
			"doctor", "--state-dir", t.TempDir())
		require.Equal(t, 1, strings.Count(out, " certificate of agent.tls.cert: "), out+errOut)
		require.Equal(t, 1, strings.Count(out, " certificate of agent.tls.ca: "), out)
		require.NotContains(t, out, "certificate of temporal.tls")
		return out
	}

	own := examine(issueFor(t, "h1"))
	require.Contains(t, own, "ok       configuration: is good; this host is h1")
	require.NotContains(t, own, "certificate for Temporal")

	foreign := examine(issueFor(t, "h2"))
	require.Contains(t, foreign, "failed   configuration: agent.tls.cert ")
	require.Contains(t, foreign, "-> If this is that host, set agent.host to h2 ")
	require.Contains(t, foreign, "warning  certificate for Temporal: ")
	require.NotContains(t, foreign, "is good")
}

// TestDoctorNamesARefusedCertificate: a server that refuses the agent's certificate
// is there, and to start it would not help.
func TestDoctorNamesARefusedCertificate(t *testing.T) {
	t.Parallel()
	authority, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)
	issue := func(role identity.Role, name string) string {
		certificate, key, err := authority.IssuePair(pki.Leaf{
			Identity: identity.Identity{TrustDomain: "cyborg", Role: role, Name: name}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
		})
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), name+".pem")
		require.NoError(t, os.WriteFile(file, append(certificate, key...), 0o600))
		return file
	}

	own := issue(identity.Server, "s1")
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.TLS, err = pki.Server(pki.ServerOptions{
		Files: pki.Files{Cert: own, Key: own, CA: authority.CertificateFile()}, ClientAuth: tls.RequireAndVerifyClientCert,
		Refuse: func(*x509.Certificate) error { return errors.New("it was revoked") },
	})
	require.NoError(t, err)
	server.StartTLS()
	t.Cleanup(server.Close)

	examine := func(cert, key string) string {
		files := "{cert: " + cert + ", key: " + key + ", ca: " + authority.CertificateFile() + "}"
		_, out, _ := command(t, "agent: {host: h1, endpoints: [\""+server.URL+"\"], tls: "+files+"}\ntemporal: {address: \"127.0.0.1:1\"}", "doctor", "--state-dir", t.TempDir())
		return out
	}
	revoked := issue(identity.Host, "h1")
	_, foreign, _ := strings.Cut(issueFor(t, "h1"), "cert: ")
	foreign, _, _ = strings.Cut(foreign, ",")
	for _, cert := range []string{revoked, foreign} {
		said := examine(cert, cert)
		require.Contains(t, said, "failed   server "+server.URL+": refuses the certificate of this agent (tls: ")
		require.Contains(t, said, "it was revoked, has expired, or is of another authority")
		require.NotContains(t, said, "Start the server")
	}

	said := examine(`""`, `""`)
	require.Contains(t, said, "asks for a certificate, and this agent has none")
	require.NotContains(t, said, "Start the server")
}

// TestDoctorWarnsWhereGrantsAreOff: the agent's doctor asks a server whether its
// steps must be signed.
func TestDoctorWarnsWhereGrantsAreOff(t *testing.T) {
	t.Parallel()
	for _, off := range []bool{true, false} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == hostsPath+"h1" {
				_ = json.NewEncoder(w).Encode(agentapi.HostReply{GrantsOff: off})
			}
		}))
		t.Cleanup(server.Close)

		_, out, errOut := command(t, "agent: {host: h1, endpoints: [\""+server.URL+"\"]}\ntemporal: {address: \"127.0.0.1:1\"}", "doctor", "--state-dir", t.TempDir())
		require.Contains(t, out, "nobody else speaks for h1", errOut)
		require.Equal(t, off, strings.Contains(out, "warning  grants: the server "+server.URL+" has this agent take steps that nobody has signed"), out)
	}
}

// TestDoctorChecksTheWhitelist: doctor says whether Cyborg's drop-in can be
// written, who wrote the one that is there, and which other files of Nova list
// devices.
func TestDoctorChecksTheWhitelist(t *testing.T) {
	t.Parallel()
	address, err := cyborg.ParsePCIAddress("0000:3b:00.0")
	require.NoError(t, err)
	ours := novaconf.Content("h1", []novaconf.Device{{Address: address, VendorID: "10de", ProductID: "20b5"}})

	for name, test := range map[string]struct {
		dir       string // below /etc/nova; nova.conf.d where empty
		files     map[string]string
		state     doctor.State
		found, do string
	}{
		"empty":        {state: doctor.OK, found: "nova.conf.d/cyborg-pci.conf can be written; there is none now"},
		"ours":         {files: map[string]string{"nova.conf.d/cyborg-pci.conf": string(ours)}, state: doctor.OK, found: "is as Cyborg left it"},
		"no directory": {dir: "nowhere", state: doctor.Failed, found: "does not exist", do: "--config-dir"},
		"no directory but a file": {
			dir: "file", files: map[string]string{"file": ""}, state: doctor.Failed, found: "is no directory", do: "Name the directory",
		},
		"somebody else's": {
			files: map[string]string{"nova.conf.d/cyborg-pci.conf": "[pci]\n"},
			state: doctor.Warning, found: "is not as Cyborg left it: somebody else wrote it", do: "--dry-run",
		},
		"changed": {
			files: map[string]string{"nova.conf.d/cyborg-pci.conf": string(ours) + "\n"},
			state: doctor.Warning, found: "somebody has changed it", do: "--dry-run",
		},
		"another host's": {
			files: map[string]string{"nova.conf.d/cyborg-pci.conf": string(novaconf.Content("h2", []novaconf.Device{{Address: address, VendorID: "10de", ProductID: "20b5"}}))},
			state: doctor.Warning, found: "it was written for host h2", do: "--dry-run",
		},
		"a device_spec in nova.conf": {
			files: map[string]string{"nova.conf": "[DEFAULT]\ndevice_spec = {}\n[pci]\n# device_spec = {}\nalias = {}\ndevice_spec = {}\n"},
			state: doctor.Warning, found: "nova.conf:6, too", do: "Remove from there",
		},
		"a device_spec in nova-compute.conf": {
			files: map[string]string{"nova-compute.conf": "[pci]\ndevice_spec = {}\n"},
			state: doctor.Warning, found: "nova-compute.conf:2, too", do: "Remove from there",
		},
		"a device_spec in a hidden file": {
			files: map[string]string{"nova.conf.d/.site.conf": "[pci]\ndevice_spec = {}\n"},
			state: doctor.OK, found: "can be written",
		},
		"a device_spec of old in another drop-in": {
			files: map[string]string{"nova.conf.d/cyborg-pci.conf": string(ours), "nova.conf.d/site.conf": "[pci]\npassthrough_whitelist : {}\n"},
			state: doctor.Warning, found: "site.conf:2, too", do: "Remove from there",
		},
		"an ordinary nova.conf": {
			files: map[string]string{"nova.conf": "[pci]\nalias = {}\nreport_in_placement = true\n", "nova.conf.d/site.conf": "[DEFAULT]\nhost = h1\n"},
			state: doctor.OK, found: "can be written",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nova := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(nova, "nova.conf.d"), 0o755))
			for path, text := range test.files {
				require.NoError(t, os.WriteFile(filepath.Join(nova, path), []byte(text), 0o600))
			}

			if test.dir == "" {
				test.dir = "nova.conf.d"
			}

			var f doctor.Findings
			examineWhitelist(&f, novaconf.File{Host: "h1", Dir: filepath.Join(nova, test.dir)})
			require.Len(t, f.All(), 1)
			found := f.All()[0]
			require.Equal(t, test.state, found.State, found.Found)
			require.Contains(t, found.Found, test.found)
			require.Contains(t, found.Do, test.do)
			require.Equal(t, test.do == "", found.Do == "", "what is not well says what to do")
		})
	}

	var f doctor.Findings
	examineWhitelist(&f, novaconf.File{Host: "h1"})
	require.Equal(t, doctor.OK, f.All()[0].State)

	if os.Geteuid() != 0 { // root may write everywhere
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, 0o500))
		var f doctor.Findings
		examineWhitelist(&f, novaconf.File{Host: "h1", Dir: dir})
		require.Equal(t, doctor.Failed, f.All()[0].State)
	}
}
