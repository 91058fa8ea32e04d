package agent

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// absence is how long a runtime may be without NRI before that is told: one that restarts is not.
const absence = 30 * time.Second

// noEarlyEntrance is the reason of the event on a node where nobody asks the agent before a pod's first container.
const noEarlyEntrance = "NoEarlyEntrance"

// earlyEntrance tells the node's administrator, once for each time, that the runtime offers no NRI and no other way stands in
// for it: pods start before their rules are there.
type earlyEntrance struct {
	offered  func() (offered, looked bool)
	recorder events.EventRecorder
	node     string
	log      logr.Logger
}

// addEarlyEntrance registers it where NRI was to be the way. Who switched both ways off knows.
func (a *agent) addEarlyEntrance(mgr manager.Manager) error {
	if a.nri == nil || a.CNI == CNIInstall {
		return nil
	}
	e := earlyEntrance{offered: a.nri.Offered, recorder: mgr.GetEventRecorder(Name), node: a.NodeName, log: ctrl.Log}
	return mgr.Add(manager.RunnableFunc(e.Start))
}

// Start looks until ctx ends.
func (e earlyEntrance) Start(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var since time.Time
	told := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		offered, looked := e.offered()
		switch {
		case offered:
			since, told = time.Time{}, false
		case looked && since.IsZero():
			since = time.Now()
		case looked && !told && time.Since(since) >= absence:
			e.tell()
			told = true
		}
	}
}

func (e earlyEntrance) tell() {
	const message = "the container runtime offers no NRI: pods start before their rules are there; switch NRI on in the runtime, or use cni: install"
	e.log.Info("no early entrance", "reason", message)
	e.recorder.Eventf(nodeRef(e.node), nil, corev1.EventTypeWarning, noEarlyEntrance, "Connect", message)
}
