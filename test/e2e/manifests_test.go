package e2e

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The contract with users, spelled out: a test must notice when the program changes it.
const (
	keyInitialize = "istio-pod-network-controller/initialize"
	keyStatus     = "pod-network-controller.istio.io/status"
	keyDetails    = "pod-network-controller.istio.io/details"
	condition     = "pod-network-controller.istio.io/initialized"

	keyDNSCapture      = "pod-network-controller.istio.io/dns-capture"
	keyOutboundPort    = "pod-network-controller.istio.io/envoy-port"
	keyInboundPort     = "pod-network-controller.istio.io/envoy-inbound-port"
	keyInboundPorts    = "pod-network-controller.istio.io/inbound-ports"
	keyExcludeInbound  = "traffic.sidecar.istio.io/excludeInboundPorts"
	keyIncludeInbound  = "traffic.sidecar.istio.io/includeInboundPorts"
	keyExcludeOutbound = "traffic.sidecar.istio.io/excludeOutboundPorts"
	keyExcludeCIDRs    = "traffic.sidecar.istio.io/excludeOutboundIPRanges"
	keyIncludeCIDRs    = "traffic.sidecar.istio.io/includeOutboundIPRanges"
	keyMode            = "sidecar.istio.io/interceptionMode"
	keyInjected        = "sidecar.istio.io/status"

	statusInitialized = "initialized"
	statusFailed      = "failed"
	statusRemoved     = "removed"
)

// Ports of the application, and of its proxy's journal, which redirection leaves alone.
const (
	appPort      uint16 = 8080
	appOtherPort uint16 = 9100
	appTCPPort   uint16 = 9000
	journalPort  uint16 = 15021
)

// proxyImage is the proxy that keeps a journal.
const proxyImage = "localhost/testproxy:1"

func asked() map[string]string { return map[string]string{keyInitialize: "true"} }

func newPod(name string, annotations map[string]string, containers ...corev1.Container) *corev1.Pod {
	no, second := false, int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec: corev1.PodSpec{
			Containers: containers, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			TerminationGracePeriodSeconds: &second, // a proxy that is told to end first waits for its connections
		},
	}
}

// meshPod is an application beside a proxy that tells what passed it.
func meshPod(name string, annotations map[string]string) *corev1.Pod {
	return newPod(name, annotations, appContainer(), proxyContainer("istio-proxy"))
}

// appContainer answers with JSON about each connection that it sees.
func appContainer() corev1.Container {
	return corev1.Container{Name: "app", Image: "localhost/testapp:1", Args: []string{"serve", "-http=8080,9100", "-tcp=9000"}}
}

// toolsContainer is the same application in an image with a shell.
func toolsContainer() corev1.Container {
	c := appContainer()
	c.Image, c.Command = "localhost/tools:1", []string{"/usr/bin/testapp"}
	return c
}

// proxyContainer takes redirected connections of both families and keeps a journal of them.
func proxyContainer(name string, args ...string) corev1.Container {
	id, no := int64(1337), false
	return corev1.Container{
		Name: name, Image: proxyImage, Args: args,
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: &id, RunAsGroup: &id, Privileged: &no, AllowPrivilegeEscalation: &no,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}
