package agent

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/iptables/kernel"
)

// An agent answers on the socket of its pod whether it answers on the network or not, and on none of both where it has none.
func TestWhereTheAgentAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		health, addr  string
		socket, ports bool
	}{
		"on a port and a socket":           {health: "unix", addr: "127.0.0.1:0", socket: true, ports: true},
		"on a socket alone":                {health: "unix", addr: "0", socket: true},
		"on a port alone":                  {health: "127.0.0.1:0", addr: "127.0.0.1:0", ports: true},
		"nowhere":                          {health: "0", addr: "0"},
		"on an address that it has not":    {health: "0", addr: "203.0.113.1:15078"},
		"on an address that means nothing": {health: "0", addr: "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.health == "unix" {
				tc.health = "unix://" + filepath.Join(dir, "health.sock")
			}
			a := &agent{Options: Options{NodeName: "node1", HealthAddr: tc.health, InspectAddr: tc.addr}, core: newCoreHolder(), backends: kernel.New(kernel.Namespaces{}, fakeDriver{})}
			stop := a.inspector().Serve(t.Context(), &rest.Config{Host: "http://127.0.0.1:1"})
			defer stop()
			socket := filepath.Join(dir, filepath.Base(inspect.DefaultSocket))
			_, err := inspect.GetLocal(t.Context(), socket, "shop", "cart")
			if answers := err != nil && strings.Contains(err.Error(), "has not read its pods yet"); answers != tc.socket {
				t.Errorf("by the socket: %v", err)
			}
			if info, err := os.Stat(socket); tc.socket && (err != nil || info.Mode().Perm() != 0o600) {
				t.Errorf("the socket is %v, error %v", info, err)
			}
			if at := a.inspect.Load(); (at != nil) != tc.ports || at != nil && !listens(t, at.Port) {
				t.Errorf("it says where it answers: %v", at)
			}
		})
	}
}

func listens(t *testing.T, port int) bool {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Error(err)
		return false
	}
	return conn.Close() == nil
}

func TestInspectAddresses(t *testing.T) {
	for addr, want := range map[string]bool{":15078": true, "0": true, "127.0.0.1:1": true, "[::1]:65535": true, "": false, "15078": false, ":0": false, ":x": false, ":65536": false} {
		if err := ValidateInspectAddr(addr); (err == nil) != want {
			t.Errorf("%q: %v", addr, err)
		}
	}
}
