package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"istio-pod-network-controller/hack/bench/table"
	"istio-pod-network-controller/internal/intent"
)

const (
	// calm is how long agents with nothing to do are measured, and how long the API server gets to come to rest before.
	calm = 15 * time.Second
	// changes is how many changes of a namespace are measured.
	changes = 20
	// serverAway is how long the API server is away before agents meet it again: long enough for them to fail several times.
	serverAway = 20 * time.Second
	// fleetLimit bounds the wait for all agents.
	fleetLimit = 6 * time.Minute
)

// hollowBench is a cluster whose agents have no kernel.
type hollowBench struct {
	*Bench
	server   *server
	kubelets *kubelets // nil: the pods come from the API server
	fleet    []*hollowAgent
	seen     fleet
}

// Hollow measures what many agents cost the API server:
//
//   - the cluster without them, at rest;
//   - all of them start at once: every pod is reported;
//   - they have nothing to do;
//   - the annotation of one namespace changes;
//   - all of them start again at once: nothing is written but their own status;
//   - the API server starts again after an outage, once without agents and once with them.
func (b *Bench) Hollow(ctx context.Context) ([]table.Row, error) {
	return bySource(func(fromKubelet bool) ([]table.Row, error) { return b.hollow(ctx, fromKubelet) })
}

func (b *Bench) hollow(ctx context.Context, fromKubelet bool) ([]table.Row, error) {
	return inDirectory(func(dir string) (rows []table.Row, err error) {
		s, err := startServer(ctx, dir)
		if err != nil {
			return nil, err
		}
		h := &hollowBench{Bench: b, server: s}
		defer func() { err = errors.Join(err, h.endAll(), s.stop()) }()
		if err := makeNamespaces(ctx, s.admin, b.namespaces); err != nil {
			return nil, err
		}
		if _, err := makePods(ctx, s.admin, 0, b.pods, b.namespaces, func(i int) string { return nodeName(i % b.agents) }); err != nil {
			return nil, err
		}
		if err := makeAgentPods(ctx, s.admin, b.agents); err != nil {
			return nil, err
		}
		h.kubelets, err = serveKubelets(ctx, fromKubelet, s.admin, dir, b.agents)
		defer h.kubelets.end()
		if err != nil {
			return nil, err
		}
		for _, part := range []func(context.Context) ([]table.Row, error){h.first, h.rest, h.namespaceChange, h.again, h.serverAgain} {
			more, err := part(ctx)
			if err != nil {
				return rows, err
			}
			if err := table.Print(os.Stderr, more); err != nil {
				return rows, err
			}
			rows = append(rows, more...)
		}
		return rows, nil
	})
}

// phase is what happened while f ran: CPU time and memory of the API server, and requests of the agents.
type phase struct {
	cpu, took     time.Duration
	requests, rss float64
	inUse         float64 // KiB of heap and stacks, after a collection
}

func (h *hollowBench) phase(ctx context.Context, f func(context.Context) error) (p phase, err error) {
	start, err := h.server.api.usage()
	if err != nil {
		return p, err
	}
	requests := h.seen.requests.Load()
	if err := f(ctx); err != nil {
		return p, err
	}
	end, err := h.server.api.usage()
	return phase{cpu: end.cpu - start.cpu, took: end.at.Sub(start.at), requests: float64(h.seen.requests.Load() - requests), rss: end.rss}, err
}

// each returns the part of one agent.
func (h *hollowBench) each(all float64) float64 { return all / float64(h.agents) }

// startAll starts all agents at once, and waits until they have looked at every pod, which they do once they have read the namespaces.
func (h *hollowBench) startAll(ctx context.Context) error {
	h.fleet = make([]*hollowAgent, h.agents)
	looked := h.seen.applied.Load()
	err := each(ctx, h.agents, func(_ context.Context, i int) (err error) {
		h.fleet[i], err = newHollowAgent(h.server, nodeName(i), h.kubelets, &h.seen)
		return err
	})
	if err != nil {
		return err
	}
	for _, a := range h.fleet {
		a.start(ctx)
	}
	return eventually(ctx, fleetLimit, "all agents have looked at their pods", func(ctx context.Context) error {
		if n := h.seen.applied.Load() - looked; n < int64(h.pods) {
			return fmt.Errorf("%d of %d", n, h.pods)
		}
		return nil
	})
}

