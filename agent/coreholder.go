package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/diagnostics/inspectserver"
	"istio-pod-network-controller/internal/outage"
	"istio-pod-network-controller/internal/podnet"
)

// core has the parts of the core for the hooks.
type core struct {
	programmer *controllers.Programmer
	pods       controllers.Reader
	managed    proxies // nil without --sidecars
}

// coreHolder passes the core to the hooks. It is empty until the agent has read its pods. An agent that serves NRI and CNI before
// that, since no other one of the node does, refuses pods until then.
type coreHolder struct {
	core    atomic.Pointer[core]
	ready   chan struct{}  // closed once there is a core
	contact outage.Contact // with the API server
	kept    *outage.Kept
	source  podSource
	doors   []*doorway // of the early hooks

	awaiting atomic.Int32
}

func newCoreHolder() *coreHolder {
	h := &coreHolder{ready: make(chan struct{})}
	h.kept = outage.NewKept("", &h.contact, h.isAlone)
	return h
}

// open prepares what the options say of where pods come from, and of what is kept.
func (h *coreHolder) open(o Options) error {
	if o.KeepDir != "" {
		if err := os.MkdirAll(o.KeepDir, 0o700); err != nil {
			return fmt.Errorf("--keep-dir: value %q: %w", o.KeepDir, err)
		}
	}
	h.kept = outage.NewKept(o.KeepDir, &h.contact, h.isAlone)
	return h.source.open(o)
}

// isAlone reports whether no other agent of the node serves an early hook. With a core this one does.
func (h *coreHolder) isAlone() bool {
	return h.isSet() || !slices.ContainsFunc(h.doors, (*doorway).othersServe)
}

// set stores the core.
func (h *coreHolder) set(c core) {
	if h.core.Swap(&c) == nil {
		close(h.ready)
	}
}

// isSet reports whether there is a core.
func (h *coreHolder) isSet() bool { return h.core.Load() != nil }

// maxAwaiting bounds the calls that await a core at once, so that they leave room for others at a hook.
const maxAwaiting = 32

// await returns once there is a core, after four fifths of the time that ctx allows, or at once if maxAwaiting calls wait already.
func (h *coreHolder) await(ctx context.Context) {
	defer h.awaiting.Add(-1)
	if h.awaiting.Add(1) > maxAwaiting {
		return
	}
	if deadline, limited := ctx.Deadline(); limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)*4/5)
		defer cancel()
	}
	select {
	case <-h.ready:
	case <-ctx.Done():
	}
}

// get returns the core, or podnet.ErrPodsUnknown and the reason if there is none yet.
func (h *coreHolder) get() (core, error) {
	if c := h.core.Load(); c != nil {
		return *c, nil
	}
	if reason := h.lost(); reason != nil {
		return core{}, fmt.Errorf("%w: %w", podnet.ErrPodsUnknown, reason)
	}
	return core{}, podnet.ErrPodsUnknown
}

// check returns why there is no core yet, or nil.
func (h *coreHolder) check(context.Context) error {
	_, err := h.get()
	return err
}

// current returns why the core, if there is one, is not made of what the API server says now, or nil. An agent that started with what was kept is not
// ready: a release without the API server must not take the place of a release with it.
func (h *coreHolder) current(ctx context.Context) error {
	if err := h.check(ctx); err != nil {
		return err
	}
	if at := h.kept.Since(); !at.IsZero() {
		return fmt.Errorf("namespaces and profiles are those of %s: %w", at.UTC().Format(time.RFC3339), cmp.Or(h.lost(), errUnanswered))
	}
	return nil
}

// errUnanswered is why kept objects are in use although nothing is lost: the API server is back, and has not given its own yet.
var errUnanswered = errors.New("the API server has not answered yet")

// watches returns why the agent learns nothing of new pods by its watches, or nil. Without the API server an agent that has its core goes on
// with what it knows, and stays ready: nothing else could serve its node better.
func (h *coreHolder) watches() error {
	if _, err := h.get(); err != nil {
		return err
	}
	return h.lost()
}

// lost returns why the agent learns nothing new of pods or namespaces, or nil.
func (h *coreHolder) lost() error {
	if err := h.contact.Err(); err != nil {
		return err
	}
	return h.source.state().Err
}

// podsFrom returns where pods come from, or "" before the first answer.
func (h *coreHolder) podsFrom() string { return string(h.source.state().From) }

// watched returns why the watch learns of no pod, for people. Without the API server it stays up: nobody could read it there, and all agents would
// write when it is back.
func (h *coreHolder) watched(ctx context.Context) error {
	if err := h.check(ctx); err != nil {
		return err
	}
	return h.source.state().Err
}

// newInformer makes the informers of the agent's cache.
func (h *coreHolder) newInformer(lw toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
	switch name := keptName(kind); {
	case name != "":
		return h.kept.Informer(name, lw, kind, resync, by)
	case isPod(kind):
		return toolscache.NewSharedIndexInformer(h.source.over(h.contact.Asking(lw, kind)), kind, resync, by)
	}
	return h.contact.Informer(lw, kind, resync, by)
}

func isPod(kind runtime.Object) bool {
	_, ok := kind.(*corev1.Pod)
	return ok
}

// keptName returns the name of the file with the objects of a kind, or "". All kinds of the cache but pods are kept: controller-runtime starts no
// controller before the whole cache is filled.
func keptName(kind runtime.Object) string {
	switch kind.(type) {
	case *metav1.PartialObjectMetadata:
		return "namespaces"
	case *corev1.Node:
		return "nodes"
	}
	return keptProxyName(kind)
}

// note returns what readiness says of an agent that is ready without the API server, or "".
func (h *coreHolder) note() string {
	if err := h.lost(); err != nil {
		return oneLine(err.Error())
	}
	return ""
}

// looked returns the core, once the agent has read its pods.
func (h *coreHolder) looked() (inspectserver.Core, client.Reader, error) {
	c, err := h.get()
	if err != nil {
		return nil, nil, err
	}
	return c.programmer, c.pods.Cache, nil
}
