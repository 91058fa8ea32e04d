// Package istio computes how Istio's pilot-agent runs for a pod: what Istio's injector would write into the pod's spec.
//
// It reads the texts of the control plane's ConfigMaps, objects of kind ProxyConfig and the pod, and asks nobody: injection templates of the operator's
// own and parameters of the webhook's address have no effect.
//
// Facts about Istio are from its source, main of August 2026 (1.31). Comments name the file there.
package istio

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
)

const (
	keyMode  = "sidecar.istio.io/interceptionMode"
	redirect = "REDIRECT"
	tproxy   = "TPROXY"
)

// Proxy computes how pilot-agent runs for a pod, by Istio's template manifests/charts/istio-control/istio-discovery/files/injection-template.yaml.
// Its errors name the setting and its value.
func (m *Mesh) Proxy(p Pod) (Proxy, error) {
	if err := m.checkListeners(p.Network); err != nil {
		return Proxy{}, err
	}
	objects := m.proxyConfigsOf(p)
	config, more, err := proxyConfig(m.config.DefaultConfig, objects, p.Pod.Annotations)
	if err != nil {
		return Proxy{}, err
	}
	of, network := workloadOf(p.Pod), cmp.Or(p.Pod.Labels[keyNetwork], m.values.Global.Network)
	if p.Resources, err = resourcesOf(p); err != nil {
		return Proxy{}, err
	}
	env := m.identity(p)
	if err := m.describe(&env, p, of, network); err != nil {
		return Proxy{}, err
	}
	env.set("ISTIO_META_INTERCEPTION_MODE", p.mode())
	// Of two proxies the old one gets TERM, and is to finish its connections, not to end after terminationDrainDuration (pkg/envoy/agent.go).
	env.set("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true")
	if err := env.add(more); err != nil {
		return Proxy{}, err
	}
	for _, v := range p.Env {
		env.set(v.Name, v.Value)
	}
	if p.Beside {
		if err := checkAlone(env); err != nil {
			return Proxy{}, err
		}
	}
	out := Proxy{
		Command: []string{"/usr/local/bin/pilot-agent"}, Args: m.args(p.Pod),
		Files: map[string]string{
			"labels":      downward(labels(p, of, network, more[hbone] == "true")),
			"annotations": downward(m.annotations(p)),
		},
		Resources: p.Resources, Audience: cmp.Or(m.values.Global.SDS.Token.Aud, "istio-ca"), TokenSeconds: 43200,
	}
	if m.values.Global.PilotCertProvider == "istiod" {
		out.RootCert = cmp.Or(m.values.Global.TrustBundleName, "istio-ca-root-cert")
		out.RevokedCerts = cmp.Or(m.values.Pilot.CRLConfigMapName, "istio-ca-crl")
	}
	if err := m.place(p, config, &env, &out); err != nil {
		return Proxy{}, err
	}
	out.NotHonoured = slices.Concat(m.notHonoured(p, config, failing(p.Pod, out.PublicPort)), objects.images())
	raw, err := json.Marshal(config)
	if err != nil {
		return Proxy{}, fmt.Errorf("write PROXY_CONFIG: %w", err)
	}
	if p.Pod.Status.HostIP == "" && strings.Contains(string(raw), "$(HOST_IP)") {
		return Proxy{}, errors.New("the proxy's configuration names $(HOST_IP), and the pod's status has no hostIP yet")
	}
	room := maxText
	raw, err = json.Marshal(env.expandAll(config, &room))
	switch {
	case err != nil:
		return Proxy{}, fmt.Errorf("write PROXY_CONFIG: %w", err)
	case room < 0:
		return Proxy{}, fmt.Errorf("variable PROXY_CONFIG is too long: key mesh with annotation %s has more than %d bytes", keyConfig, maxText)
	}
	env.set("PROXY_CONFIG", string(raw))
	out.Env = env
	return out, env.check()
}

