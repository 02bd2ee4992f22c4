package config

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// check applies the rule that the tag check names to the target's text. It
// returns what is wrong with the value, or "" if the value is good. The rules
// path and file also make the target an absolute path, because a process may
// change its working directory after it has read its configuration.
func (d *decoder) check(rule string, target reflect.Value) string {
	text := target.String()
	switch rule {
	case "listen":
		if _, _, ok := splitAddress(text); !ok {
			return "expected an address and a port such as 127.0.0.1:6666"
		}
	case "loopback":
		host, port, ok := splitAddress(text)
		if !ok || !loopback(host) {
			return "expected an address of this machine only and a port, such as 127.0.0.1:" + port
		}
	case "hostport":
		if host, port, ok := splitAddress(text); !ok || host == "" || port == "0" {
			return "expected a host and a port such as temporal.example.org:7233"
		}
	case "hostname":
		if cyborg.CheckHostName(text) != nil {
			return "expected a host name: at most 253 letters, digits, dots, hyphens and underscores, beginning and ending with a letter or digit"
		}
	case "trust_domain":
		if identity.CheckTrustDomain(text) != nil {
			return "expected a trust domain: at most 255 lower-case letters, digits, dots, hyphens and underscores"
		}
	case "url":
		return checkURL(text)
	case "deployable_name":
		if !strings.Contains(text, "{host}") || !strings.Contains(text, "{name}") {
			return "expected a text with {host} and {name} in it"
		}
	case "path":
		return absolute(target)
	case "file":
		if message := absolute(target); message != "" || !d.checkFiles {
			return message
		}
		return readable(target.String())
	}

	return ""
}

// splitAddress splits host:port. The result ok is false where there is no port,
// or where the port is not a number from 0 to 65535; port is then the word
// PORT, which an error message can show as a placeholder.
func splitAddress(text string) (host, port string, ok bool) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return "", "PORT", false
	}

	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "PORT", false
	}

	return host, port, true
}

// Loopback reports whether a listener on the address, in the form host:port,
// can be reached only from this machine.
func Loopback(address string) bool {
	host, _, ok := splitAddress(address)
	return ok && loopback(host)
}

// loopback reports whether the host is a name or an IP address of the loopback
// interface. An empty host means all interfaces and is not loopback.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// checkURL accepts http and https URLs. It rejects credentials in the URL,
// because URLs are logged and dumped without a mask.
func checkURL(text string) string {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Hostname() == "" {
		return "expected a URL such as https://cyborg.example.org:6667"
	}

	if parsed.User != nil {
		return "expected a URL without user and password"
	}

	return ""
}

// absolute makes the target's path absolute. It returns what is wrong, or "".
func absolute(target reflect.Value) string {
	path, err := filepath.Abs(target.String())
	if err != nil {
		return "cannot be made an absolute path: " + err.Error()
	}

	target.SetString(path)
	return ""
}

// readable returns why the file cannot be read, or "" if it can. It opens the
// file instead of looking at permission bits, so that access control lists and
// the rights of root count too.
func readable(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return "expected a file that can be read: " + err.Error()
	}
	defer file.Close()

	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return "expected a file that can be read: this is none"
	}

	return ""
}
