// Package state records what is up, so that another run of the command finds it, and only it, again.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/hack/cluster/internal/daemon"
)

// State is all that is not in the plan. It is written after each step that leaves something behind.
type State struct {
	// ControlPlane and Nodes hold the sets of namespaces. Nodes has one for each node that there is to be, in the order of the plan.
	ControlPlane Holder   `json:"controlPlane"`
	Nodes        []Holder `json:"nodes"`
	// Daemons holds every daemon by name, those of further nodes with the node's name before it.
	Daemons map[string]daemon.Process `json:"daemons"`
	// Programs and Tools are directories of programs; PATH of what runs in the cluster starts with them.
	Programs string `json:"programs"`
	Tools    string `json:"tools"`
	// Runtime is the name of the container runtime, which is also its daemon's, and RuntimePrograms the directory of its programs if they
	// are not among the others.
	Runtime         string `json:"runtime"`
	RuntimePrograms string `json:"runtimePrograms,omitempty"`
	// Sysctls are the machine's settings as they were.
	Sysctls map[string]string `json:"sysctls"`
	// Controllers are the cgroup controllers that were switched on for the node.
	Controllers []string `json:"controllers,omitempty"`
	// Began is when the start began. By it a user recognises their own cluster.
	Began time.Time `json:"began"`
	// Ready says that the start came to its end.
	Ready bool `json:"ready"`
}

// Holder is a process that holds namespaces.
type Holder struct {
	daemon.Process
	// Network is its network namespace, as /proc shows it.
	Network string `json:"network"`
}

// Holders lists all of them.
func (s *State) Holders() []Holder { return append([]Holder{s.ControlPlane}, s.Nodes...) }

// ErrNotUp says that there is no cluster.
var ErrNotUp = errors.New("the cluster is not up: start it with `kc up`")

// Load reads the record, or returns ErrNotUp.
func Load(file string) (*State, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotUp
	}
	if err != nil {
		return nil, fmt.Errorf("read what is up: %w", err)
	}
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("read what is up: %s: %w", file, err)
	}
	return &s, nil
}

// Save writes the record whole: a reader sees the old one or the new one.
func (s *State) Save(file string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("record what is up: %w", err)
	}
	if err := os.WriteFile(file+".partial", text, 0o600); err != nil {
		return fmt.Errorf("record what is up: %w", err)
	}
	if err := os.Rename(file+".partial", file); err != nil {
		return fmt.Errorf("record what is up: %w", err)
	}
	return nil
}

// Lock lets one command at a time change the cluster. It does not wait: two at once are a mistake.
func Lock(file string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, fmt.Errorf("make the lock's directory: %w", err)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another kc is at work (lock %s): %w", file, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}
