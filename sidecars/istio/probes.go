package istio

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// KeyProbers is the annotation in which the chart's policy keeps the probes that it has led to pilot-agent: what its variable appProbers has,
// without timeouts, and with ports by name.
const (
	KeyProbers = "pod-network-controller.istio.io/app-probers"
	appProbers = "ISTIO_KUBE_APP_PROBERS"
)

// prober is how pilot-agent probes an application (Prober in pilot/cmd/pilot-agent/status/server.go). It has one of the three actions. Headers
// are in the kubelet's request.
type prober struct {
	HTTPGet        *corev1.HTTPGetAction   `json:"httpGet,omitempty"`
	TCPSocket      *corev1.TCPSocketAction `json:"tcpSocket,omitempty"`
	GRPC           *corev1.GRPCAction      `json:"grpc,omitempty"`
	TimeoutSeconds int32                   `json:"timeoutSeconds,omitempty"` // 0: none
}

// proberOf returns the prober of a probe or of another call by the kubelet, or nil if that asks nothing of the pod over the network. Calls with a
// host are to another pod or node.
func proberOf(get *corev1.HTTPGetAction, tcp *corev1.TCPSocketAction, grpc *corev1.GRPCAction, timeout int32) *prober {
	if get == nil && tcp == nil && grpc == nil || get != nil && get.Host != "" || tcp != nil && tcp.Host != "" {
		return nil
	}
	return &prober{get, tcp, grpc, timeout}
}

func (p *prober) actions() (n int) {
	for _, is := range []bool{p.HTTPGet != nil, p.TCPSocket != nil, p.GRPC != nil} {
		if is {
			n++
		}
	}
	return n
}

// port is the port that is probed. It points into the prober, but for gRPC, whose ports have no names.
func (p *prober) port() *intstr.IntOrString {
	switch {
	case p.HTTPGet != nil:
		return &p.HTTPGet.Port
	case p.TCPSocket != nil:
		return &p.TCPSocket.Port
	}
	port := intstr.FromInt32(p.GRPC.Port)
	return &port
}

// probe is a call of the kubelet, over the network, about a container.
type probe struct {
	*prober
	container *corev1.Container
	// name is the field, such as readinessProbe.
	name string
	// path is pilot-agent's for it. Empty: the policy does not lead it there. A hook postStart runs before pilot-agent answers.
	path string
}

func (p probe) String() string {
	if p.path == "" {
		return p.name + " of container " + p.container.Name + " (which no policy leads there)"
	}
	return p.name + " of container " + p.container.Name
}

// number is the port's, or 0 for a name that no port of the container has.
func (p probe) number(port *intstr.IntOrString) int32 {
	if port.Type == intstr.Int {
		return port.IntVal
	}
	for _, declared := range p.container.Ports {
		if declared.Name == port.StrVal {
			return declared.ContainerPort
		}
	}
	return 0
}

// probesOf are the probes of a pod's containers, in the order of its spec.
func probesOf(pod *corev1.Pod) (out []probe) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			for _, of := range []struct {
				name, word string
				probe      *corev1.Probe
			}{{"readinessProbe", "readyz", c.ReadinessProbe}, {"livenessProbe", "livez", c.LivenessProbe}, {"startupProbe", "startupz", c.StartupProbe}} {
				if h := of.probe; h != nil {
					out = append(out, probe{proberOf(h.HTTPGet, h.TCPSocket, h.GRPC, h.TimeoutSeconds), c, of.name, "/app-health/" + c.Name + "/" + of.word})
				}
			}
			if of := c.Lifecycle; of != nil && of.PostStart != nil {
				out = append(out, probe{proberOf(of.PostStart.HTTPGet, of.PostStart.TCPSocket, nil, 0), c, "postStart", ""})
			}
			if of := c.Lifecycle; of != nil && of.PreStop != nil {
				out = append(out, probe{proberOf(of.PreStop.HTTPGet, of.PreStop.TCPSocket, nil, 0), c, "preStop", "/app-lifecycle/" + c.Name + "/prestopz"})
			}
		}
	}
	return slices.DeleteFunc(out, func(p probe) bool { return p.prober == nil })
}

// probersOf returns the value of appProbers for a pod, or "" without the policy's annotation. pilot-agent does not start with a value that it does
// not understand.
func probersOf(pod *corev1.Pod) (string, error) {
	text, isSet := pod.Annotations[KeyProbers]
	if !isSet {
		return "", nil
	}
	wrong := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf("annotation %s, which is the chart's policy's to write (is it of another release than the agent?): %w: %.300q", KeyProbers, fmt.Errorf(format, args...), text)
	}
	kept := map[string]*prober{}
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&kept); err != nil {
		return wrong("%w", err)
	}
	if decoder.More() {
		return wrong("it goes on after the value of JSON")
	}
	probes := probesOf(pod)
	for _, path := range slices.Sorted(maps.Keys(kept)) {
		of, is := kept[path], func(p probe) bool { return p.path == path }
		at := slices.IndexFunc(probes, is)
		switch {
		case at < 0 || path == "":
			return wrong("%.80q is none of the pod's probes", path)
		case of == nil || of.actions() != 1:
			return wrong("%s has not one of httpGet, tcpSocket and grpc", path)
		}
		port := of.port()
		number := probes[at].number(port)
		if number < 1 || number > 65535 {
			return wrong("%s: no port of the container is %s", path, cmp.Or(port.String(), `""`))
		}
		*port, of.TimeoutSeconds = intstr.FromInt32(number), probes[at].TimeoutSeconds
	}
	value, err := json.Marshal(kept)
	if err != nil {
		return wrong("%w", err)
	}
	return string(value), nil
}

// keyRewrite is Istio's annotation by which a pod's owner keeps the probes as they are.
const keyRewrite = "sidecar.istio.io/rewriteAppHTTPProbers"

// RefusedProbes names the probes of a pod that mTLS mode STRICT refuses, in a mesh with Istio's usual status port. Its owner may want them as they
// are: then there are none.
func RefusedProbes(pod *corev1.Pod) []string {
	if !choice(pod.Annotations[keyRewrite], true) {
		return nil
	}
	own, err := strconv.ParseUint(pod.Annotations[keyStatusPort], 10, 16)
	if err != nil || own == 0 {
		own = defaultStatus
	}
	return failing(pod, int32(own))
}

// failing are the probes that mTLS mode STRICT refuses, if pilot-agent's status port is this one for the kubelet. A port that the rules leave out
// is the application's own.
func failing(pod *corev1.Pod, status int32) (out []string) {
	excluded := strings.Split(pod.Annotations["traffic.sidecar.istio.io/excludeInboundPorts"], ",")
	for _, p := range probesOf(pod) {
		number := p.number(p.port())
		led := p.HTTPGet != nil && p.HTTPGet.Path == p.path
		isExcluded := slices.ContainsFunc(excluded, func(port string) bool { return strings.TrimSpace(port) == strconv.Itoa(int(number)) })
		switch {
		case led && number != status:
			out = append(out, fmt.Sprintf("%s (it leads to port %d, and pilot-agent's status port is %d)", p, number, status))
		case !led && !isExcluded:
			out = append(out, p.String())
		}
	}
	return out
}
