package agents

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"

	"github.com/cyborg-project/cyborg"
)

// peerUserKey marks what is known of the connection of a request.
type peerUserKey struct{}

// peerUser is what is known of a connection: which user of this machine has its
// other end, which the kernel is asked once.
type peerUser struct {
	mu    sync.Mutex
	user  uint32
	known bool
}

// Connected returns the context of a connection's requests, in which is kept what
// is known of it. It is for http.Server.ConnContext. Without it, the kernel is asked
// at each request.
func Connected(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, peerUserKey{}, &peerUser{})
}

// checkUser returns an error unless the request comes from root or from the user of
// this process. It is for a listener without certificates, which every user of this
// machine reaches. Whoever is another user could report what he likes, also as a
// host that nobody speaks for yet, or of which he knows the agent's instance, which
// is no secret.
func (e *endpoint) checkUser(r *http.Request) error {
	user, err := e.userOf(r)
	if err != nil {
		return err
	}

	own := uint32(os.Geteuid())
	if user != 0 && user != own {
		believed := "root"
		if own != 0 {
			believed = fmt.Sprintf("root and user %d", own)
		}
		return cyborg.Errorf(cyborg.ErrForbidden, "without a certificate, only %s may speak for hosts here, and not user %d", believed, user).
			WithHint("Run the agent as one of them, or give agents and servers certificates (agent_endpoint.tls and agent.tls).")
	}
	return nil
}

// userOf returns which user of this machine makes a request.
func (e *endpoint) userOf(r *http.Request) (uint32, error) {
	local := ""
	if address, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		local = address.String()
	}

	c, ok := r.Context().Value(peerUserKey{}).(*peerUser)
	if !ok {
		c = &peerUser{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	if !c.known {
		user, err := e.config.User(local, r.RemoteAddr)
		if err != nil {
			return 0, err
		}
		c.user, c.known = user, true
	}
	return c.user, nil
}
