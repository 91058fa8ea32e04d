package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
)

// Ports of the world: two, so that one can be excluded.
const (
	worldPort      uint16 = 18080
	worldOtherPort uint16 = 18090
)

// answer is what testapp, and the world, say of the connection that they see.
type answer struct {
	Banner string `json:"banner"`
	Local  string `json:"local"`
	Peer   string `json:"peer"`
	// ClientCert is a mesh proxy's account of both ends' certificates. Asked are the answers of the servers that this one has asked.
	ClientCert string   `json:"clientCert"`
	Asked      []answer `json:"asked"`
}

func (a answer) peer() netip.Addr {
	p, err := netip.ParseAddrPort(a.Peer)
	if err != nil {
		return netip.Addr{}
	}
	return p.Addr().Unmap()
}

// serveWorld answers at every address that stands for "outside the cluster".
func serveWorld() error {
	for _, port := range []uint16{worldPort, worldOtherPort} {
		l, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		if err != nil {
			return fmt.Errorf("listen as the world: %w", err)
		}
		server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(tellConnection)}
		go server.Serve(l) //nolint:errcheck // ends with the process
	}
	return nil
}

func tellConnection(w http.ResponseWriter, r *http.Request) {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	_ = json.NewEncoder(w).Encode(answer{Banner: "world", Local: local.String(), Peer: r.RemoteAddr}) // the client may have gone
}

// request makes one connection, asks, and reads JSON. Redirection is decided once a connection, so each has its own.
func request(ctx context.Context, to netip.AddrPort, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.String()+path, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s%s: %s", to, path, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("read the answer of %s%s: %w", to, path, err)
	}
	return nil
}