func (h *hollowBench) endAll() (err error) {
	for _, a := range h.fleet {
		if a != nil && a.stop != nil {
			err = errors.Join(err, a.end())
		}
	}
	h.fleet = nil
	return err
}

// awaitReports waits until every pod has a report, and every agent has reported about itself.
func (h *hollowBench) awaitReports(ctx context.Context) error {
	return eventually(ctx, fleetLimit, "all pods and agents have a report", func(context.Context) error {
		if pods, agents := h.seen.pods.Load(), h.seen.own.Load(); pods < int64(h.pods) || agents < int64(h.agents) {
			return fmt.Errorf("%d of %d pods, %d of %d agents", pods, h.pods, agents, h.agents)
		}
		return nil
	})
}

// first has all agents start in a cluster that has no reports.
func (h *hollowBench) first(ctx context.Context) ([]table.Row, error) {
	errRest := h.settle(ctx, calm)
	before, err := h.server.api.usage()
	if err := errors.Join(errRest, err); err != nil {
		return nil, err
	}
	p, err := h.phase(ctx, func(ctx context.Context) error { return errors.Join(h.startAll(ctx), h.awaitReports(ctx)) })
	return []table.Row{
		h.row("RSS of the API server when all have started, against before", "MiB", p.rss, before.rss),
		h.row("RSS of the API server for an agent", "MiB", h.each(p.rss-before.rss), 0),
		h.row("CPU of the API server for an agent's first start, its pods' reports included", "ms", h.each(milliseconds(p.cpu)), 0),
		h.row("requests for an agent's first start", "count", h.each(p.requests), 0),
	}, err
}

// rest measures agents with nothing to do.
func (h *hollowBench) rest(ctx context.Context) ([]table.Row, error) {
	if err := h.settle(ctx, calm); err != nil {
		return nil, err
	}
	p, err := h.phase(ctx, func(ctx context.Context) error { return h.settle(ctx, calm) })
	return []table.Row{
		h.row("RSS of the API server while agents have nothing to do", "MiB", p.rss, 0),
		h.row("CPU of the API server while agents have nothing to do", "% of a core", 100*p.cpu.Seconds()/p.took.Seconds(), 0),
		h.row("requests of an agent that has nothing to do", "count a minute", h.each(p.requests)/p.took.Minutes(), 0).To("0"),
	}, err
}

// namespaceChange changes the annotation that agents read, back and forth, each time until all agents know. The namespace's pods have
// what they ask for, and keep it.
func (h *hollowBench) namespaceChange(ctx context.Context) ([]table.Row, error) {
	p, err := h.phase(ctx, func(ctx context.Context) error {
		for i := range changes {
			if err := h.tell(ctx, namespaceName(1), []string{"later", "true"}[i%2]); err != nil { // a value that is no request is one less
				return err
			}
		}
		return nil
	})
	const change = "a namespace's change, which all agents watch"
	return []table.Row{
		h.row("CPU of the API server for "+change, "ms", milliseconds(p.cpu)/changes, 0),
		h.row("CPU of the API server for "+change+", for each agent", "us", h.each(milliseconds(p.cpu)*1000/changes), 0),
		h.row("until all agents know of "+change, "ms", milliseconds(p.took)/changes, 0),
		h.row("requests of all agents after "+change, "count", p.requests/changes, 0).To("0"),
	}, err
}

