package istio

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"istio-pod-network-controller/api/v1alpha1"
)

// Two proxies side by side need ports of their own where they bind without SO_REUSEPORT:
//
//   - pilot-agent's status server (pilot/cmd/pilot-agent/status/server.go), set by ProxyConfig.statusPort
//   - Envoy's admin interface, on localhost (tools/packaging/common/envoy_bootstrap.json), set by ProxyConfig.proxyAdminPort
//   - pilot-agent's debug server at 15004 of earlier releases, set by debugPort. In main of August 2026 it is gone
//
// 15001, 15006, 15008, 15021, 15090 and the ports ENVOY_SECURE_..._PORT are Envoy's listeners, which have SO_REUSEPORT (enable_reuse_port, on
// by default): nothing in Istio switches it off. Unix sockets are in volumes of the proxy's own. --stsPort opens nothing since the token server
// was removed.
const (
	statusPort    = "statusPort"
	adminPort     = "proxyAdminPort"
	debugPort     = "PROXY_XDS_DEBUG_VIA_AGENT_PORT"
	keyStatusPort = "status.sidecar.istio.io/port"

	// pilot-agent's, if neither the mesh nor the pod says otherwise.
	defaultStatus = 15020

	// From these on slot 1 looks for ports: far from all of Istio's.
	secondStatus, secondAdmin, secondDebug = 15320, 15300, 15304
)

// The ports of Envoy's listeners if the mesh names none (pkg/config/mesh/mesh.go), and of a profile that names none.
const defaultOutbound, defaultInbound = 15001, 15006

// checkListeners returns why the pod's traffic does not reach Envoy.
func (m *Mesh) checkListeners(n v1alpha1.Network) error {
	outbound, _ := m.config.ProxyListenPort.Int64() // 0: none is set
	inbound, _ := m.config.ProxyInboundListenPort.Int64()
	outbound, inbound = cmp.Or(outbound, defaultOutbound), cmp.Or(inbound, defaultInbound)
	if outbound == int64(cmp.Or(n.OutboundPort, defaultOutbound)) && inbound == int64(cmp.Or(n.InboundPort, defaultInbound)) {
		return nil
	}
	return fmt.Errorf("by the mesh it listens on the ports %d (outbound) and %d (inbound): choose a profile whose network has these", outbound, inbound)
}

// place writes a slot's ports into a proxy, its configuration and its environment. Slot 0 has the mesh's, slot 1 none that slot 0, the mesh, a
// variable or a container of the pod uses.
func (m *Mesh) place(p Pod, config map[string]any, env *environment, out *Proxy) (err error) {
	if own, isSet := p.Pod.Annotations[keyStatusPort]; isSet && own != "0" { // pilot/cmd/pilot-agent/config/config.go: it wins
		config[statusPort] = own
	}
	if out.StatusPort, err = port(config, statusPort, defaultStatus); err != nil {
		return err
	}
	if out.AdminPort, err = port(config, adminPort, 15000); err != nil {
		return err
	}
	out.PublicPort = out.StatusPort
	if p.Slot != 0 {
		taken := map[int32]bool{}
		for _, n := range append(m.taken(p, *env), out.StatusPort, out.AdminPort) {
			taken[n] = true
		}
		free := func(n int32) int32 {
			for taken[n] {
				n++
			}
			taken[n] = true
			return n
		}
		out.StatusPort, out.AdminPort = free(secondStatus), free(secondAdmin)
		env.set(debugPort, fmt.Sprint(free(secondDebug)))
	}
	config[statusPort], config[adminPort] = out.StatusPort, out.AdminPort
	return nil
}

// taken are ports that the mesh, a variable (ENVOY_STATUS_PORT and the like) or a container of the pod uses.
func (m *Mesh) taken(p Pod, env environment) (out []int32) {
	numbers := []string{m.config.ProxyListenPort.String(), m.config.ProxyInboundListenPort.String()}
	for _, v := range env {
		numbers = append(numbers, v.Value)
	}
	for _, text := range numbers {
		if n, err := strconv.ParseUint(text, 10, 16); err == nil {
			out = append(out, int32(n))
		}
	}
	for _, c := range slices.Concat(p.Pod.Spec.InitContainers, p.Pod.Spec.Containers) {
		for _, declared := range c.Ports {
			out = append(out, declared.ContainerPort)
		}
	}
	return out
}

func port(config map[string]any, field string, otherwise int32) (int32, error) {
	value, isSet := config[field]
	if !isSet {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(fmt.Sprint(value), 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%s is %s (key mesh: defaultConfig, or an annotation: %s, %s), want a port", field, short(value), keyConfig, keyStatusPort)
	}
	return int32(n), nil
}

// checkAlone returns why no second proxy can run beside this one, whatever its slot. The DNS server (pkg/dns/client/proxy.go) listens without
// SO_REUSEPORT, and DNS capture knows one port.
func checkAlone(env environment) error {
	for _, name := range []string{"ISTIO_META_DNS_CAPTURE", "ISTIO_META_ENABLE_DNS_SERVER"} {
		if on, err := strconv.ParseBool(env.get(name)); err == nil && on {
			address := cmp.Or(env.get("DNS_PROXY_ADDR"), "localhost:15053")
			return fmt.Errorf("update.handover.reusePort: %s is %s, and the DNS server's address %s cannot be opened twice; choose a profile with update.handover.none", name, env.get(name), address)
		}
	}
	return nil
}
