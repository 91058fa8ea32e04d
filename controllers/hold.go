package controllers

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

// holdPoll is the time between two looks for the listener of a proxy in the pod's spec, while connections wait for it.
const holdPoll = time.Second

// hold is whether new connections wait for the proxy of a sandbox, instead of being refused.
//
//   - A proxy that the agent runs is waited for whenever it is not ready, from the first rules on. Rules hold while it is ready, too: a connection in
//     the moment of a crash waits for the next proxy.
//   - A proxy in the pod's spec is waited for until somebody listens: from the creation of its container, or of the first container that does not stand
//     before it. Init containers before it would wait for what comes after their end.
type hold struct {
	// in is in which families the rules hold. A ready proxy may listen in one alone: in the other one connections are refused.
	in iptables.Hold
	// seen is when they were looked for last.
	seen time.Time
	// since is when the proxy was missed first; zero: it is not missed.
	since time.Time
	// limit is how long it is waited for; 0: connections are refused.
	limit time.Duration
	// inSpec reports whether it is a proxy in the pod's spec, and done whether that was waited for.
	inSpec, done bool
}

// on reports whether the rules hold.
func (h hold) on() bool { return h.in != iptables.HoldNone }

// waits reports whether connections may wait now.
func (h hold) waits() bool { return h.on() && !h.since.IsZero() }

// held returns what becomes of new connections, for the pod's report. A proxy in the pod's spec that is waited for is no news: it starts.
func (h hold) held() string {
	switch {
	case h.since.IsZero() || h.inSpec && h.on():
		return ""
	case h.on():
		return podreport.HeldWaits
	}
	return podreport.HeldRefused
}

// heldNow returns the hold of the rules that a sandbox was given.
func heldNow(e Entry, s podnet.Sandbox) hold {
	if e.Sandbox.ID != s.ID {
		return hold{}
	}
	return e.hold
}

// again returns how long it is until the hold is to be decided anew; 0 is never.
func (h hold) again(now time.Time) time.Duration {
	if !h.waits() {
		return 0
	}
	left := max(time.Millisecond, h.limit-now.Sub(h.since))
	if h.inSpec {
		left = min(left, holdPoll)
	}
	return left
}

// missed returns the hold of a sandbox whose proxy is missed, and whether it has not come in time just now: connections are refused then.
func (h hold) missed(now time.Time) (next hold, late bool) {
	if h.since.IsZero() {
		h.since = now
		if !h.on() {
			h.in = iptables.HoldBoth
		}
		return h, false
	}
	if late = h.on() && now.Sub(h.since) >= h.limit; late {
		h.in, h.done = iptables.HoldNone, h.inSpec
	}
	return h, late
}

// holdOf decides about the sandbox of a visit. It returns words about a proxy that has not come in time, or "".
func holdOf(ctx context.Context, from Listeners, proxies Proxies, known Entry, v visit) (h hold, late string) {
	h = heldNow(known, v.sandbox)
	h.limit, h.inSpec = v.intent.Hold, !v.intent.Managed
	ports := v.intent.Spec.ProxyPorts()
	switch {
	case h.limit == 0 || len(ports) == 0 || h.inSpec && from == nil: // nobody could say when it has come
		return hold{inSpec: h.inSpec}, ""
	case v.intent.Managed:
		if proxyReady(proxies, v) {
			return whileReady(ctx, from, v, h), ""
		}
	case v.creates == intent.ProxyContainer: // also anew, after its end
		h.since, h.done = time.Time{}, false
	case h.done || h.since.IsZero() && !begins(v):
		return hold{inSpec: true, done: h.done, limit: h.limit}, ""
	case !v.by.early() || intent.IsProxyCreated(v.pod): // a new agent hears of running pods
		wasWaitedFor := h.since.IsZero() && runsFor(v.pod, time.Now()) >= h.limit
		if !wasWaitedFor { // which needs no look into the pod
			ports = missing(ctx, from, v, ports)
		}
		if wasWaitedFor || len(ports) == 0 {
			return hold{inSpec: true, done: true, limit: h.limit}, ""
		}
	}
	h, isLate := h.missed(time.Now())
	if isLate {
		late = nobodyListens(ports) + " after " + h.limit.String() +
			": connections that waited for the proxy are refused from now on (" + intent.KeyHoldSeconds + ")"
	}
	return h, late
}

