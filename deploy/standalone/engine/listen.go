package engine

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"

	"github.com/cyborg-project/cyborg"
)

// addresses holds all addresses that the engine listens on.
type addresses struct {
	frontend, ui              address
	history, matching, worker address // for Temporal's own use, on loopback
}

// settleAddresses returns the addresses to listen on, after it has made sure
// that they are allowed and free. It is called before anything starts, because
// Temporal and its UI end the whole process if a port is in use.
func settleAddresses(cfg Config) (addresses, error) {
	var a addresses
	var err error
	if a.frontend, err = settle(cfg.Listen, cfg.ListenFlag, "Temporal"); err != nil {
		return a, err
	}

	// A free port that was tried is free again, and may be found once more.
	const most = 10
	for tries := 0; tries == 0 || a.ui.port == a.frontend.port && isAnyPort(cfg.UIListen) && tries < most; tries++ {
		if a.ui, err = settle(cfg.UIListen, cfg.UIListenFlag, "Temporal's Web UI"); err != nil {
			return a, err
		}
	}
	if !a.ui.ip.IsLoopback() {
		return a, cyborg.Errorf(cyborg.ErrInvalid,
			"Temporal's Web UI may not listen on %s, because it speaks plain HTTP: choose an address of loopback with %s, and reach it through a proxy",
			a.ui, cfg.UIListenFlag)
	}

	if a.ui.port == a.frontend.port {
		return a, cyborg.Errorf(cyborg.ErrInvalid, "Temporal and its Web UI cannot both have port %d: change one with %s or %s",
			a.ui.port, cfg.ListenFlag, cfg.UIListenFlag)
	}

	return a, nil
}

// isAnyPort says that an address leaves the port open.
func isAnyPort(listen string) bool {
	_, port, err := net.SplitHostPort(listen)
	return err == nil && port == "0"
}

// settle parses an address, makes sure that nobody listens there, and replaces
// port 0 by a free one. The name of the listener and the flag are for the
// error.
func settle(listen, flag, what string) (address, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return address{}, cyborg.Errorf(cyborg.ErrInvalid, "%s cannot listen on %q: give an IP address and a port with %s (%w)", what, listen, flag, err)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}

	number, err := strconv.ParseUint(port, 10, 16)
	a := address{ip: net.ParseIP(host), port: int(number)}
	if err != nil || a.ip == nil {
		return address{}, cyborg.Errorf(cyborg.ErrInvalid, "%s cannot listen on %q: give an IP address and a port with %s", what, listen, flag)
	}

	free, err := a.tryListen()
	if errors.Is(err, syscall.EADDRINUSE) {
		return address{}, cyborg.Errorf(cyborg.ErrUnavailable, "port %d of %s, meant for %s, is in use: stop what uses it, or choose another with %s",
			a.port, a.ip, what, flag)
	}

	if err != nil {
		return address{}, cyborg.Errorf(cyborg.ErrInvalid, "%s cannot listen on %s: choose another address with %s (%w)", what, a, flag, err)
	}

	return free, nil
}

// tryListen listens for a moment to find out whether the address is free. It
// returns the address with the port that was used.
func (a address) tryListen() (address, error) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: a.ip, Port: a.port})
	if err != nil {
		return address{}, err
	}
	if bound, ok := listener.Addr().(*net.TCPAddr); ok {
		a.port = bound.Port
	}
	return a, listener.Close()
}

// reservation keeps the ports of Temporal's own services from other engines on
// this machine. An engine listens on them only some time after it has chosen
// them, and Temporal ends the process if a port is taken by then.
type reservation struct {
	names []net.Listener
}

// release gives the ports back. It is called when the engine has stopped.
func (r *reservation) release() {
	for _, name := range r.names {
		_ = name.Close() // nobody ever connects to it
	}
	r.names = nil
}

// reserveInternal chooses the ports of Temporal's own services on loopback, and
// reserves them until release.
func (a *addresses) reserveInternal() (*reservation, error) {
	r := &reservation{}
	for _, internal := range []*address{&a.history, &a.matching, &a.worker} {
		free, err := r.reserve(a)
		if err != nil {
			r.release()
			return nil, err
		}
		*internal = free
	}

	return r, nil
}

// reserve returns a free port on loopback that no engine on this machine has
// reserved. It stays below the ports that the kernel gives to outgoing
// connections, because this process is about to make many of those.
func (r *reservation) reserve(a *addresses) (address, error) {
	const from, to, tries = 20000, 32000, 200
	for range tries {
		candidate := address{ip: net.IPv4(127, 0, 0, 1), port: from + rand.IntN(to-from)} //nolint:gosec // no secret
		if candidate.port == a.frontend.port || candidate.port == a.ui.port {
			continue
		}

		// An abstract name (unix(7)) belongs to one process of the machine, and the
		// kernel frees it when that ends.
		name, err := net.Listen("unix", "@cyborg-temporal-port-"+strconv.Itoa(candidate.port)) //nolint:noctx // it returns at once
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return address{}, cyborg.Errorf(cyborg.ErrUnavailable, "cannot reserve port %d of 127.0.0.1 for Temporal: %w", candidate.port, err)
		}

		free, err := candidate.tryListen()
		if err != nil {
			_ = name.Close() // the port is not ours
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return address{}, cyborg.Errorf(cyborg.ErrUnavailable, "cannot listen on %s for Temporal: %w", candidate, err)
		}

		r.names = append(r.names, name)
		return free, nil
	}

	return address{}, cyborg.Errorf(cyborg.ErrUnavailable, "no free port was found on 127.0.0.1 from %d to %d, and Temporal needs three", from, to)
}
