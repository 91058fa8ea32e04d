package intent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"istio-pod-network-controller/iptables"
)

// Our keys for what Istio's cannot say. The keys of ports take ranges, and add to the ports of Istio's keys.
const (
	KeyIncludeInboundPorts  = "pod-network-controller.istio.io/include-inbound-ports"
	KeyExcludeInboundPorts  = "pod-network-controller.istio.io/exclude-inbound-ports"
	KeyIncludeOutboundPorts = "pod-network-controller.istio.io/include-outbound-ports"
	KeyExcludeOutboundPorts = "pod-network-controller.istio.io/exclude-outbound-ports"
	KeyExcludeSources       = "pod-network-controller.istio.io/exclude-inbound-ip-ranges"
	KeyExcludeUsers         = "pod-network-controller.istio.io/exclude-outbound-uids"
)

const (
	maxUsers = 64        // users and ranges of users that a pod may exclude: each is a rule
	maxUser  = 1<<32 - 2 // the highest user, or group, that a process can be
)

const (
	wantRanges = "ports and ranges of ports such as 8000-8999, from 0 to 65535, separated by commas"
	wantUsers  = "numeric users such as 1000, ranges such as 1000-1999, and either with one port such as 1000:443, at most 64, separated by commas, or nothing"
)

// ownKeys reads the keys above.
func (r *reader) ownKeys(s *iptables.Spec) {
	r.foreignRules() // whose value is no part of the Spec: see AcceptsForeignRules
	r.egressNames()

	s.ExcludeSources = own(r, KeyExcludeSources, settingExcludeSources, ownCIDRs) // what Istio's plugin ignores is an error here
	s.ExcludeUsers = own(r, KeyExcludeUsers, settingExcludeUsers, users)
	excludeIn := own(r, KeyExcludeInboundPorts, settingExcludeInbound, portRanges)
	s.ExcludeInboundPorts, s.Ranges.ExcludeInbound = added(s.ExcludeInboundPorts, excludeIn)
	r.includedInbound(s)

	excludeOut := own(r, KeyExcludeOutboundPorts, settingExcludeOutbound, portRanges)
	if slices.ContainsFunc(excludeOut, func(p iptables.PortRange) bool { return p.Contains(iptables.IstioValidationPort) }) {
		r.errs = append(r.errs, validationExcluded(r.name(KeyExcludeOutboundPorts)))
	}
	s.ExcludeOutboundPorts, s.Ranges.ExcludeOutbound = added(s.ExcludeOutboundPorts, excludeOut)
	includeOut := own(r, KeyIncludeOutboundPorts, settingIncludeOutbound, portRanges)
	s.IncludeOutboundPorts, s.Ranges.IncludeOutbound = added(s.IncludeOutboundPorts, includeOut)
	r.contradiction(KeyIncludeOutboundPorts, includeOut, iptables.JoinPorts(s.ExcludeOutboundPorts, s.Ranges.ExcludeOutbound),
		r.name(KeyExcludeOutboundPorts), r.lookup(keyExcludeOutbound, settingExcludeOutbound).name)
}

// own parses an annotation that adds to the setting.
func own[T any](r *reader, key, setting string, parse func(key, value string) ([]T, error)) []T {
	f, set := r.annotation(key)
	if !set {
		return nil
	}
	out, err := parse(f.name, f.value)
	if err != nil {
		r.errs = append(r.errs, err)
	}
	r.from.add(setting, f.origin+f.key)
	return out
}

// name returns what messages call one of our annotations, whether or not the pod has it.
func (r *reader) name(key string) string {
	if f, set := r.annotation(key); set {
		return f.name
	}
	return key
}

// added returns the list with the single ports of a key, and the ranges of the key.
func added(list []uint16, items []iptables.PortRange) ([]uint16, []iptables.PortRange) {
	ports, ranges := iptables.SplitPorts(items)
	return append(list, ports...), iptables.JoinPorts(nil, ranges)
}

