package agent

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/runtime/nri"
)

// maxNRIAbsence is how long a runtime may be without NRI before it is reported, so that a restart is not.
const maxNRIAbsence = 30 * time.Second

// NoEarlyHook is the reason of the event on a node without an early hook.
const NoEarlyHook = "NoEarlyHook"

// earlyHook makes an event on the node when the runtime offers no NRI and the CNI plugin is not chained: pods then start before
// their rules are there. There is one event each time that NRI is missing.
type earlyHook struct {
	offered  func() (offered, checked bool)
	recorder events.EventRecorder
	node     string
	log      logr.Logger
}

// addEarlyHook adds the check if NRI is switched on and the CNI plugin is not installed. If both are off, that was a choice.
func addEarlyHook(mgr manager.Manager, o Options, n *nri.Hook) error {
	if n == nil || o.CNI == CNIInstall {
		return nil
	}
	e := earlyHook{offered: n.Offered, recorder: mgr.GetEventRecorder(Name), node: o.NodeName, log: ctrl.Log}
	return mgr.Add(manager.RunnableFunc(e.Start))
}

// Start checks every second until ctx ends.
func (e earlyHook) Start(ctx context.Context) error {
	var since time.Time
	reported := false
	wait.UntilWithContext(ctx, func(context.Context) {
		offered, checked := e.offered()
		switch {
		case offered:
			since, reported = time.Time{}, false
		case checked && since.IsZero():
			since = time.Now()
		case checked && !reported && time.Since(since) >= maxNRIAbsence:
			e.report()
			reported = true
		}
	}, time.Second)
	return nil
}

func (e earlyHook) report() {
	const message = "the container runtime offers no NRI: pods start before their rules are there; switch NRI on in the runtime, or install with hooks.cni.mode=install"
	e.log.Info("no early hook", "reason", message)
	e.recorder.Eventf(nodeRef(e.node), nil, corev1.EventTypeWarning, NoEarlyHook, "Connect", message)
}
