// Package nri is the entrance by which the container runtime itself calls us (the Node Resource Interface of containerd and
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

// Handler makes a sandbox hold the rules that its pod asks for, and reports whether it asks for any. An error refuses the pod;
// it is read by people. Forget is told of sandboxes that are gone.
type Handler interface {
	Ensure(ctx context.Context, s podnet.Sandbox) (asked bool, err error)
	Forget(sandboxID string)
}

// share is the part of the runtime's time limit that we allow ourselves: past the limit the runtime drops the plugin and the
// pod goes on without it, so our own error has to come first. A handler that is not back at lateShare is not waited for.
const (
	share     = 0.7
	lateShare = 0.85
)

// At the agent's end, a gap of this length between the runtime's calls is waited for before the connection is closed. After
// lastCalls any gap will do.
const (
	pause     = 20 * time.Millisecond
	lastCalls = 3 * time.Second
)

// queueLength is how many sandboxes of one Synchronize can wait; a node has a few hundred.
const queueLength = 1024

// Outcome is what a call of the runtime came to.
type Outcome string

// The outcomes: the pod has its rules; it needs none; it may not start; it may, though its rules are missing; the handler did not
// come back in time, or panicked, which refuses the pod unless Config.FailOpen.
const (
	Programmed Outcome = "programmed"
	Passed     Outcome = "passed"
	Refused    Outcome = "refused"
	LetThrough Outcome = "let-through"
	Late       Outcome = "late"
	Panicked   Outcome = "panicked"
)

// staticSource marks pods that the kubelet reads from files: the API server knows them by another UID.
const (
	sourceAnnotation = "kubernetes.io/config.source"
	sourceAPI        = "api"
)

// plugin answers the runtime, which calls one handler at a time on the whole node:
//
//   - RunPodSandbox has the sandbox programmed before the runtime goes on;
//   - CreateContainer does the same for a sandbox that was not seen, or was given up, and else costs nothing;
//   - Synchronize, after each connection, hands what runs already to a worker;
//   - StopPodSandbox and RemovePodSandbox only forget, and never fail.
//
// What goes wrong is an explicit error, in time: an answer that comes too late lets the pod through.
type plugin struct {
	Config
	log   logr.Logger
	queue chan podnet.Sandbox

	mu      sync.Mutex
	calls   int                  // under way
	ended   time.Time            // the last of them
	running map[*run]struct{}    // handlers at work, of calls that are answered, too
	settled map[string]settled   // sandboxes that are programmed, or need nothing, by their ID
	limit   func() time.Duration // the runtime's, for one call
}

func newPlugin(c Config, log logr.Logger) *plugin {
	return &plugin{
		Config: c, log: log, queue: make(chan podnet.Sandbox, queueLength), settled: map[string]settled{},
		running: map[*run]struct{}{},
		limit:   unknownLimit,
	}
}

func unknownLimit() time.Duration { return 0 }

// RunPodSandbox is called when the sandbox has its network and before any container.
func (p *plugin) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return p.answer(ctx, "RunPodSandbox", pod)
}

// CreateContainer is called before every container, init containers too.
func (p *plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, _ *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return nil, nil, p.answer(ctx, "CreateContainer", pod)
}

// Synchronize receives every sandbox of the runtime, including stopped ones. What is not among them is forgotten.
func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	p.prune(pods)
	queued, sandboxes := 0, sandboxesOfPods(pods)
	for _, pod := range pods {
		s, whose := p.sandbox(pod)
		if whose != ours {
			continue
		}
		if sandboxes[s.UID] > 1 { // NRI does not say which is the newest; the finder does
			s.ID, s.NetNS = "", ""
		}
		select {
		case p.queue <- s:
			queued++
		default: // full: the watch comes to it, and CreateContainer before anything starts in it
		}
	}
	p.log.Info("runtime connected", "sandboxes", len(pods), "queued", queued)
	return nil, nil
}

// sandboxesOfPods counts each pod's sandboxes, stopped ones included, by the pod's UID.
func sandboxesOfPods(pods []*api.PodSandbox) map[string]int {
	out := make(map[string]int, len(pods))
	for _, pod := range pods {
		out[pod.GetUid()]++
	}
	return out
}

// prune forgets the sandboxes that went while nobody told us.
func (p *plugin) prune(pods []*api.PodSandbox) {
	alive := make(map[string]bool, len(pods))
	for _, pod := range pods {
		alive[pod.GetId()] = true
	}
	p.mu.Lock()
	var gone []string
	for id := range p.settled {
		if !alive[id] {
			gone = append(gone, id)
		}
	}
	p.mu.Unlock()
	for _, id := range gone {
		p.forget(id)
	}
}

// StopPodSandbox is called when the sandbox goes; CRI-O would keep the pod for ever if it failed.
func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.forget(pod.GetId())
	return nil
}

// RemovePodSandbox is called when the sandbox is gone.
func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	p.forget(pod.GetId())
	return nil
}

// known reports what a sandbox came to that was looked at before.
func (p *plugin) known(s podnet.Sandbox) (Outcome, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, ok := p.settled[s.ID]
	return was.outcome, ok && was.podUID == s.UID
}

func (p *plugin) settle(s podnet.Sandbox, asked bool) Outcome {
	outcome := Passed
	if asked {
		outcome = Programmed
	}
	if s.ID == "" {
		return outcome
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settled[s.ID] = settled{podUID: s.UID, outcome: outcome}
	return outcome
}

func (p *plugin) forget(id string) {
	p.mu.Lock()
	delete(p.settled, id)
	p.mu.Unlock()
	p.guarded(func() verdict {
		p.Handler.Forget(id)
		return verdict{}
	})
}

// settled is what a sandbox of a pod came to.
type settled struct {
	podUID  string
	outcome Outcome
}

// work takes what Synchronize has queued; failures are the watch's to repeat.
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
