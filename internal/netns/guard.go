package netns

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrHost means that a path leads to the host's network namespace, which is never written to.
var ErrHost = errors.New("refused: this is the host's own network namespace")

// Guard opens any network namespace except the host's.
type Guard struct{ host []ID }

// NewGuard finds out which namespaces are the host's: this process's own, and that of process 1 if it can be seen. Without the latter,
// an agent in a network namespace of its own would not know the host's.
func NewGuard() (Guard, error) {
	own, err := idOf("/proc/self/ns/net")
	if err != nil {
		return Guard{}, fmt.Errorf("identify the host's network namespace: %w", err)
	}
	g := Guard{host: []ID{own}}
	// To see process 1's takes CAP_SYS_PTRACE. Without it, the agent's own has to do, which is the host's on a hostNetwork pod.
	if first, err := idOf("/proc/1/ns/net"); err == nil {
		g.host = append(g.host, first)
	}
	return g, nil
}

// Open opens the namespace that path leads to, unless it is the host's.
func (g Guard) Open(path string) (*NS, error) {
	if len(g.host) == 0 {
		return nil, errors.New("open network namespace: the guard does not know the host's; make it with NewGuard")
	}
	n, err := Open(path)
	if err != nil {
		return nil, err
	}
	if slices.Contains(g.host, n.ID()) {
		return nil, errors.Join(fmt.Errorf("open %q: %w", path, ErrHost), n.Close())
	}
	return n, nil
}

// IsHost reports whether a path leads to the host's namespace. It opens nothing: a file with that inode and device is the host's
// namespace.
func (g Guard) IsHost(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && slices.Contains(g.host, ID{Dev: st.Dev, Ino: st.Ino})
}

func idOf(path string) (ID, error) {
	n, err := Open(path)
	if err != nil {
		return ID{}, err
	}
	return n.ID(), n.Close()
}
