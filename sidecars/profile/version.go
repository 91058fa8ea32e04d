// Package profile computes what to run for a pod: from a ProxyProfile and the pod, and from nothing else.
//
//	refuse.go     which pods cannot have a proxy, and why
//	instance.go   one proxy: image, arguments, environment, files; Istio's as its injector would run it
//	resources.go  its bounds
//	version.go    a ProxyProfile that can be used, its hash, where its proxies are asked, and what the rules need to know of them
//	spec.go       what an object says, the same for all kinds
//	template.go   files from templates
//	position.go   where in a file a value may be printed
//	quote.go      how
package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/intent"
)

// Version is a ProxyProfile that can be used, as it was at one time.
type Version struct {
	Name string
	Spec Spec
	// Hash identifies everything that a running proxy depends on.
	Hash string
	// Number orders the versions of a profile: a higher one was read later. Equal numbers say nothing.
	Number uint64

	namespaces labels.Selector
	files      []Template
	// readsEgressNames reports whether a file has what the pod's namespace allows: a change of that needs a new proxy.
	readsEgressNames bool
}

// Compile checks what the schema cannot, and parses the templates. The error says everything that is wrong.
func Compile(p *v1alpha1.ProxyProfile) (*Version, error) {
	spec, err := SpecOf(&p.Spec)
	out, errOther := New(p.Name, spec)
	if err := errors.Join(err, errOther); err != nil {
		return nil, err
	}
	return out, nil
}

// New returns a version of a profile. The error is about its selector and its templates.
func New(name string, spec Spec) (*Version, error) {
	out := &Version{Name: name, Spec: spec, Hash: spec.Hash(), namespaces: labels.Nothing()}
	var wrong []error
	if spec.NamespaceSelector != nil {
		var err error
		if out.namespaces, err = metav1.LabelSelectorAsSelector(spec.NamespaceSelector); err != nil {
			wrong = append(wrong, fmt.Errorf("namespaceSelector: %w", err))
		}
	}
	for _, f := range spec.Files {
		t, err := ParseTemplate(f.Name, f.Template, f.Syntax)
		if err != nil {
			wrong = append(wrong, err)
		} else if err := t.checkNames(out.Shared()); err != nil {
			wrong = append(wrong, fmt.Errorf("file %q: %w", f.Name, err))
		}
		out.files = append(out.files, t)
		out.readsEgressNames = out.readsEgressNames || err == nil && t.readsEgressNames()
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, err
	}
	return out, nil
}

// HashOf returns the hash of a ProxyProfile, which need not be usable.
func HashOf(spec v1alpha1.ProxyProfileSpec) string {
	out, _ := SpecOf(&spec)
	return out.Hash()
}