// tell sets the annotation that asks for redirection on a namespace, and waits until each agent knows it.
func (h *hollowBench) tell(ctx context.Context, namespace, value string) error {
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, intent.KeyInitialize, value)
	if _, err := h.server.admin.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	return eventually(ctx, fleetLimit, "all agents know of the change", func(ctx context.Context) error {
		for i, a := range h.fleet {
			if knows, err := a.value(ctx, namespace, intent.KeyInitialize); err != nil || knows != value {
				return fmt.Errorf("agent %d knows %q, %w", i, knows, err)
			}
		}
		return nil
	})
}

// again has all agents end and start at once beside pods that have their reports.
func (h *hollowBench) again(ctx context.Context) ([]table.Row, error) {
	if err := errors.Join(h.endAll(), h.settle(ctx, calm)); err != nil {
		return nil, err
	}
	p, err := h.phase(ctx, func(ctx context.Context) error { return errors.Join(h.startAll(ctx), h.settle(ctx, time.Second)) })
	return []table.Row{
		h.row("CPU of the API server for an agent's start, when all start at once", "ms", h.each(milliseconds(p.cpu)), 0),
		h.row("until all agents that start at once have looked at every pod", "s", p.took.Seconds(), 0),
		h.row("requests for an agent's start, when all start at once", "count", h.each(p.requests), 0),
	}, err
}

// serverAgain has the API server start again, with agents and without them.
func (h *hollowBench) serverAgain(ctx context.Context) ([]table.Row, error) {
	with, attempts, err := h.serverStarts(ctx)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(os.Stderr, "requests of all agents in each second since the API server went away:", attempts)
	mean := 0.0
	for _, n := range attempts {
		mean += float64(n) / float64(len(attempts))
	}
	if err := h.endAll(); err != nil {
		return nil, err
	}
	without, _, err := h.serverStarts(ctx)
	return []table.Row{
		h.row("CPU of the API server from its start until all agents know of a change, against without agents", "s", with.cpu.Seconds(), without.cpu.Seconds()),
		h.row("CPU of the API server for each agent, when the API server has started again", "ms", h.each(milliseconds(with.cpu-without.cpu)), 0),
		h.row("from the API server being ready until all agents know of a change", "s", with.took.Seconds(), without.took.Seconds()),
		h.row("requests of an agent when the API server has started again", "count", h.each(with.requests), 0),
		h.row("requests in the busiest second of an outage, against the mean until all agents know of a change", "count", float64(slices.Max(attempts)), mean).AtMost(2),
		h.row("RSS of the API server when it has started again, against without agents", "MiB", with.rss, without.rss),
		h.row("heap and stacks of the API server for an agent, when it has started again", "KiB", h.each(with.inUse-without.inUse), 0),
	}, err
}

// serverStarts kills the API server, starts it after an outage and changes a namespace, of which all agents are to know. It also returns
// how many requests agents began in each second from the server's going away until all know: the window of the fleet's test in controllers.
func (h *hollowBench) serverStarts(ctx context.Context) (p phase, attempts []int, err error) {
	away := time.Now()
	if err := errors.Join(h.server.crash(), h.settle(ctx, serverAway)); err != nil {
		return p, nil, err
	}
	requests := h.seen.requests.Load()
	if err := h.server.startAgain(ctx); err != nil {
		return p, nil, err
	}
	ready := time.Now()
	if err := h.tell(ctx, namespaceName(2), ready.String()); err != nil {
		return p, nil, err
	}
	took := time.Since(ready)
	attempts = h.seen.perSecond(away, time.Now())
	if err := h.settle(ctx, calm); err != nil { // what comes after the first moment
		return p, nil, err
	}
	end, err := h.server.api.usage()
	used, errUsed := h.server.inUse(ctx)
	return phase{cpu: end.cpu, took: took, rss: end.rss, inUse: used, requests: float64(h.seen.requests.Load() - requests)}, attempts, errors.Join(err, errUsed)
}

func (h *hollowBench) row(what, unit string, ours, reference float64) table.Row {
	return table.New(fmt.Sprintf("%d hollow agents, %d pods, %d namespaces: %s", h.agents, h.pods, h.namespaces, what), unit, ours, reference)
}
