package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// moves takes pods from one profile's proxy to another one's, in place:
//
//   - The proxy of the profile that a pod has chosen gets ready for it first, on ports of its own. Until then the rules lead where they did,
//     and the proxy there stays, whatever happens.
//   - Then the rules change, in one transaction, and the Programmer says so.
//   - Then the old proxy finishes its connections: one of the pod's own is told to, and a shared one no longer has the pod.
//
// A pod may choose the old profile again while its proxy is about to let the pod go. So whoever changes rules says where they will lead
// (aims) before it asks whether that proxy offers itself, and a proxy takes its offer back before it asks whether rules will lead there:
// at least one of the two sees the other, and waits.
//
// What the rules lead to is noted, so that an agent that starts in between goes on from there.
type moves struct {
	profiles *profiles
	leads    *leads
	// serves reports whether the proxy of a profile serves a sandbox; offers, whether it does and is not about to let the sandbox go.
	serves, offers func(profile string, s podnet.Sandbox) bool

	mu   sync.Mutex
	aims map[string]string // the profile to which rules will lead, by the pod's UID
}

// defaultDrain is how long a proxy of which nothing else is known any more may finish its connections, as in the API's schema.
const defaultDrain = 45 * time.Second

// leaving returns where a sandbox's rules lead, if that is not to the given profile's proxy.
func (m *moves) leaving(s podnet.Sandbox, chosen string) (from led, moving bool) {
	if m == nil {
		return led{}, false
	}
	from, known := m.leads.of(s)
	return from, known && from.Now.Profile != "" && from.Now.Profile != chosen
}

// refusal says why a pod cannot move in place to a profile that it could have otherwise, and what to do, or "".
func (m *moves) refusal(ctx context.Context, s podnet.Sandbox, to profile) string {
	from, moving := m.leaving(s, to.name)
	if !moving || !from.Now.Shared && !to.shared() {
		return "" // proxies of the pod's own take over from each other
	}
	old, known := m.profiles.last(ctx, from.Now.Profile)
	if !known || !m.serves(from.Now.Profile, withID(s, from)) {
		return ""
	}
	if port, same := samePort(old.spec, to.spec); same {
		return fmt.Sprintf("the profile %q has port %d, as %q has, whose proxy serves the pod now: both have to be there for a moment; give them different ports, or have the pod choose %q first, without a proxy until it chooses again",
			to.name, port, old.name, intent.SidecarNone)
	}
	if old.spec.RunAsGroup != to.spec.RunAsGroup {
		return fmt.Sprintf("the profile %q has runAsGroup %d, and %q, whose proxy serves the pod now, has %d: the rules could not tell the traffic of both from the application's; give them the same, or have the pod choose %q first, without a proxy until it chooses again",
			to.name, to.spec.RunAsGroup, old.name, old.spec.RunAsGroup, intent.SidecarNone)
	}
	return ""
}

// rules returns what the rules of a sandbox need to know: of the chosen profile's proxy, or of the one to which they lead until that one is
// ready.
func (m *moves) rules(ctx context.Context, s podnet.Sandbox, to profile) *intent.ManagedProxy {
	out := managedProxy(to.name, to.spec)
	if m == nil {
		return out
	}
	from, known := m.leads.of(s)
	if !known {
		return out
	}
	if _, moving := m.leaving(s, to.name); !moving {
		if from.Now.Profile == to.name && from.Before.Shared && from.draining(time.Now()) {
			out.GID = uint32(from.Before.Group) //nolint:gosec // the schema has checked it. The shared proxy is known by it alone
		}
		return out
	}
	old, known := m.profiles.last(ctx, from.Now.Profile)
	m.aim(s.UID, to.name)
	if _, same := samePort(old.spec, to.spec); !known || same || m.offers(to.name, withID(s, from)) {
		if known && old.shared() && !to.shared() {
			out.GID = uint32(old.spec.RunAsGroup) //nolint:gosec // as above
		}
		return out
	}
	m.aim(s.UID, old.name)
	return managedProxy(old.name, old.spec)
}

func (m *moves) aim(podUID, profile string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.aims == nil {
		m.aims = map[string]string{}
	}
	m.aims[podUID] = profile
}

// aimOf returns the profile to which a pod's rules are about to lead, or "" if no change is under way.
func (m *moves) aimOf(podUID string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.aims[podUID]
}

// arrived ends a change of a pod's rules. Call it once leads has where they lead now, and before anybody else can change them.
func (m *moves) arrived(podUID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.aims, podUID)
}

// forget drops a pod that is gone.
func (m *moves) forget(podUID string) {
	m.leads.forget(podUID)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.aims, podUID)
}

// withID returns the sandbox of which a lead is known.
func withID(s podnet.Sandbox, l led) podnet.Sandbox {
	s.ID = l.Sandbox
	return s
}

// samePort returns a port that the proxies of both profiles listen on.
func samePort(a, b v1alpha1.SidecarProfileSpec) (port int32, same bool) {
	other := proxyPorts(b)
	for _, port := range proxyPorts(a) {
		if slices.Contains(other, port) {
			return port, true
		}
	}
	return 0, false
}

// leadOf describes a profile that rules lead to.
func (m *moves) leadOf(name string) lead {
	if name == "" {
		return lead{}
	}
	out := lead{Profile: name, Drain: defaultDrain}
	if p, known := m.profiles.remembered(name); known {
		out.Shared, out.Group, out.Drain = p.shared(), p.spec.RunAsGroup, time.Duration(p.spec.DrainSeconds)*time.Second
	}
	return out
}

// hold reports whether a shared proxy has to keep a sandbox: its rules lead there or will, or it is not known where they lead.
func (m *moves) hold(name string, s podnet.Sandbox) bool {
	l, known := m.leads.of(s)
	return !known || l.Now.Profile == name || m.aimOf(s.UID) == name
}
