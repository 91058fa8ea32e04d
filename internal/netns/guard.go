package netns

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrHost says that a path leads to the host's own network namespace, which is never written to.
var ErrHost = errors.New("refused: this is the host's own network namespace")

// Guard opens namespaces, except the host's.
type Guard struct{ host []ID }

// NewGuard learns which namespaces are the host's: the one this process runs in, and the first process's where it can be
// seen (an agent in a network namespace of its own could otherwise not tell).
func NewGuard() (Guard, error) {
	own, err := idOf("/proc/self/ns/net")
	if err != nil {
		return Guard{}, fmt.Errorf("identify the host's network namespace: %w", err)
	}
	g := Guard{host: []ID{own}}
	// Seeing the first process's takes CAP_SYS_PTRACE; without it the agent's own, which shares the host's, has to do.
	if first, err := idOf("/proc/1/ns/net"); err == nil {
		g.host = append(g.host, first)
	}
	return g, nil
}

// Open is Open for any namespace but the host's.
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

// IsHost reports whether a path leads to the host's namespace. It opens nothing: whatever has its inode, on its file system,
// is the host's namespace.
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
