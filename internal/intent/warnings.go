package intent

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// Warnings returns what the author of a pod may have meant otherwise, one sentence each: annotations that look mistyped, labels that should
// be annotations, and settings without effect. The agent accepts all of it. ns is the pod's namespace, or nil if unknown.
func Warnings(pod *corev1.Pod, ns *corev1.Namespace, in Intent) []string {
	out := append(Misplaced(pod.Annotations, pod.Labels), wrongBools(pod)...)
	switch {
	case in.Redirect:
	case in.Reason == "": // a setting is wrong: the error says which
		return out
	default:
		return append(out, unusedSettings(pod)...)
	}
	if in.Spec.DNS != iptables.DNSOff && answersLookups(pod) {
		out = append(out, "a container has port 53: with DNS capture, clients that ask it from their own port 53, as other DNS servers may, get no answer")
	}
	r := readerOf(pod, ns, nil, nil)
	_, includesOwn := r.annotation(KeyIncludeInboundPorts)
	_, excludesOwn := r.annotation(KeyExcludeInboundPorts)
	if _, excludes := pod.Annotations[keyExcludeInbound]; excludes && !in.Spec.IncludeInboundPorts.All && !includesOwn && !excludesOwn {
		out = append(out, fmt.Sprintf("%s has no effect: it counts only where %s is *", keyExcludeInbound, keyIncludeInbound))
	}
	_, newer := pod.Annotations[keyReroute]
	if _, older := pod.Annotations[keyKubevirt]; older && newer {
		out = append(out, fmt.Sprintf("%s has no effect beside %s", keyKubevirt, keyReroute))
	}
	return out
}

// answersLookups reports whether a container says that it is a DNS server.
func answersLookups(pod *corev1.Pod) bool {
	for i := range pod.Spec.Containers {
		if slices.ContainsFunc(pod.Spec.Containers[i].Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == 53 && p.Protocol != corev1.ProtocolSCTP }) {
			return true
		}
	}
	return false
}

// unusedSettings names settings of a pod that is not redirected.
func unusedSettings(pod *corev1.Pod) []string {
	deciding := []string{KeyInitialize, KeySidecar, keyMode, keyInject, keyInjected, keyDeployer, keyBuild}
	var unused []string
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		if Reads(key) && !slices.Contains(deciding, key) {
			unused = append(unused, key)
		}
	}
	if len(unused) == 0 {
		return nil
	}
	return []string{"without effect, since the pod is not redirected: " + strings.Join(unused, ", ")}
}

// wrongBools names variables of the proxy's container that should be bools and are not.
func wrongBools(pod *corev1.Pod) (out []string) {
	proxy := findContainer(pod, ProxyContainer)
	if proxy == nil {
		return nil
	}
	for _, e := range proxy.Env {
		if !slices.Contains([]string{envDNSCapture, envDropInvalid, envProxyless, envDualStack}, e.Name) {
			continue
		}
		_, err := strconv.ParseBool(e.Value)
		switch {
		case e.ValueFrom != nil:
			out = append(out, fmt.Sprintf("%s%s counts as false: the agent sees only values that are in the pod's spec", fromEnv, e.Name))
		case err != nil:
			out = append(out, fmt.Sprintf("%s%s, value %s, counts as false: want true or false", fromEnv, e.Name, shown(e.Value)))
		}
	}
	return out
}

// writtenAnnotations are the annotations that the agent and the operators' commands write on pods.
func writtenAnnotations() []string {
	const ours = "pod-network-controller.istio.io/"
	return []string{ours + "status", ours + "details", ours + "agent", ours + "connectivity-test"}
}

// claimedPrefixes are the prefixes of annotations that have no other reader than the agent and Istio's redirection.
func claimedPrefixes() []string {
	return []string{"istio-pod-network-controller/", "pod-network-controller.istio.io/", "traffic.sidecar.istio.io/"}
}

// Misplaced returns a sentence for each key of an object that the agent does not read and that its author most likely meant for it: an annotation
// that looks mistyped, or a label that should be an annotation.
func Misplaced(annotations, labels map[string]string) []string {
	return append(mistyped(annotations), mislabelled(labels)...)
}

// MisplacedOf is Misplaced of a pod and of its namespace, which may be nil. Sentences about the namespace begin with its name.
func MisplacedOf(pod *corev1.Pod, ns *corev1.Namespace) []string {
	out := Misplaced(pod.Annotations, pod.Labels)
	if ns == nil {
		return out
	}
	for _, about := range Misplaced(ns.Annotations, ns.Labels) {
		out = append(out, "namespace "+ns.Name+": "+about)
	}
	return out
}

// mistyped returns a sentence for each unknown annotation that looks like a known one.
func mistyped(annotations map[string]string) (out []string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if Reads(key) || slices.Contains(writtenAnnotations(), key) {
			continue
		}
		if near := nearest(key); near != "" {
			out = append(out, fmt.Sprintf("annotation %s is not known: did you mean %s?", shown(key), near))
		}
	}
	return out
}

// mislabelled returns a sentence for each label that should be an annotation. The one exception is Istio's inject, which may be either.
func mislabelled(labels map[string]string) (out []string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if key != keyInject && Reads(key) {
			out = append(out, fmt.Sprintf("%s is a label: make it an annotation", key))
		}
	}
	return out
}

// nearest returns the annotation of the agent's that a key is most like, or "" if it is like none.
func nearest(key string) string {
	const (
		near    = 3
		longest = 317 // of a valid key
	)
	if len(key) > longest {
		return ""
	}
	claimed := slices.ContainsFunc(claimedPrefixes(), func(prefix string) bool { return strings.HasPrefix(key, prefix) })
	best, found := near+1, ""
	if claimed {
		best = longest
	}
	for _, known := range readAnnotations() {
		if sameName(key, known) {
			return known
		}
		if d := len(key) - len(known); max(d, -d) >= best { // they differ by so many bytes at least
			continue
		}
		if d := Distance(strings.ToLower(key), strings.ToLower(known)); d < best {
			best, found = d, known
		}
	}
	return found
}

// sameName reports whether two keys differ in their prefixes only, of which both are about Istio. Short names say too little.
func sameName(a, b string) bool {
	const telling = 10
	prefixA, nameA, _ := strings.Cut(a, "/")
	_, nameB, _ := strings.Cut(b, "/")
	return len(nameA) >= telling && strings.EqualFold(nameA, nameB) && strings.Contains(prefixA, "istio")
}

// Distance is how many bytes have to be added, removed or replaced to make b of a (Levenshtein).
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
