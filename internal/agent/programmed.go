package agent

import (
	"sync"

	"istio-pod-network-controller/internal/podnet"
)

// maxProgrammed bounds the memory; without any of it, other projects are looked for once more.
const maxProgrammed = 4096

// programmed knows the namespaces that rules of ours were written to and not taken from again by us. Another project is
// recognised by names alone, and a process of the pod with NET_ADMIN can delete our rules and make such names: in a namespace
// that had our rules, they come back.
type programmed struct {
	mu   sync.Mutex
	seen map[podnet.Identity]struct{}
}

func newProgrammed() *programmed { return &programmed{seen: map[podnet.Identity]struct{}{}} }

// add remembers a namespace, unless another one could be taken for it later.
func (p *programmed) add(id podnet.Identity) {
	if id.Cookie == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) >= maxProgrammed {
		clear(p.seen) // of namespaces that are gone nobody tells
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
