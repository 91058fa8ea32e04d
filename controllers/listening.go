package controllers

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podreport"
)

// listeningPause is the least time between two reports of the ports of a pod. The kernel captures a new port at once, whatever the report says.
const listeningPause = time.Minute

// maxListed is how many ports a report names.
const maxListed = 64

// listening returns the findings with the ports that are captured while somebody listens, and news of them for the pod's owner. It works within
// the turn. A pod that is being made has none yet.
func listening(ctx context.Context, from Listeners, v visit, found Findings) (now Findings, news string) {
	spec := v.intent.Spec
	switch {
	case !spec.IncludeInboundPorts.Listening:
		found.Listening = ""
		return found, ""
	case from == nil, v.by.early(), !found.listeningAt.IsZero() && time.Since(found.listeningAt) < listeningPause:
		return found, ""
	}
	ports, err := from.Listening(ctx, v.sandbox.Place(), v.isProxy)
	if err != nil {
		log.FromContext(ctx).V(1).Info("listening ports not read", "reason", err.Error())
		return found, ""
	}
	captured := slices.DeleteFunc(ports, func(p uint16) bool { return !spec.CapturesListener(p) })
	if found.Listening == "" && len(captured) == 0 {
		return found, "" // its processes have just started
	}
	list := listed(captured)
	if list == found.Listening {
		return found, ""
	}
	found.Listening, found.listeningAt = list, time.Now()
	if said, _ := podreport.DetailsOn(v.pod); said.Sandbox == v.sandbox.ID && said.Listening == list { // an earlier agent has made the event
		return found, ""
	}
	return found, "inbound ports that are captured now: " + list
}

// proxyPatience is how long after the start of a pod's containers its proxy may not listen yet, and the time between two looks at a proxy that listens.
const proxyPatience = time.Minute

// unheard returns the findings with the proxy's ports on which nobody listens, and news of them for the pod's owner. It works within the turn, at
// checks: two in a row decide, for a proxy may be about to start again. late are words about a proxy that was waited for in vain, which decide at
// once. Proxies that the agent runs are asked by their manager.
func unheard(ctx context.Context, from Listeners, v visit, found Findings, late string) (now Findings, news string) {
	started := v.pod.Status.StartTime
	switch {
	case v.intent.Profile != "" || v.pod.Status.Phase != corev1.PodRunning || started == nil:
		found.Unheard, found.missing = "", false
		return found, ""
	case from == nil, late == "" && !isLookDue(v, found):
		return found, ""
	}
	ports, err := from.Unheard(ctx, v.sandbox.Place(), v.intent.Spec.ProxyPorts())
	if err != nil {
		log.FromContext(ctx).V(1).Info("the proxy's sockets not read", "reason", err.Error())
		return found, ""
	}
	was, decides := found.Unheard, found.missing || late != ""
	found.Unheard, found.unheardAt, found.missing = "", time.Now(), len(ports) > 0
	if !found.missing || !decides && was == "" {
		return found, ""
	}
	found.Unheard = nobodyListens(ports) + ": connections are refused"
	if c := findCondition(v.pod); was != "" || late != "" || c != nil && c.Reason == podreport.ReasonNoListener { // its owner knows
		return found, ""
	}
	return found, found.Unheard
}

// containersSince returns when the containers of a pod with a start time could start: after its init containers, in the newest sandbox.
func containersSince(pod *corev1.Pod) time.Time {
	at := pod.Status.StartTime.Time
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReadyToStartContainers} {
		if c := podreport.ConditionOf(pod, kind); c != nil && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}

// isLookDue reports whether to look for the proxy's listener. A pod that ends is left alone.
func isLookDue(v visit, found Findings) bool {
	switch {
	case v.by != Verify || v.pod.DeletionTimestamp != nil:
		return false
	case found.missing:
		return true
	}
	return time.Since(containersSince(v.pod)) >= proxyPatience && time.Since(found.unheardAt) >= proxyPatience
}

// nobodyListens begins words about ports of the proxy.
func nobodyListens(ports []uint16) string {
	return podreport.NobodyListens + strings.ReplaceAll(listed(ports), ",", " and ")
}

// listed returns ports as text: "none" if there are none.
func listed(ports []uint16) string {
	if len(ports) == 0 {
		return "none"
	}
	words := make([]string, 0, maxListed)
	for _, p := range ports[:min(len(ports), maxListed)] {
		words = append(words, strconv.Itoa(int(p)))
	}
	text := strings.Join(words, ",")
	if more := len(ports) - maxListed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
