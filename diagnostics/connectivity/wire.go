// Package connectivity proves redirection on the nodes of a cluster: it starts two small pods on a node, and an application in one of
// them connects to the other. Whoever takes such a connection says who it is, so the answer shows where the rules sent the connection.
package connectivity

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
)

// Role is who took a connection.
type Role string

// The roles. A pod has all three: the application, and a stand-in for the proxy that listens where proxies do.
const (
	RoleApplication Role = "application"
	RoleOutbound    Role = "outbound" // the proxy, on its port for outbound traffic
	RoleInbound     Role = "inbound"  // the proxy, on its port for inbound traffic
)

// The ports of both pods. Annotations of the pods set the proxy's ports and the excluded ones, so the agents' defaults do not matter.
const (
	portOutbound uint16 = 15001
	portInbound  uint16 = 15006
	portCaptured uint16 = 8080 // captured in both directions
	portEntering uint16 = 8081 // captured where it enters a pod, not where it leaves one
	portExcluded uint16 = 8082 // captured nowhere
)

// maxLine bounds a request and an answer.
const maxLine = 4096

// Request is what a client sends: one line of JSON.
type Request struct {
	// Hops counts the proxies that have passed the connection on. It ends a loop.
	Hops int `json:"hops"`
}

// Answer is what whoever took the connection sends back: one line of JSON.
type Answer struct {
	Role Role           `json:"role"`
	Pod  string         `json:"pod"`
	Dst  netip.AddrPort `json:"dst"` // the destination before redirection
	// Next is the answer to the connection that the proxy's outbound side makes to Dst by itself. Fault says why there is none.
	Next  *Answer `json:"next,omitempty"`
	Fault string  `json:"fault,omitempty"`
}

// readLine reads one line of JSON, of maxLine bytes at most.
func readLine(from io.Reader, into any) error {
	line, err := bufio.NewReader(io.LimitReader(from, maxLine)).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read a line: %w", err)
	}
	if err := json.Unmarshal(line, into); err != nil {
		return fmt.Errorf("read a line: %w", err)
	}
	return nil
}

// writeLine writes one line of JSON.
func writeLine(to io.Writer, what any) error {
	return json.NewEncoder(to).Encode(what)
}
