package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"istio-pod-network-controller/internal/podnet"
)

// The socket keeps message boundaries (SOCK_SEQPACKET): one packet is the request, one packet the answer, both JSON. So no framing is
// needed, no partial message can be left, and the plugin's binary needs no HTTP.
const network = "unixpacket"

// maxMessage bounds a packet. Requests are a few hundred bytes.
const maxMessage = 64 << 10

// The commands of a request.
const (
	cmdAdd    = "ADD"
	cmdCheck  = "CHECK"
	cmdDel    = "DEL"
	cmdStatus = "STATUS"
)

// errAway means that the agent did not answer: it does not run, has not started yet, hangs, or died meanwhile.
var errAway = errors.New("no answer from the agent")

// request is the wire format, with answer. The plugin on the node and the agent may be of different versions: both ignore fields
// that they do not know.
type request struct {
	Command string         `json:"command"`
	Sandbox podnet.Sandbox `json:"sandbox"`
}

// answer is OK, or an Error that people read.
type answer struct {
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// ask sends one request and waits for its answer until ctx ends. Without an answer the error is errAway; any other error is the agent's.
func ask(ctx context.Context, socket string, r request) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	a, err := roundTrip(ctx, socket, data)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errAway, err)
	case a.OK:
		return nil
	case a.Error == "":
		return fmt.Errorf("%w: the answer has neither ok nor an error", errAway)
	}
	return errors.New(a.Error)
}

func roundTrip(ctx context.Context, socket string, data []byte) (answer, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, socket)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return answer{}, err
		}
	}
	if _, err := conn.Write(data); err != nil {
		return answer{}, err
	}
	buf := make([]byte, maxMessage)
	n, err := conn.Read(buf)
	if err != nil {
		return answer{}, err
	}
	var a answer
	if err := json.Unmarshal(buf[:n], &a); err != nil {
		return answer{}, fmt.Errorf("read answer: %w", err)
	}
	return a, nil
}
