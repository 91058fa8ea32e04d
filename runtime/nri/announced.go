package nri

import (
	"maps"
	"sync"

	"github.com/containerd/nri/pkg/api"

	"istio-pod-network-controller/internal/podnet"
)

// maxFinished bounds what is remembered of sandboxes, since nobody tells when they end. A forgotten sandbox is looked at once more.
const maxFinished = 1024

// announced remembers the sandboxes that the runtime has announced. The zero value is ready.
type announced struct {
	mu       sync.Mutex
	finished map[string]finishedSandbox // sandboxes that are programmed or need nothing, by ID; at most maxFinished
	ran      map[string]bool            // sandboxes that had containers when the runtime connected, by ID
}

// prune forgets the sandboxes that the runtime has no more, and remembers which have containers.
func (a *announced) prune(pods []*api.PodSandbox, containers []*api.Container) {
	alive, ran := make(map[string]bool, len(pods)), make(map[string]bool, len(pods))
	for _, pod := range pods {
		alive[pod.GetId()] = true
	}
	for _, c := range containers {
		ran[c.GetPodSandboxId()] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.finished, func(id string, _ finishedSandbox) bool { return !alive[id] })
	a.ran = ran
}

// hasRun reports whether a sandbox had containers when the runtime connected: it was let start before this agent served.
func (a *announced) hasRun(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ran[id]
}

// outcomeOf returns the outcome of a finished sandbox.
func (a *announced) outcomeOf(s podnet.Sandbox) (Outcome, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sandbox, ok := a.finished[s.ID]
	return sandbox.outcome, ok && sandbox.podUID == s.UID
}

// add remembers the outcome of a sandbox that needs no further work.
func (a *announced) add(s podnet.Sandbox, outcome Outcome) {
	if s.ID == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.finished == nil || len(a.finished) == maxFinished {
		a.finished = map[string]finishedSandbox{}
	}
	a.finished[s.ID] = finishedSandbox{podUID: s.UID, outcome: outcome}
}

// finishedSandbox is the outcome of a sandbox that needs no further work.
type finishedSandbox struct {
	podUID  string
	outcome Outcome
}
