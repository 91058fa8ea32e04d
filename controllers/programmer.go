package controllers

import (
	"cmp"
	"time"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/outage"
	"istio-pod-network-controller/internal/podnet"
)

// Programmer makes the network namespace of a sandbox hold exactly the rules that its pod asks for:
//
//   - read the pod, whose UID must match, and compute its intent;
//   - find its sandbox if the hook does not know it, and identify its namespace: no later open may lead to another one;
//   - take the pod's turn: a call starts again if another one had the turn since it read the pod;
//   - let the backend apply or remove the whole of its rules, and remember the outcome;
//   - end the turn, decide what a failure means, and queue the report to the pod's owner.
//
// Only the kernel is worked on within a turn: a turn never includes a call to the runtime or the API server.
//
// Nothing is skipped because of the pod's report: the backend compares with the kernel. The ledger decides only whether a change of the
// pod is left to the next check, which comes soon (see left). If the runtime, the kernel or the API server cannot answer, a pod
// whose rules are in force does not fail: its report stays, and the next check tries again.
type Programmer struct {
	Config      intent.Config
	Backend     Backend
	BackendName string
	Namespaces  Namespaces
	Finder      Finder
	// Starts is nil if nobody asks which pods started before their rules.
	Starts   Starts
	Pods     Pods
	Reporter Reporter
	Ledger   *Ledger
	Metrics  *Metrics
	// VerifyInterval is the time between two checks of a pod's rules; 0 means that there are none.
	VerifyInterval time.Duration
	Announcers     Announcers
	// Proxies is nil if the agent runs none.
	Proxies Proxies
	// RequireProxies has early hooks refuse pods that have chosen a profile and cannot have its proxy. Otherwise they start without rules.
	RequireProxies bool
	// Contact is nil if it is not known whether Pods are behind.
	Contact *outage.Contact
	// Kept returns the age of namespaces and profiles that were kept from before an outage, while they are used. It may be nil.
	Kept func() time.Time
	// Parking is nil if connections wait for proxies by their clients' retransmissions alone.
	Parking Parking
	// Listeners is nil if reports name no listening ports.
	Listeners Listeners

	// requeue makes a pod due after a while; nil if there is no PodWatch.
	requeue func(s podnet.Sandbox, wait time.Duration)
	// revisit makes a pod due now; nil if there is no PodWatch.
	revisit    func(s podnet.Sandbox)
	tickOffset time.Duration // of the moments at which pods are due, from the clock's; random
	turns      turns
	compiler   compiler
}

// kept is Kept, which may be nil.
func (p *Programmer) kept() (at time.Time) {
	if p.Kept != nil {
		at = p.Kept()
	}
	return at
}

// Revisit has a pod visited as after a change, and returns at once.
func (p *Programmer) Revisit(s podnet.Sandbox) {
	if p.revisit != nil {
		p.revisit(s)
	}
}

// schedule says when pods are checked.
func (p *Programmer) schedule() schedule {
	return schedule{interval: p.VerifyInterval, offset: p.tickOffset}
}

// Forget drops a sandbox that is gone; its rules went with its namespace.
func (p *Programmer) Forget(sandboxID string) {
	p.Ledger.Forget(sandboxID)
	leave(p.Parking, sandboxID)
}

// forgetPod drops everything that is remembered of a deleted pod.
func (p *Programmer) forgetPod(uid string) {
	if known, ok := p.Ledger.Of(uid); ok {
		leave(p.Parking, known.Sandbox.ID)
	}
	p.Ledger.ForgetPod(uid)
	p.Reporter.Forget(uid)
	if p.Proxies != nil {
		p.Proxies.Forget(uid)
	}
}

// report sends a report to the pod's owner, with what the ledger knows of the sandbox. It is called within the turn, or by the last call.
func (p *Programmer) report(r Report) {
	r.Backend = p.BackendName
	if known, ok := p.Ledger.Of(r.Sandbox.UID); ok && r.Status != "" && known.Sandbox.ID == r.Sandbox.ID {
		r.LastRepair, r.Listening, r.Late = known.LastRepair, known.Listening, cmp.Or(known.lateText(), r.Late)
	}
	p.Reporter.Report(r)
}
