package foreign

import (
	"encoding/binary"

	"istio-pod-network-controller/internal/rawnetlink"
)

// Options of targets and matches of iptables (linux/netfilter/xt_*.h), which iptables' nft flavour also uses.
const (
	connMarkSet     = 0
	connMarkSave    = 1
	connMarkRestore = 2
	ctUntracked     = 1     // XT_CT_NOTRACK
	socketMark      = 4     // XT_SOCKET_RESTORESKMARK
	noSet           = 65535 // IPSET_INVALID_ID
)

// u32 and u16 read a number of the kernel's structures; 0 behind their end.
func u32(b []byte, offset int) uint32 {
	if offset < 0 || len(b) < offset+4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b[offset:])
}

func u16(b []byte, offset int) uint16 {
	if offset < 0 || len(b) < offset+2 {
		return 0
	}
	return binary.NativeEndian.Uint16(b[offset:])
}

// target adds a target of iptables.
func (r *reading) target(name string, revision uint32, info []byte) {
	switch name {
	case "MARK":
		r.setMark(revision, info)
	case "CONNMARK":
		r.setConnMark(revision, info)
	case "CT":
		r.setConnection(info)
	case "SET":
		// Only revision 3 (Linux 3.19) can write what a set says: the mark, the priority or the queue.
		if revision >= 3 && (len(info) < 12 || u16(info, 8) != noSet) {
			r.do(setsMark)
		}
	default:
		e := targetEffects()[name]
		r.do(e)
		if e == 0 && !harmlessTarget(name) {
			r.puzzle("target " + name)
		}
	}
}

// setMark is MARK: the mark becomes mark & ^mask ^ value (xt_mark.c). Revision 2 is the only one since Linux 2.6.37.
func (r *reading) setMark(revision uint32, info []byte) {
	if revision != 2 || len(info) < 8 {
		r.mark(anyChange())
		return
	}
	r.mark(change{bits: u32(info, 0) | u32(info, 4), set: u32(info, 0)})
}

// setConnMark is CONNMARK (xt_connmark.c). Revision 2 (Linux 4.17) can shift what it copies, and has its mode behind that.
func (r *reading) setConnMark(revision uint32, info []byte) {
	mode, shifted := 12, uint8(0)
	if revision == 2 {
		mode = 14
	}
	if revision != 1 && revision != 2 || len(info) <= mode {
		r.mark(anyChange())
		r.connMark(anyChange())
		return
	}
	if revision == 2 {
		shifted = info[13]
	}
	ctMark, ctMask, mask := u32(info, 0), u32(info, 4), u32(info, 8)
	if shifted != 0 {
		ctMask, mask = ^uint32(0), ^uint32(0)
	}
	switch info[mode] {
	case connMarkSet:
		r.connMark(change{bits: ctMark | ctMask, set: ctMark})
	case connMarkSave:
		r.connMark(change{bits: ctMask | mask})
	case connMarkRestore:
		r.mark(change{bits: ctMask | mask})
	default:
		r.puzzle("target CONNMARK")
	}
}

// setConnection is CT. Whatever it sets, no later rule can set a zone (xt_ct_target returns where there is a template).
func (r *reading) setConnection(info []byte) {
	const helper, timeout, size = 12, 28, 60 // offsets, and the end of revision 1
	if len(info) < 2 || u16(info, 0)&ctUntracked != 0 {
		r.do(untracked)
		return
	}
	r.do(setsZone)
	if len(info) > helper && rawnetlink.Name(info[helper:]) != "" {
		r.do(setsHelper)
	}
	if len(info) >= size && rawnetlink.Name(info[timeout:size]) != "" {
		r.do(setsTimeout)
	}
}

// match adds a condition of iptables. A condition that is not read counts as passed. The match socket may write the packet's mark, as soon as it is asked.
func (r *reading) match(name string, revision uint32, info []byte) {
	r.conditional = true
	if name == "socket" && revision >= 3 && (len(info) == 0 || info[0]&socketMark != 0) {
		r.mark(anyChange())
	}
}
