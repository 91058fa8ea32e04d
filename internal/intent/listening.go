package intent

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// The values of KeyInboundPorts: all of the included inbound ports go to the proxy, or those of them on which a socket of the pod listens when
// a connection is opened.
const (
	inboundAll       = "all"
	inboundListening = "listening"
)

func onlyListening(key, value string) (bool, error) {
	return isSecond(key, value, inboundAll, inboundListening)
}

func (r *reader) inboundPorts(d Defaults) iptables.Ports {
	out := read(r, keyIncludeInbound, settingIncludeInbound, d.IncludeInboundPorts, ports)
	out.Listening = r.listening(d)
	return out
}

// listening reports whether only ports are captured on which somebody listens. The pod's annotation comes first, then its namespace's, the
// profile of its proxy, and the flag.
func (r *reader) listening(d Defaults) bool {
	standard, source := r.standardInboundPorts(d)
	out := read(r, KeyInboundPorts, settingInboundPorts, standard, func(key, value string) (bool, error) {
		return onlyListening(cmp.Or(source, key), value)
	})
	if source != "" && r.from != nil {
		r.from[settingInboundPorts] = source
	}
	return out
}

// standardInboundPorts returns the value for a pod without the annotation. source is "" if it is the flag's, or if the pod has the annotation.
func (r *reader) standardInboundPorts(d Defaults) (value, source string) {
	_, own := r.annotations[KeyInboundPorts]
	of, set := r.namespace[KeyInboundPorts]
	switch {
	case own:
	case set:
		return of, fromNamespace + KeyInboundPorts
	case r.profile != nil && r.profile.InboundPorts != "":
		return r.profile.InboundPorts, fromProfile + r.profileName
	}
	return cmp.Or(d.InboundPorts, inboundAll), ""
}

// annotationsOf returns the annotations of a namespace, or nil if it is not known.
func annotationsOf(ns *corev1.Namespace) map[string]string {
	if ns == nil {
		return nil
	}
	return ns.Annotations
}
