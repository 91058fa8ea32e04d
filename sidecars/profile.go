package sidecars

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"istio-pod-network-controller/api/v1alpha1"
)

// Profile is a ProxyProfile that can be used.
type Profile struct {
	Name string
	Spec v1alpha1.ProxyProfileSpec
	// Hash identifies everything that a running proxy depends on.
	Hash string

	namespaces labels.Selector
	files      []file
}

type file struct {
	name     string
	template Template
}

// Compile checks what the schema cannot, and parses the templates. The error says everything that is wrong.
func Compile(p *v1alpha1.ProxyProfile) (*Profile, error) {
	out := &Profile{Name: p.Name, Spec: *p.Spec.DeepCopy(), namespaces: labels.Nothing()}
	var wrong []error
	if p.Spec.NamespaceSelector != nil {
		var err error
		if out.namespaces, err = metav1.LabelSelectorAsSelector(p.Spec.NamespaceSelector); err != nil {
			wrong = append(wrong, fmt.Errorf("namespaceSelector: %w", err))
		}
	}
	for _, f := range p.Spec.Files {
		t, err := ParseTemplate(f.Name, f.Template, f.Syntax)
		if err != nil {
			wrong = append(wrong, err)
		} else if err := t.checkNames(out.Shared()); err != nil {
			wrong = append(wrong, fmt.Errorf("file %q: %w", f.Name, err))
		}
		out.files = append(out.files, file{f.Name, t})
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, err
	}
	out.Hash = HashOf(p.Spec)
	return out, nil
}

