package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/wait"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// routeTarget is the proxy to which the rules of a sandbox lead: that of the pod's own which serves, whatever its profile says by now, or a shared one.
type routeTarget struct {
	// Profile is empty once the rules were removed.
	Profile string `json:"profile"`
	// Shared reports whether the node's pods share the proxy.
	Shared bool `json:"shared,omitempty"`
	// Proxy is nil for a shared proxy: its rules follow its profile.
	Proxy *intent.ManagedProxy `json:"proxy,omitempty"`
}

func (t routeTarget) equals(other routeTarget) bool {
	return t.Profile == other.Profile && t.Shared == other.Shared && equality.Semantic.DeepEqual(t.Proxy, other.Proxy)
}

// route is the record of a sandbox.
type route struct {
	Sandbox string      `json:"-"`
	Now     routeTarget `json:"now"`
	// Applied reports whether the rules lead there already.
	Applied bool `json:"applied"`
	// unwritten reports whether its note could not be written: it is tried again.
	unwritten bool
}

// prunePause is the time between two looks for sandboxes that are gone.
const prunePause = 10 * time.Minute

// routes remembers to which proxies the rules of the node's pods lead. A pod keeps the proxy of a profile, whatever it chooses, until it
// chooses none. Each route is also noted in a file in memory, for the next agent.
type routes struct {
	dir   string
	mu    sync.Mutex
	known map[string]route // by the pod's UID
}

// of returns the target of a sandbox. Without an ID: of the pod's last sandbox.
func (r *routes) of(s podnet.Sandbox) (found routeTarget, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	got, known := r.known[s.UID]
	if !known || s.ID != "" && s.ID != got.Sandbox {
		return routeTarget{}, false
	}
	return got.Now, true
}

// last returns the target of a pod, whichever sandbox it has; without a profile if there is none.
func (r *routes) last(podUID string) routeTarget {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[podUID].Now
}

// leadTo reports whether some pod's rules lead to a proxy of a profile.
func (r *routes) leadTo(profile string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.known {
		if one.Now.Profile == profile {
			return true
		}
	}
	return false
}

// keeps returns the target of a pod that keeps its proxy although it has chosen another profile. why says so; it is "" for all other pods.
func (r *routes) keeps(s podnet.Sandbox, chosen readProfile) (has routeTarget, why string) {
	has, known := r.of(s)
	if !known || has.Profile == "" || chosen.name == "" || has.Profile == chosen.name {
		return routeTarget{}, ""
	}
	return has, fmt.Sprintf("the profile changed from %q to %q: takes effect for new pods, and this one keeps its proxy; or have it choose %q first, without a proxy until it chooses again",
		has.Profile, chosen.name, intent.SidecarNone)
}

// holds reports whether a shared proxy has to keep a sandbox: its rules lead there, or it is not known where they lead.
func (r *routes) holds(profile string, s podnet.Sandbox) bool {
	has, known := r.of(s)
	return !known || has.Profile == profile
}

// change has the rules of a sandbox lead to a proxy of the pod's own, and reports whether they do. A change is due then, and applied is called after
// it. Without serves, the proxy is only about to start: a pod without rules gets none for it.
func (r *routes) change(s podnet.Sandbox, to intent.ManagedProxy, serves bool) (applied, changed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, known := r.known[s.UID]
	known = known && old.Sandbox == s.ID && old.Now.Profile != ""
	now := routeTarget{Profile: to.Profile, Proxy: &to}
	switch {
	case !known && !serves, known && (old.Now.Shared || old.Now.Profile != to.Profile):
		return true, false, nil
	case known && old.Now.equals(now):
		return old.Applied, false, nil
	}
	return false, true, r.put(s, route{Sandbox: s.ID, Now: now})
}

// applied notes where the rules of a sandbox lead by now, and returns where they led before. A target of the pod's own proxies that has changed
// meanwhile stays: its own change is due.
func (r *routes) applied(s podnet.Sandbox, now routeTarget) (before routeTarget, changed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, known := r.known[s.UID]
	if !known && now.Profile == "" {
		r.known[s.UID] = route{Sandbox: s.ID, Now: now, Applied: true} // without a note, which is for the next agent
		return routeTarget{}, false, nil
	}
	if !known || old.Sandbox != s.ID {
		old = route{}
	} else if old.Now.Proxy != nil && now.Proxy != nil && old.Now.Profile == now.Profile && !old.Now.equals(now) {
		return old.Now, false, nil
	}
	changed = old.Sandbox == "" || !old.Now.equals(now) || !old.Applied
	if changed || old.unwritten {
		err = r.put(s, route{Sandbox: s.ID, Now: now, Applied: true})
	}
	return old.Now, changed, err
}

// forget forgets a pod.
func (r *routes) forget(podUID string) { r.forgetSandbox(podUID, "") }

// forgetSandbox forgets a pod, unless it has another sandbox by now. "" is any.
func (r *routes) forgetSandbox(podUID, sandbox string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, known := r.known[podUID]; known && (sandbox == "" || sandbox == old.Sandbox) {
		removeNote(r.path(podUID, old.Sandbox))
		delete(r.known, podUID)
	}
}

// prune forgets sandboxes that have ended without a call of forget. It looks for them every prunePause until ctx ends.
func (r *routes) prune(ctx context.Context, ready func(ctx context.Context, sandbox string) (bool, error)) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		for uid, sandbox := range r.all() {
			runs, err := ready(ctx, sandbox)
			if err != nil {
				logr.FromContextOrDiscard(ctx).Error(err, "notes of ended sandboxes not looked for")
				return
			}
			if !runs {
				r.forgetSandbox(uid, sandbox)
			}
		}
	}, prunePause)
}

func (r *routes) all() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]string{}
	for uid, n := range r.known {
		out[uid] = n.Sandbox
	}
	return out
}
