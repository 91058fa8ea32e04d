package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// startsOfEach is how often each of two builds is started.
const startsOfEach = 7

// against compares the memory of the agent, as it runs without any flag more, with that of another build. Both are started in turn beside
// the same pods.
func (b bench) against(ctx context.Context, dir string) (rows []row, err error) {
	if b.reference == "" {
		return nil, errors.New("-reference names no binary")
	}
	n, err := b.newNode(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.runtime.stop(), n.server.stop()) }()
	if err := errors.Join(makeNamespaces(ctx, n.server.admin, b.namespaces), n.fill(ctx), n.program(ctx)); err != nil {
		return nil, err
	}
	var ours, theirs []held
	for range startsOfEach {
		for binary, all := range map[string]*[]held{b.agent: &ours, b.reference: &theirs} {
			one, err := n.hold(ctx, binary)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", binary, err)
			}
			*all = append(*all, one)
		}
	}
	what := fmt.Sprintf(" of the agent with %d pods, against the build before, median of %d starts", n.here, startsOfEach)
	compare := func(name, unit, target string, f func(held) float64) row {
		return newRow(name+what, unit, median(ours, f), median(theirs, f), target)
	}
	return []row{
		compare("RSS", "MiB", "+ <= 1", func(h held) float64 { return h.rss }),
		compare("memory not backed by a file", "MiB", "reported", func(h held) float64 { return h.anon }),
		compare("heap after a collection, and stacks,", "KiB", "reported", func(h held) float64 { return h.inUse }),
	}, nil
}

// held is what an agent holds.
type held struct{ rss, anon, inUse float64 }

// hold starts a build of the agent beside pods that are programmed, and looks at what it holds when it is calm.
func (n *nodeBench) hold(ctx context.Context, binary string) (h held, err error) {
	a, err := startAgent(ctx, n.server, n.runtime, binary)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, a.stop(syscall.SIGTERM)) }()
	if err := errors.Join(a.awaitProgrammed(ctx, n.here), n.settle(ctx, settled)); err != nil {
		return h, err
	}
	used, err := a.usage()
	if err != nil {
		return h, err
	}
	h.rss, h.anon = used.rss, used.anon
	h.inUse, err = a.inUse(ctx, n.collections()) // behind the others: it makes garbage
	return h, err
}
