package intent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/iptables"
)

// KeyDNSCapture says which DNS lookups go to the proxy: all, those to the resolvers in resolv.conf, or none (off). Without it,
// Istio's environment variable on the proxy chooses between all and none.
const KeyDNSCapture = "pod-network-controller.istio.io/dns-capture"

// Environment variables of the proxy's container that Istio's own rule set also uses.
const (
	envDNSCapture   = "ISTIO_META_DNS_CAPTURE"
	envDropInvalid  = "INVALID_DROP"
	envGroups       = "ISTIO_OUTBOUND_OWNER_GROUPS"
	envGroupsExcept = "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE"
	envLoopback     = "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"
	envProxyless    = "DISABLE_ENVOY"
	envDualStack    = "ISTIO_DUAL_STACK"
	envDNSAddr      = "DNS_PROXY_ADDR"
)

// proxyEnv reads the environment of the proxy's container.
func (r *reader) proxyEnv(pod *corev1.Pod, s *iptables.Spec) {
	proxy := findContainer(pod, ProxyContainer)
	if proxy == nil {
		r.note("%s", unread(pod))
		return
	}
	s.DropInvalid = boolEnv(proxy, envDropInvalid)
	r.from.env(proxy, envDropInvalid, settingDropInvalid)
	if boolEnv(proxy, envDNSCapture) {
		s.DNS = iptables.DNSAll
	}
	r.from.env(proxy, envDNSCapture, settingDNS)
	if _, said := r.annotation(KeyIPv6); !said && boolEnv(proxy, envDualStack) {
		s.DirectIPv6 = false // its proxy listens on IPv6
		r.from.env(proxy, envDualStack, settingIPv6)
	}
	env := func(name, setting, standard string, parse func(key, value string) error) {
		value, ok := lookupEnv(proxy, name)
		if !ok {
			return
		}
		key := "environment of container " + ProxyContainer + ", " + name
		if r.asIstio {
			if strings.Trim(value, blanks) != standard {
				r.note("%s, value %s: ignored, as by Istio's CNI plugin, since the pod is selected by its injection; annotate it with %s to have it honoured",
					key, shown(value), KeyInitialize)
			}
			return
		}
		r.from.env(proxy, name, setting)
		if err := parse(key, value); err != nil {
			r.errs = append(r.errs, err)
		}
	}
	env(envGroups, settingGroups, "*", func(key, value string) (err error) {
		if s.OwnerGroups.All = strings.Trim(value, blanks) == "*"; !s.OwnerGroups.All {
			s.OwnerGroups.List, err = groupList(key, value, wantOrAll+wantGroups)
		}
		return err
	})
	if s.OwnerGroups.All { // as in Istio, exclusions count only with all groups
		env(envGroupsExcept, settingGroupsExcept, "", func(key, value string) (err error) {
			s.OwnerGroups.Exclude, err = groupList(key, value, wantGroups)
			return err
		})
	}
	env(envLoopback, settingLoopback, loopbackCIDR, func(key, value string) (err error) {
		s.LoopbackCIDR, err = loopback(key, value)
		return err
	})
}

// unread returns a note about a proxy of another name that has settings of Istio's, or "": a controller that updates containers in place has two for
// one proxy, istio-proxy-1 and istio-proxy-2.
func unread(pod *corev1.Pod) string {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, name := range readEnv() {
				if _, set := lookupEnv(&list[i], name); set && strings.HasPrefix(list[i].Name, ProxyContainer) {
					return fmt.Sprintf("%s in the environment of container %s has no effect: the agent reads it of a container %s", name, shown(list[i].Name), ProxyContainer)
				}
			}
		}
	}
	return ""
}

// lookupEnv returns a variable of a container. Of several with the same name the last one counts.
func lookupEnv(c *corev1.Container, name string) (value string, ok bool) {
	for _, e := range c.Env {
		if e.Name == name {
			value, ok = e.Value, true
		}
	}
	return value, ok
}

const wantGroups = "numeric group ids separated by commas, at most 64"

func groupList(key, value, want string) ([]uint32, error) {
	out, err := items(key, value, want, maxGroups, func(item string) (uint32, error) {
		gid, err := strconv.ParseUint(item, 10, 32)
		if err != nil || gid > maxUser {
			return 0, errors.New("is no group id")
		}
		return uint32(gid), nil
	})
	slices.Sort(out)
	return slices.Compact(out), err
}

func loopback(key, value string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(strings.Trim(value, blanks))
	if err != nil || iptables.WrongLoopback(p) != "" {
		return netip.Prefix{}, &ValueError{Key: key, Value: value, Want: "a CIDR inside 127.0.0.0/8 with 127.0.0.1"}
	}
	return p, nil
}

// dnsCapture reads our annotation, which has precedence over Istio's variable, and the resolvers in the pod's manifest.
func (r *reader) dnsCapture(pod *corev1.Pod, c Config, s *iptables.Spec) {
	if said, ok := r.annotation(KeyDNSCapture); ok {
		s.DNS = take(r, settingDNS, said, dnsMode)
	}
	if s.DNS == iptables.DNSResolvConf {
		s.Resolvers = resolvers(pod, c.ClusterDNS)
		r.from.resolvers(pod, s.Resolvers)
	}
}

func dnsMode(key, value string) (iptables.DNSMode, error) {
	switch value {
	case "all":
		return iptables.DNSAll, nil
	case "resolv.conf":
		return iptables.DNSResolvConf, nil
	case "off":
		return iptables.DNSOff, nil
	}
	return iptables.DNSOff, &ValueError{Key: key, Value: value, Want: "all, resolv.conf or off"}
}

// rerouteDNS sends lookups of virtual machines to the proxy's resolver if it listens at all addresses. The kernel redirects them to the
// address of the interface by which they come: it drops a packet from outside for a loopback address (unless sysctl route_localnet is set).
func (r *reader) rerouteDNS(pod *corev1.Pod, s *iptables.Spec) {
	if s.DNS == iptables.DNSOff || len(s.RerouteInterfaces) == 0 {
		return
	}
	if proxy := findContainer(pod, ProxyContainer); proxy != nil {
		value, _ := lookupEnv(proxy, envDNSAddr)
		if value == ":15053" || value == "[::]:15053" {
			s.RerouteDNS = true
			r.from.env(proxy, envDNSAddr, settingRerouteDNS)
			return
		}
	}
	r.note("lookups of virtual machines go past the proxy's resolver: it listens on loopback only, unless %s in the environment of container %s is [::]:15053",
		envDNSAddr, ProxyContainer)
}

// resolvers returns the name servers that the kubelet will write into the pod's resolv.conf: all of them, or none where some are not known here.
func resolvers(pod *corev1.Pod, cluster []netip.Addr) []netip.Addr {
	var out []netip.Addr
	switch pod.Spec.DNSPolicy {
	case corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, "":
		if len(cluster) == 0 {
			return nil
		}
		out = append(out, cluster...)
	case corev1.DNSDefault: // the node's
		return nil
	case corev1.DNSNone:
	}
	if pod.Spec.DNSConfig != nil {
		out = append(out, Addrs(pod.Spec.DNSConfig.Nameservers)...)
	}
	return out
}

// Addrs returns the valid addresses of a list of name servers, without zones.
func Addrs(list []string) []netip.Addr {
	var out []netip.Addr
	for _, item := range list {
		if a, err := netip.ParseAddr(item); err == nil {
			out = append(out, a.Unmap().WithZone(""))
		}
	}
	return out
}