// HashOf returns a hash of what a running proxy depends on. A change of the rest needs no new proxy.
func HashOf(spec v1alpha1.ProxyProfileSpec) string {
	copyRest(&spec, &v1alpha1.ProxyProfileSpec{})
	text, err := json.Marshal(spec)
	if err != nil {
		return "" // these types can be marshalled
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// copyRest copies the fields on which no running proxy of a pod depends.
func copyRest(to, from *v1alpha1.ProxyProfileSpec) {
	to.Mode, to.Shared = from.Mode, from.Shared // does not change
	to.NamespaceSelector, to.ImagePullSecrets = from.NamespaceSelector, from.ImagePullSecrets
	to.Rollout, to.DrainSeconds, to.RestartPolicy = from.Rollout, from.DrainSeconds, from.RestartPolicy
	to.Readiness.StartSeconds, to.Readiness.PeriodSeconds = from.Readiness.StartSeconds, from.Readiness.PeriodSeconds
	to.Readiness.FailureThreshold, to.Liveness = from.Readiness.FailureThreshold, from.Liveness
}

// withVersion returns the profile with what another version of it says of proxies, or nil if the rules of pods do not lead to such a proxy: a
// profile of the same name may have been made anew.
func (p *Profile) withVersion(version *v1alpha1.ProxyProfileSpec) *Profile {
	object := &v1alpha1.ProxyProfile{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: *version.DeepCopy()}
	copyRest(&object.Spec, &p.Spec)
	if !asksAlike(version.Liveness, p.Spec.Liveness) { // an answer would be missed that this version does not have
		object.Spec.Liveness = nil
	}
	out, err := Compile(object)
	if err != nil || out.UID() != p.UID() || out.UID() == 0 && out.Spec.RunAsGroup != p.Spec.RunAsGroup ||
		out.network() != p.network() || out.Spec.Network.Transparent != p.Spec.Network.Transparent {
		return nil
	}
	return out
}

func asksAlike(a, b *v1alpha1.Liveness) bool {
	return a != nil && b != nil && a.TCPPort == b.TCPPort && a.SlotPorts == b.SlotPorts && equality.Semantic.DeepEqual(a.HTTPGet, b.HTTPGet)
}

// maxRunning says how many proxies of the profile may run at once in a sandbox; 1 means that one cannot take over from another.
func (p *Profile) maxRunning() int {
	switch p.Spec.Handover {
	case v1alpha1.HandoverHAProxy:
		return 4
	case v1alpha1.HandoverEnvoy:
		return 2 // a third one would have the first one end at once
	case v1alpha1.HandoverReusePort:
		return slots
	case v1alpha1.HandoverNone:
	}
	return 1
}

// Shared reports whether all pods of the node share one proxy.
func (p *Profile) Shared() bool { return p.Spec.Mode == v1alpha1.ModeShared }

// UID is the user that the proxy runs as. Only root is given a capability.
func (p *Profile) UID() int64 {
	if p.Spec.Network.Transparent || p.Shared() {
		return 0
	}
	return p.Spec.RunAsUser
}

// Ports are the ports on which only the proxy may listen in a pod.
func (p *Profile) Ports() (out []uint16) {
	ports := []int32{p.Spec.Network.OutboundPort, p.Spec.Network.InboundPort}
	if p.Spec.Istio != nil {
		ports = append(ports, istioHealth, istioMetrics)
	}
	for slot := range uint32(slots) {
		for _, q := range []Question{IsReady, IsAlive} {
			of := p.Question(q, slot)
			ports = append(ports, of.TCPPort)
			if of.HTTPGet != nil {
				ports = append(ports, of.HTTPGet.Port)
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

// slots is how many proxies with handover reuse-port may run at once. What they cannot share they have by slot: the epoch modulo slots.
const slots = 2

// Question returns where and how the proxy of an epoch is asked. Without liveness that question has nothing in it.
func (p *Profile) Question(q Question, epoch uint32) v1alpha1.Readiness {
	own := func(socket string) string { return strings.ReplaceAll(socket, "{epoch}", number(epoch)) }
	out, next := p.Spec.Readiness, int32(0)
	if q == IsAlive {
		out = v1alpha1.Readiness{}
		if l := p.Spec.Liveness; l != nil {
			out = v1alpha1.Readiness{HTTPGet: l.HTTPGet, TCPPort: l.TCPPort, SlotPorts: l.SlotPorts}
		}
	}
	if p.Spec.Istio != nil && q == IsReady { // at a port that was computed: see IstioFacts
		out.HTTPGet = &v1alpha1.HTTPGet{Path: istioReady}
	}
	if out.SlotPorts {
		next = int32(epoch % slots)
	}
	out.Socket = own(out.Socket)
	if out.TCPPort != 0 {
		out.TCPPort += next
	}
	if get := out.HTTPGet; get != nil {
		out.HTTPGet = &v1alpha1.HTTPGet{Port: get.Port, Socket: own(get.Socket), Path: get.Path}
		if get.Port != 0 {
			out.HTTPGet.Port += next
		}
	}
	return out
}

func (p *Profile) owner() owner { return owner{p.UID(), p.Spec.RunAsGroup} }

func (p *Profile) drainLimit() time.Duration { return seconds(p.Spec.DrainSeconds) }

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// hangs reports whether a proxy has missed too many questions whether it is alive.
func (p *Profile) hangs(alive pulse) bool {
	return p != nil && p.Spec.Liveness != nil && alive.missed >= max(1, int(p.Spec.Liveness.FailureThreshold))
}

// hot reports whether the profile's proxies take over from each other by Envoy's hot restart.
func (p *Profile) hot() bool { return p != nil && p.Spec.Handover == v1alpha1.HandoverEnvoy }

// RenderShared returns the profile's files for the pods of data.
func (p *Profile) RenderShared(data SharedData) (map[string]string, error) {
	data.Network = p.network()
	return p.render(data)
}

func (p *Profile) render(data any) (map[string]string, error) {
	out := map[string]string{}
	for _, f := range p.files {
		text, err := f.template.execute(data)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", f.name, err)
		}
		out[f.name] = text
	}
	return out, nil
}

func (p *Profile) network() NetworkData {
	return NetworkData{InboundPort: p.Spec.Network.InboundPort, OutboundPort: p.Spec.Network.OutboundPort}
}
