// Package nri is the entrance through which the container runtime calls the agent (the Node Resource Interface of containerd and
// CRI-O): after a pod has its network, and before any of its containers is created.
package nri

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"istio-pod-network-controller/internal/podnet"
)

// Handler makes a sandbox hold the rules that its pod asks for, and reports whether it asks for any. An error refuses the pod; people
// read it. Forget is called for sandboxes that are gone.
type Handler interface {
	Ensure(ctx context.Context, s podnet.Sandbox) (asked bool, err error)
	Forget(sandboxID string)
}

// Parts of the runtime's limit for one call. A handler's context ends at handlerShare; at answerShare the call is answered even if the
// handler has not returned. Past the limit the runtime drops the plugin and starts the pod without it.
const (
	handlerShare = 0.7
	answerShare  = 0.85
)

// When the agent ends, it waits until the runtime has made no call for quietGap, and then closes the connection. After
// maxQuietGapWait any gap between two calls will do.
const (
	quietGap        = 20 * time.Millisecond
	maxQuietGapWait = 3 * time.Second
)

// queueLength is how many sandboxes of one Synchronize can wait; a node has a few hundred.
const queueLength = 1024

// Outcome is the result of one call of the runtime.
type Outcome string

// The outcomes. Programmed: the pod has its rules. Passed: it needs none. Refused: it may not start. LetThrough: it may start without its
// rules. Late, Panicked: the handler did not return in time, or panicked; the pod is refused unless Config.FailOpen is set.
const (
	Programmed Outcome = "programmed"
	Passed     Outcome = "passed"
	Refused    Outcome = "refused"
	LetThrough Outcome = "let-through"
	Late       Outcome = "late"
	Panicked   Outcome = "panicked"
)

// Static pods are recognised by their source, which is not the API. The API server knows them by another UID.
const (
	sourceAnnotation = "kubernetes.io/config.source"
	sourceAPI        = "api"
)

// plugin answers the runtime, which makes one call at a time on the whole node:
//
//   - RunPodSandbox programs the sandbox before the runtime goes on.
//   - CreateContainer does the same for a sandbox that is not finished. For one that is, it looks into a map only.
//   - Synchronize, after each connection, queues the running sandboxes for a worker.
//   - StopPodSandbox and RemovePodSandbox only forget the sandbox, and never fail.
//
// A fault is returned as an error before the runtime's limit: the runtime takes a late answer for consent.
type plugin struct {
	Config
	log   logr.Logger
	queue chan podnet.Sandbox

	mu           sync.Mutex
	openCalls    int                        // calls that are not answered yet
	lastCallEnd  time.Time                  // end of the last call
	handlerCalls map[*handlerCall]struct{}  // handlers that have not returned, of answered calls too
	finished     map[string]finishedSandbox // sandboxes that are programmed or need nothing, by ID
	limit        func() time.Duration       // the runtime's limit for one call
}

func newPlugin(config Config, log logr.Logger) *plugin {
	return &plugin{
		Config: config, log: log, queue: make(chan podnet.Sandbox, queueLength), finished: map[string]finishedSandbox{},
		handlerCalls: map[*handlerCall]struct{}{},
		limit:        unknownLimit,
	}
}

func unknownLimit() time.Duration { return 0 }

// RunPodSandbox is called when the sandbox has its network and before any container.
func (p *plugin) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return p.answer(ctx, "RunPodSandbox", pod)
}

// CreateContainer is called before each container, init containers too.
func (p *plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, _ *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return nil, nil, p.answer(ctx, "CreateContainer", pod)
}

// Synchronize receives every sandbox of the runtime, including stopped ones. Sandboxes that are not among them are forgotten.
func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	p.prune(pods)
	queued, sandboxes := 0, sandboxesOfPods(pods)
	for _, pod := range pods {
		s, treatment := p.readEvent(pod)
		if treatment != handle {
			continue
		}
		if sandboxes[s.UID] > 1 { // NRI does not say which is the newest; the finder does
			s.ID, s.NetNS = "", ""
		}
		select {
		case p.queue <- s:
			queued++
		default: // full: the watch programs it, and CreateContainer before its next container
		}
	}
	p.log.Info("runtime connected", "sandboxes", len(pods), "queued", queued)
	return nil, nil
}

// sandboxesOfPods returns the number of sandboxes of each pod by its UID, stopped ones included.
func sandboxesOfPods(pods []*api.PodSandbox) map[string]int {
	out := make(map[string]int, len(pods))
	for _, pod := range pods {
		out[pod.GetUid()]++
	}
	return out
}

// prune forgets the sandboxes that were removed while the runtime was not connected.
func (p *plugin) prune(pods []*api.PodSandbox) {
	alive := make(map[string]bool, len(pods))
	for _, pod := range pods {
		alive[pod.GetId()] = true
	}
	p.mu.Lock()
	var gone []string
	for id := range p.finished {
		if !alive[id] {
			gone = append(gone, id)
		}
	}
	p.mu.Unlock()
	for _, id := range gone {
		p.forget(id)
	}
}

// StopPodSandbox forgets a sandbox. It never fails: CRI-O would keep the pod for ever.
func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.forget(pod.GetId())
	return nil
}

// RemovePodSandbox forgets a sandbox.
func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.forget(pod.GetId())
	return nil
}

// outcomeOf returns the outcome of a finished sandbox.
func (p *plugin) outcomeOf(s podnet.Sandbox) (Outcome, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sandbox, ok := p.finished[s.ID]
	return sandbox.outcome, ok && sandbox.podUID == s.UID
}

func (p *plugin) remember(s podnet.Sandbox, asked bool) Outcome {
	outcome := Passed
	if asked {
		outcome = Programmed
	}
	if s.ID == "" {
		return outcome
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished[s.ID] = finishedSandbox{podUID: s.UID, outcome: outcome}
	return outcome
}

func (p *plugin) forget(id string) {
	p.mu.Lock()
	delete(p.finished, id)
	p.mu.Unlock()
	p.recovered(func() verdict {
		p.Handler.Forget(id)
		return verdict{}
	})
}

// finishedSandbox is the outcome of a sandbox that needs no further work.
type finishedSandbox struct {
	podUID  string
	outcome Outcome
}

// work programs the sandboxes that Synchronize has queued. The watch repeats what fails.
func (p *plugin) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-p.queue:
			_, _ = p.program(ctx, s)
		}
	}
}

func (p *plugin) logOf(s podnet.Sandbox) logr.Logger {
	return p.log.WithValues("pod", s.Pod(), "podUID", s.UID)
}
