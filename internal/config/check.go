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
)

// check applies the rule that the tag check names and returns what is wrong with the value; "" for nothing. Paths
// become absolute.
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

// splitAddress takes host:port apart; the port is a number.
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

// Loopback says whether a listener on the address, host:port, is reached from this machine only.
func Loopback(address string) bool {
	host, _, ok := splitAddress(address)
	return ok && loopback(host)
}

// loopback says whether a host reaches only this machine.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

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

func absolute(target reflect.Value) string {
	path, err := filepath.Abs(target.String())
	if err != nil {
		return "cannot be made an absolute path: " + err.Error()
	}
	target.SetString(path)
	return ""
}

// readable says why the file cannot be read; "" where it can.
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
