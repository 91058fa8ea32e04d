package intent

import (
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// KeySidecar is the annotation of a pod or a namespace that names the ProxyProfile of its proxy; the pod's wins. SidecarNone on a pod
// means that it has none.
const (
	KeySidecar = "pod-network-controller.istio.io/sidecar"
	// KeyRestartProxy is the annotation of a pod whose new value has the agent replace the pod's proxy once.
	KeyRestartProxy = "pod-network-controller.istio.io/restart-proxy"
	SidecarNone     = "none"
)

// ManagedProxy is what the redirection needs to know of a proxy that the agent runs for a pod.
type ManagedProxy struct {
	// Profile is the proxy's profile: the chosen one, or the former one if the pod keeps its proxy.
	Profile string `json:"profile"`
	// Owner owns the proxy's sockets. One of its ids may be 0: then the other one is enough.
	Owner
	OutboundPort        uint16   `json:"outboundPort"`
	InboundPort         uint16   `json:"inboundPort"`
	ExcludeInboundPorts []uint16 `json:"excludeInboundPorts,omitempty"`
	// InboundPorts is the profile's value for pods without the annotation KeyInboundPorts, or "".
	InboundPorts string `json:"inboundPorts,omitempty"`
	// HoldSeconds is the profile's value for pods without the annotation KeyHoldSeconds, or "".
	HoldSeconds string `json:"holdSeconds,omitempty"`
	// Aliases lead from the ports that others know to those of this proxy.
	Aliases []iptables.PortAlias `json:"aliases,omitempty"`
	// Transparent captures inbound connections with TPROXY.
	Transparent bool `json:"transparent,omitempty"`
	// Beside own the sockets of the pod's other proxies: a former proxy that finishes its connections, or the next one before its start.
	Beside []Owner `json:"beside,omitempty"`
	// Refused says why the pod gets no proxy although it has chosen one, and what to do.
	Refused string `json:"-"`
	// Shared reports whether the node's pods share the proxy: it looks whether its ports are free before it serves a pod.
	Shared bool `json:"-"`
	// Later reports whether the pod runs without rules, and gets them once its first proxy is ready.
	Later bool `json:"-"`
}

// Owner is a user and a group as the pod sees them.
type Owner struct {
	UID uint32 `json:"uid,omitempty"`
	GID uint32 `json:"gid,omitempty"`
}

// Words names it in a message.
func (o Owner) Words() string {
	if o.UID == 0 {
		return fmt.Sprintf("group %d of user 0", o.GID)
	}
	return fmt.Sprintf("user %d", o.UID)
}

// profileName is what the API server accepts as an object's name (RFC 1123 subdomain).
const profileName = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`

// maxProfileName is the length that the API server accepts.
const maxProfileName = 253

// ProxyProfile returns the name of the profile that a pod has chosen, or "".
func ProxyProfile(pod *corev1.Pod, ns *corev1.Namespace) (string, error) {
	name, own := pod.Annotations[KeySidecar]
	if !own {
		name = annotationsOf(ns)[KeySidecar]
	}
	if name == SidecarNone || name == "" && !own {
		return "", nil
	}
	if ok, err := regexp.MatchString(profileName, name); err != nil || !ok || len(name) > maxProfileName {
		return "", &ValueError{Key: KeySidecar, Value: name, Want: `the name of a ProxyProfile, or "none"`}
	}
	return name, nil
}

// namesProfile reports whether the pod itself has chosen a profile.
func namesProfile(pod *corev1.Pod) bool {
	own := pod.Annotations[KeySidecar]
	return own != "" && own != SidecarNone
}

// managed returns the proxy that the agent runs for the pod and the name of its profile, or nil. A pod whose namespace no longer names a profile keeps
// its proxy.
func (c Config) managed(pod *corev1.Pod, ns *corev1.Namespace) (proxy *ManagedProxy, profile string, err error) {
	if c.Managed == nil || pod.Annotations[KeyInitialize] == "false" {
		return nil, "", nil
	}
	profile, err = ProxyProfile(pod, ns)
	if err != nil || pod.Annotations[KeySidecar] == SidecarNone {
		return nil, "", err
	}
	if proxy = c.Managed(profile, pod, ns); proxy != nil && profile == "" {
		profile = proxy.Profile
	}
	return proxy, profile, nil
}

// describe has a Spec lead to the proxy that the agent runs.
func (p *ManagedProxy) describe(s *iptables.Spec) {
	s.ProxyUID, s.ProxyGID = p.UID, p.GID
	s.OutboundPort, s.InboundPort, s.Aliases = p.OutboundPort, p.InboundPort, p.Aliases
	for _, port := range p.ExcludeInboundPorts {
		if !slices.Contains(s.ExcludeInboundPorts, port) {
			s.ExcludeInboundPorts = append(s.ExcludeInboundPorts, port)
		}
	}
	s.Mode = iptables.ModeRedirect
	if p.Transparent {
		s.Mode = iptables.ModeTProxy
	}
}

// exempt leaves alone what the pod's other proxies send.
func (p *ManagedProxy) exempt(s *iptables.Spec) {
	for _, o := range p.Beside {
		if o.UID != 0 {
			s.ExcludeUsers = append(slices.Clip(s.ExcludeUsers), iptables.Users{First: o.UID, Last: o.UID})
		} else {
			s.OwnerGroups.Exclude = append(slices.Clip(s.OwnerGroups.Exclude), o.GID)
		}
	}
}

// ofManaged returns what a pod asks for whose proxy the agent runs. Asking for the proxy is asking for the redirection.
func (c Config) ofManaged(pod *corev1.Pod, ns *corev1.Namespace, managed *ManagedProxy, profile string, from sources) (Intent, error) {
	out := Intent{Asked: true, Managed: true, Profile: profile, LeadsTo: managed, Refused: managed.Refused, Later: managed.Later}
	if out.Refused != "" {
		return out, nil
	}
	r := readerOf(pod, ns, c.Defaults, from)
	r.profile, r.profileName = managed, profile
	var err error
	if out.Spec, err = r.specOf(pod, c, managed); err != nil {
		return Intent{Asked: true}, err
	}
	out.Redirect, out.Hold, out.Notes = true, r.holds, r.notes
	return out, nil
}
