package agents

import (
	"context"
	"io"
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// heartbeatLimit is the largest heartbeat, in bytes: about ten times the usual
// size.
const heartbeatLimit = 64 << 10

// heartbeat takes a sign of life, and answers whether a full report is wanted.
func (e *endpoint) heartbeat(w http.ResponseWriter, r *http.Request) error {
	body, err := e.readHeartbeat(w, r)
	if err != nil {
		return err
	}

	var heartbeat agentapi.Heartbeat
	if err := decode(body, &heartbeat); err != nil {
		return err
	}

	if err := checkAgent(heartbeat.Host, heartbeat.Instance); err != nil {
		return err
	}

	if heartbeat.SentAt.IsZero() {
		return cyborg.Errorf(cyborg.ErrInvalid, "the heartbeat of host %q has no sent_at", heartbeat.Host)
	}

	// Answers show when an agent started, in UTC, and cannot write other years.
	if year := heartbeat.StartedAt.UTC().Year(); year < 0 || year > 9999 {
		return cyborg.Errorf(cyborg.ErrInvalid, "the heartbeat of host %q has started_at in the year %d", heartbeat.Host, year)
	}

	if err := e.authorizeHost(r, heartbeat.Host); err != nil {
		return err
	}

	if err := checkInProcess(r, heartbeat.Host, heartbeat.Instance); err != nil {
		return err
	}

	if err := e.refuseRevoked(r); err != nil {
		return err
	}

	heartbeat.Address = address(r)
	reply, err := e.deps.Ingester.Heartbeat(r.Context(), heartbeat)
	if err != nil {
		return err
	}
	if reply.Grants, err = e.grants.tell(r.Context()); err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusOK, reply)
}

// readHeartbeat reads a heartbeat. Heartbeats have room of their own: hosts must
// not seem silent because others report.
func (e *endpoint) readHeartbeat(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	return e.beats.read(w, r, func(context.Context, *body) ([]byte, error) {
		from, err := decompressed(w, r, heartbeatLimit)
		if err != nil {
			return nil, err
		}

		body, err := io.ReadAll(io.LimitReader(from, heartbeatLimit+1))
		return body, bodyError(r, body, heartbeatLimit, err)
	})
}