// Hash returns a hash of what a running proxy depends on. A change of the rest needs no new proxy.
func (s Spec) Hash() string {
	copyUnhashed(&s, &Spec{})
	text, err := json.Marshal(s)
	if err != nil {
		return "" // these types can be marshalled
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// copyUnhashed copies the fields that the hash leaves out, as a change of them needs no new proxy: Hash clears them, WithSpec takes them from the present
// version. A new field of Spec that is not among them changes every hash, unless its zero value is left out of the JSON.
func copyUnhashed(to, from *Spec) {
	to.NamespaceSelector, to.ImagePullSecrets = from.NamespaceSelector, from.ImagePullSecrets
	to.Rollout, to.RestartPolicy = from.Rollout, from.RestartPolicy
	to.Readiness.StartSeconds, to.Readiness.PeriodSeconds = from.Readiness.StartSeconds, from.Readiness.PeriodSeconds
	to.Readiness.FailureThreshold, to.Liveness = from.Readiness.FailureThreshold, from.Liveness
}

// WithSpec returns the profile with what another version of it says of proxies, or nil if that cannot be used: a profile of the same name may have
// been made anew.
func (p *Version) WithSpec(version Spec) *Version {
	asks, shared := version.Liveness, version.Shared != nil
	copyUnhashed(&version, &p.Spec)
	if !asksAlike(asks, p.Spec.Liveness) { // an answer would be missed that this version does not have
		version.Liveness = nil
	}
	out, err := New(p.Name, version)
	if err != nil || shared != p.Shared() {
		return nil
	}
	return out
}

func asksAlike(a, b *Probe) bool {
	return a != nil && b != nil && a.TCPPort == b.TCPPort && a.SlotPorts == b.SlotPorts && equality.Semantic.DeepEqual(a.HTTPGet, b.HTTPGet)
}

// Wish returns what decides beside the version whether a proxy is outdated: the value of the pod's annotation restart-proxy and, if a file has them,
// the names that the pod's namespace allows. It is "" if nothing does. p is nil for a profile that cannot be used.
func Wish(p *Version, restart string, ns *corev1.Namespace) string {
	if p == nil || !p.readsEgressNames {
		return restart
	}
	names := ""
	if ns != nil {
		names = ns.Annotations[intent.KeyEgressNames]
	}
	return restart + "\x00" + names
}

// MaxRunning says how many proxies of the profile may run at once in a sandbox; 1 means that one cannot take over from another.
func (p *Version) MaxRunning() int {
	switch p.Spec.Handover {
	case HandoverHAProxy:
		return 4
	case HandoverEnvoy:
		return 2 // a third one would have the first one end at once
	case HandoverReusePort:
		return Slots
	case HandoverNone:
	}
	return 1
}

// Shared reports whether all pods of the node share one proxy.
func (p *Version) Shared() bool { return p.Spec.Shared != nil }

// UID is the user that the proxy runs as. Only root is given a capability.
func (p *Version) UID() int64 {
	if p.Spec.Transparent || p.Shared() {
		return 0
	}
	return p.Spec.RunAsUser
}

// Ports are the ports on which only the proxy may listen in a pod.
func (p *Version) Ports() (out []uint16) {
	ports := []int32{p.Spec.Network.OutboundPort, p.Spec.Network.InboundPort}
	if p.Spec.Istio != nil {
		ports = append(ports, istioHealth, istioMetrics)
	}
	for slot := range uint32(Slots) {
		for _, at := range []Probe{p.Readiness(slot), p.Liveness(slot)} {
			ports = append(ports, at.TCPPort)
			if at.HTTPGet != nil {
				ports = append(ports, at.HTTPGet.Port)
			}
		}
	}
	for _, port := range ports {
		if port != 0 && !slices.Contains(out, uint16(port)) {
			out = append(out, uint16(port))
		}
	}
	return out
}

const (
	// istioReady is the page of pilot-agent's status port that Istio's own probe asks, by way of Envoy.
	istioReady = "/healthz/ready"
	// istioHealth and istioMetrics are ports of Envoy's that others call.
	istioHealth, istioMetrics = 15021, 15090
)

// RestartOnFailure is the restart policy under which a proxy that ends with code 0 is not started again.
const RestartOnFailure = "OnFailure"

// Slots is how many proxies may stand side by side (reusePort). What they cannot share they have by slot: the epoch modulo Slots.
const Slots = 2

// Readiness returns where and how the proxy of an epoch is asked whether it is ready. Istio's is asked at a port that was computed.
func (p *Version) Readiness(epoch uint32) Probe {
	out := p.Spec.Readiness
	if p.Spec.Istio != nil {
		out.HTTPGet = &HTTPGet{Path: istioReady}
	}
	return ofEpoch(out, epoch)
}

// Liveness returns where and how the proxy of an epoch is asked whether it is alive. Without liveness there is nothing in it.
func (p *Version) Liveness(epoch uint32) Probe {
	if p.Spec.Liveness == nil {
		return Probe{}
	}
	return ofEpoch(*p.Spec.Liveness, epoch)
}

func ofEpoch(out Probe, epoch uint32) Probe {
	own := func(socket string) string { return strings.ReplaceAll(socket, "{epoch}", number(epoch)) }
	next := int32(0)
	if out.SlotPorts {
		next = int32(epoch % Slots)
	}
	out.Socket = own(out.Socket)
	if out.TCPPort != 0 {
		out.TCPPort += next
	}
	if get := out.HTTPGet; get != nil {
		out.HTTPGet = &HTTPGet{Port: get.Port, Socket: own(get.Socket), Path: get.Path}
		if get.Port != 0 {
			out.HTTPGet.Port += next
		}
	}
	return out
}

// DrainLimit is how long an old proxy may finish its connections.
func (p *Version) DrainLimit() time.Duration {
	return time.Duration(p.Spec.Rollout.DrainSeconds) * time.Second
}

// HotRestarts reports whether the profile's proxies take over from each other by Envoy's hot restart.
func (p *Version) HotRestarts() bool { return p != nil && p.Spec.Handover == HandoverEnvoy }

// RenderShared returns the profile's files for the pods of data.
func RenderShared(p *Version, data SharedData) (map[string]string, error) {
	data.Network = networkOf(p)
	return renderAll(p, data)
}

func renderAll(p *Version, data any) (map[string]string, error) {
	out := map[string]string{}
	for _, t := range p.files {
		text, err := t.execute(data)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", t.parsed.Name, err)
		}
		out[t.parsed.Name] = text
	}
	return out, nil
}

func networkOf(p *Version) NetworkData {
	return NetworkData{InboundPort: p.Spec.Network.InboundPort, OutboundPort: p.Spec.Network.OutboundPort}
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// ManagedProxy returns what the rules need to know of a proxy of this version. The schema has checked the numbers.
func (p *Version) ManagedProxy() intent.ManagedProxy {
	network := p.Spec.Network
	out := intent.ManagedProxy{
		Profile: p.Name, Owner: intent.Owner{UID: uint32(p.UID())}, Transparent: p.Spec.Transparent, InboundPorts: network.InboundPorts,
		OutboundPort: uint16(network.OutboundPort), InboundPort: uint16(network.InboundPort),
	}
	if out.UID == 0 { // so may the application's be
		out.GID = uint32(p.Spec.RunAsGroup)
	}
	if network.HoldSeconds != nil {
		out.HoldSeconds = strconv.Itoa(int(*network.HoldSeconds))
	}
	excluded := network.ExcludeInboundPorts
	if p.Spec.Istio != nil { // as Istio's injector does
		excluded = append(slices.Clip(excluded), 15020, 15021, 15090)
	}
	for _, port := range excluded {
		out.ExcludeInboundPorts = append(out.ExcludeInboundPorts, uint16(port))
	}
	return out
}
