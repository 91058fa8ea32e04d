package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// lead is the proxy to which the rules of a sandbox lead.
type lead struct {
	// Profile is empty once the rules were removed.
	Profile string `json:"profile"`
	// Shared reports whether the node's pods share the proxy.
	Shared bool `json:"shared,omitempty"`
}

type led struct {
	Sandbox string `json:"-"`
	Now     lead   `json:"now"`
	// unwritten reports whether its note could not be written: it is tried again.
	unwritten bool
}

// prunePause is the time between two looks for sandboxes that are gone.
const prunePause = 10 * time.Minute

// leads remembers to which profiles' proxies the rules of the node's pods lead. A pod keeps that proxy, whatever it chooses, until it
// chooses none. Each lead is also noted in a file in memory, for the next agent.
type leads struct {
	dir   string
	mu    sync.Mutex
	known map[string]led // by the pod's UID
}

// of returns the lead of a sandbox. Without an ID: of the pod's last sandbox.
func (l *leads) of(s podnet.Sandbox) (found lead, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	got, known := l.known[s.UID]
	if !known || s.ID != "" && s.ID != got.Sandbox {
		return lead{}, false
	}
	return got.Now, true
}

// last returns the lead of a pod, whichever sandbox it has; without a profile if there is none.
func (l *leads) last(podUID string) lead {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known[podUID].Now
}

// keeps returns the lead of a pod that keeps its proxy although it has chosen another profile. why says so; it is "" for all other pods.
func (l *leads) keeps(s podnet.Sandbox, chosen readProfile) (has lead, why string) {
	has, known := l.of(s)
	if !known || has.Profile == "" || chosen.name == "" || has.Profile == chosen.name {
		return lead{}, ""
	}
	return has, fmt.Sprintf("the profile changed from %q to %q: takes effect for new pods, and this one keeps its proxy; or have it choose %q first, without a proxy until it chooses again",
		has.Profile, chosen.name, intent.SidecarNone)
}

// holds reports whether a shared proxy has to keep a sandbox: its rules lead there, or it is not known where they lead.
func (l *leads) holds(profile string, s podnet.Sandbox) bool {
	has, known := l.of(s)
	return !known || has.Profile == profile
}

// set notes a new lead, and returns the former one.
func (l *leads) set(s podnet.Sandbox, now lead) (before lead, changed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, known := l.known[s.UID]
	if !known && now.Profile == "" {
		l.known[s.UID] = led{Sandbox: s.ID, Now: now} // without a note, which is for the next agent
		return lead{}, false, nil
	}
	if known && old.Sandbox == s.ID && old.Now == now {
		if old.unwritten {
			err = l.write(s.UID, old)
		}
		return old.Now, false, err
	}
	if known && old.Sandbox != s.ID {
		removeNote(l.path(s.UID, old.Sandbox)) // of a sandbox that was made anew
		old = led{}
	}
	return old.Now, true, l.write(s.UID, led{Sandbox: s.ID, Now: now})
}

// forget forgets a pod.
func (l *leads) forget(podUID string) { l.forgetSandbox(podUID, "") }

// forgetSandbox forgets a pod, unless it has another sandbox by now. "" is any.
func (l *leads) forgetSandbox(podUID, sandbox string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, known := l.known[podUID]; known && (sandbox == "" || sandbox == old.Sandbox) {
		removeNote(l.path(podUID, old.Sandbox))
		delete(l.known, podUID)
	}
}

// prune forgets sandboxes that have ended without a call of forget. It looks for them every prunePause until ctx ends.
func (l *leads) prune(ctx context.Context, ready func(ctx context.Context, sandbox string) (bool, error)) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		for uid, sandbox := range l.all() {
			runs, err := ready(ctx, sandbox)
			if err != nil {
				logr.FromContextOrDiscard(ctx).Error(err, "notes of ended sandboxes not looked for")
				return
			}
			if !runs {
				l.forgetSandbox(uid, sandbox)
			}
		}
	}, prunePause)
}

func (l *leads) all() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]string{}
	for uid, n := range l.known {
		out[uid] = n.Sandbox
	}
	return out
}
