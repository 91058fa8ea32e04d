package node

import (
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
)

// chosenKind is what kind of proxy a pod has chosen.
type chosenKind int

// The kinds of proxies.
const (
	choseNone chosenKind = iota
	choseOwn
	choseShared
)

// kindOf returns the kind of a profile's proxies. One that is not known counts as the pod's own: its manager says so.
func kindOf(name string, p profile) chosenKind {
	switch {
	case name == "":
		return choseNone
	case p.shared():
		return choseShared
	}
	return choseOwn
}

// ownProxy is how a pod's own proxy is, whatever the pod has chosen since.
type ownProxy struct {
	sandbox podnet.Sandbox
	ready   bool
	serves  string // its profile, if it is ready
}

// leavesOwn notes whether a pod's own proxy is about to finish its connections. noteOwn and forgetOwn drop the note.
func (r *sidecarReports) leavesOwn(podUID string, leaves bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if leaves {
		r.chosen.leaving[podUID] = true
	} else {
		delete(r.chosen.leaving, podUID)
	}
}

// ownOffers is ownServes for rules that are to lead to the proxy from now on.
func (r *sidecarReports) ownOffers(s podnet.Sandbox, profile string) bool {
	r.mu.Lock()
	leaving := r.chosen.leaving[s.UID]
	r.mu.Unlock()
	return !leaving && r.ownServes(s, profile)
}

// chosenKinds is what each pod has chosen, and how its own proxy is; by the pod's UID. sidecarReports.mu protects it.
type chosenKinds struct {
	kinds map[string]chosenKind
	own   map[string]ownProxy
	// leaving is whose own proxy is about to finish its connections.
	leaving map[string]bool
}

// toldProxy is what was passed on of a pod's proxies: rules may have to follow each change.
type toldProxy struct {
	known  bool
	ready  bool
	serves string
	own    ownProxy
}

// choose notes the kind of proxy that a pod has chosen. What the other kind's manager says of the pod is not shown.
func (r *sidecarReports) choose(podUID string, kind chosenKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kind == choseNone {
		delete(r.chosen.kinds, podUID)
		return
	}
	r.chosen.kinds[podUID] = kind
}

func (r *sidecarReports) chose(podUID string) chosenKind {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.chosen.kinds[podUID]
}

// noteOwn notes how a pod's own proxy is.
func (r *sidecarReports) noteOwn(s podnet.Sandbox, now ownProxy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.chosen.leaving, s.UID)
	if r.chosen.own[s.UID] != now {
		r.chosen.own[s.UID] = now
		r.queue.Add(s.UID)
	}
}

// forgetOwn notes that a pod has no proxy of its own any more.
func (r *sidecarReports) forgetOwn(podUID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.chosen.own, podUID)
	delete(r.chosen.leaving, podUID)
}

// ownReady reports whether a sandbox's own proxy is ready, whatever the pod has chosen since.
func (r *sidecarReports) ownReady(s podnet.Sandbox) (ready, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	own, known := r.chosen.own[s.UID]
	return own.ready, known && own.sandbox.ID == s.ID
}

// ownServes reports whether a sandbox's own proxy is of a profile, and ready.
func (r *sidecarReports) ownServes(s podnet.Sandbox, profile string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.chosen.own[s.UID]
	return own.ready && own.serves == profile && own.sandbox.ID == s.ID
}

// tell reports whether a pod's proxies have changed since the last call in a way that rules may have to follow, and in which sandbox. r.mu is
// held.
func (r *sidecarReports) tell(uid string, report sidecarReport, known bool) (of podnet.Sandbox, changed bool) {
	now := toldProxy{own: r.chosen.own[uid]}
	of = now.own.sandbox
	if known {
		of = report.sandbox
		now.known, now.ready, now.serves = true, report.status.Ready, servedBy(report.status)
	}
	now.own.sandbox = podnet.Sandbox{}
	if of == (podnet.Sandbox{}) || r.told[uid] == now {
		return of, false
	}
	r.told[uid] = now
	return of, true
}

// servedBy returns the profile of a proxy that is ready, or "".
func servedBy(status sidecars.Status) string {
	switch {
	case !status.Ready:
		return ""
	case status.Serves != "":
		return status.Serves
	}
	return status.Profile
}

// dropMoving forgets a pod that is gone. r.mu is held.
func (r *sidecarReports) dropMoving(podUID string) {
	delete(r.chosen.kinds, podUID)
	delete(r.chosen.own, podUID)
	delete(r.chosen.leaving, podUID)
	delete(r.told, podUID)
}
