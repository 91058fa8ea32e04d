package iptables

import (
	"cmp"
	"slices"
	"strconv"
)

// PortRange is the ports from First to Last, both included.
type PortRange struct {
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
}

// PortAlias leads connections to From on to To.
type PortAlias struct {
	From uint16 `json:"from"`
	To   uint16 `json:"to"`
}

// String returns the range as annotations have it: 8000-8999, or one port.
func (r PortRange) String() string { return r.text("-") }

func (r PortRange) text(to string) string {
	first := strconv.Itoa(int(r.First))
	if r.First == r.Last {
		return first
	}
	return first + to + strconv.Itoa(int(r.Last))
}

// Contains reports whether the port is in the range.
func (r PortRange) Contains(port uint16) bool { return r.First <= port && port <= r.Last }

// Compare orders ranges by their first port, and then by their last.
func (r PortRange) Compare(o PortRange) int {
	return cmp.Or(cmp.Compare(r.First, o.First), cmp.Compare(r.Last, o.Last))
}

// Ranges are ranges of ports, in addition to the lists of ports of a Spec.
type Ranges struct {
	IncludeInbound  []PortRange `json:"includeInbound,omitempty"`
	ExcludeInbound  []PortRange `json:"excludeInbound,omitempty"`
	IncludeOutbound []PortRange `json:"includeOutbound,omitempty"`
	ExcludeOutbound []PortRange `json:"excludeOutbound,omitempty"`
}

// single returns a range of each port.
func single(ports []uint16) []PortRange {
	out := make([]PortRange, len(ports))
	for i, p := range ports {
		out[i] = PortRange{p, p}
	}
	return out
}

// JoinPorts returns ports and ranges as ranges: sorted, without overlaps, and no two of them next to each other.
func JoinPorts(ports []uint16, ranges []PortRange) (out []PortRange) {
	all := slices.Concat(single(ports), ranges)
	slices.SortFunc(all, PortRange.Compare)
	for _, r := range all {
		if n := len(out); n > 0 && int(r.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// SubtractPorts returns the ports of joined ranges that except, also joined, does not contain.
func SubtractPorts(ranges, except []PortRange) (out []PortRange) {
	for _, r := range ranges {
		next := int(r.First)
		for _, e := range except {
			if e.Last < r.First || e.First > r.Last {
				continue
			}
			if int(e.First) > next {
				out = append(out, PortRange{uint16(next), e.First - 1})
			}
			next = int(e.Last) + 1
		}
		if next <= int(r.Last) {
			out = append(out, PortRange{uint16(next), r.Last})
		}
	}
	return out
}

// SplitPorts returns joined ranges as single ports, and ranges of several ports.
func SplitPorts(joined []PortRange) (ports []uint16, ranges []PortRange) {
	for _, r := range joined {
		if r.First == r.Last {
			ports = append(ports, r.First)
		} else {
			ranges = append(ranges, r)
		}
	}
	return ports, ranges
}

func containsPort(ports []uint16, ranges []PortRange, port uint16) bool {
	return slices.Contains(ports, port) || slices.ContainsFunc(ranges, func(r PortRange) bool { return r.Contains(port) })
}
