// Package parking takes new connections in the stead of a proxy that does not listen yet: a listener of ours waits on the proxy's port and accepts
// nothing. Once the proxy listens beside it (SO_REUSEPORT), ours closes, and the kernel moves what waits to the proxy (net.ipv4.tcp_migrate_req, Linux
// 5.14). To the client the connection is open after the usual time, and answered as soon as the proxy is there.
//
//	parking.go   what others call
//	spot.go      one listener, until the proxy listens
//	listener.go  how a proxy listens, and listeners as it has them
package parking

import (
	"context"
	"sync"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
)

// Lot parks the connections of a node's pods. Its methods may be called at once. A parked listener keeps its network namespace alive: it is closed when
// the proxy listens, when it is told to, or at its deadline. At the end of an agent the kernel closes its listeners, and resets what waits.
type Lot struct {
	namespaces kernel.Namespaces

	mu sync.Mutex
	// ways has how proxies listen, by name. A name with no listener is of a proxy beside which nobody can listen.
	ways   map[string][]listener
	spots  map[string][]*spot // by sandbox
	counts Counts
}

// Counts are connections that were parked.
type Counts struct {
	// HandedOver were given to the proxy. For Reset no proxy came.
	HandedOver, Reset uint64
}

// New returns an empty Lot.
func New(in kernel.Namespaces) *Lot {
	return &Lot{namespaces: in, ways: map[string][]listener{}, spots: map[string][]*spot{}}
}

// Counts returns what was parked since the start.
func (l *Lot) Counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts
}

// Learn looks at the listeners of a sandbox's proxy, and whether others can listen beside them. proxy is a name of all proxies that listen alike.
func (l *Lot) Learn(ctx context.Context, s podnet.Sandbox, proxy string, spec iptables.Spec) error {
	all, err := kernel.Visit(ctx, l.namespaces, s.Place(), func(ctx context.Context, ns *netns.NS) ([]listener, error) { return listenersOf(ctx, ns, spec) })
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ways[proxy] = all
	return nil
}

// Park opens listeners in the stead of a proxy's, until a time at most. A sandbox that has some already keeps them. Nothing is opened for a proxy
// that is not known, or beside which nobody can listen.
func (l *Lot) Park(ctx context.Context, s podnet.Sandbox, proxy string, spec iptables.Spec, until time.Time) error {
	l.mu.Lock()
	ways, parked := l.ways[proxy], len(l.spots[s.ID]) > 0
	l.mu.Unlock()
	if parked || len(ways) == 0 {
		return nil
	}
	opened, err := kernel.Visit(ctx, l.namespaces, s.Place(), func(ctx context.Context, ns *netns.NS) ([]*spot, error) { return openAll(ctx, ns, spec, ways) })
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.spots[s.ID]) > 0 { // another call was faster
		closeAll(opened)
		return nil
	}
	l.spots[s.ID] = opened
	for _, one := range opened {
		go l.watch(context.WithoutCancel(ctx), s, one, until)
	}
	return nil
}

// Leave closes the listeners of a sandbox.
func (l *Lot) Leave(sandbox string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	closeAll(l.spots[sandbox])
	delete(l.spots, sandbox)
}

// lastLook bounds the look that only decides how connections are counted.
const lastLook = 10 * time.Second

// watch closes a listener once the proxy listens on its port, or at its deadline.
func (l *Lot) watch(ctx context.Context, s podnet.Sandbox, one *spot, until time.Time) {
	listens := func(ctx context.Context) (bool, error) {
		return kernel.Visit(ctx, l.namespaces, s.Place(), func(ctx context.Context, ns *netns.NS) (bool, error) { return one.isSucceeded(ctx, ns) })
	}
	came, waiting := one.wait(ctx, until, listens)
	if !came && waiting > 0 { // it was told to close, perhaps since the proxy is ready
		looking, cancel := context.WithTimeout(ctx, lastLook)
		defer cancel()
		came, _ = listens(looking)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if came {
		l.counts.HandedOver += waiting
	} else {
		l.counts.Reset += waiting
	}
	if l.spots[s.ID] = without(l.spots[s.ID], one); len(l.spots[s.ID]) == 0 {
		delete(l.spots, s.ID)
	}
}
