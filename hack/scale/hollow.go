package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
	bench
	server *server
	agents []*hollowAgent
	seen   fleet
}

// hollow measures what many agents cost the API server:
//
//   - the cluster without them, at rest;
//   - all of them start at once: every pod is reported;
//   - they have nothing to do;
//   - the annotation of one namespace changes, then one that nobody asked for;
//   - all of them start again at once: nothing is written but their own status;
//   - the API server starts again after an outage, once without agents and once with them.
func (b bench) hollow(ctx context.Context, dir string) (rows []row, err error) {
	s, err := startServer(ctx, dir, b.programs)
	if err != nil {
		return nil, err
	}
	h := &hollowBench{bench: b, server: s}
	defer func() { err = errors.Join(err, h.endAll(), s.stop()) }()
	if err := makeNamespaces(ctx, s.admin, b.namespaces); err != nil {
		return nil, err
	}
	node := func(i int) string { return fmt.Sprintf("node-%d", i%b.agents) }
	if _, err := makePods(ctx, s.admin, 0, b.pods, b.namespaces, node); err != nil {
		return nil, err
	}
	if err := makeAgentPods(ctx, s.admin, b.agents); err != nil {
		return nil, err
	}
	for _, part := range []func(context.Context) ([]row, error){h.first, h.rest, h.namespaceChange, h.again, h.serverAgain} {
		more, err := part(ctx)
		if err != nil {
			return rows, err
		}
		if err := printRows(os.Stderr, more); err != nil {
			return rows, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// phase is what happened while f ran, until the API server was at rest again.
type phase struct {
	cpu      time.Duration // of the API server
	took     time.Duration
	requests float64 // of the agents
	refused  float64 // requests that the API server put off
	rss      float64
}

func (h *hollowBench) phase(ctx context.Context, f func(context.Context) error) (p phase, err error) {
	before, err := h.server.metrics(ctx)
	if err != nil {
		return p, err
	}
	start, err := h.server.api.usage()
	if err != nil {
		return p, err
	}
	requests := h.seen.requests.Load()
	if err := f(ctx); err != nil {
		return p, err
	}
	p.took = time.Since(start.at)
	end, err := h.server.api.usage()
	if err != nil {
		return p, err
	}
	after, err := h.server.metrics(ctx)
	if err != nil {
		return p, err
	}
	p.cpu, p.rss, p.requests = end.cpu-start.cpu, end.rss, float64(h.seen.requests.Load()-requests)
	const tooMany = "apiserver_flowcontrol_rejected_requests_total"
	p.refused = after.sum(tooMany) - before.sum(tooMany)
	return p, nil
}

// startAll starts all agents at once, and waits until they have looked at every pod, which they do once they have read the namespaces.
func (h *hollowBench) startAll(ctx context.Context) error {
	h.agents = make([]*hollowAgent, h.bench.agents)
	looked := h.seen.applied.Load()
	err := each(ctx, len(h.agents), func(_ context.Context, i int) (err error) {
		h.agents[i], err = newHollowAgent(h.server, fmt.Sprintf("node-%d", i), &h.seen)
		return err
	})
	if err != nil {
		return err
	}
	for _, a := range h.agents {
		a.start(ctx)
	}
	return eventually(ctx, fleetLimit, "all agents have looked at their pods", func(ctx context.Context) error {
		if n := h.seen.applied.Load() - looked; n < int64(h.pods) {
			return fmt.Errorf("%d of %d", n, h.pods)
		}
		return nil
	})
}

// awaitValue waits until each agent knows the value of a namespace's annotation.
func (h *hollowBench) awaitValue(ctx context.Context, name, want string) error {
	return eventually(ctx, fleetLimit, "all agents know of the change", func(ctx context.Context) error {
		for i, a := range h.agents {
			if value, err := a.value(ctx, name, intent.KeyInitialize); err != nil || value != want {
				return fmt.Errorf("agent %d knows %q, %w", i, value, err)
			}
		}
		return nil
	})
}

func (h *hollowBench) endAll() error {
	errs := make([]error, 0, len(h.agents))
	for _, a := range h.agents {
		if a != nil && a.stop != nil {
			errs = append(errs, a.end())
		}
	}
	h.agents = nil
	return errors.Join(errs...)
}

// awaitReports waits until every pod has a report, and every agent has reported that it is ready.
func (h *hollowBench) awaitReports(ctx context.Context) error {
	return eventually(ctx, fleetLimit, "all pods and agents have a report", func(context.Context) error {
		pods, agents := h.seen.written.Load()-h.seen.own.Load(), h.seen.ready.Load()
		if pods < int64(h.pods) || agents < int64(h.bench.agents) {
			return fmt.Errorf("%d of %d pods, %d of %d agents", pods, h.pods, agents, h.bench.agents)
		}
		return nil
	})
}

// first has all agents start in a cluster that has no reports.
func (h *hollowBench) first(ctx context.Context) ([]row, error) {
	if err := h.settle(ctx, calm); err != nil {
		return nil, err
	}
	before, err := h.server.api.usage()
	if err != nil {
		return nil, err
	}
	p, err := h.phase(ctx, func(ctx context.Context) error { return errors.Join(h.startAll(ctx), h.awaitReports(ctx)) })
	if err != nil {
		return nil, err
	}
	return []row{
		newRow(h.name("RSS of the API server when all have started, against before"), "MiB", p.rss, before.rss, "reported"),
		newRow(h.name("RSS of the API server for an agent"), "MiB", (p.rss-before.rss)/float64(h.bench.agents), 0, "reported"),
		newRow(h.name("CPU of the API server for an agent's first start, its pods' reports included"), "ms", milliseconds(p.cpu)/float64(h.bench.agents), 0, "reported"),
		newRow(h.name("requests for an agent's first start"), "count", p.requests/float64(h.bench.agents), 0, "reported"),
	}, nil
}

// rest measures agents with nothing to do, against the API server on its own.
func (h *hollowBench) rest(ctx context.Context) ([]row, error) {
	if err := h.settle(ctx, calm); err != nil {
		return nil, err
	}
	with, err := h.phase(ctx, func(ctx context.Context) error { return h.settle(ctx, calm) })
	if err != nil {
		return nil, err
	}
	load := 100 * with.cpu.Seconds() / with.took.Seconds()
	return []row{
		newRow(h.name("CPU of the API server while agents have nothing to do"), "% of a core", load, 0, "reported"),
		newRow(h.name("requests of an agent that has nothing to do"), "count a minute", with.requests/float64(h.bench.agents)/with.took.Minutes(), 0, "0"),
	}, nil
}

// namespaceChange changes the annotation that agents read, back and forth, each time until all agents know. The namespace's pods have
// what they ask for, and keep it.
func (h *hollowBench) namespaceChange(ctx context.Context) ([]row, error) {
	p, err := h.phase(ctx, func(ctx context.Context) error {
		for i := range changes {
			value := []string{"later", "true"}[i%2] // a value that is no request is one less
			if err := errors.Join(h.annotate(ctx, namespaceName(1), value), h.awaitValue(ctx, namespaceName(1), value)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	const change = "a namespace's change, which all agents watch"
	return []row{
		newRow(h.name("CPU of the API server for "+change), "ms", milliseconds(p.cpu)/changes, 0, "reported"),
		newRow(h.name("CPU of the API server for "+change+", for each agent"), "us", milliseconds(p.cpu)*1000/changes/float64(h.bench.agents), 0, "reported"),
		newRow(h.name("until all agents know of "+change), "ms", milliseconds(p.took)/changes, 0, "reported"),
		newRow(h.name("requests of all agents after "+change), "count", p.requests/changes, 0, "0"),
	}, nil
}

// annotate sets the annotation that asks for redirection on a namespace.
func (h *hollowBench) annotate(ctx context.Context, namespace, value string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, intent.KeyInitialize, value)
	_, err := h.server.admin.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// again has all agents end and start at once beside pods that have their reports.
func (h *hollowBench) again(ctx context.Context) ([]row, error) {
	if err := h.endAll(); err != nil {
		return nil, err
	}
	if err := h.settle(ctx, calm); err != nil {
		return nil, err
	}
	p, err := h.phase(ctx, func(ctx context.Context) error { return errors.Join(h.startAll(ctx), h.settle(ctx, time.Second)) })
	if err != nil {
		return nil, err
	}
	return []row{
		newRow(h.name("CPU of the API server for an agent's start, when all start at once"), "ms", milliseconds(p.cpu)/float64(h.bench.agents), 0, "reported"),
		newRow(h.name("until all agents that start at once have looked at every pod"), "s", p.took.Seconds(), 0, "reported"),
		newRow(h.name("requests for an agent's start, when all start at once"), "count", p.requests/float64(h.bench.agents), 0, "reported"),
		newRow(h.name("requests put off by the API server, when all agents start at once"), "count", p.refused, 0, "0"),
	}, nil
}

// serverAgain has the API server start again, without agents and with them.
func (h *hollowBench) serverAgain(ctx context.Context) ([]row, error) {
	with, attempts, err := h.serverStarts(ctx)
	if err != nil {
		return nil, err
	}
	mean, busiest := busiestSecond(attempts)
	fmt.Fprintln(os.Stderr, "requests of all agents in each second since the API server went away:", attempts)
	if err := h.endAll(); err != nil {
		return nil, err
	}
	without, _, err := h.serverStarts(ctx)
	if err != nil {
		return nil, err
	}
	return []row{
		newRow(h.name("CPU of the API server from its start until all agents know of a change, against without agents"), "s", with.cpu.Seconds(), without.cpu.Seconds(), "reported"),
		newRow(h.name("CPU of the API server for each agent, when the API server has started again"), "ms", milliseconds(with.cpu-without.cpu)/float64(h.bench.agents), 0, "reported"),
		newRow(h.name("from the API server being ready until all agents know of a change"), "s", with.took.Seconds(), without.took.Seconds(), "reported"),
		newRow(h.name("requests of an agent when the API server has started again"), "count", with.requests/float64(h.bench.agents), 0, "reported"),
		newRow(h.name("requests in the busiest second of an outage, against the mean until all agents know of a change"), "count", busiest, mean, "").atMost(2),
		newRow(h.name("peak RSS of the API server when it has started again, against without agents"), "MiB", with.rss, without.rss, "reported"),
	}, nil
}

// busiestSecond returns the mean of what happened in each second, and the most.
func busiestSecond(counts []int) (mean, most float64) {
	for _, n := range counts {
		mean += float64(n) / float64(len(counts))
		most = max(most, float64(n))
	}
	return mean, most
}

// serverStarts kills the API server, starts it after an outage and changes a namespace, of which all agents are to know. It also returns
// how many requests agents began in each second from the server's going away until all know: the window of the fleet's test in controllers.
func (h *hollowBench) serverStarts(ctx context.Context) (p phase, attempts []int, err error) {
	away := time.Now()
	if err := h.server.api.stop(syscall.SIGKILL); err != nil {
		return p, nil, err
	}
	if err := h.settle(ctx, serverAway); err != nil {
		return p, nil, err
	}
	requests := h.seen.requests.Load()
	if err := h.server.startAPI(ctx); err != nil {
		return p, nil, err
	}
	ready, value := time.Now(), time.Now().String()
	if err := errors.Join(h.annotate(ctx, namespaceName(2), value), h.awaitValue(ctx, namespaceName(2), value)); err != nil {
		return p, nil, err
	}
	p.took = time.Since(ready)
	if len(h.agents) > 0 {
		attempts = h.seen.perSecond(away, time.Now())
	}
	if err := h.settle(ctx, calm); err != nil { // what comes after the first moment
		return p, nil, err
	}
	end, err := h.server.api.usage()
	p.cpu, p.rss, p.requests = end.cpu, end.rss, float64(h.seen.requests.Load()-requests)
	return p, attempts, err
}

func (h *hollowBench) name(what string) string {
	return fmt.Sprintf("%d hollow agents, %d pods, %d namespaces: %s", h.bench.agents, h.pods, h.namespaces, what)
}

// count counts the requests of agents.
func (f *fleet) count(next http.RoundTripper) http.RoundTripper { return counted{next, f} }

type counted struct {
	http.RoundTripper
	fleet *fleet
}

// RoundTrip counts and sends a request.
func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.fleet.attempt()
	resp, err := c.RoundTripper.RoundTrip(r)
	if err == nil && r.Method != http.MethodGet && resp.StatusCode < http.StatusMultipleChoices {
		c.fleet.written.Add(1)
	}
	return resp, err
}
