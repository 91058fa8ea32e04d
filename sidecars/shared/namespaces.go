package shared

import (
	"context"
	"errors"
	"maps"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

// namesAgain is the time between two looks at the name of a network namespace that is served.
const namesAgain = 2 * time.Second

// namespaces remembers what it has seen of the names of the members' network namespaces.
type namespaces struct {
	Sandboxes
	seen map[podnet.Key]time.Time // when the name was seen last
	lost map[podnet.Key]bool      // the name was lost in the middle of a round
}

// gone reports whether a sandbox's network namespace no longer has the name that the proxy knows.
func (n namespaces) gone(ctx context.Context, s podnet.Sandbox, known string, now time.Time) bool {
	key := s.Key()
	if now.Sub(n.seen[key]) <= namesAgain {
		return false
	}
	name, err := n.Name(ctx, s)
	if errors.Is(err, podnet.ErrGone) || err == nil && name != known || err != nil && n.lost[key] {
		return true
	}
	if err == nil {
		delete(n.lost, key)
		n.seen[key] = now
	}
	return false
}

// vanished reports whether the network namespace of a member has lost its name since the round began. The next round takes the sandbox of such
// a pod for ended.
func (n namespaces) vanished(ctx context.Context, members []member) (lost bool) {
	for _, m := range members {
		name, err := n.Name(ctx, m.Sandbox)
		if ctx.Err() == nil && (err != nil || name != m.Data.NetNS) && !n.lost[m.key()] {
			n.lost[m.key()], lost = true, true
			delete(n.seen, m.key())
		}
	}
	return lost
}

// forget drops sandboxes that are missing in there.
func (n namespaces) forget(there map[podnet.Key]bool) {
	maps.DeleteFunc(n.seen, func(key podnet.Key, _ time.Time) bool { return !there[key] })
	maps.DeleteFunc(n.lost, func(key podnet.Key, _ bool) bool { return !there[key] })
}