// park has the connections to a proxy that the agent runs wait in its stead, where that is possible: the client need not try again. It works within the
// turn. Proxies of pods with users of their own have other numbers on the node, and shared ones take only free ports.
func park(ctx context.Context, in Parking, known Entry, v visit, h hold) {
	if in == nil || !v.intent.Managed || v.intent.LeadsTo.Shared || v.pod.Spec.HostUsers != nil && !*v.pod.Spec.HostUsers {
		return
	}
	was, proxy, err := heldNow(known, v.sandbox), v.intent.LeadsTo.Profile, error(nil)
	switch {
	case h.waits():
		err = in.Park(ctx, v.sandbox, proxy, v.intent.Spec, h.since.Add(h.limit))
	case h.on() && (was == hold{} || !was.since.IsZero()): // it serves since a moment, or since before the agent's start
		err = in.Learn(ctx, v.sandbox, proxy, v.intent.Spec)
		in.Leave(v.sandbox.ID)
	default:
		in.Leave(v.sandbox.ID)
	}
	if err != nil {
		log.FromContext(ctx).V(1).Info("connections wait for the proxy by retransmissions alone", "reason", err.Error())
	}
}

// familiesPause is the time between two looks in which families a ready proxy listens: its next version may do so in others.
const familiesPause = time.Minute

// whileReady returns the hold of a sandbox whose proxy is ready: it holds in the families in which the proxy listens, for the moment of a crash.
func whileReady(ctx context.Context, from Listeners, v visit, h hold) hold {
	now := time.Now()
	if h.on() && h.since.IsZero() && (now.Sub(h.seen) < familiesPause || v.by != Verify) {
		return h
	}
	h.since, h.seen, h.in = time.Time{}, now, iptables.HoldBoth
	if from == nil {
		return h
	}
	switch in, err := from.Families(ctx, v.sandbox.Place(), v.intent.Spec.ProxyPorts()); {
	case err != nil:
		log.FromContext(ctx).V(1).Info("the proxy's sockets not read", "reason", err.Error())
	case in != iptables.HoldNone:
		h.in = in
	}
	return h
}

// begins reports whether the proxy in a pod's spec is waited for from now on: no container comes before it, or they have all ended.
func begins(v visit) bool {
	before := intent.BeforeProxy(v.pod, v.intent.Spec)
	return len(before) == 0 || v.creates != "" && !slices.Contains(before, v.creates) || intent.IsProxyCreated(v.pod)
}

// runsFor returns for how long the container of a proxy in the pod's spec has run; 0 if that is not known. A proxy that has not listened for as long as
// it is waited for is not waited for again by each new agent.
func runsFor(pod *corev1.Pod, now time.Time) time.Duration {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.Name == intent.ProxyContainer && s.State.Running != nil && !s.State.Running.StartedAt.IsZero() {
			return now.Sub(s.State.Running.StartedAt.Time)
		}
	}
	return 0
}

// missing returns the ports on which nobody listens; none if that cannot be found out.
func missing(ctx context.Context, from Listeners, v visit, ports []uint16) []uint16 {
	missing, err := from.Unheard(ctx, v.sandbox.Place(), ports)
	if err != nil {
		log.FromContext(ctx).V(1).Info("the proxy's sockets not read", "reason", err.Error())
	}
	return missing
}

// Creating is called before a container of a sandbox is created. It returns once connections wait for the pod's proxy, if they are to from now on.
func (p *Programmer) Creating(ctx context.Context, s podnet.Sandbox, container string) error {
	known, ok := p.Ledger.Of(s.UID)
	h := known.hold
	if !ok || known.Sandbox.ID != s.ID || !h.inSpec || h.limit == 0 || container != intent.ProxyContainer && (h.done || !h.since.IsZero()) {
		return nil
	}
	_, err := p.ensure(ctx, NRI, known.Sandbox, ensureTimeout, container)
	p.requeueWhenDue(s)
	return err
}

// leave has no connection of a sandbox wait any more.
func leave(in Parking, sandboxID string) {
	if in != nil {
		in.Leave(sandboxID)
	}
}
