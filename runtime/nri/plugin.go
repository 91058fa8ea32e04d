// Package nri is the hook through which the container runtime calls the agent (the Node Resource Interface of containerd and
// CRI-O): after a pod has its network, and before any of its containers is created.
package nri

import (
	"context"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"istio-pod-network-controller/internal/podnet"
)

// Handler makes a sandbox hold the rules that its pod asks for, and reports whether it asks for any. An error refuses the pod; people
// read it. podnet.ErrPodsUnknown refuses only pods of which no container was there when the runtime connected.
type Handler interface {
	Ensure(ctx context.Context, s podnet.Sandbox) (asked bool, err error)
}

// Parts of the runtime's limit for one call. A handler's context ends at handlerShare; at answerShare the call is answered even if the
// handler has not returned. Past the limit the runtime drops the plugin and starts the pod without it.
const (
	handlerShare = 0.7
	answerShare  = 0.85
)

// When the agent ends, it waits until the runtime has made no call for quietGap, and then closes the connection: on a busy node the last
// answer may be on its way for some milliseconds. After maxQuietGapWait any gap between two calls will do.
const (
	quietGap        = 50 * time.Millisecond
	maxQuietGapWait = 3 * time.Second
)

// queueLength is how many sandboxes of one Synchronize can wait; a node has a few hundred.
const queueLength = 1024

// Outcome is the result of one call of the runtime.
type Outcome string

// The outcomes. Programmed: the pod has its rules. Passed: it needs none. Postponed: it has no rules yet, and CreateContainer decides.
// Refused: its container may not start. LetThrough: it may start without its rules. Late, Panicked: the handler did not return in time, or
// panicked; the container is refused unless Config.FailOpen is set.
const (
	Programmed Outcome = "programmed"
	Passed     Outcome = "passed"
	Postponed  Outcome = "postponed"
	Refused    Outcome = "refused"
	LetThrough Outcome = "let-through"
	Late       Outcome = "late"
	Panicked   Outcome = "panicked"
)

// The calls that are observed.
const (
	runPodSandbox   = "RunPodSandbox"
	createContainer = "CreateContainer"
)

// Static pods are recognised by their source, which is not the API. The API server knows them by another UID than events have, the kubelet by the same.
const (
	sourceAnnotation = "kubernetes.io/config.source"
	sourceAPI        = "api"
)

// plugin answers the runtime, which makes one call at a time on the whole node:
//
//   - RunPodSandbox programs the sandbox before the runtime goes on. It never fails.
//   - CreateContainer does the same for a sandbox that is not finished, and refuses the container if that fails. For a finished sandbox
//     it looks into a map only, and tells Config.Creating of the container.
//   - Synchronize, after each connection, queues the running sandboxes for a worker.
//
// It does not subscribe to the end of sandboxes: a runtime that insists on an answer could end none while the agent hangs.
//
// A fault is returned as an error before the runtime's limit: the runtime takes a late answer for consent. Only CreateContainer returns
// one. Nothing of the pod runs before it, and containerd before 2.2.6 may not come up again after a refused sandbox
// (containerd/containerd#13609).
type plugin struct {
	Config
	log   logr.Logger
	queue chan podnet.Sandbox

	calls     calls
	announced announced
}

func newPlugin(config Config, log logr.Logger) *plugin {
	return &plugin{Config: config, log: log, queue: make(chan podnet.Sandbox, queueLength), calls: calls{limit: unknownLimit}}
}

// RunPodSandbox is called when the sandbox has its network and before any container. A sandbox that cannot be programmed is left to
// CreateContainer.
func (p *plugin) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	_ = p.answer(ctx, runPodSandbox, pod, "")
	return nil
}

// CreateContainer is called before each container, init containers too.
func (p *plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return nil, nil, p.answer(ctx, createContainer, pod, c.GetName())
}

// Synchronize receives every sandbox of the runtime, including stopped ones. Sandboxes that are not among them are forgotten.
func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	p.announced.prune(pods, containers)
	queued, sandboxes := 0, map[string]int{} // by the pod's UID
	for _, pod := range pods {
		sandboxes[pod.GetUid()]++
	}
	for _, pod := range pods {
		s, treatment := p.readEvent(pod)
		if treatment != handle {
			continue
		}
		if sandboxes[s.UID] > 1 { // NRI does not say which is the newest; the finder does
			s.ID, s.NetNS = "", ""
		}
		if s.OfProcess() { // it may have ended since: the finder asks the runtime
			s.NetNS = ""
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

// work programs the sandboxes that Synchronize has queued. The watch repeats what fails.
func (p *plugin) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-p.queue:
			p.program(ctx, s)
		}
	}
}

func (p *plugin) logOf(s podnet.Sandbox) logr.Logger {
	return p.log.WithValues("pod", s.Pod(), "podUID", s.UID)
}
