package shared

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars"
)

// Config connects a Manager with its node and its cluster.
type Config struct {
	Cluster   sidecars.Cluster
	Proxies   Proxies
	Sandboxes Sandboxes
	Reporter  sidecars.Reporter
	// Root is a directory in memory that the agent and the kubelet see at the same path. Node is the node's name.
	Root, Node string
	// Hold reports whether a pod's rules still lead to a profile's proxy: it is kept there, even if it has opted out. It may be nil.
	Hold func(profile string, s podnet.Sandbox) bool
	// Changed gets the duration of each change of a pod, until its profile's proxy has confirmed it. It may be nil.
	Changed func(profile string, took time.Duration)
}

// Proxies reaches the containers that the DaemonSets of shared proxies run on the node.
type Proxies interface {
	// Find returns the running containers of a profile's proxy, that of the oldest pod first, or sidecar.ErrGone. There are several while one
	// pod replaces another.
	Find(ctx context.Context, profile string) ([]sidecar.Container, error)
	// Check runs a command in a container. ok reports whether it ended with code 0, and output is what it printed, bounded.
	Check(ctx context.Context, id string, command []string) (output string, ok bool, err error)
	// Signal sends a signal to the first process of a container.
	Signal(ctx context.Context, id string, signal unix.Signal) error
	// Wait returns once a container has ended, or ctx has.
	Wait(ctx context.Context, id string) error
}

// Sandboxes looks at the sandboxes of pods.
type Sandboxes interface {
	// Ready reports whether a sandbox runs.
	Ready(ctx context.Context, s podnet.Sandbox) (bool, error)
	// Name returns the name of a sandbox's network namespace in /var/run/netns, or podnet.ErrGone if there is none any more.
	Name(ctx context.Context, s podnet.Sandbox) (netns string, err error)
	// Free returns sidecars.ErrPortTaken if a process in a sandbox has one of the ports, bound is enough. It takes a second at most.
	Free(ctx context.Context, s podnet.Sandbox, ports []uint16) error
}

// Result is what became of a configuration that the agent has tried.
type Result string

// The results. A configuration from which pods were left out counts as refused, and once more for what became of the rest.
const (
	Applied     Result = "applied"     // the proxy answers its version
	Refused     Result = "refused"     // the templates or the proxy's check did not pass it
	Unconfirmed Result = "unconfirmed" // the proxy did not answer its version in time
	Failed      Result = "failed"      // it could not be written, or the runtime did not pass the check or the signal on
)

// Figures are how a profile's proxy and its pods are on this node.
type Figures struct {
	// Served are the pods that the proxy serves. Refused pods need a change of theirs or of the profile first. Waiting pods need none.
	Served, Refused, Waiting int
	// Running reports whether the proxy's container runs. Newest reports whether the proxy has confirmed the profile's present version, without
	// pods that have left.
	Running, Newest bool
	// Reloads counts configurations by what became of them, with zeros.
	Reloads map[Result]uint64
}
