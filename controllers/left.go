package controllers

import (
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// programmedAs reports whether a sandbox was programmed with want.
func (e Entry) programmedAs(s podnet.Sandbox, want *compiled) bool {
	return e.Sandbox.ID == s.ID && e.compiled != nil && e.compiled.hash == want.hash && e.compiled.holds == want.holds
}

// checkedSoon is the longest interval at which a change of the pod needs no look of its own.
const checkedSoon = 15 * time.Second

// left reports whether a call of Watch may leave the look at the kernel to the pod's next check: pods that start change several times.
//
//   - The check comes soon, and finds nothing but drift: the rules' inputs are as before, and were fine.
//   - No other agent's report is on the pod.
//   - Contended rules are repaired at checks only.
func left(v visit, known Entry, want *compiled, checks schedule, backend string) bool {
	if v.by != Watch || known.Retry || checks.isDue(known) || !known.programmedAs(v.sandbox, want) {
		return false
	}
	soon := checks.interval > 0 && checks.interval <= checkedSoon
	fine := known.State == Programmed && known.Preempted == "" && known.Sandbox.NetNS == v.sandbox.NetNS
	return known.contention.active() || soon && fine && !writtenByOther(v, want, backend)
}

// mostHandovers bounds how many differences in a sandbox are taken for another agent's work: a pod's owner can write what
// writtenByOther reads.
const mostHandovers = 2

// writtenByOther reports whether the pod's report is about other rules in this sandbox than this agent's, or another backend's: two
// agents of a node overlap during an update, and the new one's settings may differ.
func writtenByOther(v visit, want *compiled, backend string) bool {
	said, ok := podreport.DetailsOn(v.pod)
	return ok && podreport.Status(v.pod.Annotations[podreport.KeyStatus]) == podreport.StatusInitialized &&
		said.Sandbox == v.sandbox.ID && said.SpecHash != "" && (said.SpecHash != want.hash || said.Backend != backend)
}