func (m *Mesh) args(pod *corev1.Pod) []string {
	g := m.values.Global
	annotation := func(key, otherwise string) string {
		if value, isSet := pod.Annotations[key]; isSet {
			return value
		}
		return otherwise
	}
	args := []string{
		"proxy", "sidecar",
		"--domain", pod.Namespace + ".svc." + cmp.Or(g.Proxy.ClusterDomain, "cluster.local"),
		"--proxyLogLevel=" + annotation("sidecar.istio.io/logLevel", g.Proxy.LogLevel),
		"--proxyComponentLogLevel=" + annotation("sidecar.istio.io/componentLogLevel", g.Proxy.ComponentLogLevel),
		"--log_output_level=" + annotation("sidecar.istio.io/agentLogLevel", g.Logging.Level),
	}
	if port := g.STS.ServicePort; port != "" && port != "0" {
		args = append(args, "--stsPort="+port.String())
	}
	if g.LogAsJSON {
		args = append(args, "--log_as_json")
	}
	if g.Proxy.OutlierLogPath != "" {
		args = append(args, "--outlierLogPath="+g.Proxy.OutlierLogPath)
	}
	return args
}

// annotations are the pod's, without the two whose effect is in PROXY_CONFIG: pilot-agent reads them after it, and slot 1 would have the ports of
// slot 0.
func (m *Mesh) annotations(p Pod) map[string]string {
	out := map[string]string{"istio.io/rev": cmp.Or(m.of.Revision, "default")}
	for key, value := range p.Pod.Annotations {
		if key != keyConfig && key != keyStatusPort {
			out[key] = value
		}
	}
	return out
}

// identity is who the proxy is, to whom it proves it, and what it may use.
func (m *Mesh) identity(p Pod) (env environment) {
	g, istiod := m.values.Global, "istiod"
	if m.values.Revision != "" {
		istiod += "-" + m.values.Revision
	}
	env.set("PILOT_CERT_PROVIDER", g.PilotCertProvider)
	env.set("CA_ADDR", cmp.Or(g.CAAddress, fmt.Sprintf("%s.%s.svc:15012", istiod, cmp.Or(g.IstioNamespace, m.of.Namespace))))
	env.set("POD_NAME", p.Pod.Name)
	env.set("POD_NAMESPACE", p.Pod.Namespace)
	env.set("INSTANCE_IP", p.Pod.Status.PodIP)
	env.set("SERVICE_ACCOUNT", p.Pod.Spec.ServiceAccountName)
	env.set("HOST_IP", p.Pod.Status.HostIP)
	env.set("TRUST_DOMAIN", m.config.TrustDomain)
	if limit := p.Resources.CPULimit; limit != nil && limit.Value() > 0 { // whole CPUs, rounded up
		env.set("ISTIO_CPU_LIMIT", fmt.Sprint(limit.Value())) // Envoy's workers, if the configuration has no concurrency
		env.set("GOMAXPROCS", fmt.Sprint(limit.Value()))
	}
	if limit := p.Resources.MemoryLimit; limit != nil && limit.Value() > 0 {
		env.set("GOMEMLIMIT", fmt.Sprint(limit.Value()))
	}
	if policy := text(m.values.Pilot.Env["COMPLIANCE_POLICY"]); policy != "" {
		env.set("COMPLIANCE_POLICY", policy)
		if policy == "fips-140-3" {
			env.set("GODEBUG", "fips140=only")
		}
	}
	return env
}

