package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"istio-pod-network-controller/internal/podnet"
)

// The socket keeps the boundaries of messages (SOCK_SEQPACKET): one packet asks, one packet answers, both JSON. There is
// nothing to frame, no half of a message to wait for, and no HTTP in the plugin's binary.
const network = "unixpacket"

// maxMessage bounds a packet. Requests are a few hundred bytes.
const maxMessage = 64 << 10

// What the plugin asks for.
const (
	cmdAdd    = "ADD"
	cmdCheck  = "CHECK"
	cmdDel    = "DEL"
	cmdStatus = "STATUS"
)

// errAway says that the agent gave no answer: it does not run, has not started yet, is stuck, or died meanwhile.
var errAway = errors.New("no answer from the agent")

// request and answer are the wire format. The plugin on the node and the agent are not always of one version: both ignore
// fields that they do not know.
type request struct {
	Command string         `json:"command"`
	Sandbox podnet.Sandbox `json:"sandbox"`
}

// answer is a yes, or an Error that people read.
type answer struct {
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// ask sends one request and waits for its answer until ctx ends. No answer is errAway; any other error is the agent's own.
func ask(ctx context.Context, socket string, r request) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	a, err := exchange(ctx, socket, data)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errAway, err)
	case a.OK:
		return nil
	case a.Error == "":
		return fmt.Errorf("%w: it said neither yes nor no", errAway)
	}
	return errors.New(a.Error)
}

func exchange(ctx context.Context, socket string, data []byte) (answer, error) {
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
