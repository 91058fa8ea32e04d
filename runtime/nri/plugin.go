// Package nri is the entrance by which the container runtime itself calls us (the Node Resource Interface of containerd and
// CRI-O): after a pod has its network, and before any of its containers is created.
package nri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"istio-pod-network-controller/internal/podnet"
)

// Handler makes a sandbox hold the rules that its pod asks for, and tells whether it asks for any. An error refuses the pod;
// it is read by people. Forget is told of sandboxes that are gone.
type Handler interface {
	Ensure(ctx context.Context, s podnet.Sandbox) (asked bool, err error)
	Forget(sandboxID string)
}

// Outcome is what a call of the runtime came to.
type Outcome string

// The outcomes: the pod has its rules; it needs none; it may not start; it may, though its rules are missing.
const (
	Programmed Outcome = "programmed"
	Passed     Outcome = "passed"
	Refused    Outcome = "refused"
	LetThrough Outcome = "let-through"
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
	log          logr.Logger
	queue        chan podnet.Sandbox
	synchronized func()

	mu      sync.Mutex
	calls   int                  // under way
	ended   time.Time            // the last of them
	settled map[string]settled   // sandboxes that are programmed, or need nothing, by their ID
	limit   func() time.Duration // the runtime's, for one call
}

func newPlugin(c Config, log logr.Logger) *plugin {
	return &plugin{
		Config: c, log: log, queue: make(chan podnet.Sandbox, queueLength), settled: map[string]settled{},
		synchronized: func() {},
		limit:        func() time.Duration { return api.DefaultPluginRequestTimeout },
	}
}

// RunPodSandbox is called when the sandbox has its network and before any container.
func (p *plugin) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return p.answer(ctx, "RunPodSandbox", pod)
}

// CreateContainer is called before every container, init containers too.
func (p *plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, _ *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return nil, nil, p.answer(ctx, "CreateContainer", pod)
}

// Synchronize is told of all that the runtime has, dead sandboxes too.
func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	queued := 0
	for _, pod := range pods {
		s, ok := p.sandbox(pod)
		if !ok {
			continue
		}
		select {
		case p.queue <- s:
			queued++
		default: // full: the watch comes to it, and CreateContainer before anything starts in it
		}
	}
	p.synchronized() // from here on it calls us, and not from when we have registered
	p.log.Info("runtime connected", "sandboxes", len(pods), "queued", queued)
	return nil, nil
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

// answer is what the runtime waits for.
func (p *plugin) answer(ctx context.Context, call string, pod *api.PodSandbox) error {
	start := p.begin()
	defer p.end()
	outcome, err := p.judge(ctx, pod)
	if p.Observe != nil {
		p.Observe(call, outcome, time.Since(start))
	}
	return err
}

func (p *plugin) begin() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	return time.Now()
}

func (p *plugin) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls--
	p.ended = time.Now()
}

// awaitQuiet returns in a pause between the runtime's calls, or when there is none: a connection that ends within a call lets
// the pod through.
func (p *plugin) awaitQuiet() {
	quiet := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.calls == 0 && time.Since(p.ended) > pause
	}
	tick := time.NewTicker(pause / 4)
	defer tick.Stop()
	for end := time.Now().Add(lastCalls); !quiet() && time.Now().Before(end); {
		<-tick.C
	}
}

func (p *plugin) judge(ctx context.Context, pod *api.PodSandbox) (Outcome, error) {
	s, ok := p.sandbox(pod)
	if !ok {
		return Passed, nil
	}
	if outcome, ok := p.known(s); ok {
		return outcome, nil
	}
	outcome, err := p.program(ctx, s)
	if err == nil {
		return outcome, nil
	}
	log := p.logOf(s).WithValues("sandbox", s.ID)
	switch {
	case errors.Is(err, podnet.ErrNoPod): // deleted while it was being started
		log.Info("pod refused", "reason", err.Error())
	case p.FailOpen:
		log.Error(err, "pod let through without its rules")
		return LetThrough, nil
	default:
		log.Error(err, "pod refused")
	}
	return Refused, fmt.Errorf("istio-pod-network-controller refuses pod %s until its traffic can be redirected: %w", s.Pod(), err)
}

// program has a sandbox looked at within the time that a call may take, and remembers what it came to.
func (p *plugin) program(ctx context.Context, s podnet.Sandbox) (Outcome, error) {
	ctx, cancel := context.WithTimeout(logr.NewContext(ctx, p.logOf(s)), p.deadline())
	defer cancel()
	asked, err := p.Handler.Ensure(ctx, s)
	if err != nil {
		return Refused, err
	}
	return p.settle(s, asked), nil
}

func (p *plugin) logOf(s podnet.Sandbox) logr.Logger {
	return p.log.WithValues("pod", s.Pod(), "podUID", s.UID)
}

// sandbox reads an event; ok is false for pods that are none of our business whatever state we are in: of namespaces that
// we never touch, with the host's network, and static ones.
func (p *plugin) sandbox(pod *api.PodSandbox) (s podnet.Sandbox, ok bool) {
	s = podnet.Sandbox{
		Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: pod.GetUid(), ID: pod.GetId(), RuntimeHandler: pod.GetRuntimeHandler(),
	}
	namespaces := pod.GetLinux().GetNamespaces()
	for _, ns := range namespaces {
		if ns.GetType() == "network" {
			s.NetNS = ns.GetPath()
		}
	}
	source := pod.GetAnnotations()[sourceAnnotation]
	pass := slices.Contains(p.PassNamespaces, s.Namespace) || source != "" && source != sourceAPI || p.onHost(s.NetNS, len(namespaces))
	return s, !pass && s.Namespace != "" && s.Name != "" && s.UID != "" && s.ID != ""
}

// onHost tells whether a pod uses the host's network: containerd then lists its other namespaces, CRI-O the host's own by a
// path like any other. An event without any namespace tells nothing.
func (p *plugin) onHost(netns string, namespaces int) bool {
	if netns == "" {
		return namespaces > 0
	}
	return p.IsHost != nil && p.IsHost(netns)
}

// deadline is how long a call may take: a part of what the runtime allows.
func (p *plugin) deadline() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(share * float64(p.limit()))
}

func (p *plugin) setLimit(limit func() time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = limit
}

// settled is what a sandbox of a pod came to.
type settled struct {
	podUID  string
	outcome Outcome
}

// known tells what a sandbox came to that was looked at before.
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settled[s.ID] = settled{podUID: s.UID, outcome: outcome}
	return outcome
}

func (p *plugin) forget(id string) {
	p.mu.Lock()
	delete(p.settled, id)
	p.mu.Unlock()
	p.Handler.Forget(id)
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