// includedInbound reads which inbound ports are included beside those of Istio's key, or instead of all. If the pod has one of our keys,
// excluded ports are excluded from a list, too.
func (r *reader) includedInbound(s *iptables.Spec) {
	f, includes := r.annotation(KeyIncludeInboundPorts)
	_, excludes := r.annotation(KeyExcludeInboundPorts)
	all := s.IncludeInboundPorts.All
	if includes {
		if all {
			delete(r.from, settingIncludeInbound)
		}
		items := own(r, KeyIncludeInboundPorts, settingIncludeInbound, portRanges)
		if strings.Trim(f.value, blanks) == "" {
			r.errs = append(r.errs, &ValueError{Key: f.name, Value: f.value, Want: wantRanges, Why: "it includes no port, which " + keyIncludeInbound + ` says by ""`})
		}
		r.contradiction(KeyIncludeInboundPorts, items, iptables.JoinPorts(s.ExcludeInboundPorts, s.Ranges.ExcludeInbound),
			r.name(KeyExcludeInboundPorts), r.lookup(keyExcludeInbound, settingExcludeInbound).name)
		s.IncludeInboundPorts.All = false
		s.IncludeInboundPorts.List, s.Ranges.IncludeInbound = added(s.IncludeInboundPorts.List, items)
	}
	if !includes && (!excludes || all) {
		return
	}
	in := &s.IncludeInboundPorts.List
	before := len(*in)
	except := iptables.JoinPorts(s.ExcludeInboundPorts, s.Ranges.ExcludeInbound)
	*in = slices.DeleteFunc(*in, func(p uint16) bool {
		return slices.ContainsFunc(except, func(e iptables.PortRange) bool { return e.Contains(p) })
	})
	*in, s.Ranges.IncludeInbound = added(*in, iptables.SubtractPorts(s.Ranges.IncludeInbound, except))
	if !includes && before > 0 && len(*in) == 0 {
		r.errs = append(r.errs, fmt.Errorf("%s excludes every port that %s includes: take one of them out",
			r.name(KeyExcludeInboundPorts), r.lookup(keyIncludeInbound, settingIncludeInbound).name))
	}
}

// contradiction adds an error for an included item all of whose ports are excluded, by our key or by Istio's.
func (r *reader) contradiction(key string, items, excluded []iptables.PortRange, excludes ...string) {
	f, _ := r.annotation(key)
	for _, item := range items {
		if len(iptables.SubtractPorts([]iptables.PortRange{item}, excluded)) == 0 {
			r.errs = append(r.errs, &ValueError{
				Key: f.name, Value: f.value, Want: "ports that are not excluded",
				Why: fmt.Sprintf("%s is excluded, by %s or because it is the proxy's", item, strings.Join(excludes, ", ")),
			})
			return
		}
	}
}

// portRanges parses a list of ports and ranges of ports.
func portRanges(key, value string) ([]iptables.PortRange, error) {
	return items(key, value, wantRanges, maxPorts, func(item string) (iptables.PortRange, error) {
		first, last, err := limits(item, 16)
		return iptables.PortRange{First: uint16(first), Last: uint16(last)}, err
	})
}

// limits parses a number or a range of numbers.
func limits(text string, bits int) (first, last uint64, err error) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	first, errFirst := strconv.ParseUint(from, 10, bits)
	last, errLast := strconv.ParseUint(to, 10, bits)
	switch {
	case errFirst != nil || errLast != nil:
		return 0, 0, fmt.Errorf("is neither a number of %d bits nor a range of two", bits)
	case first > last:
		return 0, 0, errors.New("ends before it begins")
	case last > maxUser:
		return 0, 0, fmt.Errorf("is beyond the last user, %d", maxUser)
	}
	return first, last, nil
}

// users parses a list of users and ranges of users.
func users(key, value string) ([]iptables.Users, error) {
	out, err := items(key, value, wantUsers, maxUsers, func(item string) (iptables.Users, error) {
		who, text, withPort := strings.Cut(item, ":")
		first, last, err := limits(who, 32)
		out := iptables.Users{First: uint32(first), Last: uint32(last)}
		if err != nil || !withPort {
			return out, err
		}
		if out.Port, err = onePort(key, text); err != nil {
			err = errors.New("has no port from 1 to 65535")
		}
		return out, err
	})
	return joinedUsers(out), err
}

// joinedUsers sorts users, and joins ranges that overlap or meet.
func joinedUsers(all []iptables.Users) (out []iptables.Users) {
	slices.SortFunc(all, func(a, b iptables.Users) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.First, b.First))
	})
	for _, u := range all {
		if n := len(out); n > 0 && out[n-1].Port == u.Port && uint64(u.First) <= uint64(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, u.Last)
		} else {
			out = append(out, u)
		}
	}
	return out
}
