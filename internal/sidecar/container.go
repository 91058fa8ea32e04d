// Package sidecar holds the nouns that the proxy manager and the container runtimes share: a proxy's container, and what it is made from.
package sidecar

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrGone means that a container or its sandbox is not there any more.
var ErrGone = errors.New("it is not there any more")

// ErrNotEnded means that the runtime does not say yet that a container has ended, or how.
var ErrNotEnded = errors.New("the runtime does not say yet how it has ended")

// ContainerName is the name of a proxy's container in the runtime, in log paths and in the kubelet's metrics.
const ContainerName = "managed-proxy"

// State is what the runtime says of a container.
type State int

// The states of a container.
const (
	Created State = iota
	Running
	Exited
)

// Labels of a proxy's container.
type Labels struct {
	PodUID, PodNamespace, PodName string
	Profile                       string
	// Hash identifies what the proxy was made from.
	Hash string
	// StopSignal is the name of the signal that makes the proxy finish its connections and end, without "SIG". It is "" for an
	// Envoy, which its successor tells, and without a handover.
	StopSignal string
	// Restart identifies the pod's wish for a new proxy that this one fulfils, or is "".
	Restart string
	// HotRestart is nil for a proxy that is no Envoy with hot restart.
	HotRestart *HotRestart
}

// Container is a proxy's container, as the runtime reports it.
type Container struct {
	ID, Sandbox string
	Labels
	Epoch   uint32
	State   State
	Image   string // as the profile names it
	Created time.Time
}

// End is how a container has ended.
type End struct {
	ExitCode int32
	// Reason is the runtime's, such as "OOMKilled" or "Error".
	Reason string
	// LogPath is the node's path of its log.
	LogPath string
}

// Mount shows a directory or file of the node to the proxy.
type Mount struct {
	Host, Container string
	ReadOnly        bool
	// Relabel gives what is mounted the proxy's SELinux label. It is for directories that are nobody else's.
	Relabel bool
}

// Spec is what a container is made from.
type Spec struct {
	Sandbox string // the runtime's ID
	Labels
	Epoch         uint32
	Image         string
	Command, Args []string
	Env           []string // NAME=VALUE
	Mounts        []Mount
	UID, GID      int64
	// NetAdmin gives the proxy the capability NET_ADMIN, if UID is root's.
	NetAdmin  bool
	Resources Resources
}

// Resources bound a container; 0 is no bound.
type Resources struct {
	MemoryBytes          int64
	CPUMilli, ShareMilli int64
	// OOMScoreAdj is the kernel's: processes with a higher one end first when the node has no memory left.
	OOMScoreAdj int64
}

// Application is a container of a pod's spec.
type Application struct {
	ID, Name string
	// Attempt is the runtime's number of the container among those of its name: a higher one is newer.
	Attempt uint32
	State   State
	// ExitCode is set once it has exited.
	ExitCode int32
}

// LabelShared is on the pods, and their DaemonSets, that run the proxy which the pods of a node share. Its value is the ProxyProfile's name.
const LabelShared = "pod-network-controller.istio.io/shared-proxy"

// logFields is how many words precede the text in a line of a container's log, as CRI has it: time, stream and whether the line is whole.
const logFields = 3

// LogText returns what a container has printed in a line of its log. ok is false if it is no such line.
func LogText(line string) (text string, ok bool) {
	fields := strings.SplitN(line, " ", logFields+1)
	if len(fields) <= logFields {
		return "", false
	}
	return fields[logFields], true
}

// HotRestart is an Envoy's place in a line of them. The first of a line starts by itself, and each other takes over from its
// predecessor.
type HotRestart struct {
	// Line is the epoch of the line's first proxy.
	Line uint32
	// Epoch is Envoy's own count, from 0 in each line.
	Epoch uint32
	// Version is the protocol's, as Envoy says; "" if it is unknown.
	Version string
}

// String returns what ParseHotRestart reads, such as "3/1/11.104".
func (h HotRestart) String() string { return fmt.Sprintf("%d/%d/%s", h.Line, h.Epoch, h.Version) }

// ParseHotRestart returns nil for a text that String does not write.
func ParseHotRestart(text string) *HotRestart {
	parts := strings.SplitN(text, "/", 3)
	if len(parts) != 3 {
		return nil
	}
	line, errLine := strconv.ParseUint(parts[0], 10, 32)
	epoch, errEpoch := strconv.ParseUint(parts[1], 10, 32)
	if errLine != nil || errEpoch != nil {
		return nil
	}
	return &HotRestart{Line: uint32(line), Epoch: uint32(epoch), Version: parts[2]}
}
