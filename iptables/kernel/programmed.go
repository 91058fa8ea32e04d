package kernel

import (
	"sync"

	"istio-pod-network-controller/internal/podnet"
)

// maxProgrammed bounds the memory. Where nothing is remembered, the agent looks for rules of other projects once more.
const maxProgrammed = 4096

// programmed remembers the namespaces that our rules were written to, until we remove them. Another project is recognised by names
// only: a process of the pod with NET_ADMIN can delete our rules and create chains of such names. In a namespace that had our rules
// they are restored nevertheless.
type programmed struct {
	mu   sync.Mutex
	seen map[podnet.Identity]struct{}
}

func newProgrammed() *programmed { return &programmed{seen: map[podnet.Identity]struct{}{}} }

// add remembers a namespace. One without a cookie is not remembered, since a later namespace could have the same inode.
func (p *programmed) add(id podnet.Identity) {
	if id.Cookie == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) >= maxProgrammed {
		clear(p.seen) // nothing reports namespaces that are gone
	}
	p.seen[id] = struct{}{}
}

func (p *programmed) drop(id podnet.Identity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.seen, id)
}

func (p *programmed) has(id podnet.Identity) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.seen[id]
	return ok
}