// describe adds what istiod learns about the pod.
func (m *Mesh) describe(env *environment, p Pod, of workload, network string) error {
	names, declared := []string{}, []corev1.ContainerPort{}
	for _, c := range p.Pod.Spec.Containers {
		names, declared = append(names, c.Name), append(declared, c.Ports...)
	}
	raw, err := json.Marshal(declared)
	if err != nil {
		return fmt.Errorf("write ISTIO_META_POD_PORTS: %w", err)
	}
	env.set("ISTIO_META_POD_PORTS", string(raw))
	env.set("ISTIO_META_APP_CONTAINERS", strings.Join(names, ","))
	env.set("ISTIO_META_CLUSTER_ID", cmp.Or(m.values.Global.MultiCluster.ClusterName, "Kubernetes"))
	env.set("ISTIO_META_NODE_NAME", p.Pod.Spec.NodeName)
	env.set("ISTIO_META_MESH_ID", cmp.Or(m.values.Global.MeshID, m.config.TrustDomain))
	env.set("ISTIO_META_WORKLOAD_NAME", cmp.Or(p.Pod.Labels["service.istio.io/workload-name"], of.name))
	env.set("ISTIO_META_OWNER", fmt.Sprintf("kubernetes://apis/%s/namespaces/%s/%ss/%s", of.apiVersion, p.Pod.Namespace, strings.ToLower(of.kind), of.name))
	if network != "" {
		env.set("ISTIO_META_NETWORK", network)
	}
	probers, err := probersOf(p.Pod)
	if err != nil {
		return err
	}
	if probers != "" {
		env.set(appProbers, probers)
	}
	if m.config.InboundTrafficPolicy.Mode == "LOCALHOST" {
		env.set("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", "true")
	}
	return nil
}

func text(value any) string {
	s, _ := value.(string)
	return s
}

// Pod is the pod beside which a proxy runs.
type Pod struct {
	// Pod has its node, its addresses and its host's address.
	Pod *corev1.Pod
	// Slot is 0 or 1: two proxies that run side by side for a while have different slots.
	Slot uint32
	// Network and Resources are what the pod's profile says.
	Network   v1alpha1.Network
	Resources v1alpha1.Resources
	// Transparent reports whether the pod's rules take inbound connections by TPROXY, which is for the profile to say: the proxy needs NET_ADMIN.
	Transparent bool
	// Beside reports whether the next proxy runs beside it for a while.
	Beside bool
	// Env are the profile's own variables, which win.
	Env []Variable
}

// mode is the interception mode of the pod's rules.
func (p Pod) mode() string {
	if p.Transparent {
		return tproxy
	}
	return redirect
}

// Proxy is how pilot-agent runs.
type Proxy struct {
	Command, Args []string
	// Resources are the profile's, with what the pod's annotations say instead.
	Resources v1alpha1.Resources
	// Env has each name once, the pod's own variables included.
	Env []Variable
	// Files are contents by name in the directory /etc/istio/pod.
	Files map[string]string
	// Audience and TokenSeconds are for the token in the file /var/run/secrets/tokens/istio-token.
	Audience     string
	TokenSeconds int64
	// RootCert is the ConfigMap at /var/run/secrets/istio, of the pod's namespace. Empty: no ConfigMap.
	RootCert string
	// RevokedCerts is the ConfigMap at /var/run/secrets/istio/crl, of the pod's namespace, which may be missing. Empty: no ConfigMap.
	RevokedCerts string
	// StatusPort is pilot-agent's, with the readiness at /healthz/ready. AdminPort is Envoy's, on localhost. Both differ by slot.
	//
	// On TERM pilot-agent has Envoy drain inbound listeners only (pkg/envoy/admin.go: drain_listeners?inboundonly&graceful), and a graceful
	// drain accepts connections until ProxyConfig.drainDuration is over: the old of two proxies goes on taking new connections, outbound
	// ones for ever. POST /drain_listeners?graceful tells clients of both directions, POST /drain_listeners then stops all listeners.
	StatusPort, AdminPort int32
	// PublicPort is the status port that others know: that of slot 0.
	PublicPort int32
	// NotHonoured are sentences: what injection would do for this pod and this proxy does not.
	NotHonoured []string
}

// Variable is one environment variable.
type Variable struct {
	Name, Value string
}
